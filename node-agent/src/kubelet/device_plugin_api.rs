//! The kubelet's device plugin API v1beta1, generated from `proto/v1beta1/api.proto`.

#![allow(missing_docs, clippy::pedantic, reason = "generated")]

tonic::include_proto!("v1beta1");

/// Version that a plugin names when it registers.
pub const VERSION: &str = "v1beta1";
/// What the kubelet counts as allocatable; anything else is unhealthy.
pub const HEALTHY: &str = "Healthy";
/// What it may not give out.
pub const UNHEALTHY: &str = "Unhealthy";
