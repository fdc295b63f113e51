//! Objects of one kind, by name: the newest version that the watch or a write of this process brought.

use gpunode_crds::{GpuNode, GpuNodePolicy};
use gpunode_plan::NodeFacts;
use k8s_openapi::api::apps::v1::DaemonSet;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// News from a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchUpdate<T> {
    /// A complete list: objects that it does not name do not exist.
    Listed(Vec<T>),
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
}

impl<T> Default for ObjectCache<T> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            has_synced: false,
            watched: None,
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
                self.watched = self.watched.max(deleted.version.parse().ok());
                self.remove(&deleted.name).into_iter().collect()
            }
            // A list wins over every cached version: versions start again after a restore of etcd.
            WatchUpdate::Listed(objects) => {
                self.has_synced = true;
                self.watched = objects.iter().filter_map(number).max();
                let listed: HashSet<_> = objects.iter().map(|object| object.name().to_owned()).collect();
                let deleted: Vec<_> = self
                    .objects
                    .keys()
                    .filter(|name| !listed.contains(*name))
                    .cloned()
                    .collect();
                let mut deltas: Vec<_> = deleted.iter().filter_map(|name| self.remove(name)).collect();
                deltas.extend(objects.into_iter().filter_map(|object| self.set(object)));
                deltas
            }
        }
    }

    /// Applies an object that a write returned. The response may be late and must not revive a deleted object: an updated
    /// object that is missing here was deleted meanwhile, and so may a created one that the watch has passed.
    pub fn apply_write(&mut self, object: T, kind: WriteKind) -> Option<ObjectDelta<T>> {
        let is_outdated = match kind {
            WriteKind::Create => self.watched >= number(&object),
            WriteKind::Update => self.get(object.name()).is_none(),
        };
        if is_outdated { None } else { self.set_newer(object) }
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

    /// True once the first list is in.
    pub fn has_synced(&self) -> bool {
        self.has_synced
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

    fn remove(&mut self, name: &str) -> Option<ObjectDelta<T>> {
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
cached_by_metadata!(GpuNode, GpuNodePolicy, DaemonSet);

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
            names(&cache.apply_watch(WatchUpdate::Listed(vec![("a", "1"), ("b", "2")]))),
            [("a", false, true), ("b", false, true)]
        );
        let deltas = cache.apply_watch(WatchUpdate::Listed(vec![("b", "2"), ("c", "10")]));
        assert_eq!(names(&deltas), [("a", true, false), ("c", false, true)]);
        assert!(cache.has_synced());
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
        assert_eq!(cache.apply_watch(WatchUpdate::Listed(vec![("a", "3")])).len(), 1);
        assert_eq!(cache.apply_watch(WatchUpdate::applied(("a", "4"))).len(), 1);
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
        cache.apply_watch(WatchUpdate::Deleted(DeletedObject {
            name: "a".to_owned(),
            version: "3".to_owned(),
        }));
        assert!(cache.apply_write(("a", "1"), WriteKind::Create).is_none());
        assert!(cache.apply_write(("a", "2"), WriteKind::Update).is_none());
        assert!(cache.apply_write(("a", "4"), WriteKind::Create).is_some());
        // A list does not tell the version of a deletion.
        cache.apply_watch(WatchUpdate::Listed(vec![("b", "1")]));
        assert!(cache.apply_write(("a", "5"), WriteKind::Update).is_none());
    }
}
