//! Output for people and for programs: aligned tables, colour on a terminal alone, JSON and YAML.
//!
//! | module | what it does |
//! |---|---|
//! | `print` | writes to standard output: text, JSON or YAML |
//! | `table` | aligns cells in columns that fit the width |
//! | `width` | the width of the output, and sentences broken at it |
//! | `style` | colours by meaning: good, waiting, bad |
//! | `words` | text made safe for a terminal, phrases that subcommands share |

mod print;
pub mod style;
mod table;
mod width;
mod words;

pub use gpunode_crds::plural;
pub use print::{control, is_screen, print, render, warn, write, write_to_reader};
pub use table::{TableCell, TableColumn, grid, table};
pub use width::{TextWidth, wrapped};
pub use words::{NO_POLICY, nearest_node_text, plain};
