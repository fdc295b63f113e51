//! Objects of one kind, by name: the newest version that the watch or a write of this process brought.

use gpunode_crds::GpuNodePolicy;
use gpunode_plan::{GpuNodeFacts, NodeFacts};
use k8s_openapi::api::apps::v1::DaemonSet;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// News from a watch. A list comes in parts: `ListStarted`, any number of `ListPage` and `ListKept`, `ListCompleted`.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchUpdate<T> {
    /// A list begins, or begins again: what the one before has named no longer counts.
    ListStarted,
    /// Some of the objects of a list.
    ListPage(Vec<T>),
    /// Name of an object of a list that exists and cannot be read: its cached version stays.
    ListKept(String),
    /// The list is whole: objects that it did not name do not exist at its resourceVersion; `None` if nothing tells it.
    ListCompleted(Option<String>),
    /// An object that is new or changed.
    Applied(Box<T>),
    /// An object that was deleted.
    Deleted(DeletedObject),
}

impl<T> WatchUpdate<T> {
    /// An object that is new or changed.
    pub fn applied(object: T) -> Self {
        Self::Applied(Box::new(object))
    }

    /// A whole list of one page, of an unknown version.
    #[cfg(test)]
    pub fn list(objects: Vec<T>) -> [Self; 3] {
        [Self::ListStarted, Self::ListPage(objects), Self::ListCompleted(None)]
    }
}

/// An object that was deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct DeletedObject {
    pub name: String,
    /// The resourceVersion of the deletion.
    pub version: String,
}

/// The kind of a write that returned an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    Create,
    Update,
}

/// An object that a cache can hold.
pub trait Versioned {
    fn name(&self) -> &str;
    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;
}

/// Objects of one kind.
#[derive(Debug)]
pub struct ObjectCache<T> {
    objects: HashMap<String, Arc<T>>,
    has_synced: bool,
    /// The greatest resourceVersion that the watch brought.
    watched: Option<u64>,
    /// The list that is coming in.
    list: Option<IncomingList>,
}

/// A list of which pages are missing.
#[derive(Debug, Default)]
struct IncomingList {
    /// Objects that are cached and that it has not named yet.
    unnamed: HashSet<String>,
    /// Objects that writes returned since it began; the list may be older. Only their versions are compared with its
    /// own: those of before may be of a time before a restore of etcd.
    written: HashSet<String>,
    /// The greatest resourceVersion of its objects and deletions.
    newest: Option<u64>,
}

impl<T> Default for ObjectCache<T> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            has_synced: false,
            watched: None,
            list: None,
        }
    }
}

/// The change of one object: `None` before it existed and after it was deleted.
pub struct ObjectDelta<T> {
    pub name: String,
    pub before: Option<Arc<T>>,
    pub after: Option<Arc<T>>,
}

impl<T: Versioned> ObjectCache<T> {
    /// Applies news from the watch and returns what changed.
    pub fn apply_watch(&mut self, update: WatchUpdate<T>) -> Vec<ObjectDelta<T>> {
        match update {
            WatchUpdate::Applied(object) => {
                self.watched = self.watched.max(number(&*object));
                self.set_newer(*object).into_iter().collect()
            }
            WatchUpdate::Deleted(deleted) => {
                let version: Option<u64> = deleted.version.parse().ok();
                self.watched = self.watched.max(version);
                if let Some(list) = &mut self.list {
                    list.newest = list.newest.max(version);
                }
                // A write may have brought a later object of the name already.
                if version.is_some() && self.known_version(&deleted.name) > version {
                    return Vec::new();
                }
                self.remove(&deleted.name).into_iter().collect()
            }
            WatchUpdate::ListStarted => {
                let unnamed = self.objects.keys().cloned().collect();
                self.list = Some(IncomingList {
                    unnamed,
                    ..IncomingList::default()
                });
                Vec::new()
            }
            WatchUpdate::ListPage(objects) => {
                let deltas = objects.into_iter().filter_map(|object| self.set_listed(object));
                deltas.collect()
            }
            WatchUpdate::ListKept(name) => {
                if let Some(list) = &mut self.list {
                    list.unnamed.remove(&name);
                }
                Vec::new()
            }
            WatchUpdate::ListCompleted(version) => {
                self.has_synced = true;
                let version: Option<u64> = version.and_then(|version| version.parse().ok());
                let IncomingList {
                    mut unnamed,
                    written,
                    newest,
                } = self.list.take().unwrap_or_default();
                self.watched = version.or(newest);
                // What a write made after the list was taken stays; what is as old as the list was deleted before it.
                let is_later = |name: &String| version.is_none() || self.known_version(name) > version;
                unnamed.retain(|name| !written.contains(name) || !is_later(name));
                unnamed.iter().filter_map(|name| self.remove(name)).collect()
            }
        }
    }

    /// Applies a whole list.
    #[cfg(test)]
    pub fn apply_list(&mut self, objects: Vec<T>) -> Vec<ObjectDelta<T>> {
        let updates = WatchUpdate::list(objects).into_iter();
        updates.flat_map(|update| self.apply_watch(update)).collect()
    }

    /// Sets an object of a list. A list wins over every cached version, but for those that were written since it began:
    /// versions start again after a restore of etcd.
    fn set_listed(&mut self, object: T) -> Option<ObjectDelta<T>> {
        let mut is_written = false;
        if let Some(list) = &mut self.list {
            list.unnamed.remove(object.name());
            list.newest = list.newest.max(number(&object));
            is_written = list.written.contains(object.name());
        }
        if is_written {
            self.set_newer(object)
        } else {
            self.set(object)
        }
    }

    /// Applies an object that a write returned. The response may be late and must not revive a deleted object: an
    /// updated object that is missing here was deleted meanwhile, and so may a created one that the watch has passed.
    pub fn apply_write(&mut self, object: T, kind: WriteKind) -> Option<ObjectDelta<T>> {
        let is_outdated = match kind {
            WriteKind::Create => self.watched >= number(&object),
            WriteKind::Update => self.get(object.name()).is_none(),
        };
        if is_outdated {
            return None;
        }
        if let Some(list) = &mut self.list {
            let name = object.name().to_owned();
            // One that is cached is unnamed already, or was named.
            if !self.objects.contains_key(&name) {
                list.unnamed.insert(name.clone());
            }
            list.written.insert(name);
        }
        self.set_newer(object)
    }

    /// Applies the deletion of an object of this version by a write.
    pub fn apply_delete(&mut self, name: &str, version: &str) -> Option<ObjectDelta<T>> {
        if self.get(name)?.version() == version {
            self.remove(name)
        } else {
            None
        }
    }

    /// Returns the object of a name.
    pub fn get(&self, name: &str) -> Option<&Arc<T>> {
        self.objects.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.objects.values()
    }

    pub fn names(&self) -> Vec<String> {
        self.objects.keys().cloned().collect()
    }

    /// Number of objects.
    pub fn size(&self) -> usize {
        self.objects.len()
    }

    /// True once the first list is in.
    pub fn has_synced(&self) -> bool {
        self.has_synced
    }

    /// Returns the version of the cached object of a name.
    fn known_version(&self, name: &str) -> Option<u64> {
        self.get(name).and_then(|known| number(known.as_ref()))
    }

    /// Keeps the newer version: the watch may lag behind the response to a write.
    fn set_newer(&mut self, object: T) -> Option<ObjectDelta<T>> {
        let is_newer = self
            .get(object.name())
            .is_none_or(|known| number(known.as_ref()) < number(&object));
        if is_newer { self.set(object) } else { None }
    }

    fn set(&mut self, object: T) -> Option<ObjectDelta<T>> {
        let name = object.name().to_owned();
        let before = self.objects.get(&name).cloned();
        if before
            .as_ref()
            .is_some_and(|before| before.version() == object.version())
        {
            return None;
        }
        let after = Arc::new(object);
        self.objects.insert(name.clone(), after.clone());
        Some(ObjectDelta {
            name,
            before,
            after: Some(after),
        })
    }

    /// Removes the object of a name, whatever its version.
    pub fn remove(&mut self, name: &str) -> Option<ObjectDelta<T>> {
        let before = self.objects.remove(name)?;
        Some(ObjectDelta {
            name: name.to_owned(),
            before: Some(before),
            after: None,
        })
    }
}

/// Returns the resourceVersion as a number; within one kind it grows.
fn number<T: Versioned>(object: &T) -> Option<u64> {
    object.version().parse().ok()
}

impl Versioned for NodeFacts {
    fn name(&self) -> &str {
        &self.name
    }
    fn version(&self) -> &str {
        &self.resource_version
    }
}

impl Versioned for GpuNodeFacts {
    fn name(&self) -> &str {
        &self.name
    }
    fn version(&self) -> &str {
        &self.resource_version
    }
}

macro_rules! cached_by_metadata {
    ($($kind:ty),*) => {$(
        impl Versioned for $kind {
            fn name(&self) -> &str {
                self.metadata.name.as_deref().unwrap_or_default()
            }
            fn version(&self) -> &str {
                self.metadata.resource_version.as_deref().unwrap_or_default()
            }
        }
    )*};
}
cached_by_metadata!(GpuNodePolicy, DaemonSet);

#[cfg(test)]
mod tests {
    use super::*;

    impl Versioned for (&str, &str) {
        fn name(&self) -> &str {
            self.0
        }
        fn version(&self) -> &str {
            self.1
        }
    }

    fn deleted<T>(name: &str, version: &str) -> WatchUpdate<T> {
        WatchUpdate::Deleted(DeletedObject {
            name: name.to_owned(),
            version: version.to_owned(),
        })
    }

    fn names<T>(deltas: &[ObjectDelta<T>]) -> Vec<(&str, bool, bool)> {
        let mut names: Vec<_> = deltas
            .iter()
            .map(|it| (it.name.as_str(), it.before.is_some(), it.after.is_some()))
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn list_removes_the_objects_it_does_not_name() {
        let mut cache = ObjectCache::default();
        assert!(!cache.has_synced());
        assert_eq!(
            names(&cache.apply_list(vec![("a", "1"), ("b", "2")])),
            [("a", false, true), ("b", false, true)]
        );
        let deltas = cache.apply_list(vec![("b", "2"), ("c", "10")]);
        assert_eq!(names(&deltas), [("a", true, false), ("c", false, true)]);
        assert!(cache.has_synced());
    }

    #[test]
    fn page_is_seen_at_once_and_nothing_vanishes_before_the_list_is_whole() {
        let mut cache = ObjectCache::default();
        cache.apply_list(vec![("a", "1"), ("b", "2"), ("c", "3")]);
        assert!(cache.apply_watch(WatchUpdate::ListStarted).is_empty());
        let deltas = cache.apply_watch(WatchUpdate::ListPage(vec![("b", "4"), ("d", "5")]));
        assert_eq!(names(&deltas), [("b", true, true), ("d", false, true)]);
        // The list begins again, and this time it does not name `b`.
        assert!(cache.apply_watch(WatchUpdate::ListStarted).is_empty());
        assert!(cache.apply_watch(WatchUpdate::ListPage(vec![("d", "5")])).is_empty());
        assert!(cache.apply_watch(WatchUpdate::ListKept("c".to_owned())).is_empty());
        let deltas = cache.apply_watch(WatchUpdate::ListCompleted(None));
        assert_eq!(names(&deltas), [("a", true, false), ("b", true, false)]);
        assert!(cache.get("c").is_some(), "it exists, although it cannot be read");
    }

    #[test]
    fn first_list_counts_only_when_it_is_whole() {
        let mut cache = ObjectCache::default();
        cache.apply_watch(WatchUpdate::ListStarted);
        cache.apply_watch(WatchUpdate::ListPage(vec![("a", "1")]));
        assert!(!cache.has_synced());
        cache.apply_watch(WatchUpdate::ListCompleted(None));
        assert!(cache.has_synced() && cache.get("a").is_some());
    }

    #[test]
    fn what_was_written_during_a_list_outlives_it() {
        // The list may also have missed `a`, which came again after it.
        for page in [vec![("a", "6")], vec![]] {
            for version in [None, Some("6".to_owned())] {
                let mut cache = ObjectCache::default();
                cache.apply_list(vec![("a", "5")]);
                cache.apply_watch(WatchUpdate::ListStarted);
                assert!(cache.apply_write(("a", "7"), WriteKind::Update).is_some());
                assert!(cache.apply_write(("b", "8"), WriteKind::Create).is_some());
                assert!(cache.apply_watch(WatchUpdate::ListPage(page.clone())).is_empty());
                assert!(cache.apply_watch(WatchUpdate::ListCompleted(version)).is_empty());
                assert!(cache.get("a").is_some_and(|a| a.1 == "7"));
                assert!(cache.get("b").is_some_and(|b| b.1 == "8"));
            }
        }
    }

    #[test]
    fn what_was_written_before_a_list_and_is_not_in_it_was_deleted() {
        let mut cache = ObjectCache::default();
        cache.apply_list(vec![("a", "5"), ("b", "5")]);
        cache.apply_watch(WatchUpdate::ListStarted);
        cache.apply_watch(WatchUpdate::ListPage(vec![("b", "9")]));
        // These responses come late.
        assert!(cache.apply_write(("a", "7"), WriteKind::Update).is_some());
        assert!(cache.apply_write(("b", "9"), WriteKind::Update).is_none());
        assert!(cache.apply_write(("c", "8"), WriteKind::Create).is_some());
        let deltas = cache.apply_watch(WatchUpdate::ListCompleted(Some("10".to_owned())));
        assert_eq!(names(&deltas), [("a", true, false), ("c", true, false)]);
        assert!(
            cache.apply_write(("d", "10"), WriteKind::Create).is_none(),
            "the list would name it"
        );
        assert!(cache.apply_write(("d", "11"), WriteKind::Create).is_some());
    }

    #[test]
    fn older_version_changes_nothing() {
        let mut cache = ObjectCache::default();
        cache.apply_watch(WatchUpdate::applied(("a", "10")));
        assert!(cache.apply_watch(WatchUpdate::applied(("a", "9"))).is_empty());
        assert!(cache.apply_watch(WatchUpdate::applied(("a", "10"))).is_empty());
        assert_eq!(cache.apply_watch(WatchUpdate::applied(("a", "11"))).len(), 1);
    }

    #[test]
    fn list_wins_even_when_versions_start_again() {
        let mut cache = ObjectCache::default();
        cache.apply_watch(WatchUpdate::applied(("a", "10")));
        cache.apply_watch(WatchUpdate::applied(("b", "11")));
        cache.apply_watch(WatchUpdate::ListStarted);
        let deltas = cache.apply_watch(WatchUpdate::ListPage(vec![("a", "3")]));
        assert_eq!(names(&deltas), [("a", true, true)]);
        let deltas = cache.apply_watch(WatchUpdate::ListCompleted(Some("3".to_owned())));
        assert_eq!(names(&deltas), [("b", true, false)]);
        assert_eq!(cache.apply_watch(WatchUpdate::applied(("a", "4"))).len(), 1);
    }

    #[test]
    fn late_deletion_leaves_the_object_that_followed() {
        let mut cache = ObjectCache::default();
        cache.apply_watch(WatchUpdate::applied(("a", "9")));
        assert!(cache.apply_write(("a", "13"), WriteKind::Update).is_some());
        assert!(cache.apply_watch(deleted("a", "10")).is_empty());
        assert!(cache.apply_watch(WatchUpdate::applied(("a", "12"))).is_empty());
        assert!(cache.get("a").is_some_and(|a| a.1 == "13"));
        assert_eq!(names(&cache.apply_watch(deleted("a", "14"))), [("a", true, false)]);

        // The deletion comes first.
        let mut cache = ObjectCache::default();
        cache.apply_watch(WatchUpdate::applied(("a", "9")));
        assert_eq!(names(&cache.apply_watch(deleted("a", "10"))), [("a", true, false)]);
        assert!(cache.apply_write(("a", "12"), WriteKind::Create).is_some());
        assert!(cache.apply_write(("a", "13"), WriteKind::Update).is_some());
        assert!(cache.get("a").is_some_and(|a| a.1 == "13"));
        // Nothing tells when.
        assert_eq!(names(&cache.apply_watch(deleted("a", ""))), [("a", true, false)]);
    }

    #[test]
    fn response_to_a_write_revives_no_deleted_object() {
        let mut cache = ObjectCache::default();
        assert!(
            cache.apply_write(("a", "1"), WriteKind::Create).is_some(),
            "the watch has not brought it yet"
        );
        cache.apply_watch(WatchUpdate::applied(("a", "1")));
        assert!(cache.apply_write(("a", "2"), WriteKind::Update).is_some());
        cache.apply_watch(deleted("a", "3"));
        assert!(cache.apply_write(("a", "1"), WriteKind::Create).is_none());
        assert!(cache.apply_write(("a", "2"), WriteKind::Update).is_none());
        assert!(cache.apply_write(("a", "4"), WriteKind::Create).is_some());
        // A list does not tell the version of a deletion.
        cache.apply_list(vec![("b", "1")]);
        assert!(cache.apply_write(("a", "5"), WriteKind::Update).is_none());
    }
}
