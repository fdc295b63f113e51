//! Prints how the product is laid out, in numbers: `cargo run -p gpunode-structure-tests --example figures [REPOSITORY]`.

use gpunode_structure_tests::{Figures, PRODUCT, ProductCrate, figures, repository, shared_names};
use std::{
    error::Error,
    io::{self, Write as _},
    path::PathBuf,
};

fn main() -> Result<(), Box<dyn Error>> {
    let root = std::env::args_os().nth(1).map_or_else(repository, PathBuf::from);
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{:<17}{:>8}{:>7}{:>9}{:>9}{:>9}{:>11}{:>8}{:>9}{:>8}{:>7}{:>8}",
        "crate",
        "modules",
        "files",
        "lines",
        "tests",
        "files/k",
        "types",
        "types/k",
        "circles",
        "upward",
        "shared",
        "tables"
    )?;
    let mut types = Vec::new();
    let mut circles = Vec::new();
    let mut row = |name: &str, figures: &Figures| {
        let per_thousand = |count: usize| {
            let tenths = count * 10_000 / figures.product_lines.max(1);
            format!("{}.{}", tenths / 10, tenths % 10)
        };
        writeln!(
            out,
            "{name:<17}{:>8}{:>7}{:>9}{:>9}{:>9}{:>11}{:>8}{:>9}{:>8}{:>7}{:>8}",
            figures.modules,
            figures.product_files,
            figures.product_lines,
            figures.test_lines,
            per_thousand(figures.product_files),
            figures.types.len(),
            per_thousand(figures.types.len()),
            figures.circles.len(),
            figures.upward_uses,
            shared_names(&figures.types).len(),
            figures.missing_tables,
        )
    };
    let mut total: Option<Figures> = None;
    for (package, folder) in PRODUCT.into_iter().filter(|(_, folder)| root.join(folder).exists()) {
        let found = figures(&ProductCrate::read(&root, package, folder)?);
        row(package, &found)?;
        types.extend(found.types.iter().cloned());
        circles.extend(found.circles.iter().map(|circle| format!("{package}: {circle}")));
        total = Some(match total {
            None => found,
            Some(total) => total + found,
        });
    }
    if let Some(total) = &total {
        row("all", total)?;
    }
    let shared = shared_names(&types);
    writeln!(
        out,
        "\nlines: product code; tests: lines of tests; per k: per 1,000 lines of product code; circles: of files and of sibling\n\
         modules; upward: files that use a name which a module above them defines; shared: names of more than one type;\n\
         tables: modules whose doc does not list their child modules."
    )?;
    writeln!(out, "\n{} names of more than one type:", shared.len())?;
    for name in shared {
        writeln!(out, "{name}")?;
    }
    writeln!(out, "\n{} circles:", circles.len())?;
    for circle in circles {
        writeln!(out, "{circle}")?;
    }
    Ok(())
}
