//! The kubelet's PodResources API v1, generated from `proto/podresources/v1/api.proto`.

#![allow(missing_docs, clippy::pedantic, reason = "generated")]

tonic::include_proto!("v1");
