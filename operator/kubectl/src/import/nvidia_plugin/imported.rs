//! A configuration of the plugin as one of gpunode.

use super::configurations::ConfiguredNodes;
use gpunode_config::NvidiaPluginImport;

/// A configuration of the plugin as one of gpunode.
#[derive(Debug)]
pub struct ImportedConfiguration {
    /// Name in the ConfigMap; none for a file.
    pub name: Option<String>,
    pub nodes: ConfiguredNodes,
    pub imported: NvidiaPluginImport,
}
