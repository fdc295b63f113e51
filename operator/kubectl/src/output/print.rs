//! Standard output: text for people, JSON and YAML for programs.

use super::{width::TextWidth, words::plain};
use crate::cli::OutputFormat;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Prints `value` for programs, or `text` for people, which gets the width of the output.
///
/// # Errors
/// When standard output cannot be written. A reader that closes early, such as `head`, is no error.
pub fn print<T: Serialize>(format: OutputFormat, value: &T, text: impl FnOnce(TextWidth) -> String) -> io::Result<()> {
    write(&render(format, value, text)?)
}

/// Returns `value` for programs, or `text` for people, which gets the width of the output.
///
/// # Errors
/// When `value` has no form in JSON or YAML.
pub fn render<T: Serialize>(
    format: OutputFormat,
    value: &T,
    text: impl FnOnce(TextWidth) -> String,
) -> io::Result<String> {
    match format {
        OutputFormat::Table | OutputFormat::Wide => Ok(text(TextWidth::of_output(format))),
        OutputFormat::Json => Ok(serde_json::to_string_pretty(value)? + "\n"),
        OutputFormat::Yaml => serde_yaml::to_string(value).map_err(io::Error::other),
    }
}

/// Writes a text.
///
/// # Errors
/// As of [`print`].
pub fn write(text: &str) -> io::Result<()> {
    write_to_reader(text).map(drop)
}

/// Writes a text. Returns false when the reader has closed its end.
///
/// # Errors
/// As of [`print`].
pub fn write_to_reader(text: &str) -> io::Result<bool> {
    let mut out = anstream::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true where standard output is a terminal that can rewrite lines.
pub fn is_screen() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// Writes a control sequence to the terminal, even with NO_COLOR. Errors are ignored.
pub fn control(sequence: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(sequence.as_bytes()).and_then(|()| out.flush());
}

/// Prints a warning on standard error. Errors are ignored.
pub fn warn(text: &str) {
    let _ = writeln!(anstream::stderr(), "warning: {}", plain(text));
}
