//! `kubectl gpunode mig`: draws the slices that a MIG layout takes on a board, without a cluster.
//!
//! | module | what it does |
//! |---|---|
//! | `listing` | the profiles and presets of a board |
//! | `drawing` | places a layout on a board |
//! | `text` | prints both as tables |

mod drawing;
mod listing;
#[cfg(test)]
mod tests;
mod text;

use crate::{cli::MigArgs, output};
use anyhow::Context;
use drawing::LayoutDrawing;
use gpunode_mig::{MigBoard, parse_instances};
use listing::BoardListing;
use std::process::ExitCode;

/// Prints the slices of a layout, or the profiles of the board.
///
/// # Errors
/// When there is no such board, profile, preset or instance, the layout does not fit, or the output cannot be written.
pub fn run(args: &MigArgs) -> anyhow::Result<ExitCode> {
    let board = MigBoard::named(&args.board)?;
    let in_use =
        parse_instances(&args.in_use, &board.geometry).with_context(|| format!("read --in-use for {}", board.name))?;
    if let Some(layout) = &args.layout {
        let drawing = LayoutDrawing::new(&board, layout, &in_use, &args.in_use)?;
        output::print(args.output, &drawing, |width| text::drawing(&drawing, width))?;
    } else {
        let listing = BoardListing::new(&board, &in_use);
        output::print(args.output, &listing, |width| text::listing(&listing, width))?;
    }
    Ok(ExitCode::SUCCESS)
}
