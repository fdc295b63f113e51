//! What a removal says while it goes on, and what it could not remove.

use crate::output::{plain, style};
use std::{
    fmt,
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

/// Columns of the name of a step.
const WIDTH: usize = 14;

/// Something that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

impl Progress {
    /// From now on.
    pub fn new() -> Self {
        Self { began: Instant::now(), is_terminal: io::stdout().is_terminal(), shown: String::new() }
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
            write(&format!("\r\u{1b}[K{step:WIDTH$} {paint}{}{paint:#}", plain(text)));
        }
    }

    /// What a step has done.
    pub fn done(&self, step: &str, text: &str) {
        let (clear, seconds) = (if self.is_terminal { "\r\u{1b}[K" } else { "" }, self.elapsed().as_secs());
        write(&format!("{clear}{step:WIDTH$} {} ({seconds} s)\n", plain(text)));
    }
}

/// Nobody stops a removal by closing its output.
fn write(text: &str) {
    let mut out = anstream::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
