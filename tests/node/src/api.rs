//! The kubelet's APIs: device plugins v1beta1 from the agent's proto file, PodResources v1 from one of our own; and the container
//! runtime's from the agent's proto file.

#![allow(missing_docs, clippy::pedantic, reason = "generated")]

tonic::include_proto!("v1beta1");

/// Container Runtime Interface v1.
pub mod cri {
    tonic::include_proto!("runtime.v1");
}

/// PodResources v1.
pub mod pod_resources {
    tonic::include_proto!("v1");
}
