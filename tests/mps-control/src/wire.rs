//! Messages between daemon, control program and client over the socket `control` in the pipe directory: a request is one
//! line, and an answer is one or more.

use std::{
    env,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
};

/// Asks for a command of the control program: `command TEXT`.
pub const COMMAND: &str = "command ";
/// Asks to become a client: `client UID PERCENTAGE MEMORY`, with `-` for what the environment does not say.
pub const CLIENT: &str = "client ";
/// First word of an answer.
pub const OK: &str = "ok";

/// Longest line, either way.
pub const MAX_LINE: u64 = 4096;

/// The pipe directory that the environment names.
pub fn pipe_directory() -> PathBuf {
    env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from)
}

/// Connects to the daemon of this pipe directory.
pub fn connect() -> io::Result<UnixStream> {
    UnixStream::connect(pipe_directory().join("control"))
}

/// Sends one line and reads one: `Ok(Ok(text))` where the daemon agrees.
pub fn ask(stream: &mut UnixStream, line: &str) -> io::Result<Result<String, String>> {
    writeln!(stream, "{line}")?;
    let answer = read_line(stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(match answer.strip_prefix(OK) {
        Some(text) => Ok(text.trim().to_owned()),
        None => Err(answer),
    })
}

/// The next line; none at the end. Reads not more than that line where the other side waits for the answer.
pub fn read_line(stream: &UnixStream) -> io::Result<Option<String>> {
    let mut line = String::new();
    let read = BufReader::new(stream).take(MAX_LINE).read_line(&mut line)?;
    Ok((read > 0).then(|| line.trim_end().to_owned()))
}
