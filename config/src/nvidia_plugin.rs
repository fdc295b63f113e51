//! Configuration of NVIDIA's device plugin: its file, and the flags and environment of its pod, as a configuration of gpunode.
//!
//! The meaning is that of version 0.20 (`api/config/v1` and `cmd/nvidia-device-plugin`): flags beat the environment, and both
//! beat the file. Defaults that differ from gpunode's are written out. What that version ignores, and what has no counterpart
//! here, becomes a remark: nothing is dropped silently.
//!
//! | module | what it does |
//! |---|---|
//! | `options` | the options of the plugin: flag, variable, key of the file |
//! | `settings` | the options that are set, and where |
//! | `pod` | options from the flags and the environment of the plugin's container |
//! | `file` | options, resources and sharing from the file |
//! | `devices` | devices of a shared resource, as the file names them |
//! | `meaning` | options as a configuration |
//! | `paths` | paths of the nodes as flags |
//! | `report` | problems and remarks of one import |
//! | `resources` | resources and sharing as a configuration |
//! | `xids` | the plugin's rules for XIDs |

mod devices;
mod file;
mod meaning;
mod options;
mod paths;
mod pod;
mod report;
mod resources;
mod settings;
#[cfg(test)]
mod tests;
mod xids;

use crate::{AgentConfig, FieldProblem, MAX_DOCUMENT_BYTES, known_fields, yaml_value};
use file::PluginFile;
pub use paths::{PluginPaths, PluginPathsError};
pub use pod::PluginContainer;
pub use report::ImportRemark;
use report::Report;
pub use resources::DiscardedParts;
use serde_yaml::Value;
use settings::PluginSettings;

/// Keys at the top of the plugin's file that a configuration of gpunode does not have.
const OWN_KEYS: [&str; 4] = ["version", "flags", "sharing", "imex"];

/// A configuration of the plugin as one of gpunode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvidiaPluginImport {
    /// The configuration.
    pub config: AgentConfig,
    /// Paths of the nodes.
    pub paths: PluginPaths,
    /// Settings that are left out or differ.
    pub remarks: Vec<ImportRemark>,
}

/// Reason for which a configuration of the plugin is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NvidiaPluginError {
    /// The text is longer than [`MAX_DOCUMENT_BYTES`].
    #[error("the file has {0} bytes, more than the limit of {MAX_DOCUMENT_BYTES}; remove entries")]
    TooLong(usize),
    /// The text is not YAML.
    #[error("the file is not YAML: {0}")]
    Malformed(String),
    /// Settings that the plugin would refuse, or that cannot be kept.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<FieldProblem>),
}

impl NvidiaPluginError {
    /// Returns each problem with its path.
    pub fn problems(&self) -> Vec<FieldProblem> {
        match self {
            Self::Refused(problems) => problems.clone(),
            other => vec![FieldProblem::new("", other.to_string())],
        }
    }
}

/// Returns true if a text is a file of NVIDIA's plugin and no configuration of gpunode.
pub fn is_nvidia_plugin_file(text: &str) -> bool {
    if text.len() > MAX_DOCUMENT_BYTES {
        return false;
    }
    let Ok(Value::Mapping(document)) = yaml_value(text) else {
        return false;
    };
    let is_own = |key: &str, value: &Value| {
        // `resources` is a mapping there, and a list here.
        OWN_KEYS.iter().any(|own| own.eq_ignore_ascii_case(key))
            || (key.eq_ignore_ascii_case("resources") && value.is_mapping())
    };
    // Without a value it may be of either.
    let is_open = |key: &str, value: &Value| key.eq_ignore_ascii_case("resources") && value.is_null();
    let is_foreign =
        |key: &str, value: &Value| known_fields().contains(key) && !is_own(key, value) && !is_open(key, value);
    let fields = document.iter().filter_map(|(key, value)| Some((key.as_str()?, value)));
    let fields: Vec<(&str, &Value)> = fields.collect();
    // A document with fields of both is one of gpunode, whose stray fields are refused by name.
    fields.iter().any(|(key, value)| is_own(key, value)) && !fields.iter().any(|(key, value)| is_foreign(key, value))
}

/// Returns what the plugin does with a file and the flags and environment of its container, as a configuration of gpunode.
///
/// # Errors
/// When the plugin would refuse them, or a setting cannot be kept.
pub fn nvidia_plugin_config(
    text: &str,
    container: &PluginContainer,
    discarded: DiscardedParts,
) -> Result<NvidiaPluginImport, NvidiaPluginError> {
    if text.len() > MAX_DOCUMENT_BYTES {
        return Err(NvidiaPluginError::TooLong(text.len()));
    }
    let document: Value = yaml_value(text).map_err(|error| NvidiaPluginError::Malformed(error.to_string()))?;
    let mut report = Report::default();
    let mut settings = PluginSettings::default();
    let file = PluginFile::read(&document, &mut settings, &mut report);
    container.read(&mut settings, &mut report);
    let (config, paths) = meaning::config(&settings, &file, container, discarded, &mut report);
    if report.problems.is_empty() {
        report.problems = config.validate();
    }
    if !report.problems.is_empty() {
        return Err(NvidiaPluginError::Refused(report.problems));
    }
    Ok(NvidiaPluginImport {
        config,
        paths,
        remarks: report.remarks,
    })
}
