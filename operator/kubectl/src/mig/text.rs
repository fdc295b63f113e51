//! Profiles and placed layouts, for people.

use super::{
    drawing::{DrawnInstance, InstanceState, LayoutDrawing},
    listing::{BoardListing, ProfileListing},
};
use crate::output::{TableCell, TableColumn, TextWidth, style, table, wrapped};
use std::fmt::Write as _;

/// Signs of a slice that an instance has, and of one that it does not have.
const TAKEN: char = '#';
const OTHER: char = '.';

/// Returns the slices of each instance, and what fits beside them.
pub fn drawing(drawing: &LayoutDrawing, width: TextWidth) -> String {
    let title = format!("{} with {}", drawing.board, drawing.layout);
    let mut text = format!("{}\n\n", wrapped(&title, width, 2));
    let columns = ["INSTANCE", "START", "MEMORY", "COMPUTE", "STATE"].map(TableColumn::new);
    let mut compute = 0;
    let mut rows: Vec<[TableCell; 5]> = Vec::new();
    for instance in &drawing.instances {
        rows.push(row(instance, drawing, compute));
        compute += instance.compute_slices;
    }
    if !drawing.free_memory_slices.is_empty() || drawing.free_compute_slices > 0 {
        rows.push([
            "free".into(),
            "".into(),
            slices(drawing.memory_slices, |slice| {
                drawing.free_memory_slices.contains(&slice)
            })
            .into(),
            slices(drawing.compute_slices, |slice| slice >= compute).into(),
            "".into(),
        ]);
    }
    text.push_str(&table(width, columns, &rows));
    let fits: Vec<String> = drawing
        .fits
        .iter()
        .map(|fitting| format!("{}:{}", fitting.profile, fitting.count))
        .collect();
    let fits = if fits.is_empty() {
        "nothing else fits".to_owned()
    } else {
        format!("still fits: {}", fits.join(" or "))
    };
    let _ = writeln!(text, "\n{}", wrapped(&fits, width, 2));
    text
}

/// Formats an instance whose compute slices are drawn from `compute` on.
fn row(instance: &DrawnInstance, drawing: &LayoutDrawing, compute: u32) -> [TableCell; 5] {
    let (state, style) = match instance.state {
        InstanceState::New => ("new", style::GOOD),
        InstanceState::InUse => ("in use", style::PLAIN),
        InstanceState::Surplus => ("in use, not in the layout", style::WAITING),
    };
    let has_compute = |slice: u32| slice >= compute && slice - compute < instance.compute_slices;
    [
        instance.profile.clone().into(),
        instance.start.to_string().into(),
        slices(drawing.memory_slices, |slice| instance.has_memory_slice(slice)).into(),
        slices(drawing.compute_slices, has_compute).into(),
        TableCell::new(state, style),
    ]
}

fn slices(total: u32, is_taken: impl Fn(u32) -> bool) -> String {
    (0..total)
        .map(|slice| if is_taken(slice) { TAKEN } else { OTHER })
        .collect()
}

/// Returns the profiles and presets of a board.
pub fn listing(listing: &BoardListing, width: TextWidth) -> String {
    let title = format!(
        "{}: {} memory and {} compute slices; PCI ids {}",
        listing.board,
        listing.memory_slices,
        listing.compute_slices,
        listing.device_ids.join(", ")
    );
    let columns = [
        TableColumn::new("PROFILE"),
        TableColumn::below("ID"),
        TableColumn::new("COMPUTE"),
        TableColumn::new("MEMORY"),
        TableColumn::new("FREE"),
        TableColumn::below("STARTS AT"),
    ];
    let row = |profile: &ProfileListing| -> [TableCell; 6] {
        let starts: Vec<String> = profile.starts.iter().map(ToString::to_string).collect();
        [
            profile.profile.clone().into(),
            profile.id.to_string().into(),
            format!("{} of {}", profile.compute_slices, listing.compute_slices).into(),
            format!("{} of {}", profile.memory_slices, listing.memory_slices).into(),
            format!("{}/{}", profile.free, profile.max).into(),
            starts.join(", ").into(),
        ]
    };
    let rows: Vec<_> = listing.profiles.iter().map(row).collect();
    let presets: Vec<&str> = listing.presets.iter().map(|preset| preset.name.as_str()).collect();
    format!(
        "{}\n\n{}\n{}\n",
        wrapped(&title, width, 2),
        table(width, columns, &rows),
        wrapped(&format!("presets: {}", presets.join(", ")), width, 2)
    )
}
