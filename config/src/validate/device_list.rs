//! Ways in which containers get their devices: combinations that cannot work, and bounds.

use super::{list_length::validate_length, problem::FieldProblem};
use crate::{
    AgentConfig, DeviceIdStrategy, DeviceListStrategy,
    agent_config::{IDS_BY_INDEX, MAX_PREFIX, MAX_STRATEGIES, MOUNTS_BESIDE_CDI},
};

pub(super) fn validate(config: &AgentConfig, problems: &mut Vec<FieldProblem>) {
    let strategies = &config.device_list_strategy;
    validate_length("deviceListStrategy", strategies.len(), 0..=MAX_STRATEGIES, problems);
    if strategies.contains(&DeviceListStrategy::VolumeMounts) && strategies.iter().any(|strategy| strategy.is_cdi()) {
        problems.push(FieldProblem::new("deviceListStrategy", MOUNTS_BESIDE_CDI));
    }
    if config.device_id_strategy == Some(DeviceIdStrategy::Index) {
        problems.push(FieldProblem::new("deviceIdStrategy", IDS_BY_INDEX));
    }
    if let Some(prefix) = &config.cdi_annotation_prefix
        && !is_annotation_prefix(prefix)
    {
        problems.push(FieldProblem::new(
            "cdiAnnotationPrefix",
            format!("`{prefix}` is not a domain in lower case with a slash at its end, such as cdi.k8s.io/"),
        ));
    }
    validate_length("imexChannels", config.imex_channels.len(), 0..=1, problems);
    let others = config.imex_channels.iter().enumerate();
    for (index, channel) in others.filter(|(_, channel)| **channel != 0) {
        problems.push(FieldProblem::new(
            format!("imexChannels[{index}]"),
            format!("{channel} is not 0, the channel that containers share"),
        ));
    }
}

/// Returns true for `DOMAIN/`, of the characters that the CRD allows.
fn is_annotation_prefix(prefix: &str) -> bool {
    let is_part = |part: &str| {
        let ends = [part.chars().next(), part.chars().next_back()];
        let is_alphanumeric = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
        ends.into_iter().all(|end| end.is_some_and(is_alphanumeric))
            && part
                .chars()
                .all(|character| is_alphanumeric(character) || character == '-')
    };
    prefix.len() <= MAX_PREFIX
        && prefix
            .strip_suffix('/')
            .is_some_and(|domain| domain.split('.').all(is_part))
}

#[cfg(test)]
mod tests {
    use crate::{AgentConfig, DeviceListStrategy as Strategy, load, validate::tests::problems};

    #[test]
    fn unset_strategies_are_cdi_and_the_variable() {
        let default = AgentConfig::default();
        assert_eq!(
            default.effective_device_list_strategy(),
            [Strategy::CdiCri, Strategy::Envvar]
        );
        assert!(default.uses_cdi());
        assert_eq!(default.cdi_annotation_prefix(), "cdi.k8s.io/");
        assert!(default.imex_channels().is_empty() && !default.gds() && !default.mofed() && !default.gdrcopy());
        let one = load("deviceListStrategy: [Envvar]\nimexChannels: [0]\ngds: true").unwrap();
        assert_eq!(one.effective_device_list_strategy(), [Strategy::Envvar]);
        assert!(!one.uses_cdi() && one.gds());
        assert_eq!(one.imex_channels(), [0]);
    }

    #[test]
    fn mounts_beside_cdi_are_refused_with_the_reason() {
        for cdi in ["CdiCri", "CdiAnnotations"] {
            let found = problems(&format!("deviceListStrategy: [VolumeMounts, {cdi}]"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(
                found[0].starts_with(
                    "deviceListStrategy: VolumeMounts beside CdiCri or CdiAnnotations injects devices twice"
                ),
                "{found:?}"
            );
        }
        for good in [
            "[VolumeMounts]",
            "[VolumeMounts, Envvar]",
            "[CdiCri, CdiAnnotations, Envvar]",
            "[]",
        ] {
            assert!(problems(&format!("deviceListStrategy: {good}")).is_empty(), "{good}");
        }
        assert_eq!(
            problems("deviceListStrategy: [Envvar, Envvar, Envvar, Envvar, Envvar]"),
            ["deviceListStrategy: must have at most 4 entries, has 5"]
        );
    }

    #[test]
    fn ids_by_index_are_refused_with_the_reason() {
        assert!(problems("deviceIdStrategy: Uuid").is_empty());
        let found = problems("deviceIdStrategy: Index");
        assert!(
            found[0].starts_with("deviceIdStrategy: Index can give a container another GPU"),
            "{found:?}"
        );
    }

    #[test]
    fn prefixes_are_domains_with_a_slash() {
        for good in ["cdi.k8s.io/", "nvidia.cdi.k8s.io/", "a/", "0-1.b/"] {
            assert!(problems(&format!("cdiAnnotationPrefix: '{good}'")).is_empty(), "{good}");
        }
        for bad in ["", "/", "cdi.k8s.io", "a/b/", "a..b/", "-a/", "a-/", "A/", "a_b/"] {
            let found = problems(&format!("cdiAnnotationPrefix: '{bad}'"));
            assert!(
                found.len() == 1 && found[0].starts_with("cdiAnnotationPrefix: "),
                "{bad}: {found:?}"
            );
        }
        assert!(problems(&format!("cdiAnnotationPrefix: {}/", "a".repeat(254))).len() == 1);
    }

    #[test]
    fn the_only_channel_is_0() {
        assert_eq!(
            [problems("imexChannels: [0, -1]"), problems("imexChannels: [2048]")].concat(),
            [
                "imexChannels: must have at most 1 entry, has 2",
                "imexChannels[1]: -1 is not 0, the channel that containers share",
                "imexChannels[0]: 2048 is not 0, the channel that containers share",
            ]
        );
        assert!(problems("imexChannels: []").is_empty());
    }
}
