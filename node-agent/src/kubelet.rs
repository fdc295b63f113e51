//! The kubelet's two gRPC APIs and its checkpoint.
//!
//! | module | what it does |
//! |---|---|
//! | `podresources` | reads which pod holds which device |
//! | `checkpoint` | reads the holders that PodResources leaves out |
//! | `device_plugin_api` | generated: the device plugin API v1beta1 |
//! | `pod_resources_api` | generated: the PodResources API v1 |

pub mod checkpoint;
pub mod device_plugin_api;
pub mod pod_resources_api;
pub mod podresources;
