//! Tables as kubectl prints them, fitted to the width of the output.

use super::{
    style,
    width::{TextWidth, wrapped},
    words::plain,
};
use std::{cmp::Reverse, fmt::Write as _};

/// Spaces between two columns.
const GAP: usize = 3;

/// Sign of a shortened cell.
const CUT: char = '…';

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct TableColumn {
    heading: &'static str,
    /// Rank among the columns that go below; none for a column that stays.
    below: Option<u8>,
}

impl TableColumn {
    /// Creates a column that stays in the row.
    pub const fn new(heading: &'static str) -> Self {
        Self { heading, below: None }
    }

    /// Creates a column that goes below its row where the table is too wide, the widest such column first.
    pub const fn below(heading: &'static str) -> Self {
        Self::below_after(0, heading)
    }

    /// Creates a column that goes below its row after those of a lower rank; [`TableColumn::below`] has rank 0.
    pub const fn below_after(rank: u8, heading: &'static str) -> Self {
        Self {
            heading,
            below: Some(rank),
        }
    }
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableCell {
    text: String,
    style: anstyle::Style,
    /// True if the cell says something that is worth a place below its row.
    is_telling: bool,
}

impl TableCell {
    /// Creates a cell. Escape sequences in its text are removed; an empty text becomes `-`.
    pub fn new(text: impl Into<String>, style: anstyle::Style) -> Self {
        let text = plain(&text.into());
        let text = if text.is_empty() { "-".to_owned() } else { text };
        Self {
            is_telling: text != "-",
            text,
            style,
        }
    }

    /// Creates a cell with a count, of which 0 is not worth a place below its row. Other counts have the style.
    pub fn count(count: i32, style: anstyle::Style) -> Self {
        let is_telling = count > 0;
        Self {
            is_telling,
            ..Self::new(count.to_string(), if is_telling { style } else { style::PLAIN })
        }
    }

    fn length(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: Into<String>> From<T> for TableCell {
    fn from(text: T) -> Self {
        Self::new(text, style::PLAIN)
    }
}

/// The place of a column in a table.
struct ColumnPlace {
    width: usize,
    below: Option<u8>,
    is_below: bool,
}

/// Formats rows below a heading, in columns as wide as their widest cell and three spaces apart, like kubectl. Where that is too
/// wide, columns that may go below their row do, by rank and the widest first; then cells are shortened.
pub fn table<const COLUMNS: usize>(
    width: TextWidth,
    columns: [TableColumn; COLUMNS],
    rows: &[[TableCell; COLUMNS]],
) -> String {
    let heading = columns.map(|column| TableCell::new(column.heading, style::HEADING));
    let all: Vec<&[TableCell]> = std::iter::once(heading.as_slice())
        .chain(rows.iter().map(<[TableCell; COLUMNS]>::as_slice))
        .collect();
    let places = fitted(width, &columns, &widths(&all));
    let mut text = String::new();
    for (index, row) in all.into_iter().enumerate() {
        let in_row = row.iter().zip(&places).filter(|(_, place)| !place.is_below);
        text.push_str(&line(in_row.map(|(cell, place)| (cell, place.width))));
        let below: Vec<String> = row
            .iter()
            .zip(&places)
            .zip(&columns)
            .filter(|((cell, place), _)| index > 0 && place.is_below && cell.is_telling)
            .map(|((cell, _), column)| format!("{} {}", column.heading, cell.text))
            .collect();
        if !below.is_empty() {
            let _ = writeln!(text, "{}", wrapped(&format!("  {}", below.join("; ")), width, 4));
        }
    }
    text
}

/// Places columns so that a row fits the width.
fn fitted(width: TextWidth, columns: &[TableColumn], widths: &[usize]) -> Vec<ColumnPlace> {
    let place = |(column, width): (&TableColumn, &usize)| ColumnPlace {
        width: *width,
        below: column.below,
        is_below: false,
    };
    let mut places: Vec<ColumnPlace> = columns.iter().zip(widths).map(place).collect();
    let Some(limit) = width.limit() else {
        return places;
    };
    while row_width(&places) > limit {
        let movable = places
            .iter_mut()
            .filter(|place| place.below.is_some() && !place.is_below);
        match movable.max_by_key(|place| (Reverse(place.below), place.width)) {
            Some(next) => next.is_below = true,
            None => break,
        }
    }
    while row_width(&places) > limit {
        let shortened = places.iter_mut().filter(|place| !place.is_below && place.width > 1);
        match shortened.max_by_key(|place| place.width) {
            Some(widest) => widest.width -= 1,
            None => break,
        }
    }
    places
}

fn row_width(places: &[ColumnPlace]) -> usize {
    let widths = places.iter().filter(|place| !place.is_below).map(|place| place.width);
    widths.map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
}

/// Formats rows with as many cells as the first one, in columns like those of a [`table`]. Where they are too wide, the columns
/// continue in further blocks that begin with the first column.
pub fn grid(width: TextWidth, rows: &[&[TableCell]]) -> String {
    let limit = width.limit().unwrap_or(usize::MAX);
    let widths = widths(rows);
    let Some((first, others)) = widths.split_first() else {
        return String::new();
    };
    let first = (0, (*first).min(limit / 2));
    // The columns of each block, with their widths.
    let mut blocks = vec![vec![first]];
    let mut used = first.1;
    for (index, column_width) in others.iter().enumerate() {
        let column = (index + 1, (*column_width).min(limit - first.1 - GAP));
        let is_full = used.saturating_add(GAP + column.1) > limit;
        match blocks.last_mut() {
            Some(block) if !is_full || block.len() == 1 => {
                block.push(column);
                used += GAP + column.1;
            }
            _ => {
                blocks.push(vec![first, column]);
                used = first.1 + GAP + column.1;
            }
        }
    }
    let block = |columns: Vec<(usize, usize)>| -> String {
        let cells = |row: &&[TableCell]| {
            line(
                columns
                    .iter()
                    .filter_map(|(column, width)| Some((row.get(*column)?, *width))),
            )
        };
        rows.iter().map(cells).collect()
    };
    blocks.into_iter().map(block).collect::<Vec<_>>().join("\n")
}

/// Returns the width of the widest cell of each column.
fn widths(rows: &[&[TableCell]]) -> Vec<usize> {
    let columns = rows.first().map_or(0, |row| row.len());
    let width = |column| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(TableCell::length)
            .max()
    };
    (0..columns).map(|column| width(column).unwrap_or_default()).collect()
}

/// Formats the cells of one row, each with the width of its column.
fn line<'a>(cells: impl Iterator<Item = (&'a TableCell, usize)>) -> String {
    let mut text = String::new();
    let mut spaces = 0;
    for (cell, width) in cells {
        let (style, shown) = (cell.style, shortened(&cell.text, width));
        let _ = write!(text, "{}{style}{shown}{style:#}", " ".repeat(spaces));
        spaces = width.saturating_sub(shown.chars().count()) + GAP;
    }
    text.push('\n');
    text
}

fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept = text.chars().take(width.saturating_sub(1));
    kept.chain([CUT]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [TableColumn; 4] = [
        TableColumn::new("NODE"),
        TableColumn::below("HARDWARE"),
        TableColumn::below("RESOURCES"),
        TableColumn::new("READY"),
    ];

    fn stripped(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn nodes() -> [[TableCell; 4]; 2] {
        [
            [
                "gpu-a".into(),
                "8 x Tesla-V100-SXM2-32GB".into(),
                "nvidia.com/gpu 8/8 (3 held)".into(),
                TableCell::new("True", style::GOOD),
            ],
            [
                "gpu-b".into(),
                "".into(),
                TableCell::count(0, style::BAD),
                TableCell::new("False", style::BAD),
            ],
        ]
    }

    #[test]
    fn columns_are_aligned_whatever_their_colour() {
        let rows = [
            [TableCell::new("True", style::GOOD), "a-long-name".into(), "end".into()],
            [TableCell::new("False", style::BAD), "".into(), "x".into()],
        ];
        let columns = ["READY", "NAME", "LAST"].map(TableColumn::new);
        assert_eq!(
            stripped(&table(TextWidth::UNLIMITED, columns, &rows)),
            "READY   NAME          LAST\nTrue    a-long-name   end\nFalse   -             x\n"
        );
    }

    #[test]
    fn what_does_not_fit_goes_below_and_what_is_too_long_is_shortened_with_a_sign() {
        let text = |columns| stripped(&table(TextWidth::of(columns), COLUMNS, &nodes()));
        assert_eq!(
            text(75),
            "NODE    HARDWARE                   RESOURCES                     READY\n\
             gpu-a   8 x Tesla-V100-SXM2-32GB   nvidia.com/gpu 8/8 (3 held)   True\n\
             gpu-b   -                          0                             False\n"
        );
        assert_eq!(
            text(50),
            "NODE    HARDWARE                   READY\n\
             gpu-a   8 x Tesla-V100-SXM2-32GB   True\n  RESOURCES nvidia.com/gpu 8/8 (3 held)\n\
             gpu-b   -                          False\n",
            "the widest goes first, and nothing needs no line"
        );
        let mut rows = nodes();
        rows[1][2] = "0".into();
        let mut columns = COLUMNS;
        columns[2] = TableColumn::below_after(1, "RESOURCES");
        assert_eq!(
            stripped(&table(TextWidth::of(50), columns, &rows)),
            "NODE    RESOURCES                     READY\n\
             gpu-a   nvidia.com/gpu 8/8 (3 held)   True\n  HARDWARE 8 x Tesla-V100-SXM2-32GB\n\
             gpu-b   0                             False\n",
            "a lower rank goes before a wider column"
        );
        assert!(stripped(&table(TextWidth::of(50), COLUMNS, &rows)).ends_with("False\n  RESOURCES 0\n"));
        let names = [["node-".repeat(12).into(), "".into(), "".into(), "True".into()]];
        assert_eq!(
            stripped(&table(TextWidth::of(40), COLUMNS, &names)),
            "NODE                               READY\nnode-node-node-node-node-node-n…   True\n"
        );
    }

    #[test]
    fn no_row_is_wider_than_the_width() {
        let cell = |length: usize| TableCell::from("x y".repeat(length));
        let columns: [TableColumn; 9] = std::array::from_fn(|column| {
            if column % 2 == 0 {
                TableColumn::new("COLUMN")
            } else {
                TableColumn::below("A COLUMN")
            }
        });
        for length in [0, 1, 3, 8, 30, 90] {
            let rows: [[TableCell; 9]; 3] =
                std::array::from_fn(|row| std::array::from_fn(|column| cell(length * ((row + column) % 3))));
            let rows_of_grid: Vec<&[TableCell]> = rows.iter().map(<[TableCell; 9]>::as_slice).collect();
            for columns_of_terminal in [40, 80, 120] {
                let width = TextWidth::of(columns_of_terminal);
                let texts = [table(width, columns, &rows), grid(width, &rows_of_grid)];
                for text in texts.map(|text| stripped(&text)) {
                    let widest = text.lines().map(|line| line.chars().count()).max();
                    assert!(
                        widest <= Some(columns_of_terminal),
                        "{length} in {columns_of_terminal}:\n{text}"
                    );
                }
            }
        }
    }

    #[test]
    fn columns_of_a_grid_continue_in_a_block_below() {
        let row = |cells: [&str; 4]| cells.map(TableCell::from);
        let rows = [
            row(["GPU", "0123456789012345", "0123456789012345", "HELD BY"]),
            row(["0", "X", "NV1", "team/a"]),
        ];
        let rows: Vec<&[TableCell]> = rows.iter().map(<[TableCell; 4]>::as_slice).collect();
        assert_eq!(
            stripped(&grid(TextWidth::of(42), &rows)),
            "GPU   0123456789012345   0123456789012345\n0     X                  NV1\n\nGPU   HELD BY\n0     team/a\n"
        );
    }

    #[test]
    fn cells_cannot_steer_the_terminal() {
        let text = table(TextWidth::UNLIMITED, [TableColumn::new("A")], &[["\u{1b}[2Jx".into()]]);
        assert_eq!(text.matches('\u{1b}').count(), 2, "those of the heading alone");
    }
}
