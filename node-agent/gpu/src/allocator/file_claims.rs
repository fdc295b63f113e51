//! Files that containers of companions have or may have. Each belongs to one companion at a time, so that no container gets a file
//! that a container of another companion still has.

use crate::{CompanionDevice, CompanionFile};
use std::collections::{BTreeMap, BTreeSet};

/// Files by path on the host, each with the id of its companion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileClaims {
    by_file: BTreeMap<String, String>,
    /// The claims on disk: no container gets a file before its claim outlives the agent.
    saved: BTreeMap<String, String>,
}

impl FileClaims {
    /// Returns the files that an earlier process saved.
    pub fn restore(by_file: BTreeMap<String, String>) -> Self {
        Self {
            saved: by_file.clone(),
            by_file,
        }
    }

    /// Returns the id of the companion of each file.
    pub fn by_file(&self) -> &BTreeMap<String, String> {
        &self.by_file
    }

    /// Notes the claims that are on disk.
    pub fn set_saved(&mut self, saved: &BTreeMap<String, String>) {
        self.saved.clone_from(saved);
    }

    /// Returns a companion with those of its files whose claims are on disk.
    pub fn safe_part(&self, device: &CompanionDevice) -> CompanionDevice {
        let is_saved = |file: &&CompanionFile| self.saved.get(&file.host_path) == Some(&device.id);
        CompanionDevice {
            files: device.files.iter().filter(is_saved).cloned().collect(),
            ..device.clone()
        }
    }

    /// Gives a companion those of its files that no other has.
    pub fn claim(&mut self, device: &CompanionDevice) {
        for file in device.host_paths() {
            self.by_file.entry(file.clone()).or_insert_with(|| device.id.clone());
        }
    }

    /// Returns a file of a companion that another has, with the id of that one.
    pub fn lacked<'a>(&'a self, device: &'a CompanionDevice) -> Option<(&'a str, &'a str)> {
        let owned = device
            .host_paths()
            .filter_map(|file| Some((file, self.by_file.get(file)?)));
        let mut others = owned.filter(|(_, owner)| **owner != device.id);
        others.next().map(|(file, owner)| (file.as_str(), owner.as_str()))
    }

    /// Returns the files of the companion with this id.
    pub fn of<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a str> {
        let files = self.by_file.iter().filter(move |(_, owner)| *owner == id);
        files.map(|(file, _)| file.as_str())
    }

    /// Takes the files that `keeps` does not name from a companion.
    pub fn release(&mut self, id: &str, keeps: &BTreeSet<&String>) {
        self.by_file.retain(|file, owner| owner != id || keeps.contains(file));
    }

    /// Returns the ids of all companions with files.
    pub fn owners(&self) -> BTreeSet<String> {
        self.by_file.values().cloned().collect()
    }
}
