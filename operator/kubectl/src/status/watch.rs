//! `status --watch`: what is shown again when it changes. On a terminal it replaces what was there, elsewhere it is appended.
//!
//! It ends when somebody ends it, by Ctrl-C, or when nobody reads what it writes.

use crate::output;
use jiff::Timestamp;
use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

/// Shortest time between two looks.
const PAUSE: Duration = Duration::from_secs(2);
/// A look at a large fleet takes the API server's time: so many times as long it is left alone.
const REST: u32 = 4;
/// Longest time between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Where it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchOutput {
    /// A terminal, which shows the last state alone.
    Screen,
    /// A file or a pipe, for people: each state stands below the time of its look.
    Log,
    /// The same for programs: one document after the other.
    Documents,
}

/// Looks again and again.
///
/// # Errors
/// When the first look fails, or the output cannot be written.
pub async fn watch(place: WatchOutput, mut look: impl AsyncFnMut() -> anyhow::Result<String>) -> anyhow::Result<()> {
    let mut view = WatchView {
        place,
        shown: None,
        trouble: None,
    };
    loop {
        let began = Instant::now();
        let seen = look().await;
        if view.shown.is_none() && seen.is_err() {
            return seen.map(drop);
        }
        let frame = view.next(seen.map_err(|error| format!("{error:#}")), Timestamp::now());
        if !show(&frame)? {
            return Ok(());
        }
        tokio::time::sleep((began.elapsed() * REST).clamp(PAUSE, LONGEST_PAUSE)).await;
    }
}

/// Writes a frame; whether somebody reads it.
fn show(frame: &WatchFrame) -> io::Result<bool> {
    if let Some(trouble) = &frame.trouble {
        let _ = writeln!(anstream::stderr(), "kubectl gpunode: {}", output::plain(trouble));
    }
    if frame.clears {
        output::control("\u{1b}[H\u{1b}[2J");
    }
    frame
        .text
        .as_ref()
        .map_or(Ok(true), |text| output::write_to_reader(text))
}

/// What is to be written.
#[derive(Debug, Default, PartialEq, Eq)]
struct WatchFrame {
    /// On standard error.
    trouble: Option<String>,
    /// What is on the screen goes first.
    clears: bool,
    text: Option<String>,
}

/// What was written last.
struct WatchView {
    place: WatchOutput,
    shown: Option<String>,
    trouble: Option<String>,
}

impl WatchView {
    /// What to write after a look: nothing where it saw the same as the one before.
    fn next(&mut self, seen: Result<String, String>, now: Timestamp) -> WatchFrame {
        let at = now.round(jiff::Unit::Second).unwrap_or(now);
        let (text, trouble) = match seen {
            Ok(text) => (Some(text), None),
            Err(trouble) => (self.shown.clone(), Some(trouble)),
        };
        let is_new = self.shown != text;
        let is_news = self.trouble != trouble;
        self.shown.clone_from(&text);
        self.trouble.clone_from(&trouble);
        let text = text.unwrap_or_default();
        let trouble = trouble.map(|trouble| format!("{trouble} (since {at}; trying again)"));
        match self.place {
            WatchOutput::Screen if is_new || is_news => {
                let trouble = trouble
                    .map(|trouble| format!("\n{}\n", output::plain(&trouble)))
                    .unwrap_or_default();
                WatchFrame {
                    trouble: None,
                    clears: true,
                    text: Some(text + &trouble),
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
                trouble,
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
            trouble: None,
        };
        let looks = [Ok("a\n"), Ok("a\n"), Err("gone"), Err("gone"), Ok("a\n"), Ok("b\n")];
        let now = |index: usize| Timestamp::from_second(i64::try_from(index).expect("a small number")).expect("a time");
        let look = |(index, seen): (usize, Result<&str, &str>)| {
            view.next(seen.map(str::to_owned).map_err(str::to_owned), now(index))
        };
        looks.into_iter().enumerate().map(look).collect()
    }

    fn text(text: &str) -> WatchFrame {
        WatchFrame {
            text: Some(text.to_owned()),
            ..WatchFrame::default()
        }
    }

    fn trouble() -> WatchFrame {
        WatchFrame {
            trouble: Some("gone (since 1970-01-01T00:00:02Z; trying again)".to_owned()),
            ..WatchFrame::default()
        }
    }

    #[test]
    fn a_screen_is_drawn_again_when_something_changed_and_says_while_nobody_answers() {
        let screen = |shown: &str| WatchFrame {
            clears: true,
            ..text(shown)
        };
        let away = screen("a\n\ngone (since 1970-01-01T00:00:02Z; trying again)\n");
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
            [first, nothing(), trouble(), nothing(), nothing(), last]
        );
        assert_eq!(
            frames(WatchOutput::Documents),
            [text("a\n"), nothing(), trouble(), nothing(), nothing(), text("b\n")]
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
