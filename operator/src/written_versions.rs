//! Versions of objects that responses to writes have brought already. A leader that writes a fleet gets each object twice,
//! and reading one costs more than the rest of its watch event.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

/// Versions that are remembered. An event comes milliseconds after the response, and few writes are under way at a time.
const REMEMBERED: usize = 64;

/// The latest versions of objects that the index has from responses to writes.
#[derive(Clone, Debug, Default)]
pub struct WrittenVersions(Arc<Mutex<VecDeque<WrittenVersion>>>);

/// A version of an object. Other kinds may be stored elsewhere, with versions of their own.
#[derive(Debug, PartialEq, Eq)]
struct WrittenVersion {
    /// Plural name of the kind.
    kind: String,
    name: String,
    version: String,
}

impl WrittenVersions {
    /// Remembers an object that has been handed to the index.
    pub fn add(&self, kind: &str, name: &str, version: &str) {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if written.len() >= REMEMBERED {
            written.pop_front();
        }
        written.push_back(WrittenVersion {
            kind: kind.to_owned(),
            name: name.to_owned(),
            version: version.to_owned(),
        });
    }

    /// Returns true, once, if the index has this version of an object.
    pub fn take(&self, kind: &str, name: &str, version: &str) -> bool {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |it: &WrittenVersion| it.version == version && it.name == name && it.kind == kind;
        let Some(position) = written.iter().position(is_it) else {
            return false;
        };
        written.remove(position);
        true
    }

    /// Forgets all objects of a kind: the index is about to take versions of a list that may be older.
    pub fn forget(&self, kind: &str) {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        written.retain(|it| it.kind != kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_a_write_is_known_once_and_under_its_own_name_alone() {
        let written = WrittenVersions::default();
        written.add("nodes", "a", "7");
        for (kind, name, version) in [("gpunodes", "a", "7"), ("nodes", "b", "7"), ("nodes", "a", "8")] {
            assert!(!written.take(kind, name, version), "{kind} {name} {version}");
        }
        assert!(written.take("nodes", "a", "7"));
        assert!(!written.take("nodes", "a", "7"));
    }

    #[test]
    fn versions_without_an_event_are_forgotten() {
        let written = WrittenVersions::default();
        (0..1000).for_each(|version| written.add("nodes", "a", &version.to_string()));
        assert!(!written.take("nodes", "a", "900"));
        assert!(written.take("nodes", "a", "999"));
        assert!(written.0.lock().unwrap().len() < REMEMBERED);
    }
}
