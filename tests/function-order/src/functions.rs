//! The functions of a program.

use anyhow::{Context as _, Result, ensure};
use object::{Object as _, ObjectSymbol as _, SymbolKind};
use std::{fs, path::Path};

/// A function. Several may have one address: the linker folds those with the same code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, as the linker knows it.
    pub name: String,
    /// Its address in the program.
    pub address: u64,
    /// Bytes of its code.
    pub size: u64,
}

/// Reads the functions of a program that is not stripped.
pub fn read(program: &Path) -> Result<Vec<Function>> {
    let bytes = fs::read(program).with_context(|| format!("read {}", program.display()))?;
    let file = object::File::parse(&*bytes).with_context(|| format!("read {}", program.display()))?;
    let symbols = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
    let functions = symbols.map(|symbol| {
        Ok(Function {
            name: symbol.name().context("read the name of a function")?.to_owned(),
            address: symbol.address(),
            size: symbol.size(),
        })
    });
    let functions = functions.collect::<Result<Vec<_>>>()?;
    ensure!(
        !functions.is_empty(),
        "{} has no names of functions: it is stripped, as the one in the image is; use that of target/release",
        program.display()
    );
    Ok(functions)
}
