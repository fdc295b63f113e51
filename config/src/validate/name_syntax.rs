//! The syntax of names in Kubernetes: `apimachinery/pkg/util/validation`.

/// Returns true for one part between the dots of a DNS name: `dns1123LabelFmt`, of any length.
fn is_dns_label(text: &str) -> bool {
    let inner = text
        .bytes()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-');
    inner && !text.is_empty() && !text.starts_with('-') && !text.ends_with('-')
}

/// Returns true for names of most objects and domains of keys: `IsDNS1123Subdomain`, with labels of any length.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

/// Returns true for the part of a key after its domain, and for values of labels that are not empty: `qualifiedNameFmt`.
pub fn is_name_part(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    text.len() <= 63 && inner && edge(text.chars().next()) && edge(text.chars().next_back())
}
