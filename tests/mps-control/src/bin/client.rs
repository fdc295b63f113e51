//! `mps-client`: a process that uses MPS as its environment says. Prints one line with the limits that it got, then stays
//! until its daemon is gone, and ends with 1; with `--once` it ends at once.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

use gpunode_mps_control::wire::{CLIENT, ask, connect, read_line};
use rustix::process::getuid;
use std::{env, io, path::Path, process::ExitCode};

/// File that the daemon left in the shared memory of its clients.
const SHARED_MEMORY: &str = "/dev/shm/nvidia-mps-stand-in";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mps-client: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let variable = |name| env::var(name).unwrap_or_else(|_| "-".to_owned());
    let (percentage, memory) = (
        variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
        variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    );
    // A user id that the environment names saves a test from files that any user can read.
    let uid = env::var("MPS_STAND_IN_UID").unwrap_or_else(|_| getuid().as_raw().to_string());
    let mut stream = connect()?;
    let limits = ask(&mut stream, &format!("{CLIENT}{uid} {percentage} {memory}"))?.map_err(io::Error::other)?;
    println!("{limits} shared_memory={}", Path::new(SHARED_MEMORY).exists());
    if env::args().nth(1).as_deref() == Some("--once") {
        return Ok(());
    }
    match read_line(&stream)? {
        None => Err(io::Error::other("the connection to the MPS daemon is lost")),
        Some(line) => Err(io::Error::other(line)),
    }
}
