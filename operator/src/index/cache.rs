//! Objects of one kind as the watch last told, by name.

use gpunode_crds::{GpuNode, GpuNodePolicy};
use gpunode_plan::NodeFacts;
use k8s_openapi::api::apps::v1::DaemonSet;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// What a watch says.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<T> {
    /// These are all objects.
    All(Vec<T>),
    /// This one is new or changed.
    Set(T),
    /// This one is gone.
    Gone(Gone),
}

/// An object that was removed.
#[derive(Clone, Debug, PartialEq)]
pub struct Gone {
    /// Its name.
    pub name: String,
    /// The resourceVersion of its removal.
    pub version: String,
}

impl Gone {
    /// This object, as it was last.
    pub fn of(object: &impl Cached) -> Self {
        Self {
            name: object.name().to_owned(),
            version: object.version().to_owned(),
        }
    }
}

/// A write that returned an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The object is new.
    Create,
    /// It was there before.
    Change,
}

/// An object that a cache can hold.
pub trait Cached {
    /// Its name.
    fn name(&self) -> &str;
    /// Its resourceVersion.
    fn version(&self) -> &str;
}

/// The objects.
#[derive(Debug)]
pub struct Cache<T> {
    objects: HashMap<String, Arc<T>>,
    is_warm: bool,
    /// How far the watch has come.
    watched: Option<u64>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            is_warm: false,
            watched: None,
        }
    }
}

/// An object that changed: what it was before and what it is now.
pub struct Changed<T> {
    pub name: String,
    pub before: Option<Arc<T>>,
    pub after: Option<Arc<T>>,
}

impl<T: Cached> Cache<T> {
    /// Takes in what a watch says and returns what is different.
    pub fn take(&mut self, change: Change<T>) -> Vec<Changed<T>> {
        match change {
            Change::Set(object) => {
                self.watched = self.watched.max(number(&object));
                self.set_newer(object).into_iter().collect()
            }
            Change::Gone(gone) => {
                self.watched = self.watched.max(gone.version.parse().ok());
                self.remove(&gone.name).into_iter().collect()
            }
            // A list is right whatever was known: versions start again where the store of the cluster was restored.
            Change::All(objects) => {
                self.is_warm = true;
                self.watched = objects.iter().filter_map(number).max();
                let listed: HashSet<_> = objects.iter().map(|object| object.name().to_owned()).collect();
                let gone: Vec<_> = self
                    .objects
                    .keys()
                    .filter(|name| !listed.contains(*name))
                    .cloned()
                    .collect();
                let mut changed: Vec<_> = gone.iter().filter_map(|name| self.remove(name)).collect();
                changed.extend(objects.into_iter().filter_map(|object| self.set(object)));
                changed
            }
        }
    }

    /// Takes in what a write returned. The answer may come late: a changed object that is not here any more was removed
    /// meanwhile, and so may a created one where the watch has come as far.
    pub fn update(&mut self, object: T, write: Write) -> Option<Changed<T>> {
        let is_over = match write {
            Write::Create => self.watched >= number(&object),
            Write::Change => self.get(object.name()).is_none(),
        };
        if is_over { None } else { self.set_newer(object) }
    }

    /// Takes in that a write removed an object of this version.
    pub fn forget(&mut self, name: &str, version: &str) -> Option<Changed<T>> {
        if self.get(name)?.version() == version {
            self.remove(name)
        } else {
            None
        }
    }

    /// The object of a name.
    pub fn get(&self, name: &str) -> Option<&Arc<T>> {
        self.objects.get(name)
    }

    /// Every object.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.objects.values()
    }

    /// Every name.
    pub fn names(&self) -> Vec<String> {
        self.objects.keys().cloned().collect()
    }

    /// Whether the first list has come in.
    pub fn is_warm(&self) -> bool {
        self.is_warm
    }

    /// The watch may lag behind what a write of ours returned.
    fn set_newer(&mut self, object: T) -> Option<Changed<T>> {
        let is_newer = self
            .get(object.name())
            .is_none_or(|known| number(known.as_ref()) < number(&object));
        if is_newer { self.set(object) } else { None }
    }

    fn set(&mut self, object: T) -> Option<Changed<T>> {
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
        Some(Changed {
            name,
            before,
            after: Some(after),
        })
    }

    fn remove(&mut self, name: &str) -> Option<Changed<T>> {
        let before = self.objects.remove(name)?;
        Some(Changed {
            name: name.to_owned(),
            before: Some(before),
            after: None,
        })
    }
}

/// Versions of one kind are numbers that grow.
fn number<T: Cached>(object: &T) -> Option<u64> {
    object.version().parse().ok()
}

impl Cached for NodeFacts {
    fn name(&self) -> &str {
        &self.name
    }
    fn version(&self) -> &str {
        &self.resource_version
    }
}

macro_rules! cached_by_metadata {
    ($($kind:ty),*) => {$(
        impl Cached for $kind {
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

    impl Cached for (&str, &str) {
        fn name(&self) -> &str {
            self.0
        }
        fn version(&self) -> &str {
            self.1
        }
    }

    fn names<T>(changed: &[Changed<T>]) -> Vec<(&str, bool, bool)> {
        let mut names: Vec<_> = changed
            .iter()
            .map(|it| (it.name.as_str(), it.before.is_some(), it.after.is_some()))
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn list_removes_what_it_does_not_name() {
        let mut cache = Cache::default();
        assert!(!cache.is_warm());
        assert_eq!(
            names(&cache.take(Change::All(vec![("a", "1"), ("b", "2")]))),
            [("a", false, true), ("b", false, true)]
        );
        let changed = cache.take(Change::All(vec![("b", "2"), ("c", "10")]));
        assert_eq!(names(&changed), [("a", true, false), ("c", false, true)]);
        assert!(cache.is_warm());
    }

    #[test]
    fn late_news_are_no_news() {
        let mut cache = Cache::default();
        cache.take(Change::Set(("a", "10")));
        assert!(cache.take(Change::Set(("a", "9"))).is_empty());
        assert!(cache.take(Change::Set(("a", "10"))).is_empty());
        assert_eq!(cache.take(Change::Set(("a", "11"))).len(), 1);
    }

    #[test]
    fn list_is_right_even_where_versions_start_again() {
        let mut cache = Cache::default();
        cache.take(Change::Set(("a", "10")));
        assert_eq!(cache.take(Change::All(vec![("a", "3")])).len(), 1);
        assert_eq!(cache.take(Change::Set(("a", "4"))).len(), 1);
    }

    #[test]
    fn what_a_write_returned_revives_nothing() {
        let mut cache = Cache::default();
        assert!(
            cache.update(("a", "1"), Write::Create).is_some(),
            "the watch does not know it yet"
        );
        cache.take(Change::Set(("a", "1")));
        assert!(cache.update(("a", "2"), Write::Change).is_some());
        cache.take(Change::Gone(Gone::of(&("a", "3"))));
        assert!(cache.update(("a", "1"), Write::Create).is_none());
        assert!(cache.update(("a", "2"), Write::Change).is_none());
        assert!(cache.update(("a", "4"), Write::Create).is_some());
        // A list says of no removal how far it went.
        cache.take(Change::All(vec![("b", "1")]));
        assert!(cache.update(("a", "5"), Write::Change).is_none());
    }
}
