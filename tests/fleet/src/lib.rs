//! A fleet of simulated nodes on a real API server, with real operator processes: scenarios for tests and for
//! `make bench-fleet`.
//!
//! | module | what it does |
//! |---|---|
//! | `objects` | Nodes and `GpuNode`s of real size |
//! | `api` | requests to the API server as JSON |
//! | `fleet` | nodes, policies, operators, and waiting for them |
//! | `simulated_agents` | plays agents and kubelets |
//! | `operator_process` | operator processes, their processor time and memory |
//! | `probes` | probes of `/livez` |
//! | `audit` | the operator's requests in the audit log |
//! | `raw` | the same requests by a bare client |
//! | `scenarios` | one function for each thing that is measured |
//! | `figures` | figures with their targets |
//! | `scale_document` | the tables of `docs/scale.md` |

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the scenarios take minutes and say how far they are")]

mod api;
mod audit;
mod figures;
mod fleet;
mod objects;
mod operator_process;
mod probes;
mod raw;
mod scale_document;
mod scenarios;
mod simulated_agents;

pub use figures::{FLEET_FIGURES, FleetFigure};
pub use fleet::{Fleet, OperatorPair};
pub use probes::{number, quantile};
pub use scale_document::{ScaleRow, figure_table, filled, scale_table};
pub use scenarios::{
    ConfigurationChange, ExpiredWatches, Failover, Idle, LabelChange, ManyPolicies, Refusals, configuration_change,
    expired_watches, failover, idle, label_change, many_policies, refusals, scale_row,
};
