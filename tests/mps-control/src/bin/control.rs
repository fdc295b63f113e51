//! `nvidia-cuda-mps-control`: starts the daemon with `-d`, and sends it the commands of standard input without arguments. With
//! `-multiuser-server` the daemon serves the clients of all users at once. Anything else ends with 1.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

use gpunode_mps_control::{
    daemon::Daemon,
    wire::{COMMAND, ask, connect, pipe_directory},
};
use rustix::process::setsid;
use std::{
    env,
    io::{self, BufRead as _, BufReader, Read as _},
    process::{Command, ExitCode, Stdio},
};

/// Tells the second process that it is the daemon. Not an argument: those are the real program's.
const SERVE: &str = "MPS_STAND_IN_SERVE";
/// One server takes the clients of all users.
const MULTIUSER: &str = "-multiuser-server";
/// Message of the daemon once it is ready.
const READY: &str = "ready";
/// Bytes of commands that are read.
const MAX_INPUT: u64 = 64 * 1024;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["-d"] if env::var_os(SERVE).is_some() => serve(false),
        ["-d", MULTIUSER] if env::var_os(SERVE).is_some() => serve(true),
        ["-d"] | ["-d", MULTIUSER] => start(&arguments),
        [] => commands(),
        _ => Err(io::Error::other(format!("arguments {arguments:?} are not known"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvidia-cuda-mps-control: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns when the daemon answers.
fn start(arguments: &[String]) -> io::Result<()> {
    let program = env::args_os().next().ok_or_else(|| io::Error::other("no name"))?;
    let mut daemon = Command::new(program)
        .args(arguments)
        .env(SERVE, "1")
        // A driver root of a test has no /dev/null.
        .stdin(Stdio::inherit())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir("/")
        .spawn()?;
    let mut line = String::new();
    if let Some(output) = daemon.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.trim_end() != READY {
        let output = daemon.wait_with_output()?;
        return Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ));
    }
    Ok(())
}

fn serve(multiuser: bool) -> io::Result<()> {
    setsid()?;
    let daemon = Daemon::bind(&pipe_directory(), multiuser)?;
    println!("{READY}");
    daemon.serve()
}

fn commands() -> io::Result<()> {
    let mut input = String::new();
    io::stdin().take(MAX_INPUT).read_to_string(&mut input)?;
    for command in input.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let answer = ask(&mut connect()?, &format!("{COMMAND}{command}"))?.map_err(io::Error::other)?;
        if !answer.is_empty() {
            println!("{answer}");
        }
    }
    Ok(())
}
