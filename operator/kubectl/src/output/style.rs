//! Colours and emphasis. `anstream` removes them where the output is no terminal or NO_COLOR is set.

use anstyle::{AnsiColor, Style};

/// As it should be.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// On its way.
pub const WAITING: Style = AnsiColor::Yellow.on_default();
/// Needs somebody.
pub const BAD: Style = AnsiColor::Red.on_default();
/// Headings.
pub const HEADING: Style = Style::new().bold();
/// As it is.
pub const PLAIN: Style = Style::new();
