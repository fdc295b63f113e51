//! Text that several subcommands share.

use gpunode_crds::plural;
use gpunode_plan::NearestNode;

/// Printed where the cluster has no policy.
pub const NO_POLICY: &str = "no GpuNodePolicy exists yet; write one and preview it with `kubectl gpunode plan -f FILE`";

/// Says which node a policy comes nearest to matching, and what fails there.
pub fn nearest_node_text(nearest: &NearestNode) -> String {
    let others = match nearest.others {
        0 => String::new(),
        others => format!(" (and {} as near)", plural(others, "other", "others")),
    };
    format!("nearest node: {}{others}: {}", nearest.node, nearest.why.join("; "))
}

/// Makes foreign text, such as a status, safe for a terminal: one line, no escape sequences, and no characters that change
/// the reading order (Unicode's bidirectional controls).
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
