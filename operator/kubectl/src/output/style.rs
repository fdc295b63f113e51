//! Colours and emphasis. `anstream` removes them where the output is no terminal or NO_COLOR is set.

use anstyle::{AnsiColor, Style};

/// Healthy, or done.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// In progress.
pub const WAITING: Style = AnsiColor::Yellow.on_default();
/// Needs attention.
pub const BAD: Style = AnsiColor::Red.on_default();
/// Heading of a table or section.
pub const HEADING: Style = Style::new().bold();
/// Plain text.
pub const PLAIN: Style = Style::new();
