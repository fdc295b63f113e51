//! Gives pages of code back that ran at the start and not since. The kernel maps sixteen pages around each one that is needed
//! (`fault_around_bytes`), so that most of a program counts as its memory soon, although half of it never runs again. A page that is
//! given back is mapped again from the cache of the file when it is needed.
//!
//! The only module with `unsafe` code of this crate.

#![allow(unsafe_code, reason = "giving memory back is a system call on addresses")]

use rustix::mm::{Advice, madvise};
use std::{convert::Infallible, fs, io, ptr, time::Duration};
use tokio::time::sleep;
use tracing::debug;

/// Time after which a program that starts does what it goes on to do.
const START: Duration = Duration::from_secs(20);
/// Pause between two times. What ran once in between is given back too; to map a page again takes a microsecond.
const PAUSE: Duration = Duration::from_mins(10);

/// Gives code back that does not run, again and again.
pub async fn spare_code_pages() -> Infallible {
    sleep(START).await;
    loop {
        match give_back() {
            Ok(bytes) => debug!(bytes, "gave code back that does not run"),
            Err(error) => debug!(%error, "cannot give code back that does not run"),
        }
        sleep(PAUSE).await;
    }
}

/// Gives the code of this program back. Returns the number of bytes.
fn give_back() -> io::Result<usize> {
    let program = fs::read_link("/proc/self/exe")?;
    let program = program.to_str().unwrap_or_default();
    let maps = fs::read_to_string("/proc/self/maps")?;
    let mut bytes = 0;
    for (start, length) in maps.lines().filter_map(|line| code(line, program)) {
        let start = ptr::with_exposed_provenance_mut(start);
        // SAFETY: the mapping is code of the program's file, which nobody can write to: its pages differ in nothing from those of the
        // file, and the next use of one maps it again. Unlike a library's, it stays where it is for as long as the process runs.
        unsafe { madvise(start, length, Advice::LinuxDontNeed) }?;
        bytes += length;
    }
    Ok(bytes)
}

/// Returns start and length of a mapping of the program's code, in a line of `/proc/PID/maps` (proc_pid_maps(5)).
fn code(line: &str, program: &str) -> Option<(usize, usize)> {
    let path = line.get(line.find('/')?..)?;
    let mut fields = line.split_whitespace();
    let (range, permissions) = (fields.next()?, fields.next()?);
    let (start, end) = range.split_once('-')?;
    if permissions != "r-xp" || path != program {
        return None;
    }
    let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).ok());
    Some((start?, end?.checked_sub(start?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_the_program_is_given_back() {
        const PROGRAM: &str = "/usr/local/bin/gpunode-agent";
        let line =
            "55873839f000-558738b83000 r-xp 000c3000 fe:00 262                        /usr/local/bin/gpunode-agent";
        assert_eq!(code(line, PROGRAM), Some((0x5587_3839_f000, 0x7e_4000)));
        let deleted = format!("{PROGRAM} (deleted)");
        assert_eq!(code(&format!("{line} (deleted)"), &deleted), code(line, PROGRAM));
        for other in [
            "558738b83000-558738c0c000 r--p 008a6000 fe:00 262 /usr/local/bin/gpunode-agent",
            "558738c0c000-558738c11000 rw-p 0092e000 fe:00 262 /usr/local/bin/gpunode-agent",
            "7fff0000-7fff1000 r-xp 00000000 00:00 0 [vdso]",
            "7fff0000-7fff1000 r-xp 00000000 fe:00 1 /lib/x86_64-linux-gnu/libc.so.6",
            "7fff0000-7fff1000 rwxp 00000000 fe:00 1 /usr/local/bin/gpunode-agent",
            "7fff0000-7fff1000 r-xp 00000000 00:00 0",
            "",
        ] {
            assert_eq!(code(other, PROGRAM), None, "{other}");
        }
    }

    #[test]
    fn code_that_was_given_back_runs_again() {
        assert!(give_back().unwrap() > 100_000);
        only_code_of_the_program_is_given_back();
    }
}
