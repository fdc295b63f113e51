//! The Container Runtime Interface v1, generated from `proto/cri/v1/api.proto`.

#![allow(missing_docs, clippy::pedantic, reason = "generated")]

tonic::include_proto!("runtime.v1");
