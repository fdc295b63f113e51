//! The kubelet's device plugin API v1beta1, generated from `proto/v1beta1/api.proto`.

#![allow(missing_docs, clippy::pedantic, reason = "generated")]

tonic::include_proto!("v1beta1");

/// Version that a plugin names when it registers.
pub const VERSION: &str = "v1beta1";
/// Health of an allocatable device; the kubelet takes any other value as unhealthy.
pub const HEALTHY: &str = "Healthy";
/// Health of a device that the kubelet must not allocate.
pub const UNHEALTHY: &str = "Unhealthy";
