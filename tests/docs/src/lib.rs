//! Documentation: generated pages, the sources of the site, and the links of all Markdown files.
//!
//! | module | what it does |
//! |---|---|
//! | `api` | the reference of the API, from the CRDs |
//! | `command_line` | the references of the command lines, from `--help` of the programs |
//! | `link_check` | links without a target, and pages that the table of contents does not reach |
//! | `markdown` | links and anchors of a Markdown file |
//! | `metric_page` | metrics as `/metrics` exposes them and as their reference documents them |
//! | `metrics` | the reference of the metrics, from the code that registers them |
//! | `pictures` | pictures of a terminal, from the output of `kubectl gpunode` |
//! | `references` | all generated files |
//! | `site` | the sources of the site: `docs/`, and what its links need from the rest of the repository |

mod api;
mod command_line;
mod link_check;
mod markdown;
mod metric_page;
mod metrics;
mod pictures;
mod references;
mod site;

pub use link_check::{broken_links, markdown_files, unlisted_pages};
pub use metric_page::{documented_metrics, exposed_metrics};
pub use references::references;
pub use site::stage;

use std::path::PathBuf;

/// Returns the root of the repository.
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
