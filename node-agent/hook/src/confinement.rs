//! The process of a hook: takes nothing from its surroundings that a container could have set.
#![allow(unsafe_code, reason = "the C library clears the environment")]

use crate::hook_error::{HookError, say};
use rustix::fs::Mode;
use std::{process, thread, time::Duration};

/// Limit on the time of a hook: a file system of the container may not answer.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Clears the environment, which an image can fill where the runtime passes it on; leaves the folder of the container, in which a
/// runtime may start hooks; makes new files readable for every user of the container; and limits the time.
pub fn confine() -> Result<(), HookError> {
    // SAFETY: the process has one thread, and nothing holds a pointer to a variable.
    unsafe { libc::clearenv() };
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    rustix::process::chdir("/").map_err(|error| HookError::Host {
        action: "change to",
        path: "/".into(),
        source: error.into(),
    })?;
    thread::spawn(|| {
        thread::sleep(TIME_LIMIT);
        say(&format!(
            "not done after {} s: a file system of the container does not answer",
            TIME_LIMIT.as_secs()
        ));
        process::exit(1);
    });
    Ok(())
}
