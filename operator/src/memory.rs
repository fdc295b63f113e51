//! Gives memory back to the machine after a peak. The only unsafe code of the operator.
//!
//! Lists and sweeps need more memory for a moment than the caches keep. glibc keeps what is freed for later: in one
//! arena for each thread, of which only the end can shrink, with holes between what is still in use. So the threads of
//! the caches share one arena (what the watches allocate, the index frees), large buffers are outside of it, and a task
//! returns the holes.
//!
//! `malloc_trim` holds the lock of an arena until it has returned every hole of it, with one system call for each
//! (`mtrim` in malloc.c of glibc); there are no smaller steps. The more holes a peak leaves the longer this takes, and
//! whoever allocates there waits. So the thread of the Lease and the probes has the second arena, in which little is ever free.
//! glibc gives a thread its arena at its first allocation: the first thread beside the main one gets a new arena while
//! there are fewer than allowed, later ones share in turns (`arena_get2` and `reused_arena` in arena.c).

#![allow(unsafe_code, reason = "the allocator's settings are functions of the C library")]

use std::{ffi::c_int, time::Duration};
use tokio::time::{MissedTickBehavior, interval};

/// Pause between two returns of free memory. A return takes the time of what was freed since the last one.
const PAUSE: Duration = Duration::from_secs(10);

/// Settings by their numbers in malloc.h of glibc.
const SETTINGS: [(c_int, c_int); 2] = [
    // M_ARENA_MAX: one for the caches, one for the thread `lead`.
    (-8, 2),
    // M_MMAP_THRESHOLD: a block of so many bytes has a mapping of its own, which ends with it. Without the setting the
    // number grows with each larger block that is freed.
    (-3, 256 * 1024),
];

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn mallopt(parameter: c_int, value: c_int) -> c_int;
    fn malloc_trim(pad: usize) -> c_int;
}

/// Sets up the allocator. Call it before the first thread starts.
pub fn set_up() {
    for (parameter, value) in SETTINGS {
        // SAFETY: any pair of numbers is allowed; glibc refuses those that it does not know.
        #[cfg(target_env = "gnu")]
        unsafe {
            mallopt(parameter, value)
        };
    }
}

/// Returns free memory to the machine from time to time, for as long as the process lives.
pub async fn return_free_memory() {
    let mut pauses = interval(PAUSE);
    // The process may be stopped for a while.
    pauses.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        pauses.tick().await;
        // SAFETY: returns only pages without a block in use, and holds the allocator's own locks meanwhile.
        #[cfg(target_env = "gnu")]
        unsafe {
            malloc_trim(0)
        };
    }
}

/// Resident memory of this process, in KiB.
#[cfg(test)]
pub fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use tokio::time::timeout;

    /// Small blocks of 128 MiB in all.
    const BLOCKS: usize = 128 * 1024;
    const BLOCK: usize = 1024;

    #[cfg(target_env = "gnu")]
    #[tokio::test(start_paused = true)]
    async fn memory_between_blocks_in_use_goes_back_after_a_peak() {
        set_up();
        let blocks: Vec<Box<[u8]>> = (0..BLOCKS).map(|_| vec![1; BLOCK].into_boxed_slice()).collect();
        let peak = resident_kib();
        // One in 64 is kept, so that no end of an arena is free.
        let kept: Vec<_> = black_box(blocks).into_iter().step_by(64).collect();
        assert!(timeout(3 * PAUSE, return_free_memory()).await.is_err(), "it has no end");
        let returned = peak.saturating_sub(resident_kib());
        assert!(returned > 64 * 1024, "{returned} KiB of about 118 MiB went back");
        drop(black_box(kept));
    }
}
