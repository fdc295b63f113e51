//! gpunode on the local cluster, with real kubelets: what a sceptical user would try.
//!
//! The tests share one cluster (`make cluster-up NAME=e2e`) and take turns on it.

mod admission;
mod bad_input;
mod conflict;
mod container_runtime;
mod contention;
mod dra;
mod evicted;
mod eviction;
mod faults;
mod from_gpu_operator;
mod from_gpushare_and_gpu_manager;
mod from_mig_manager;
mod from_nvidia_plugin;
mod gitops;
mod health;
mod inside_containers;
mod kills;
mod labels;
mod leadership;
mod memory;
mod mig;
mod mig_drain;
mod mig_layout;
mod mps;
mod newer_policy;
mod people;
mod pods;
mod policies_together;
mod policy;
mod policy_hand_over;
mod published_samples;
mod quiet;
mod quotas;
mod rejected;
mod release;
mod removal;
mod rollout;
mod samples;
mod sharing;
mod startup_taint;
mod staying_up;
mod switching;
mod topology;
mod unhealthy_taint;
