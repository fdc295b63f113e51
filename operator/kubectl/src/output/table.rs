//! Tables as kubectl prints them.

use super::{style, words::plain};
use std::fmt::Write as _;

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableCell {
    text: String,
    style: anstyle::Style,
}

impl TableCell {
    /// Creates a cell. Escape sequences in its text are removed; an empty text becomes `-`.
    pub fn new(text: impl Into<String>, style: anstyle::Style) -> Self {
        let text = plain(&text.into());
        Self {
            text: if text.is_empty() { "-".to_owned() } else { text },
            style,
        }
    }
}

impl<T: Into<String>> From<T> for TableCell {
    fn from(text: T) -> Self {
        Self::new(text, style::PLAIN)
    }
}

/// Formats rows below a heading, in columns as wide as their widest cell and three spaces apart, like kubectl.
pub fn table<const COLUMNS: usize>(heading: [&str; COLUMNS], rows: &[[TableCell; COLUMNS]]) -> String {
    let heading = heading.map(|text| TableCell::new(text, style::HEADING));
    let rows = rows.iter().map(<[TableCell; COLUMNS]>::as_slice);
    grid(&std::iter::once(heading.as_slice()).chain(rows).collect::<Vec<_>>())
}

/// Formats rows with as many cells as the first one, in columns like those of a [`table`].
pub fn grid(rows: &[&[TableCell]]) -> String {
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
    fn columns_are_aligned_whatever_their_colour() {
        let rows = [
            [TableCell::new("True", style::GOOD), "a-long-name".into(), "end".into()],
            [TableCell::new("False", style::BAD), "".into(), "x".into()],
        ];
        let text = anstream::adapter::strip_str(&table(["READY", "NAME", "LAST"], &rows)).to_string();
        assert_eq!(
            text,
            "READY   NAME          LAST\nTrue    a-long-name   end\nFalse   -             x\n"
        );
    }

    #[test]
    fn cells_cannot_steer_the_terminal() {
        assert_eq!(
            table(["A"], &[["\u{1b}[2Jx".into()]]).matches('\u{1b}').count(),
            2,
            "those of the heading alone"
        );
    }
}
