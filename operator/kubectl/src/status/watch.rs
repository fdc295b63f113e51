//! `status --watch`: prints the state again when it changes. A terminal shows the latest state only; elsewhere states follow
//! each other.
//!
//! The watch ends with Ctrl-C, or when the reader of its output is gone.

use crate::output;
use jiff::Timestamp;
use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

/// Shortest time between two reads.
const PAUSE: Duration = Duration::from_secs(2);
/// Factor by which the pause exceeds the duration of a read, to spare the API server of a large fleet.
const REST: u32 = 4;
/// Longest time between two reads.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The destination of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchOutput {
    /// A terminal that shows only the latest state.
    Screen,
    /// A file or a pipe for people: each state follows a line with its time.
    Log,
    /// A file or a pipe for programs: one document after the other.
    Documents,
}

/// Reads and prints the state until the output is closed.
///
/// # Errors
/// When the first read fails, or the output cannot be written.
pub async fn watch(place: WatchOutput, mut read: impl AsyncFnMut() -> anyhow::Result<String>) -> anyhow::Result<()> {
    let mut view = WatchView {
        place,
        shown: None,
        failure: None,
    };
    loop {
        let began = Instant::now();
        let state = read().await;
        if view.shown.is_none() && state.is_err() {
            return state.map(drop);
        }
        let frame = view.next(&state, Timestamp::now());
        if !show(&frame)? {
            return Ok(());
        }
        tokio::time::sleep((began.elapsed() * REST).clamp(PAUSE, LONGEST_PAUSE)).await;
    }
}

/// Writes a frame. Returns false when the reader is gone.
fn show(frame: &WatchFrame) -> io::Result<bool> {
    if let Some(failure) = &frame.failure {
        let _ = writeln!(anstream::stderr(), "kubectl gpunode: {}", output::plain(failure));
    }
    if frame.clears {
        output::control("\u{1b}[H\u{1b}[2J");
    }
    frame
        .text
        .as_ref()
        .map_or(Ok(true), |text| output::write_to_reader(text))
}

/// One update of the output.
#[derive(Debug, Default, PartialEq, Eq)]
struct WatchFrame {
    /// Error for standard error.
    failure: Option<String>,
    /// True where the screen is cleared first.
    clears: bool,
    text: Option<String>,
}

/// The last state that was written.
struct WatchView {
    place: WatchOutput,
    shown: Option<String>,
    failure: Option<String>,
}

impl WatchView {
    /// Returns the update after a read; empty where nothing changed.
    fn next(&mut self, state: &anyhow::Result<String>, now: Timestamp) -> WatchFrame {
        let at = now.round(jiff::Unit::Second).unwrap_or(now);
        let (text, failure) = match state {
            Ok(text) => (Some(text.clone()), None),
            Err(error) => (self.shown.clone(), Some(format!("{error:#}"))),
        };
        let is_new = self.shown != text;
        let is_news = self.failure != failure;
        self.shown.clone_from(&text);
        self.failure.clone_from(&failure);
        let text = text.unwrap_or_default();
        let failure = failure.map(|failure| format!("{failure} (since {at}, retrying)"));
        match self.place {
            WatchOutput::Screen if is_new || is_news => {
                let failure = failure
                    .map(|failure| format!("\n{}\n", output::plain(&failure)))
                    .unwrap_or_default();
                WatchFrame {
                    failure: None,
                    clears: true,
                    text: Some(text + &failure),
                }
            }
            WatchOutput::Log if is_new => WatchFrame {
                text: Some(format!("--- {at}\n{text}")),
                ..WatchFrame::default()
            },
            WatchOutput::Documents if is_new => WatchFrame {
                text: Some(text),
                ..WatchFrame::default()
            },
            WatchOutput::Log | WatchOutput::Documents if is_news => WatchFrame {
                failure,
                ..WatchFrame::default()
            },
            _ => WatchFrame::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(place: WatchOutput) -> Vec<WatchFrame> {
        let mut view = WatchView {
            place,
            shown: None,
            failure: None,
        };
        let looks = [Ok("a\n"), Ok("a\n"), Err("gone"), Err("gone"), Ok("a\n"), Ok("b\n")];
        let now = |index: usize| Timestamp::from_second(i64::try_from(index).expect("a small number")).expect("a time");
        let look = |(index, seen): (usize, Result<&str, &str>)| {
            view.next(
                &seen.map(str::to_owned).map_err(|error| anyhow::anyhow!("{error}")),
                now(index),
            )
        };
        looks.into_iter().enumerate().map(look).collect()
    }

    fn text(text: &str) -> WatchFrame {
        WatchFrame {
            text: Some(text.to_owned()),
            ..WatchFrame::default()
        }
    }

    fn failure() -> WatchFrame {
        WatchFrame {
            failure: Some("gone (since 1970-01-01T00:00:02Z, retrying)".to_owned()),
            ..WatchFrame::default()
        }
    }

    #[test]
    fn a_screen_is_drawn_again_when_something_changed_and_says_while_nobody_answers() {
        let screen = |shown: &str| WatchFrame {
            clears: true,
            ..text(shown)
        };
        let away = screen("a\n\ngone (since 1970-01-01T00:00:02Z, retrying)\n");
        let expected = [
            screen("a\n"),
            WatchFrame::default(),
            away,
            WatchFrame::default(),
            screen("a\n"),
            screen("b\n"),
        ];
        assert_eq!(frames(WatchOutput::Screen), expected);
    }

    #[test]
    fn a_pipe_gets_what_is_new_alone() {
        let nothing = WatchFrame::default;
        let first = text("--- 1970-01-01T00:00:00Z\na\n");
        let last = text("--- 1970-01-01T00:00:05Z\nb\n");
        assert_eq!(
            frames(WatchOutput::Log),
            [first, nothing(), failure(), nothing(), nothing(), last]
        );
        assert_eq!(
            frames(WatchOutput::Documents),
            [text("a\n"), nothing(), failure(), nothing(), nothing(), text("b\n")]
        );
    }

    #[tokio::test]
    async fn an_error_at_first_is_an_error() {
        let error = watch(WatchOutput::Log, async || anyhow::bail!("no such cluster"))
            .await
            .expect_err("a failed look");
        assert_eq!(error.to_string(), "no such cluster");
    }
}
