//! Product names as label values, by the rule of GPU feature discovery, so that existing node selectors keep working.

/// Longest value that a label can have.
const MAX_LABEL_VALUE: usize = 63;

/// `Tesla V100-SXM2-32GB` as `Tesla-V100-SXM2-32GB`: characters that a label cannot have are dropped, and white space
/// becomes `-`. GPU feature discovery does not shorten; here the result is always a valid label value.
pub fn product_label(name: &str) -> String {
    let kept: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || c.is_ascii_whitespace() || "-_.".contains(*c))
        .collect();
    let joined = kept.split_ascii_whitespace().collect::<Vec<_>>().join("-");
    let edge = |c: char| !c.is_ascii_alphanumeric();
    let mut label = joined.trim_start_matches(edge).to_owned();
    label.truncate(MAX_LABEL_VALUE);
    label.truncate(label.trim_end_matches(edge).len());
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_what_gpu_feature_discovery_writes() {
        assert_eq!(product_label("Tesla V100-SXM2-32GB"), "Tesla-V100-SXM2-32GB");
        assert_eq!(product_label("NVIDIA A100 80GB PCIe"), "NVIDIA-A100-80GB-PCIe");
        assert_eq!(product_label("NVIDIA  RTX 6000 (Ada)"), "NVIDIA-RTX-6000-Ada");
    }

    proptest::proptest! {
        #[test]
        fn any_name_gives_a_valid_label_value(name in "\\PC{0,100}") {
            let label = product_label(&name);
            proptest::prop_assert!(label.len() <= MAX_LABEL_VALUE);
            proptest::prop_assert!(label.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)));
            proptest::prop_assert!(label.chars().next().is_none_or(|c| c.is_ascii_alphanumeric()));
            proptest::prop_assert!(label.chars().last().is_none_or(|c| c.is_ascii_alphanumeric()));
        }
    }
}
