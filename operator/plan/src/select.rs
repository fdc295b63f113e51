//! Whether a `nodeSelector` matches.

use gpunode_crds::{
    GOVERNED_LABEL, MPS_LABEL, NodeSelector, POLICY_LABEL_PREFIX, PRODUCT_COUNT_PREFIX, SelectorOperator,
};
use std::collections::BTreeMap;

/// The labels of a node without those that gpunode itself wrote, so that no policy selects or deselects by its own effect.
#[derive(Clone, Copy, Debug)]
pub struct VisibleLabels<'a> {
    all: &'a BTreeMap<String, String>,
    owned: &'a BTreeMap<String, String>,
}

impl<'a> VisibleLabels<'a> {
    /// `all` but the keys of `owned`.
    pub fn new(all: &'a BTreeMap<String, String>, owned: &'a BTreeMap<String, String>) -> Self {
        Self { all, owned }
    }

    fn get(self, key: &str) -> Option<&'a str> {
        let hidden = self.owned.contains_key(key) || is_effect(key);
        self.all.get(key).filter(|_| !hidden).map(String::as_str)
    }
}

/// Whether a label is one that only gpunode sets, with or without a record of it.
pub fn is_effect(key: &str) -> bool {
    key == GOVERNED_LABEL
        || key == MPS_LABEL
        || key.starts_with(POLICY_LABEL_PREFIX)
        || key.starts_with(PRODUCT_COUNT_PREFIX)
}

/// Whether every condition of a selector holds; `{}` matches every node.
pub fn matches(selector: &NodeSelector, labels: VisibleLabels<'_>) -> bool {
    selector.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
        && selector.match_expressions.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            let listed = value.is_some_and(|value| requirement.values.iter().any(|listed| listed == value));
            match requirement.operator {
                SelectorOperator::In => listed,
                SelectorOperator::NotIn => !listed,
                SelectorOperator::Exists => value.is_some(),
                SelectorOperator::DoesNotExist => value.is_none(),
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::NodeSelectorRequirement;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn expression(key: &str, operator: SelectorOperator, values: &[&str]) -> NodeSelector {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        NodeSelector {
            match_expressions: vec![NodeSelectorRequirement { key: key.to_owned(), operator, values }],
            ..NodeSelector::default()
        }
    }

    #[test]
    fn operators_mean_what_they_mean_in_a_label_selector() {
        use SelectorOperator::{DoesNotExist, Exists, In, NotIn};
        let (labels, none) = (map(&[("pool", "a")]), BTreeMap::new());
        let visible = VisibleLabels::new(&labels, &none);
        assert!(matches(&NodeSelector::default(), visible));
        assert!(matches(&NodeSelector { match_labels: labels.clone(), ..NodeSelector::default() }, visible));
        for (selector, expected) in [
            (expression("pool", In, &["a", "b"]), true),
            (expression("pool", In, &["b"]), false),
            (expression("gone", In, &["a"]), false),
            (expression("pool", NotIn, &["a"]), false),
            (expression("gone", NotIn, &["a"]), true),
            (expression("pool", Exists, &[]), true),
            (expression("gone", Exists, &[]), false),
            (expression("pool", DoesNotExist, &[]), false),
            (expression("gone", DoesNotExist, &[]), true),
        ] {
            assert_eq!(matches(&selector, visible), expected, "{selector:?}");
        }
    }

    #[test]
    fn what_gpunode_wrote_is_not_seen() {
        let labels = map(&[
            ("a", "1"),
            ("gpunode.dev/governed", "true"),
            ("gpunode.dev/mps", "true"),
            ("gpunode.dev/gpus.Tesla-T4", "4"),
            ("gpunode.dev/policy.p", "true"),
        ]);
        let owned = map(&[("a", "1")]);
        for key in labels.keys() {
            let visible = VisibleLabels::new(&labels, &owned);
            assert!(matches(&expression(key, SelectorOperator::DoesNotExist, &[]), visible), "{key}");
        }
    }
}
