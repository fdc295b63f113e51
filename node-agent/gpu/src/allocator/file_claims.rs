//! Files that containers of companions have or may have. Each belongs to one companion at a time, so that no container gets a file
//! that a container of another companion still has.

use crate::CompanionDevice;
use std::collections::{BTreeMap, BTreeSet};

/// Files by path on the host, each with the id of its companion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileClaims(BTreeMap<String, String>);

impl FileClaims {
    /// Returns the files that an earlier process saved.
    pub fn restore(by_file: BTreeMap<String, String>) -> Self {
        Self(by_file)
    }

    /// Returns the id of the companion of each file.
    pub fn by_file(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Gives a companion those of its files that no other has.
    pub fn claim(&mut self, device: &CompanionDevice) {
        for file in device.host_paths() {
            self.0.entry(file.clone()).or_insert_with(|| device.id.clone());
        }
    }

    /// Returns a file of a companion that another has, with the id of that one.
    pub fn lacked<'a>(&'a self, device: &'a CompanionDevice) -> Option<(&'a str, &'a str)> {
        let owned = device.host_paths().filter_map(|file| Some((file, self.0.get(file)?)));
        let mut others = owned.filter(|(_, owner)| **owner != device.id);
        others.next().map(|(file, owner)| (file.as_str(), owner.as_str()))
    }

    /// Returns the files of the companion with this id.
    pub fn of<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a str> {
        let files = self.0.iter().filter(move |(_, owner)| *owner == id);
        files.map(|(file, _)| file.as_str())
    }

    /// Takes the files that `keeps` does not name from a companion.
    pub fn release(&mut self, id: &str, keeps: &BTreeSet<&String>) {
        self.0.retain(|file, owner| owner != id || keeps.contains(file));
    }

    /// Returns the ids of all companions with files.
    pub fn owners(&self) -> BTreeSet<String> {
        self.0.values().cloned().collect()
    }
}
