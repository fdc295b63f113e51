//! The Helm chart of gpunode: its generated files, and Helm and kustomize for tests.
//!
//! | module | what it does |
//! |---|---|
//! | `generated` | the generated files of the chart |
//! | `manifest_template` | turns a manifest into a template of the chart |
//! | `chart_value` | reads the values with their comments |
//! | `value_schema` | writes the JSON schema of the values |
//! | `value_tables` | writes the tables of the README |
//! | `rendered` | objects as Helm and kustomize render them |

mod chart_value;
mod generated;
mod manifest_template;
mod rendered;
mod value_schema;
mod value_tables;

pub use generated::{GeneratedFile, generated_files};
pub use rendered::{ObjectSet, differences, helm, kustomize, objects, template};

use std::path::{Path, PathBuf};

/// Returns the folder of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the folder of the chart.
pub fn chart() -> PathBuf {
    repository().join("manifests/helm/gpunode")
}
