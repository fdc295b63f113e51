//! `gpunode-bench MEASURED DOCUMENT`: compares what the measurements printed with the targets, prints each figure, and
//! writes the table of `docs/benchmarks.md`. Exits with 1 where a target is missed or was not measured.

mod document;
mod figure;
mod machine;
mod measured;

use anyhow::{Context as _, Result, ensure};
use figure::{FIGURES, Verdict};
use std::{fs, path::PathBuf};

#[expect(clippy::print_stdout, reason = "what the program is for")]
fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let mut next = |what| {
        arguments
            .next()
            .with_context(|| format!("gpunode-bench MEASURED DOCUMENT: {what} is missing"))
    };
    let (input, path) = (next("MEASURED")?, next("DOCUMENT")?);
    let text = fs::read_to_string(&input).with_context(|| format!("read {}", input.display()))?;
    let measured = measured::read(&text)?;
    for figure in FIGURES {
        println!("{}", figure.line(measured.get(figure.key).copied()));
    }
    let table = document::table(&measured, &machine::describe());
    let document = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let document = document::filled(&document, &table).with_context(|| format!("fill {}", path.display()))?;
    fs::write(&path, document).with_context(|| format!("write {}", path.display()))?;
    let is_missed = |figure: &&figure::Figure| figure.verdict(measured.get(figure.key).copied()) == Verdict::Missed;
    let missed: Vec<&str> = FIGURES.iter().filter(is_missed).map(|figure| figure.key).collect();
    ensure!(missed.is_empty(), "missed: {}", missed.join(", "));
    Ok(())
}
