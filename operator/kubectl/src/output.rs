//! Output for people and for programs: aligned tables, colour on a terminal alone, JSON and YAML.
//!
//! | module | what it does |
//! |---|---|
//! | `print` | writes to standard output: text, JSON or YAML |
//! | `table` | aligns cells in columns |
//! | `style` | colours by meaning: good, waiting, bad |
//! | `words` | plurals, text made safe for a terminal, phrases that subcommands share |

mod print;
pub mod style;
mod table;
mod words;

pub use print::{control, is_screen, print, render, write, write_to_reader};
pub use table::{TableCell, grid, table};
pub use words::{NO_POLICY, nearest_node_text, plain, plural};
