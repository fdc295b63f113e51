//! The device plugins of the node: one server and one registration per resource.
//!
//! | module | what it does |
//! |---|---|
//! | `resources` | starts and stops one state machine per resource |
//! | `registration` | keeps one resource registered with the kubelet |
//! | `server` | serves the device plugin API for one resource |
//! | `directory` | watches the kubelet's folder of sockets |
//! | `socket` | names the sockets, removes stale ones |
//! | `other_sockets` | watches the sockets of other plugins |

pub mod directory;
pub mod other_sockets;
pub mod registration;
pub mod resources;
pub mod server;
pub mod socket;
