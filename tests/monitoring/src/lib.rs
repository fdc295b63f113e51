//! Checks of `manifests/monitoring` by series that were recorded on the local cluster, and by Prometheus' own promtool.
//!
//! | module | what it does |
//! |---|---|
//! | `scrape` | the metrics of one scrape |
//! | `recording` | scrapes over time, in promtool's notation |
//! | `manifest` | rules and dashboards, and the metrics that their queries name |
//! | `promtool` | builds and runs promtool |

mod manifest;
mod promtool;
mod recording;
mod scrape;

pub use manifest::{Dashboard, Panel, Rule, dashboards, metric_names, rules, rules_file};
pub use promtool::promtool;
pub use recording::{RecordedPod, Recording, Series, Value, compact};
pub use scrape::{MetricFamily, Scrape};

use std::path::Path;

/// The folder of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
