//! Processes of MPS control daemons, found by their cgroup, which is this container's, and by a mark in their environment
//! that their servers inherit.
//!
//! The supervisor sees every process of the host. A mark anybody can set; into the cgroup of another container nobody gets
//! who has not the host already. Nothing that a client can write to (the pipe directory has a pid file) says whom a
//! privileged process kills.

use super::device_folder::DeviceFolder;
use rustix::{
    io,
    process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid},
};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tracing::warn;

/// Environment variable with the folder of the device, set where a daemon is started.
pub const MARK: &str = "GPUNODE_MPS_DAEMON";

/// Processes of the daemon of a device; blocks for a look at every process.
pub fn of(place: &DeviceFolder) -> std::io::Result<Vec<Pid>> {
    let (own, mut found) = (cgroup("self")?, Vec::new());
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        if is_ours(pid, place, &own) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// A process that has ended has no environment any more, also before it is reaped. That of a foreign process is not read: it
/// would wait for one that hangs in its memory.
fn is_ours(pid: Pid, place: &DeviceFolder, own_cgroup: &str) -> bool {
    let pid = pid.as_raw_nonzero().to_string();
    if !cgroup(&pid).is_ok_and(|cgroup| cgroup == own_cgroup) {
        return false;
    }
    let mark = [MARK.as_bytes(), b"=", place.folder().as_os_str().as_bytes()].concat();
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|variable| variable == mark))
}

/// The same for all processes of a container; those of another have another in every mode of cgroups and their namespaces.
fn cgroup(pid: &str) -> std::io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
}

/// Kills the daemon of a device and its servers; blocks.
pub fn kill(place: &DeviceFolder) -> std::io::Result<()> {
    let own = cgroup("self")?;
    for pid in of(place)? {
        let killed = pidfd_open(pid, PidfdFlags::empty()).and_then(|process| {
            // The number may have gone to another process since the look.
            if is_ours(pid, place, &own) {
                pidfd_send_signal(process, Signal::KILL)
            } else {
                Ok(())
            }
        });
        match killed {
            Ok(()) | Err(io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Programs that this process runs and waits for itself.
static OWN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A program that somebody waits for; given to [`reap`] when dropped.
#[derive(Debug)]
pub struct ChildPid(u32);

impl ChildPid {
    /// Nothing may come between the start of the program and this.
    pub fn new(pid: u32) -> Self {
        own().insert(pid);
        Self(pid)
    }
}

impl Drop for ChildPid {
    fn drop(&mut self) {
        own().remove(&self.0);
    }
}

fn own() -> MutexGuard<'static, BTreeSet<u32>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reaps daemons that ended: as the first process of a container, this one is their parent.
pub fn reap() {
    let children = match children(Path::new("/proc/self/task")) {
        Ok(children) => children,
        Err(error) => return warn!(%error, "look for daemons that ended"),
    };
    for pid in children.iter().filter(|pid| !own().contains(pid)) {
        let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        // One that still runs, or that is no child any more, is nothing to do.
        _ = pid.map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
    }
}

fn children(tasks: &Path) -> std::io::Result<Vec<u32>> {
    let mut children = Vec::new();
    for task in fs::read_dir(tasks)? {
        // The thread may have ended.
        let text = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        children.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Ok(children)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_marked_process_is_found_and_killed_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["GPU-1", "GPU-2"].map(|uuid| DeviceFolder::of(folder.path(), uuid).unwrap());
        let start = |place: &DeviceFolder| {
            Command::new("sleep")
                .arg("60")
                .env(MARK, place.folder())
                .spawn()
                .unwrap()
        };
        let (mut first, mut second) = (start(&one), start(&two));
        let pid = |child: &std::process::Child| Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        assert_eq!(of(&one).unwrap(), [pid(&first)]);
        kill(&one).unwrap();
        // A test beside this one may have reaped it already, as the supervisor reaps every child of its process.
        assert!(first.wait().map_or(true, |status| !status.success()));
        assert!(of(&one).unwrap().is_empty());
        assert_eq!(of(&two).unwrap(), [pid(&second)]);
        second.kill().unwrap();
        _ = second.wait();
    }
}
