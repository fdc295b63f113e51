//! The devices of the node: who holds which, and what the kubelet may give out.
//!
//! | module | what it does |
//! |---|---|
//! | `manager` | gives devices out, behind one lock |
//! | `state` | what the agent knows of the devices, pure |
//! | `offer` | what the kubelet is offered under one resource name |
//! | `allocation` | what a container gets with its devices |

pub mod allocation;
pub mod manager;
pub mod offer;
pub mod state;
