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
//! | `relay` | makes an API server slow to answer |
//! | `scenarios` | one function for each thing that is measured |
//! | `figures` | figures with their targets |
//! | `index_figures` | figures of the operator's index alone |
//! | `scale_document` | the tables of `docs/scale.md` |
//! | `machine` | machine and date of the measurements |
//! | `progress` | lines that say how far a wait is |

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the scenarios take minutes and say how far they are")]

mod api;
mod audit;
mod figures;
mod fleet;
mod index_figures;
mod machine;
mod objects;
mod operator_process;
mod probes;
mod progress;
mod raw;
mod relay;
mod scale_document;
mod scenarios;
mod simulated_agents;

pub use figures::{FLEET_FIGURES, FleetFigure};
pub use fleet::{Fleet, OperatorPair};
pub use index_figures::{index_table, read_index_figures};
pub use probes::{number, quantile};
pub use scale_document::{ScaleRow, figure_table, filled, growth_table, scale_table};
pub use scenarios::{
    ClientLimit, ConfigurationChange, ExpiredWatches, Failover, Idle, LabelChange, ManyPolicies, Refusals,
    SilentAgents, SlowApiServer, client_limit, configuration_change, expired_watches, failover, idle, label_change,
    many_policies, refusals, scale_row, silent_agents, slow_api_server,
};
