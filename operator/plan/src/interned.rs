//! Values that many nodes have alike, kept once: the nodes of a fleet come from few machine types and follow few
//! policies.
//!
//! Sharing changes no result, since a shared value equals the one that went in. A pool forgets what nobody else holds
//! as it grows, so that it keeps at most twice the values in use, and a few.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    sync::{Arc, Mutex, PoisonError},
};

/// Number of values below which a pool does not look for unused ones.
const LEAST_SWEEP: usize = 256;

/// Shared values by fingerprint.
pub struct InternPool<T: ?Sized> {
    values: BTreeMap<u64, Arc<T>>,
    /// Number of values at which unused ones go.
    sweep_at: usize,
}

impl<T: ?Sized> InternPool<T> {
    /// Creates an empty pool.
    pub const fn new() -> Self {
        Self {
            values: BTreeMap::new(),
            sweep_at: LEAST_SWEEP,
        }
    }

    /// Returns the shared value with this fingerprint. A value that only has the fingerprint of another is not shared.
    fn share<V>(&mut self, fingerprint: u64, value: V, is_same: impl FnOnce(&V, &T) -> bool) -> Arc<T>
    where
        Arc<T>: From<V>,
    {
        if let Some(known) = self.values.get(&fingerprint) {
            return if is_same(&value, known) {
                Arc::clone(known)
            } else {
                Arc::from(value)
            };
        }
        if self.values.len() >= self.sweep_at {
            self.values.retain(|_, value| Arc::strong_count(value) > 1);
            self.sweep_at = LEAST_SWEEP.max(2 * self.values.len());
        }
        let value: Arc<T> = Arc::from(value);
        self.values.insert(fingerprint, Arc::clone(&value));
        value
    }
}

/// A value that is kept once for all who have it.
pub trait Interned: PartialEq + Sized + 'static {
    /// Returns the shared values of this type.
    fn pool() -> &'static Mutex<InternPool<Self>>;

    /// Feeds the value to a hasher. Equal values feed alike.
    fn feed(&self, hasher: &mut DefaultHasher);

    /// Returns the shared value that equals this one.
    fn interned(self) -> Arc<Self> {
        let mut hasher = DefaultHasher::new();
        self.feed(&mut hasher);
        let mut pool = Self::pool().lock().unwrap_or_else(PoisonError::into_inner);
        pool.share(hasher.finish(), self, |value, known| value == known)
    }
}

/// Returns the shared text that equals this one.
pub fn interned_text(text: &str) -> Arc<str> {
    static POOL: Mutex<InternPool<str>> = Mutex::new(InternPool::new());
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    pool.share(hasher.finish(), text, |text, known| *text == known)
}

/// Feeds a value of the API, which has no hash of its own, as the document that it is.
pub fn feed_document<T: serde::Serialize>(value: &T, hasher: &mut DefaultHasher) {
    // A hasher takes everything, and equality decides in the end.
    _ = serde_json::to_writer(HashWriter(hasher), value);
}

/// A hasher that takes what is written.
struct HashWriter<'a>(&'a mut DefaultHasher);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_kept_once() {
        let [one, same, other] = ["a", "a", "b"].map(|text| interned_text(&format!("kept-once-{text}")));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
    }

    #[test]
    fn values_that_nobody_holds_go_as_others_come() {
        let mut pool = InternPool::<str>::new();
        let mut share = |number: u64| pool.share(number, number.to_string().as_str(), |text, known| *text == known);
        let held = share(0);
        for number in 1..10_000 {
            drop(share(number));
        }
        assert!(Arc::ptr_eq(&held, &share(0)), "what is held stays shared");
        assert!(pool.values.len() <= LEAST_SWEEP, "{}", pool.values.len());
    }

    #[test]
    fn two_values_with_one_fingerprint_stay_two() {
        let mut pool = InternPool::<str>::new();
        let shared = ["a", "b"].map(|text| pool.share(7, text, |text, known| *text == known));
        assert_eq!(shared.each_ref().map(|text| &**text), ["a", "b"]);
    }
}
