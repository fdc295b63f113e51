//! The annotation `gpunode.dev/owned`: exactly what gpunode wrote on a node, with the values written, so that it can take
//! exactly that back.
//!
//! | module | what it does |
//! |---|---|
//! | `node_record` | reads and writes the annotation |
//! | `entries` | owned, restored and conceded keys of one kind: labels or taints |
//! | `unknown_fields` | fields of a later version, which survive a write |
//! | `resource_use` | extended resources that gpunode served on the node |

pub mod entries;
pub mod node_record;
pub mod resource_use;
pub mod unknown_fields;
