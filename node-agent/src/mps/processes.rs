//! Finds, kills and reaps processes of MPS control daemons, by their cgroup, which is this container's, and by a mark in their
//! environment, which their servers inherit.
//!
//! The supervisor sees every process of the host. Any process can set the mark, but only one with control of the host gets
//! into the cgroup of another container. Files that a client can write, such as the PID file in the pipe directory, never
//! decide which process this privileged one kills.

use super::device_folder::DeviceFolder;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io,
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, pidfd_open, pidfd_send_signal, waitid, waitpid,
    },
};
use std::{
    collections::BTreeSet,
    fs,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tracing::warn;

/// Environment variable with the folder of the device, set at the start of a daemon.
pub const MARK: &str = "GPUNODE_MPS_DAEMON";

/// Lists the processes of a device's daemon; blocks, as it reads every process of the host.
fn of_daemon(folder: &DeviceFolder, own_cgroup: &str) -> std::io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
            continue;
        };
        if is_of_daemon(pid, folder, own_cgroup) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The processes of a device's daemon, with handles that tell of their end at the cost of one system call.
#[derive(Debug, Default)]
pub struct DaemonProcesses(Vec<OwnedFd>);

impl DaemonProcesses {
    /// Finds them; blocks, as it reads every process of the host.
    pub fn find(folder: &DeviceFolder) -> std::io::Result<Self> {
        let own = cgroup("self")?;
        let mut found = Vec::new();
        for pid in of_daemon(folder, &own)? {
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) if is_of_daemon(pid, folder, &own) => found.push(handle),
                // Another process may have got the PID since the listing.
                Ok(_) | Err(io::Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Self(found))
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if all of them still run. One that has ended and is not reaped does not.
    pub fn all_run(&self) -> bool {
        let mut handles: Vec<_> = self.0.iter().map(|handle| PollFd::new(handle, PollFlags::IN)).collect();
        poll(&mut handles, Some(&Timespec::default())) == Ok(0)
    }

    /// Kills them.
    pub fn kill(&self) -> std::io::Result<()> {
        for handle in &self.0 {
            match pidfd_send_signal(handle, Signal::KILL) {
                Ok(()) | Err(io::Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Returns whether a process belongs to the device's daemon. A zombie has no environment and does not count. Reads the
/// environment of processes in this container only, because the read could hang with the memory of a foreign one.
fn is_of_daemon(pid: Pid, folder: &DeviceFolder, own_cgroup: &str) -> bool {
    let pid = pid.as_raw_nonzero().to_string();
    if !cgroup(&pid).is_ok_and(|cgroup| cgroup == own_cgroup) {
        return false;
    }
    let mark = [MARK.as_bytes(), b"=", folder.path().as_os_str().as_bytes()].concat();
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|variable| variable == mark))
}

/// Returns the cgroups of a process: equal within a container, different between containers, in every cgroup mode and
/// namespace.
fn cgroup(pid: &str) -> std::io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
}

/// Child processes that other code awaits.
static AWAITED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A child process that other code awaits; [`reap`] leaves it alone until the drop.
#[derive(Debug)]
pub struct ChildPid(u32);

impl ChildPid {
    /// Registers the child. Must follow its start without an await in between.
    pub fn new(pid: u32) -> Self {
        awaited().insert(pid);
        Self(pid)
    }
}

impl Drop for ChildPid {
    fn drop(&mut self) {
        awaited().remove(&self.0);
    }
}

fn awaited() -> MutexGuard<'static, BTreeSet<u32>> {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reaps ended daemons: as PID 1 of the container, this process is their parent.
pub fn reap() {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // The list of the children costs more than all else that an idle supervisor does.
    if !matches!(waitid(WaitId::All, options), Ok(Some(_))) {
        return;
    }
    let children = match children(Path::new("/proc/self/task")) {
        Ok(children) => children,
        Err(error) => return warn!(%error, "cannot list ended daemons"),
    };
    for pid in children.iter().filter(|pid| !awaited().contains(pid)) {
        let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        // A child that still runs, or was reaped already, needs nothing.
        _ = pid.map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
    }
}

fn children(tasks: &Path) -> std::io::Result<Vec<u32>> {
    let mut children = Vec::new();
    for task in fs::read_dir(tasks)? {
        // The thread may have ended meanwhile.
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
        let root = tempfile::tempdir().unwrap();
        let [one, two] = ["GPU-1", "GPU-2"].map(|uuid| DeviceFolder::of(root.path(), uuid).unwrap());
        let listed = |folder: &DeviceFolder| of_daemon(folder, &cgroup("self").unwrap()).unwrap();
        let start = |folder: &DeviceFolder| {
            Command::new("sleep")
                .arg("60")
                .env(MARK, folder.path())
                .spawn()
                .unwrap()
        };
        let (mut first, mut second) = (start(&one), start(&two));
        let pid = |child: &std::process::Child| Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        assert_eq!(listed(&one), [pid(&first)]);
        let found = DaemonProcesses::find(&one).unwrap();
        assert!(!found.is_empty() && found.all_run());
        found.kill().unwrap();
        // A test beside this one may have reaped it already, as the supervisor reaps every child of its process.
        assert!(first.wait().map_or(true, |status| !status.success()));
        assert!(listed(&one).is_empty());
        assert!(!found.all_run());
        assert!(DaemonProcesses::find(&one).unwrap().is_empty());
        assert_eq!(listed(&two), [pid(&second)]);
        second.kill().unwrap();
        _ = second.wait();
    }
}
