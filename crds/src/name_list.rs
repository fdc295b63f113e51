//! Names and counts in messages and tables.

/// Joins the first `most` names and counts the others: `a, b and 3 more`.
pub fn named<S: AsRef<str>>(names: impl IntoIterator<Item = S>, most: usize) -> String {
    let names: Vec<S> = names.into_iter().collect();
    let shown: Vec<&str> = names.iter().take(most).map(AsRef::as_ref).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns `1 node` or `2 nodes`.
pub fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_limit_are_counted() {
        assert_eq!(named([""; 0], 2), "");
        assert_eq!(named(["a", "b"], 2), "a, b");
        assert_eq!(named(["a", "b", "c", "d", "e"], 2), "a, b and 3 more");
    }
}
