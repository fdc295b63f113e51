//! The width of the output, and sentences broken at it.

use crate::cli::OutputFormat;

/// Narrowest width that text is fitted to; a narrower terminal wraps the lines itself.
const LEAST: usize = 40;

/// The columns that text for people may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextWidth(Option<usize>);

impl TextWidth {
    /// Lines as long as they are: for `-o wide`, files and pipes.
    pub const UNLIMITED: Self = Self(None);

    /// Lines of at most `columns` characters.
    pub fn of(columns: usize) -> Self {
        Self(Some(columns.max(LEAST)))
    }

    /// Returns the width for an output format: unlimited for `wide`, else COLUMNS, else that of the terminal.
    pub fn of_output(format: OutputFormat) -> Self {
        if format == OutputFormat::Wide {
            return Self::UNLIMITED;
        }
        let variable = std::env::var("COLUMNS").ok();
        let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
        chosen(variable.as_deref(), terminal.map(|size| usize::from(size.ws_col)))
    }

    /// Returns the most columns of a line; none where there is no limit.
    pub fn limit(self) -> Option<usize> {
        self.0
    }
}

/// Chooses between COLUMNS and the width of the terminal, where they say one.
fn chosen(variable: Option<&str>, terminal: Option<usize>) -> TextWidth {
    let variable = variable.and_then(|text| text.trim().parse().ok());
    let told = [variable, terminal].into_iter().flatten().find(|columns| *columns > 0);
    told.map_or(TextWidth::UNLIMITED, TextWidth::of)
}

/// Breaks a line at its spaces, and indents each line but the first. A command in backticks stays in one piece, so that it can
/// be copied; other words longer than a line are cut.
pub fn wrapped(line: &str, width: TextWidth, indent: usize) -> String {
    let Some(limit) = width.limit() else {
        return line.to_owned();
    };
    let next_line = format!("\n{}", " ".repeat(indent));
    let words_begin = line.trim_start_matches(' ');
    let mut text = " ".repeat(line.len() - words_begin.len());
    let mut used = text.len();
    let mut is_empty = true;
    for word in words(words_begin) {
        let length = word.chars().count();
        if !is_empty && used + 1 + length > limit {
            text.push_str(&next_line);
            (used, is_empty) = (indent, true);
        }
        if !is_empty {
            text.push(' ');
            used += 1;
        }
        if word.contains('`') {
            text.push_str(&word);
            used += length;
        } else {
            for c in word.chars() {
                if used == limit {
                    text.push_str(&next_line);
                    used = indent;
                }
                text.push(c);
                used += 1;
            }
        }
        is_empty = false;
    }
    text
}

/// Splits a line at the spaces outside backticks.
fn words(line: &str) -> Vec<String> {
    let has_pairs = line.matches('`').count().is_multiple_of(2);
    let mut words = Vec::new();
    let mut word = String::new();
    let mut is_quoted = false;
    for c in line.chars() {
        is_quoted ^= c == '`' && has_pairs;
        if c == ' ' && !is_quoted {
            words.push(std::mem::take(&mut word));
        } else {
            word.push(c);
        }
    }
    words.push(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_before_the_terminal_and_nonsense_does_not() {
        for (variable, terminal, expected) in [
            (None, None, None),
            (None, Some(120), Some(120)),
            (Some("80"), Some(120), Some(80)),
            (Some("80"), None, Some(80)),
            (Some("0"), Some(120), Some(120)),
            (Some("wide"), Some(0), None),
            (Some("10"), None, Some(LEAST)),
        ] {
            assert_eq!(
                chosen(variable, terminal).limit(),
                expected,
                "{variable:?} {terminal:?}"
            );
        }
        assert_eq!(TextWidth::of_output(OutputFormat::Wide), TextWidth::UNLIMITED);
    }

    #[test]
    fn sentences_break_at_spaces_and_commands_stay_whole() {
        let width = TextWidth::of(40);
        let sentence = "node n1: its agent does not answer; run `kubectl -n gpunode-system get pods -o wide` and look";
        assert_eq!(
            wrapped(sentence, width, 2),
            "node n1: its agent does not answer; run\n  `kubectl -n gpunode-system get pods -o wide`\n  and look"
        );
        assert_eq!(wrapped(sentence, TextWidth::UNLIMITED, 2), sentence);
        let long = wrapped(&format!("  POD {}", "x".repeat(90)), width, 4);
        assert_eq!(
            long.lines().map(|line| line.chars().count()).collect::<Vec<_>>(),
            [5, 40, 40, 22],
            "{long}"
        );
        assert_eq!(wrapped("an odd ` mark", width, 2), "an odd ` mark");
    }
}
