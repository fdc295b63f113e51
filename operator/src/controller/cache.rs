//! Objects of one kind as the watch last told, by name.

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
    /// The one of this name is gone.
    Gone(String),
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
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { objects: HashMap::new(), is_warm: false }
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
            Change::Set(object) => self.set(object).into_iter().collect(),
            Change::Gone(name) => self.remove(&name).into_iter().collect(),
            Change::All(objects) => {
                self.is_warm = true;
                let listed: HashSet<_> = objects.iter().map(|object| object.name().to_owned()).collect();
                let gone: Vec<_> = self.objects.keys().filter(|name| !listed.contains(*name)).cloned().collect();
                let mut changed: Vec<_> = gone.iter().filter_map(|name| self.remove(name)).collect();
                changed.extend(objects.into_iter().filter_map(|object| self.set(object)));
                changed
            }
        }
    }

    /// Takes in what a write returned, unless the object is gone meanwhile.
    pub fn update(&mut self, object: T) -> Option<Changed<T>> {
        if self.objects.contains_key(object.name()) { self.set(object) } else { None }
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

    fn set(&mut self, object: T) -> Option<Changed<T>> {
        let name = object.name().to_owned();
        let before = self.objects.get(&name).cloned();
        // The watch may lag behind what a write of ours returned.
        if before.as_ref().is_some_and(|before| !is_newer(object.version(), before.version())) {
            return None;
        }
        let after = Arc::new(object);
        self.objects.insert(name.clone(), after.clone());
        Some(Changed { name, before, after: Some(after) })
    }

    fn remove(&mut self, name: &str) -> Option<Changed<T>> {
        let before = self.objects.remove(name)?;
        Some(Changed { name: name.to_owned(), before: Some(before), after: None })
    }
}

/// Versions of one kind are numbers that grow; where they are not, any difference counts.
fn is_newer(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version > than,
        _ => version != than,
    }
}

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
        let mut names: Vec<_> =
            changed.iter().map(|it| (it.name.as_str(), it.before.is_some(), it.after.is_some())).collect();
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
    fn what_a_write_returned_revives_nothing() {
        let mut cache = Cache::default();
        cache.take(Change::Set(("a", "1")));
        cache.take(Change::Gone("a".to_owned()));
        assert!(cache.update(("a", "2")).is_none());
    }
}
