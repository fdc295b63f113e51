//! A set of labels, and values that fit in one.

use std::collections::BTreeMap;

/// Labels by key, under the domain `nvidia.com`.
#[derive(Default)]
pub struct FactLabels(pub BTreeMap<String, String>);

impl FactLabels {
    /// Sets a label.
    pub fn nvidia(&mut self, name: &str, value: &(impl ToString + ?Sized)) {
        self.0.insert(format!("nvidia.com/{name}"), value.to_string());
    }

    /// Sets a label that has a value.
    pub fn nvidia_if(&mut self, name: &str, value: Option<&impl ToString>) {
        if let Some(value) = value {
            self.nvidia(name, value);
        }
    }
}

/// Cuts a product's name, which is in label form, to a length.
pub fn cut(product: &str, most: usize) -> &str {
    let start = product.get(..product.floor_char_boundary(most)).unwrap_or_default();
    start.trim_end_matches(|last: char| !last.is_ascii_alphanumeric())
}
