//! The selectors of a policy.

use crate::input::visible_labels::VisibleLabels;
use globset::{Glob, GlobMatcher};
use gpunode_config::MemoryMiB;
use gpunode_crds::{
    EvictablePods, GpuDevice, GpuNodePolicySpec, GpuSelector, NodeSelector, NodeSelectorRequirement, PodSelector,
    SelectorOperator,
};
use k8s_openapi::api::core::v1::Pod;

/// Node selector and GPU selector of a policy, with compiled globs.
#[derive(Clone, Debug)]
pub struct Selector {
    labels: Option<NodeSelector>,
    gpus: Option<GpuSelector>,
    products: Vec<GlobMatcher>,
}

impl Selector {
    /// Compiles the selectors of a policy.
    pub fn of(spec: &GpuNodePolicySpec) -> Self {
        let globs = spec.gpu_selector.iter().flat_map(|gpus| gpus.products.iter().flatten());
        Self {
            labels: spec.node_selector.clone(),
            gpus: spec.gpu_selector.clone(),
            // The schema refuses invalid globs; one that slips through matches nothing.
            products: globs
                .filter_map(|glob| Some(Glob::new(glob).ok()?.compile_matcher()))
                .collect(),
        }
    }

    /// Returns the node selector.
    pub fn labels(&self) -> Option<&NodeSelector> {
        self.labels.as_ref()
    }

    /// Returns true if a node matches. A policy without any selector, which the CRD refuses, matches none.
    pub fn matches(&self, labels: VisibleLabels<'_>, gpus: &[GpuDevice]) -> bool {
        (self.labels.is_some() || self.gpus.is_some())
            && self.matches_labels(labels)
            && self.gpus.as_ref().is_none_or(|selector| self.has_gpus(selector, gpus))
    }

    /// Returns true if the labels of a node match.
    pub fn matches_labels(&self, labels: VisibleLabels<'_>) -> bool {
        self.labels.as_ref().is_none_or(|selector| matches(selector, labels))
    }

    /// Returns the keys of labels that the node selector reads.
    pub fn label_keys(&self) -> impl Iterator<Item = &String> {
        let selector = self.labels.iter();
        selector.flat_map(|labels| {
            let expressions = labels.match_expressions.iter().map(|requirement| &requirement.key);
            labels.match_labels.keys().chain(expressions)
        })
    }

    /// Returns true if the labels match and too few GPUs do.
    pub fn lacks_only_gpus(&self, labels: VisibleLabels<'_>, gpus: &[GpuDevice]) -> bool {
        self.matches_labels(labels) && self.count(gpus).is_some_and(|(wanted, fit)| fit < wanted)
    }

    /// Returns the number of GPUs wanted and the number that fits; none without a GPU selector.
    pub fn count(&self, gpus: &[GpuDevice]) -> Option<(usize, usize)> {
        self.gpus
            .as_ref()
            .map(|selector| (least_count(selector), self.number_of(selector, gpus)))
    }

    /// Returns the fact that keeps a GPU from fitting the GPU selector.
    pub fn unfit(&self, gpu: &GpuDevice) -> Option<UnfitFact<'_>> {
        self.unfit_for(self.gpus.as_ref()?, gpu)
    }

    /// Returns true if a glob would match if it ended with `*`.
    pub fn begins_product(&self, gpu: &GpuDevice) -> bool {
        self.products
            .iter()
            .any(|glob| gpu.product.starts_with(glob.glob().glob()))
    }

    /// Returns the fewest characters by which a product differs from a glob; a missing `*` at its end counts as one.
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

    fn unfit_for<'a>(&self, selector: &'a GpuSelector, gpu: &GpuDevice) -> Option<UnfitFact<'a>> {
        if selector.products.is_some() && !self.products.iter().any(|glob| glob.is_match(&gpu.product)) {
            return Some(UnfitFact::Product);
        }
        let is_one_of = |architectures: &Vec<_>| gpu.architecture.is_some_and(|it| architectures.contains(&it));
        if !selector.architectures.as_ref().is_none_or(is_one_of) {
            return Some(UnfitFact::Architecture);
        }
        let text = selector.min_memory.as_deref()?;
        let least = MemoryMiB::parse(text).unwrap_or_default();
        (gpu.memory_mib < least.0).then_some(UnfitFact::Memory(text))
    }
}

/// Fact that keeps a GPU from fitting a GPU selector.
pub enum UnfitFact<'a> {
    /// The GPU is another product.
    Product,
    /// The GPU has another or no known architecture.
    Architecture,
    /// The GPU has less memory than this.
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

/// Returns true if every condition of a selector holds; `{}` matches every node.
fn matches(selector: &NodeSelector, labels: VisibleLabels<'_>) -> bool {
    selector
        .match_labels
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && selector
            .match_expressions
            .iter()
            .all(|requirement| holds(requirement, labels.get(&requirement.key)))
}

/// Returns true if a pod is one of those that may be evicted.
pub fn matches_pod(rule: &EvictablePods, pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    let value = |key: &String| labels.and_then(|labels| labels.get(key)).map(String::as_str);
    let PodSelector {
        match_labels,
        match_expressions,
    } = &rule.pod_selector;
    pod.metadata.namespace.as_ref() == Some(&rule.namespace)
        && match_labels.iter().all(|(key, wanted)| value(key) == Some(wanted))
        && match_expressions
            .iter()
            .all(|requirement| holds(requirement, value(&requirement.key)))
}

/// Returns true if an expression holds for the value of its label.
pub fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
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
    use crate::{packed_map::PackedMap, record::entries::RecordEntries};
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
        let (labels, none) = (map(&[("pool", "a")]), RecordEntries::default());
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
        let owned = RecordEntries {
            owned: map(&[("a", "1")]),
            ..RecordEntries::default()
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
        let taken = RecordEntries {
            owned: labels.clone(),
            before: map(&[("pool", "theirs")]),
            ..RecordEntries::default()
        };
        let texts = PackedMap::from(&labels);
        let visible = VisibleLabels::new(&texts, &taken);
        assert!(matches(&expression("pool", SelectorOperator::In, &["theirs"]), visible));
        assert!(!matches(&expression("pool", SelectorOperator::In, &["ours"]), visible));
    }

    fn gpu(product: &str, architecture: Option<Architecture>, memory_mib: u64) -> GpuDevice {
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
        let (none, unrecorded) = (PackedMap::default(), RecordEntries::default());
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
            assert_eq!(selector.lacks_only_gpus(labels, &gpus), !expected, "{spec:?}");
            assert!(!selector.matches(labels, &[]), "{spec:?}");
        }
    }

    #[test]
    fn labels_and_gpus_must_both_match_and_neither_matches_nothing() {
        let (labels, none) = (map(&[("pool", "a")]), RecordEntries::default());
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
        assert!(!Selector::of(&serde_yaml::from_str(deselected).unwrap()).lacks_only_gpus(visible, &gpus));
    }
}
