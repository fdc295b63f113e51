//! State files of the agent, which outlive it.
//!
//! | module | what it does |
//! |---|---|
//! | `atomic_file` | replaces a file as a whole, sets a damaged one aside |
//! | `file_id` | detects that a file was replaced |
//! | `saved_file` | writes a file only when its content changes |
//! | `assignments` | keeps the assignments of the devices |

pub mod assignments;
pub mod atomic_file;
pub mod file_id;
pub mod saved_file;
