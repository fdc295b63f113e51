//! Reads what the cluster says: nodes, policies, and which of them belong together.
//!
//! | module | what it does |
//! |---|---|
//! | `facts` | the fields of a `Node` that the planner needs |
//! | `node_fields` | the same fields as the API server sends them |
//! | `gpu_node_facts` | the part of a `GpuNode` that the planner needs |
//! | `resource_presence` | the state of an extended resource in a node's status |
//! | `mig_manager` | nodes on which NVIDIA's mig-manager changes MIG |
//! | `release` | labels that tell the agents of a node to release its GPUs |
//! | `deselection` | policies whose node selectors no longer match a node |
//! | `broken_devices` | broken devices that a `GpuNode` reports, and their holders |
//! | `context` | one node, its `GpuNode` and the current time |
//! | `agent_images` | the images that a policy may give its agents |
//! | `policies` | the policies, checked and ordered by priority |
//! | `selectors` | node selector and GPU selector of a policy |
//! | `visible_labels` | the labels of a node that selectors see |
//! | `matching` | the policies that match a node |
//! | `selection_grace` | the grace of a node whose labels no longer match |
//! | `inventory` | the GPUs that a `GpuNode` reports, as the allocation logic takes them |

pub mod agent_images;
pub mod broken_devices;
pub mod context;
pub mod deselection;
pub mod facts;
pub mod gpu_node_facts;
pub mod inventory;
pub mod matching;
pub mod mig_manager;
pub mod node_fields;
pub mod policies;
pub mod release;
pub mod resource_presence;
pub mod selection_grace;
pub mod selectors;
pub mod visible_labels;
