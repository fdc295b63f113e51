//! The labels of a node that selectors see.

use crate::{packed_map::PackedMap, record::entries::RecordEntries};
use gpunode_crds::{COMPANION_COUNT_PREFIX, GOVERNED_LABEL, MPS_LABEL, POLICY_LABEL_PREFIX, PRODUCT_COUNT_PREFIX};

/// Labels of a node as they would be without gpunode, so that no policy selects or deselects by its own effect.
#[derive(Clone, Copy, Debug)]
pub struct VisibleLabels<'a> {
    all: &'a PackedMap,
    recorded: &'a RecordEntries<String>,
}

impl<'a> VisibleLabels<'a> {
    /// Hides the keys in the record from `all`.
    pub fn new(all: &'a PackedMap, recorded: &'a RecordEntries<String>) -> Self {
        Self { all, recorded }
    }

    /// Returns the value of a visible label.
    pub fn get(self, key: &String) -> Option<&'a str> {
        if is_own_label(key) {
            return None;
        }
        if self.recorded.hides(key) {
            self.recorded.before.get(key).map(String::as_str)
        } else {
            self.all.get(key)
        }
    }

    /// Returns true if the label exists and is hidden.
    pub fn is_hidden(self, key: &String) -> bool {
        self.all.contains_key(key) && self.get(key).is_none()
    }
}

/// Returns true for labels that only gpunode sets, in the record or not.
pub fn is_own_label(key: &str) -> bool {
    key == GOVERNED_LABEL
        || key == MPS_LABEL
        || key.starts_with(POLICY_LABEL_PREFIX)
        || key.starts_with(PRODUCT_COUNT_PREFIX)
        || key.starts_with(COMPANION_COUNT_PREFIX)
}
