//! What a removal says while it goes on, and what it could not remove.

use crate::{
    cli::OutputFormat,
    output::{self, plain, style},
};
use serde::Serialize;
use std::{
    fmt,
    io::Write,
    time::{Duration, Instant},
};

/// Columns of the name of a step.
const WIDTH: usize = 14;

/// Back to the beginning of an empty line.
const CLEAR_LINE: &str = "\r\u{1b}[K";

/// Something that stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Left {
    /// What it is.
    pub what: String,
    /// Why, and what to do.
    pub why: String,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

/// A line for each step: on a terminal it changes while the step goes on, elsewhere it is written at the end.
#[derive(Debug)]
pub struct Progress {
    began: Instant,
    is_terminal: bool,
    shown: String,
    goes_to: OutputFormat,
}

impl Progress {
    /// From now on. What is written for programs leaves standard output alone.
    pub fn new(output: OutputFormat) -> Self {
        let is_terminal = output == OutputFormat::Table && output::is_screen();
        Self {
            began: Instant::now(),
            is_terminal,
            shown: String::new(),
            goes_to: output,
        }
    }

    /// Since it began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// What a step is doing.
    pub fn doing(&mut self, step: &str, text: &str) {
        if self.is_terminal && self.shown != text {
            text.clone_into(&mut self.shown);
            let paint = style::WAITING;
            output::control(CLEAR_LINE);
            self.write(&format!("{step:WIDTH$} {paint}{}{paint:#}", plain(text)));
        }
    }

    /// What a step has done.
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

    /// Nobody stops a removal by closing its output.
    fn write(&self, text: &str) {
        let _ = match self.goes_to {
            OutputFormat::Table => {
                let mut out = anstream::stdout().lock();
                out.write_all(text.as_bytes()).and_then(|()| out.flush())
            }
            OutputFormat::Json | OutputFormat::Yaml => anstream::stderr().write_all(text.as_bytes()),
        };
    }
}
