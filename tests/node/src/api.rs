//! The kubelet's device plugin API v1beta1, generated from the agent's proto file.

#![allow(missing_docs, clippy::pedantic, reason = "generated")]

tonic::include_proto!("v1beta1");
