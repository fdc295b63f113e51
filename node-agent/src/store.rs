//! Files that outlive the agent.
//!
//! | module | what it does |
//! |---|---|
//! | `atomic_file` | replaces a file as a whole, sets a damaged one aside |
//! | `file_id` | tells whether a path still leads to the same file |
//! | `assignments` | keeps what each shared device stands for |

pub mod assignments;
pub mod atomic_file;
pub mod file_id;
