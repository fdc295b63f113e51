//! Finding and signalling the processes of a cluster.
//!
//! No process id is written down: a record gets lost when its writer is killed, and an id in it may be somebody else's
//! by the time it is read. Instead every process gets two environment variables, which the kernel keeps with it. A
//! process is held by a descriptor (pidfd) before they are read, so a signal cannot reach another one with the same id.

use std::{
    ffi::OsStr,
    fs,
    io::ErrorKind,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// Environment variable with the absolute folder of the cluster.
const CLUSTER: &str = "GPUNODE_CLUSTER";
/// Environment variable with what the process is, such as `nodes/gpu-v100/kubelet`.
const ROLE: &str = "GPUNODE_ROLE";

/// A running process.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    pidfd: OwnedFd,
}

/// Identity of one process of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// Folder of the cluster, absolute.
    pub(crate) cluster: PathBuf,
    /// Sandbox and program; the last component is the program's name.
    pub(crate) role: String,
}

impl Identity {
    /// The environment that marks a process, beside which it needs no more than the usual search path.
    pub(crate) fn environment(&self) -> [(&'static str, &OsStr); 3] {
        [
            (CLUSTER, self.cluster.as_os_str()),
            (ROLE, OsStr::new(&self.role)),
            (
                "PATH",
                OsStr::new("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ),
        ]
    }

    /// The process, if it runs.
    pub(crate) fn find(&self) -> Result<Option<Process>> {
        // What a program starts has its environment: the oldest process of that program name is meant.
        let program = self.role.rsplit('/').next().unwrap_or_default();
        let mut oldest = None;
        for process in marked(&self.cluster, Some(&self.role))? {
            if process.program().as_deref() == Some(program) {
                let age = process.start_time();
                if oldest.as_ref().is_none_or(|(least, _)| age < *least) {
                    oldest = Some((age, process));
                }
            }
        }
        Ok(oldest.map(|(_, process)| process))
    }

    /// Returns true if the program, or a process that leads to its start, runs.
    pub(crate) fn any(&self) -> Result<bool> {
        Ok(!marked(&self.cluster, Some(&self.role))?.is_empty())
    }
}

/// Every process that was started for the cluster in this folder.
pub(crate) fn of_cluster(cluster: &Path) -> Result<Vec<Process>> {
    marked(cluster, None)
}

fn marked(cluster: &Path, role: Option<&str>) -> Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list processes in /proc")? {
        let name = entry.context("list processes in /proc")?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Some(process) = Process::open(pid)? else {
            continue;
        };
        // A process that ends meanwhile has no environment any more.
        let environment = fs::read(process.file("environ")).unwrap_or_default();
        let value = |name: &str| {
            environment
                .split(|byte| *byte == 0)
                .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        };
        if value(CLUSTER) == Some(cluster.as_os_str().as_bytes())
            && role.is_none_or(|role| value(ROLE) == Some(role.as_bytes()))
        {
            found.push(process);
        }
    }
    Ok(found)
}

impl Process {
    /// The process with this id, if there is one.
    pub fn open(pid: i32) -> Result<Option<Self>> {
        let Some(pid) = Pid::from_raw(pid) else {
            return Ok(None);
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Some(Process { pid, pidfd })),
            // A thread's id gives EINVAL.
            Err(Errno::SRCH | Errno::INVAL) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("open process {}", pid.as_raw_nonzero())),
        }
    }

    /// Its id on the machine.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Sends a signal; to a process that has ended this does nothing.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("send signal {signal:?} to process {}", self.pid())),
        }
    }

    /// Waits until it has ended.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        let timeout_spec = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout_spec)))
            .with_context(|| format!("wait for process {}", self.pid()))?;
        if ready == 0 {
            bail!(
                "waited {} s for process {} ({}) to end",
                timeout.as_secs(),
                self.pid(),
                self.program().unwrap_or_default()
            );
        }
        Ok(())
    }

    /// Kills it and waits until it has ended.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.wait(Duration::from_mins(1))
    }

    /// Its ids from the machine's PID namespace inwards.
    pub(crate) fn namespace_pids(&self) -> Option<Vec<i32>> {
        let pids = self.status_field("NSpid:")?;
        Some(
            pids.split_ascii_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect(),
        )
    }

    pub(crate) fn parent(&self) -> Option<i32> {
        self.status_field("PPid:")?.parse().ok()
    }

    fn status_field(&self, field: &str) -> Option<String> {
        let status = fs::read_to_string(self.file("status")).ok()?;
        let value = status.lines().find_map(|line| line.strip_prefix(field))?;
        Some(value.trim().to_owned())
    }

    /// File name of what it was called as.
    fn program(&self) -> Option<String> {
        let arguments = match fs::read(self.file("cmdline")) {
            Ok(arguments) => arguments,
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(_) => Vec::new(),
        };
        let program = arguments.split(|byte| *byte == 0).next()?;
        let name = Path::new(OsStr::from_bytes(program)).file_name()?;
        Some(name.to_string_lossy().into_owned())
    }

    /// Clock ticks after boot.
    fn start_time(&self) -> u64 {
        let stat = fs::read_to_string(self.file("stat")).unwrap_or_default();
        // The program name, in parentheses, may contain anything; the 22nd field is the 20th after it.
        stat.rsplit(')')
            .next()
            .and_then(|fields| fields.split_ascii_whitespace().nth(19)?.parse().ok())
            .unwrap_or(u64::MAX)
    }

    fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid()))
    }
}

/// All processes of the machine, for looking one up by its ids.
pub(crate) fn all() -> Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list processes in /proc")? {
        let name = entry.context("list processes in /proc")?.file_name();
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok())
            && let Some(process) = Process::open(pid)?
        {
            found.push(process);
        }
    }
    Ok(found)
}
