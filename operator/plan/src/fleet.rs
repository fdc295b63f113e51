//! Adds up the nodes of one policy: its rollout and its status.
//!
//! | module | what it does |
//! |---|---|
//! | `rollout` | the nodes that may change next, and what stops a rollout |
//! | `tally` | counts, failures and previews over all nodes |
//! | `policy_removal` | the pace at which nodes lose what policies wrote that are gone |
//! | `policy_status` | the status of a policy |
//! | `messages` | messages in the status of a policy |

pub mod messages;
pub mod policy_removal;
pub mod policy_status;
pub mod rollout;
pub mod tally;
