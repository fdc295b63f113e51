//! The syntax of labels: texts that Kubernetes takes as a value, and as a key.

use gpunode_config::is_name_part;

/// Returns true for texts that can be the value of a label.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name_part(text)
}

/// Returns true for texts that can be a key with a domain: of a label, or of an extended resource.
pub fn is_qualified_name(text: &str) -> bool {
    text.split_once('/')
        .is_some_and(|(domain, name)| is_name_part(domain) && is_name_part(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_keys_follow_the_rules_of_kubernetes() {
        for (text, is_value) in [
            ("", true),
            ("a.b_c-1", true),
            ("-a", false),
            ("a-", false),
            ("a/b", false),
            ("ä", false),
        ] {
            assert_eq!(is_label_value(text), is_value, "{text}");
        }
        assert!(is_label_value(&"a".repeat(63)) && !is_label_value(&"a".repeat(64)));
        for (text, is_name) in [
            ("a.b/c", true),
            ("a", false),
            ("a.b/", false),
            ("a/b/c", false),
            ("/a", false),
        ] {
            assert_eq!(is_qualified_name(text), is_name, "{text}");
        }
    }
}
