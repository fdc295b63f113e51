//! What the agent reads from the API server and tells it.
//!
//! | module | what it does |
//! |---|---|
//! | `gpu_node` | watches this node's GpuNode |
//! | `release` | whether the GPUs of the node are released |
//! | `events` | publishes Events on the Node |
//! | `node_allocatable` | reads what the Node shows as allocatable |

pub mod events;
pub mod gpu_node;
pub mod node_allocatable;
pub mod release;
