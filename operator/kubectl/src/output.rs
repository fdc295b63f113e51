//! Output for people and for programs: aligned tables, colour on a terminal alone, JSON and YAML.

use crate::cli::OutputFormat;
use gpunode_plan::NearestNode;
use serde::Serialize;
use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
};

/// Colours and emphasis. `anstream` takes them out where the output is no terminal or NO_COLOR is set.
pub mod style {
    use anstyle::{AnsiColor, Style};

    /// As it should be.
    pub const GOOD: Style = AnsiColor::Green.on_default();
    /// On its way.
    pub const WAITING: Style = AnsiColor::Yellow.on_default();
    /// Needs somebody.
    pub const BAD: Style = AnsiColor::Red.on_default();
    /// Headings.
    pub const HEADING: Style = Style::new().bold();
    /// As it is.
    pub const PLAIN: Style = Style::new();
}

/// Prints `value` for programs, or `text` for people.
///
/// # Errors
/// When standard output cannot be written. A reader that has left, such as `head`, is no error.
pub fn print<T: Serialize>(format: OutputFormat, value: &T, text: impl FnOnce() -> String) -> io::Result<()> {
    write(&render(format, value, text)?)
}

/// `value` for programs, or `text` for people.
///
/// # Errors
/// When `value` has no form in JSON or YAML.
pub fn render<T: Serialize>(format: OutputFormat, value: &T, text: impl FnOnce() -> String) -> io::Result<String> {
    match format {
        OutputFormat::Table => Ok(text()),
        OutputFormat::Json => Ok(serde_json::to_string_pretty(value)? + "\n"),
        OutputFormat::Yaml => serde_yaml::to_string(value).map_err(io::Error::other),
    }
}

/// Writes a text.
///
/// # Errors
/// As of [`print`].
pub fn write(text: &str) -> io::Result<()> {
    write_to_reader(text).map(drop)
}

/// Writes a text; whether the reader is still there.
///
/// # Errors
/// As of [`print`].
pub fn write_to_reader(text: &str) -> io::Result<bool> {
    let mut out = anstream::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether standard output is a terminal on which lines can be written anew.
pub fn is_screen() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// Steers the terminal, also where NO_COLOR is set. Where it cannot be written, nothing is to be seen either.
pub fn control(sequence: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(sequence.as_bytes()).and_then(|()| out.flush());
}

/// `1 node`, `2 nodes`.
pub fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
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

/// One cell of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    style: anstyle::Style,
}

impl Cell {
    /// A cell in a style; escape sequences in its text are removed.
    pub fn new(text: impl Into<String>, style: anstyle::Style) -> Self {
        let text = plain(&text.into());
        Self {
            text: if text.is_empty() { "-".to_owned() } else { text },
            style,
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, style::PLAIN)
    }
}

/// Rows below a heading, in columns as wide as their widest cell and three spaces apart, as kubectl has them.
pub fn table<const COLUMNS: usize>(heading: [&str; COLUMNS], rows: &[[Cell; COLUMNS]]) -> String {
    let heading = heading.map(|text| Cell::new(text, style::HEADING));
    let rows = rows.iter().map(<[Cell; COLUMNS]>::as_slice);
    grid(&std::iter::once(heading.as_slice()).chain(rows).collect::<Vec<_>>())
}

/// Rows of as many cells each as the first one has, in columns as those of a [`table`].
pub fn grid(rows: &[&[Cell]]) -> String {
    let columns = rows.first().map_or(0, |row| row.len());
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.text.chars().count())
                .max()
        })
        .map(Option::unwrap_or_default)
        .collect();
    let mut text = String::new();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let style = cell.style;
            let _ = write!(text, "{style}{}{style:#}", cell.text);
            if column + 1 < columns {
                text.push_str(&" ".repeat(width - cell.text.chars().count() + 3));
            }
        }
        text.push('\n');
    }
    text
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
        assert_eq!(
            table(["A"], &[["\u{1b}[2Jx".into()]]).matches('\u{1b}').count(),
            2,
            "those of the heading alone"
        );
    }

    #[test]
    fn columns_are_aligned_whatever_their_colour() {
        let rows = [
            [Cell::new("True", style::GOOD), "a-long-name".into(), "end".into()],
            [Cell::new("False", style::BAD), "".into(), "x".into()],
        ];
        let text = anstream::adapter::strip_str(&table(["READY", "NAME", "LAST"], &rows)).to_string();
        assert_eq!(
            text,
            "READY   NAME          LAST\nTrue    a-long-name   end\nFalse   -             x\n"
        );
    }
}
