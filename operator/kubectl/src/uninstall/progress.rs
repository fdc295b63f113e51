//! Progress of a removal, a line for each step.

use crate::{
    cli::OutputFormat,
    output::{self, plain, style},
};
use std::{
    io::Write,
    time::{Duration, Instant},
};

/// Width of a step's name.
const WIDTH: usize = 14;

/// Clears the line and returns to its start.
const CLEAR_LINE: &str = "\r\u{1b}[K";

/// Prints a line for each step. On a terminal the line changes while the step runs, elsewhere it appears at the end.
#[derive(Debug)]
pub struct RemovalProgress {
    began: Instant,
    is_terminal: bool,
    shown: String,
    goes_to: OutputFormat,
}

impl RemovalProgress {
    /// Starts the clock. JSON and YAML keep standard output to themselves, so progress goes to standard error.
    pub fn new(output: OutputFormat) -> Self {
        let is_terminal = output.is_text() && output::is_screen();
        Self {
            began: Instant::now(),
            is_terminal,
            shown: String::new(),
            goes_to: output,
        }
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Shows the current state of a step.
    pub fn doing(&mut self, step: &str, text: &str) {
        if self.is_terminal && self.shown != text {
            text.clone_into(&mut self.shown);
            let paint = style::WAITING;
            output::control(CLEAR_LINE);
            self.write(&format!("{step:WIDTH$} {paint}{}{paint:#}", plain(text)));
        }
    }

    /// Prints the result of a step.
    pub fn done(&self, step: &str, text: &str) {
        if self.is_terminal {
            output::control(CLEAR_LINE);
        }
        self.write(&format!(
            "{step:WIDTH$} {} ({} s)\n",
            plain(text),
            self.elapsed().as_secs()
        ));
    }

    /// Writes, and ignores errors: a closed output must not stop a removal.
    fn write(&self, text: &str) {
        let _ = match self.goes_to {
            OutputFormat::Table | OutputFormat::Wide => {
                let mut out = anstream::stdout().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush())
            }
            OutputFormat::Json | OutputFormat::Yaml => anstream::stderr().write_all(text.as_bytes()),
        };
    }
}
