//! Objects that the agent reads from the API server, and the events that it sends.
//!
//! | module | what it does |
//! |---|---|
//! | `gpu_node` | this node's GpuNode and the client for it |
//! | `gpu_node_watch` | watches this node's GpuNode |
//! | `release` | the request to release the node's GPUs |
//! | `events` | sends events of the Node |
//! | `node_allocatable` | reads allocatable resources of the Node |

pub mod events;
pub mod gpu_node;
pub mod gpu_node_watch;
pub mod node_allocatable;
pub mod release;
