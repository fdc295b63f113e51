//! Reads the product's sources and checks how they are laid out: which file uses which, tables of modules, doc comments,
//! names of types, layers of crates. The tests are in `tests/structure.rs`; `examples/figures.rs` prints the numbers.
//!
//! | module | what it does |
//! |---|---|
//! | `product` | the crates of the product, read from disk |
//! | `source` | the tree of modules of one crate, parsed |
//! | `paths` | the paths that the code of a module mentions |
//! | `uses` | which module uses a name of which, through re-exports |
//! | `circles` | files and sibling modules that use each other |
//! | `tables` | the table of child modules in a module's doc |
//! | `words` | comments: how they begin, what they must not mention |
//! | `types` | names of types, and `Result<_, String>` |
//! | `exports` | public items of a library that no other crate uses |
//! | `layers` | which crate may depend on which |
//! | `map` | files and tests that documents name |
//! | `figures` | lines, modules, types and circles in numbers |

mod circles;
mod exports;
mod figures;
mod layers;
mod map;
mod paths;
mod product;
mod source;
mod tables;
mod types;
mod uses;
mod words;

pub use circles::circles;
pub use exports::unused_exports;
pub use figures::{Figures, figures};
pub use layers::{allowed_dependencies, upward_dependencies};
pub use map::{missing_files, missing_tests};
pub use product::{PRODUCT, ProductCrate, ReadError, repository, rust_files};
pub use source::{Files, Module, ParseError, Tree};
pub use tables::table_problems;
pub use types::{TypeName, shared_names, string_errors, type_names};
pub use uses::Uses;
pub use words::{foreign_references, headless_docs};

#[cfg(test)]
mod tests;
