//! Decisions of the planner, on nodes to which its patches are applied.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod daemonsets;
mod departing;
mod deselected;
mod drains;
mod explanations;
mod fact_labels;
mod governed;
mod gpu_nodes;
mod hand_over;
mod mig_approvals;
mod mps;
mod nodes;
mod paced_taints;
mod paused;
mod properties;
mod requests;
mod rollouts;
mod stale_resources;
mod startup;
mod statuses;
mod stops;
mod take_over;
mod unhealthy;
mod unknown_facts;
mod unreadable_policies;
mod world;
