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

/// Breaks a line at its spaces where the width has a limit, and indents each line but the first.
pub fn wrapped(line: &str, width: TextWidth, indent: usize) -> String {
    let whole = || line.to_owned();
    width
        .limit()
        .map_or_else(whole, |limit| gpunode_crds::wrapped(line, limit, indent))
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
