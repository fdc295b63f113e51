//! Which nodes a policy is about.

use crate::{packed_map::PackedMap, record::Entries};
use globset::{Glob, GlobMatcher};
use gpunode_config::MemoryMiB;
use gpunode_crds::{
    GOVERNED_LABEL, GpuDevice, GpuNodePolicySpec, GpuSelector, MPS_LABEL, NodeSelector, NodeSelectorRequirement,
    POLICY_LABEL_PREFIX, PRODUCT_COUNT_PREFIX, SelectorOperator,
};
/// Both selectors of a policy, ready to be asked.
#[derive(Clone, Debug)]
pub struct Selector {
    labels: Option<NodeSelector>,
    gpus: Option<GpuSelector>,
    products: Vec<GlobMatcher>,
}

impl Selector {
    /// The selectors of a policy.
    pub fn of(spec: &GpuNodePolicySpec) -> Self {
        let globs = spec.gpu_selector.iter().flat_map(|gpus| gpus.products.iter().flatten());
        Self {
            labels: spec.node_selector.clone(),
            gpus: spec.gpu_selector.clone(),
            // The schema lets no other globs through; one that cannot be read matches nothing.
            products: globs
                .filter_map(|glob| Some(Glob::new(glob).ok()?.compile_matcher()))
                .collect(),
        }
    }

    /// The selector of labels, where there is one.
    pub fn labels(&self) -> Option<&NodeSelector> {
        self.labels.as_ref()
    }

    /// Whether a node matches. A policy that names neither selector, which the CRD refuses, matches none.
    pub fn matches(&self, labels: VisibleLabels<'_>, gpus: &[GpuDevice]) -> bool {
        (self.labels.is_some() || self.gpus.is_some())
            && self.matches_labels(labels)
            && self.gpus.as_ref().is_none_or(|selector| self.has_gpus(selector, gpus))
    }

    /// Whether the labels of a node match.
    pub fn matches_labels(&self, labels: VisibleLabels<'_>) -> bool {
        self.labels.as_ref().is_none_or(|selector| matches(selector, labels))
    }

    /// Why the GPUs of a node do not match, where the labels do.
    pub fn mismatch(&self, labels: VisibleLabels<'_>, gpus: &[GpuDevice]) -> Option<String> {
        self.too_few(gpus).filter(|_| self.matches_labels(labels))
    }

    /// Why GPUs do not match.
    pub fn too_few(&self, gpus: &[GpuDevice]) -> Option<String> {
        let (asked, fit) = self.count(gpus)?;
        (fit < asked).then(|| {
            let all = gpus.len();
            format!(
                "gpuSelector asks for {asked} such GPUs, the node has {fit} among {all} in the status of its GpuNode"
            )
        })
    }

    /// How many GPUs it asks for and how many of these fit; nothing where it asks for none.
    pub fn count(&self, gpus: &[GpuDevice]) -> Option<(usize, usize)> {
        self.gpus
            .as_ref()
            .map(|selector| (least_count(selector), self.number_of(selector, gpus)))
    }

    /// The fact that keeps a GPU from being counted, in words.
    pub fn unfit(&self, gpu: &GpuDevice) -> Option<String> {
        self.unfit_for(self.gpus.as_ref()?, gpu).map(|fact| match fact {
            Fact::Product if self.begins_product(gpu) => {
                format!("with another product ({}: a glob for it ends with *)", gpu.product)
            }
            Fact::Product => format!("with another product ({})", gpu.product),
            Fact::Architecture => match gpu.architecture {
                Some(architecture) => format!("with another architecture ({architecture:?})").to_lowercase(),
                None => "with an architecture that is not known".to_owned(),
            },
            Fact::Memory(least) => format!("with less memory than {least} ({} MiB)", gpu.memory_mib),
        })
    }

    /// Whether one of the globs would match if it ended with `*`.
    fn begins_product(&self, gpu: &GpuDevice) -> bool {
        self.products
            .iter()
            .any(|glob| gpu.product.starts_with(glob.glob().glob()))
    }

    /// By how many characters the nearest product of some GPUs differs from the nearest glob; one is a `*` at its end.
    pub fn product_distance(&self, gpus: &[GpuDevice]) -> usize {
        let pairs = gpus
            .iter()
            .flat_map(|gpu| self.products.iter().map(move |glob| (gpu, glob)));
        let distance = |(gpu, glob): (&GpuDevice, &GlobMatcher)| match glob.glob().glob() {
            _ if glob.is_match(&gpu.product) => 0,
            text if gpu.product.starts_with(text) => 1,
            text => strsim::levenshtein(&gpu.product, text),
        };
        pairs.map(distance).min().unwrap_or_default()
    }

    fn has_gpus(&self, selector: &GpuSelector, gpus: &[GpuDevice]) -> bool {
        self.number_of(selector, gpus) >= least_count(selector)
    }

    fn number_of(&self, selector: &GpuSelector, gpus: &[GpuDevice]) -> usize {
        gpus.iter()
            .filter(|gpu| self.unfit_for(selector, gpu).is_none())
            .count()
    }

    fn unfit_for<'a>(&self, selector: &'a GpuSelector, gpu: &GpuDevice) -> Option<Fact<'a>> {
        if selector.products.is_some() && !self.products.iter().any(|glob| glob.is_match(&gpu.product)) {
            return Some(Fact::Product);
        }
        let is_one_of = |architectures: &Vec<_>| gpu.architecture.is_some_and(|it| architectures.contains(&it));
        if !selector.architectures.as_ref().is_none_or(is_one_of) {
            return Some(Fact::Architecture);
        }
        let text = selector.min_memory.as_deref()?;
        let least = MemoryMiB::parse(text).unwrap_or_default();
        (u64::try_from(gpu.memory_mib).unwrap_or(0) < least.0).then_some(Fact::Memory(text))
    }
}

/// What a selector asks of a GPU.
enum Fact<'a> {
    Product,
    Architecture,
    /// At least this much.
    Memory(&'a str),
}

impl PartialEq for Selector {
    fn eq(&self, other: &Self) -> bool {
        (&self.labels, &self.gpus) == (&other.labels, &other.gpus)
    }
}

fn least_count(selector: &GpuSelector) -> usize {
    selector
        .min_count
        .and_then(|count| usize::try_from(count).ok())
        .unwrap_or(1)
}

/// The labels of a node as they were without gpunode, so that no policy selects or deselects by its own effect.
#[derive(Clone, Copy, Debug)]
pub struct VisibleLabels<'a> {
    all: &'a PackedMap,
    recorded: &'a Entries<String>,
}

impl<'a> VisibleLabels<'a> {
    /// `all` but the keys of the record.
    pub fn new(all: &'a PackedMap, recorded: &'a Entries<String>) -> Self {
        Self { all, recorded }
    }

    /// The value of a label, if there is one that can be seen.
    pub fn get(self, key: &String) -> Option<&'a str> {
        if is_effect(key) {
            return None;
        }
        if self.recorded.hides(key) {
            self.recorded.before.get(key).map(String::as_str)
        } else {
            self.all.get(key)
        }
    }

    /// Whether there is a label that cannot be seen.
    pub fn is_hidden(self, key: &String) -> bool {
        self.all.contains_key(key) && self.get(key).is_none()
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
fn matches(selector: &NodeSelector, labels: VisibleLabels<'_>) -> bool {
    selector
        .match_labels
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && selector
            .match_expressions
            .iter()
            .all(|requirement| holds(requirement, labels))
}

/// Whether one expression holds.
pub fn holds(requirement: &NodeSelectorRequirement, labels: VisibleLabels<'_>) -> bool {
    let value = labels.get(&requirement.key);
    let listed = value.is_some_and(|value| requirement.values.iter().any(|listed| listed == value));
    match requirement.operator {
        SelectorOperator::In => listed,
        SelectorOperator::NotIn => !listed,
        SelectorOperator::Exists => value.is_some(),
        SelectorOperator::DoesNotExist => value.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::Architecture;
    use std::collections::BTreeMap;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn expression(key: &str, operator: SelectorOperator, values: &[&str]) -> NodeSelector {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        NodeSelector {
            match_expressions: vec![NodeSelectorRequirement {
                key: key.to_owned(),
                operator,
                values,
            }],
            ..NodeSelector::default()
        }
    }

    #[test]
    fn operators_mean_what_they_mean_in_a_label_selector() {
        use SelectorOperator::{DoesNotExist, Exists, In, NotIn};
        let (labels, none) = (map(&[("pool", "a")]), Entries::default());
        let texts = PackedMap::from(&labels);
        let visible = VisibleLabels::new(&texts, &none);
        assert!(matches(&NodeSelector::default(), visible));
        assert!(matches(
            &NodeSelector {
                match_labels: labels.clone(),
                ..NodeSelector::default()
            },
            visible
        ));
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
        let owned = Entries {
            owned: map(&[("a", "1")]),
            ..Entries::default()
        };
        let texts = PackedMap::from(&labels);
        for key in labels.keys() {
            let visible = VisibleLabels::new(&texts, &owned);
            assert!(
                matches(&expression(key, SelectorOperator::DoesNotExist, &[]), visible),
                "{key}"
            );
        }
    }

    #[test]
    fn what_was_taken_over_is_seen_as_it_was_before() {
        let labels = map(&[("pool", "ours")]);
        let taken = Entries {
            owned: labels.clone(),
            before: map(&[("pool", "theirs")]),
            ..Entries::default()
        };
        let texts = PackedMap::from(&labels);
        let visible = VisibleLabels::new(&texts, &taken);
        assert!(matches(&expression("pool", SelectorOperator::In, &["theirs"]), visible));
        assert!(!matches(&expression("pool", SelectorOperator::In, &["ours"]), visible));
    }

    fn gpu(product: &str, architecture: Option<Architecture>, memory_mib: i64) -> GpuDevice {
        GpuDevice {
            product: product.to_owned(),
            architecture,
            memory_mib,
            ..GpuDevice::default()
        }
    }

    #[test]
    fn gpus_are_counted_that_meet_every_condition() {
        let gpus = [
            gpu("Tesla-V100-SXM2-32GB", Some(Architecture::Volta), 32768),
            gpu("Tesla-V100-SXM2-16GB", Some(Architecture::Volta), 16384),
            gpu("NVIDIA-A100-SXM4-80GB", Some(Architecture::Ampere), 81920),
            gpu("NVIDIA-Board", None, 81920),
        ];
        let (none, unrecorded) = (PackedMap::default(), Entries::default());
        let labels = VisibleLabels::new(&none, &unrecorded);
        for (selector, expected) in [
            ("{products: ['Tesla-V100*'], minCount: 2}", true),
            ("{products: ['Tesla-V100*'], minCount: 3}", false),
            ("{products: ['Tesla-V100*', NVIDIA-A100-SXM4-80GB], minCount: 3}", true),
            ("{products: [Tesla-V100]}", false),
            ("{products: ['Tesla-V100-SXM?-32GB']}", true),
            ("{products: ['*SHARED']}", false),
            ("{architectures: [volta, ampere], minCount: 3}", true),
            ("{architectures: [hopper]}", false),
            ("{architectures: [volta], minMemory: 32Gi}", true),
            ("{architectures: [volta], minMemory: 32769Mi}", false),
            ("{products: ['NVIDIA*'], architectures: [volta]}", false),
            ("{minMemory: 30Gi, minCount: 3}", true),
            ("{minCount: 4}", true),
            ("{minCount: 5}", false),
        ] {
            let spec: GpuNodePolicySpec = serde_yaml::from_str(&format!("{{gpuSelector: {selector}}}")).unwrap();
            let selector = Selector::of(&spec);
            assert_eq!(selector.matches(labels, &gpus), expected, "{spec:?}");
            assert_eq!(selector.mismatch(labels, &gpus).is_some(), !expected, "{spec:?}");
            assert!(!selector.matches(labels, &[]), "{spec:?}");
        }
    }

    #[test]
    fn labels_and_gpus_must_both_match_and_neither_matches_nothing() {
        let (labels, none) = (map(&[("pool", "a")]), Entries::default());
        let texts = PackedMap::from(&labels);
        let visible = VisibleLabels::new(&texts, &none);
        let gpus = [gpu("Tesla-T4", Some(Architecture::Turing), 15360)];
        for (spec, expected) in [
            ("{nodeSelector: {}, gpuSelector: {products: [Tesla-T4]}}", true),
            (
                "{nodeSelector: {matchLabels: {pool: b}}, gpuSelector: {products: [Tesla-T4]}}",
                false,
            ),
            (
                "{nodeSelector: {matchLabels: {pool: a}}, gpuSelector: {products: [Tesla-V100]}}",
                false,
            ),
            ("{nodeSelector: {}}", true),
            ("{}", false),
        ] {
            let selector = Selector::of(&serde_yaml::from_str(spec).unwrap());
            assert_eq!(selector.matches(visible, &gpus), expected, "{spec}");
        }
        let deselected = "{nodeSelector: {matchLabels: {pool: b}}, gpuSelector: {products: [Tesla-V100]}}";
        assert_eq!(
            Selector::of(&serde_yaml::from_str(deselected).unwrap()).mismatch(visible, &gpus),
            None
        );
    }
}
