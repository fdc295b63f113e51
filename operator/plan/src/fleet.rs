//! Adds up the nodes of one policy: its rollout and its status.
//!
//! | module | what it does |
//! |---|---|
//! | `rollout` | the nodes that may change next, and where a rollout stops |
//! | `tally` | counts, failures and previews over all nodes |
//! | `policy_status` | the status of a policy |

pub mod policy_status;
pub mod rollout;
pub mod tally;
