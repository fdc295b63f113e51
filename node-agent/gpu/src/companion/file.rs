//! Files that the globs of a configuration match.

use std::collections::{BTreeMap, BTreeSet};

/// A file of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CompanionFile {
    /// Path by which a glob matches it, which is its path in containers.
    pub path: String,
    /// Path on the host without links: two files with the same are one.
    pub host_path: String,
    /// Indices of the globs that match it.
    pub globs: BTreeSet<usize>,
    /// True for a character or block device.
    pub is_device: bool,
    /// PCI slot of a device, such as `0000:03:00`; none if sysfs shows none.
    pub pci_slot: Option<String>,
    /// NUMA node of a device; none if sysfs shows none.
    pub numa_node: Option<u32>,
}

/// Files of one companion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchedFiles {
    /// Files, ordered by path.
    pub files: Vec<CompanionFile>,
    /// Files and folders that are refused, each with the reason.
    pub refused: Vec<String>,
}

/// Files of all companions of a node at one moment, by resource.
pub type CompanionFiles = BTreeMap<String, MatchedFiles>;
