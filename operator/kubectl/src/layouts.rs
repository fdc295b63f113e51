//! MIG layouts of a node's GPUs: those that they have, and those that a configuration wants. Pure.
//!
//! | module | what it does |
//! |---|---|
//! | `observed` | the layout that a GPU has, from the status of its node |
//! | `selection` | the group of a configuration that selects a GPU |
//! | `wanted` | the layout that a group gives a GPU, if it can have it |
//! | `words` | the layout of a configuration in words |

mod observed;
mod selection;
mod wanted;
mod words;

pub use observed::{CountedLayout, observed};
pub use selection::choice;
pub use wanted::{LayoutMisfit, LayoutObstacle, WantedLayout, on_board, wanted};
pub use words::layout_words;
