//! Parts of sentences that several subcommands share.

use gpunode_plan::NearestNode;

/// `1 node`, `2 nodes`.
pub fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Joins the first `most` names and counts the others: `a, b and 3 more`.
pub fn named<S: AsRef<str>>(names: impl IntoIterator<Item = S>, most: usize) -> String {
    let names: Vec<S> = names.into_iter().collect();
    let shown: Vec<&str> = names.iter().take(most).map(AsRef::as_ref).collect();
    let more = names.len() - shown.len();
    if more == 0 {
        shown.join(", ")
    } else {
        format!("{} and {more} more", shown.join(", "))
    }
}

/// Why a policy matches no node.
pub fn nearest_in_words(nearest: &NearestNode) -> String {
    let others = match nearest.others {
        0 => String::new(),
        others => format!(", and {} as near", plural(others, "other node is", "other nodes are")),
    };
    format!("nearest is node {}{others}: {}", nearest.node, nearest.why.join("; "))
}

/// Words of others, such as a status, made safe for a terminal: on one line, and without escape sequences and characters
/// that change the order of what is read (Unicode's bidirectional controls).
pub fn plain(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let stripped = anstream::adapter::strip_str(text).to_string();
    let spaced = stripped.chars().map(|c| if c.is_whitespace() { ' ' } else { c });
    spaced.filter(|c| !c.is_control() && !turns(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_cannot_steer_the_terminal() {
        for (text, shown) in [
            ("\u{1b}[2J\u{1b}[1;31mgone\u{1b}[0m", "gone"),
            ("\u{1b}]0;title\u{7}a\u{9b}2Jb\u{8}", "a2Jb"),
            ("one\nnode b: fine\r\ttwo", "one node b: fine  two"),
            ("\u{202e}evil\u{2066}", "evil"),
            ("Grüße, 8 × GPU", "Grüße, 8 × GPU"),
        ] {
            assert_eq!(plain(text), shown, "{text:?}");
        }
    }
}
