//! Word from writes to watches: versions of objects that responses have brought already, and kinds whose versions began
//! again. A leader that writes a fleet gets each object twice, and reading one costs more than the rest of its watch
//! event.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Versions that are remembered. An event comes milliseconds after the response, and few writes are under way at a time.
const REMEMBERED: usize = 64;

/// The latest versions of objects that the index has from responses to writes.
#[derive(Clone, Debug, Default)]
pub struct WrittenVersions(Arc<Mutex<WriteNews>>);

#[derive(Debug, Default)]
struct WriteNews {
    written: VecDeque<WrittenVersion>,
    /// Plural names of the kinds whose watches ask here.
    watched: BTreeSet<String>,
    /// Plural names of kinds to list again.
    to_list: BTreeSet<String>,
}

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
        let mut news = self.lock();
        let written = &mut news.written;
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
        let mut news = self.lock();
        let written = &mut news.written;
        let is_it = |it: &WrittenVersion| it.version == version && it.name == name && it.kind == kind;
        let Some(position) = written.iter().position(is_it) else {
            return false;
        };
        written.remove(position);
        true
    }

    /// Records that the watch of a kind asks here.
    pub fn watch(&self, kind: &str) {
        self.lock().watched.insert(kind.to_owned());
    }

    /// Compares the version that a read brought after a lost race with the one that the write was planned for. An older
    /// one tells that versions began again, as after a restore of etcd: the caches would keep what they have, so that
    /// every kind is listed again.
    pub fn compare(&self, kind: &str, read: &str, planned: &str) {
        if is_older(read, planned) {
            tracing::warn!(%kind, "the API server has an older version than the cache; listing all kinds again");
            let news = &mut *self.lock();
            news.to_list.clone_from(&news.watched);
        }
    }

    /// Returns true if a kind has to be listed again.
    pub fn wants_list(&self, kind: &str) -> bool {
        self.lock().to_list.contains(kind)
    }

    /// Forgets all about a kind: the index is about to take versions of a list, which may be older than what was
    /// written.
    pub fn forget(&self, kind: &str) {
        let mut news = self.lock();
        news.written.retain(|it| it.kind != kind);
        news.to_list.remove(kind);
    }

    fn lock(&self) -> MutexGuard<'_, WriteNews> {
        // No code that could panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares resourceVersions, which grow but for a restore of etcd.
fn is_older(version: &str, than: &str) -> bool {
    let number = |version: &str| version.parse::<u64>().ok();
    number(version)
        .zip(number(than))
        .is_some_and(|(version, than)| version < than)
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
        assert!(written.lock().written.len() < REMEMBERED);
    }

    #[test]
    fn older_version_asks_for_lists_of_all_watched_kinds_until_each_begins() {
        let written = WrittenVersions::default();
        for kind in ["nodes", "gpunodepolicies"] {
            written.watch(kind);
        }
        written.compare("nodes", "1100", "1000");
        assert!(!written.wants_list("nodes"));
        written.compare("nodes", "900", "1000");
        assert!(written.wants_list("nodes") && written.wants_list("gpunodepolicies"));
        assert!(!written.wants_list("daemonsets"), "nobody watches them");
        written.forget("nodes");
        assert!(!written.wants_list("nodes") && written.wants_list("gpunodepolicies"));
    }
}
