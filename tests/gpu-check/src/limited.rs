//! Programs that may hang: a call of the driver cannot be ended from outside.

use std::{
    io::{self, BufRead as _, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

/// Pause between two looks at a process.
const POLL: Duration = Duration::from_millis(10);
/// Number of last lines of an output that an error shows.
const LAST_LINES: usize = 5;

/// A program that has ended, and all that it printed.
#[derive(Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Failure to run a program to its end.
#[derive(Debug, thiserror::Error)]
pub enum LimitedError {
    /// It does not start, or cannot be awaited.
    #[error("run {program}")]
    Run {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// It prints nothing for too long. It was killed, but may go on in a call of the driver.
    #[error("{program} printed nothing for {limit:?} after: {last}")]
    Silent {
        /// The program.
        program: String,
        /// The longest silence.
        limit: Duration,
        /// The last line of its standard error.
        last: String,
    },
}

enum Line {
    Out(String),
    Error(String),
}

/// Runs a program to its end, and kills it if it prints nothing for longer than `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished, LimitedError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |source| LimitedError::Run {
        program: program.clone(),
        source,
    };
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (sender, lines) = mpsc::channel();
    forward(child.stdout.take(), sender.clone(), Line::Out);
    forward(child.stderr.take(), sender, Line::Error);
    let (mut stdout, mut stderr) = (String::new(), String::new());
    let add = |text: &mut String, line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    let ends_in_time = loop {
        match lines.recv_timeout(limit) {
            Ok(Line::Out(line)) => add(&mut stdout, &line),
            Ok(Line::Error(line)) => add(&mut stderr, &line),
            Err(RecvTimeoutError::Timeout) => break false,
            Err(RecvTimeoutError::Disconnected) => break true,
        }
    };
    let status = if ends_in_time {
        ended(&mut child, limit).map_err(failed)?
    } else {
        None
    };
    if let Some(status) = status {
        Ok(Finished { status, stdout, stderr })
    } else {
        // Not awaited: it stays as long as its call into the driver does.
        _ = child.kill();
        Err(LimitedError::Silent {
            last: stderr.lines().last().unwrap_or("its start").to_owned(),
            program,
            limit,
        })
    }
}

/// Returns the last lines of an output.
pub fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let last = lines.get(lines.len().saturating_sub(LAST_LINES)..);
    last.unwrap_or_default().join("\n")
}

/// Waits until a process has ended; none if it has not when the time is over.
fn ended(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait()? {
            None if Instant::now() < deadline => thread::sleep(POLL),
            status => return Ok(status),
        }
    }
}

fn forward(pipe: Option<impl Read + Send + 'static>, to: Sender<Line>, line: fn(String) -> Line) {
    let Some(pipe) = pipe else { return };
    thread::spawn(move || {
        // Names of processes, which nvidia-smi prints, are any bytes.
        for bytes in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            if to.send(line(String::from_utf8_lossy(&bytes).into_owned())).is_err() {
                break;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<Finished, LimitedError> {
        run(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn both_outputs_and_the_exit_status_are_kept() {
        let finished = shell("echo out; echo one >&2; echo two >&2; exit 3", Duration::from_mins(1)).unwrap();
        assert_eq!(finished.status.code(), Some(3));
        assert_eq!((&*finished.stdout, &*finished.stderr), ("out\n", "one\ntwo\n"));
    }

    #[test]
    fn a_silent_program_is_left_with_the_last_thing_that_it_said() {
        let error = shell("echo nvmlInit_v2 >&2; exec sleep 600", Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.to_string(), "sh printed nothing for 1s after: nvmlInit_v2");
    }

    #[test]
    fn a_program_that_closes_its_outputs_and_goes_on_is_left_too() {
        let error = shell("exec >&- 2>&-; exec sleep 600", Duration::from_millis(500)).unwrap_err();
        assert!(matches!(error, LimitedError::Silent { .. }), "{error}");
    }

    #[test]
    fn an_error_shows_the_last_lines_of_an_output() {
        assert_eq!(last_lines("1\n2\n3\n4\n5\n6\n"), "2\n3\n4\n5\n6");
        assert_eq!(last_lines(""), "");
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = run(&mut Command::new("/nowhere/nvidia-smi"), Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.to_string(), "run /nowhere/nvidia-smi");
    }
}
