//! Files that containers of companions have or may have. Each belongs to one companion at a time, so that no container gets a file
//! that a container of another companion still has.

use crate::{CompanionDevice, CompanionFile};
use std::collections::{BTreeMap, BTreeSet};

/// Most files of one companion, with those that it has no longer and that containers may still have.
const MAX_CLAIMS: usize = 1024;

/// Files by path on the host, each with the id of its companion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileClaims {
    by_file: BTreeMap<String, String>,
    /// The same by companion.
    by_owner: BTreeMap<String, BTreeSet<String>>,
    /// The claims on disk: no container gets a file before its claim outlives the agent.
    saved: BTreeMap<String, String>,
    /// Companions that an earlier process assigned and whose claims are lost: their containers may have any file.
    lost: BTreeSet<String>,
}

impl FileClaims {
    /// Returns the files that an earlier process saved, of the companions with these ids.
    pub fn restore<'a>(by_file: BTreeMap<String, String>, ids: impl Iterator<Item = &'a String>) -> Self {
        let mut claims = Self {
            saved: by_file.clone(),
            ..Self::default()
        };
        for (file, owner) in by_file {
            claims.insert(file, owner);
        }
        claims.lost = ids.filter(|id| !claims.by_owner.contains_key(*id)).cloned().collect();
        claims
    }

    fn insert(&mut self, file: String, owner: String) {
        self.by_owner.entry(owner.clone()).or_default().insert(file.clone());
        self.by_file.insert(file, owner);
    }

    /// Returns true if containers of the companion with this id may have files that nobody knows.
    pub fn are_unknown(&self, id: &str) -> bool {
        self.lost.contains(id) || !self.by_owner.contains_key(id)
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

    /// Gives a companion those of its files that no other has. One with too many files gets no further ones until it loses some.
    pub fn claim(&mut self, device: &CompanionDevice) {
        let room = MAX_CLAIMS.saturating_sub(self.of(&device.id).count());
        for file in device.host_paths().take(room) {
            if !self.by_file.contains_key(file) {
                self.insert(file.clone(), device.id.clone());
            }
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
    pub fn of(&self, id: &str) -> impl Iterator<Item = &str> {
        self.by_owner.get(id).into_iter().flatten().map(String::as_str)
    }

    /// Takes the files that `keeps` does not name from a companion.
    pub fn release(&mut self, id: &str, keeps: &BTreeSet<&String>) {
        self.lost.remove(id);
        let Some(files) = self.by_owner.get_mut(id) else { return };
        for file in files.extract_if(.., |file| !keeps.contains(file)) {
            self.by_file.remove(&file);
        }
        if files.is_empty() {
            self.by_owner.remove(id);
        }
    }

    /// Returns true if the claims of a companion other than this are lost.
    pub fn has_lost_beside(&self, id: &str) -> bool {
        self.lost.iter().any(|lost| lost != id)
    }

    /// Returns the ids of all companions with files, also unknown ones.
    pub fn owners(&self) -> BTreeSet<String> {
        self.by_owner.keys().chain(&self.lost).cloned().collect()
    }
}
