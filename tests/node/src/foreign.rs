//! A process of another container: it has a cgroup of its own.

use anyhow::{Context as _, Result, ensure};
use rustix::process::Pid;
use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// Mount points of cgroups v2, alone or beside v1.
const HIERARCHIES: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];

/// A process that only waits; ended when dropped, with its cgroup.
#[derive(Debug)]
pub struct Foreign {
    child: Child,
    cgroup: PathBuf,
}

impl Foreign {
    /// Starts it with one environment variable, `NAME=VALUE`.
    pub fn start(variable: &str) -> Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "gpunode-test-{}-{}",
            process::id(),
            STARTED.fetch_add(1, Ordering::Relaxed)
        );
        let cgroup = own_cgroup()?.join(name);
        fs::create_dir(&cgroup).with_context(|| format!("make the cgroup {}", cgroup.display()))?;
        let (variable, value) = variable.split_once('=').context("an environment variable")?;
        let child = Command::new("sh")
            .args(["-c", "echo $$ > \"$0/cgroup.procs\" && echo ready && exec cat"])
            .arg(&cgroup)
            .env_clear()
            .env("PATH", env::var_os("PATH").unwrap_or_default())
            .env(variable, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.inspect_err(|_| _ = fs::remove_dir(&cgroup))?;
        let output = child.stdout.take();
        let foreign = Self { child, cgroup };
        let mut line = String::new();
        BufReader::new(output.context("its output")?).read_line(&mut line)?;
        ensure!(
            line == "ready\n",
            "a process got no cgroup of its own; are the tests run as root?"
        );
        Ok(foreign)
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns true if it still runs.
    pub fn is_alive(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        _ = fs::remove_dir(&self.cgroup);
    }
}

fn own_cgroup() -> Result<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let own = text
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .context("this process has no cgroup of v2")?;
    let find = HIERARCHIES.map(|hierarchy| Path::new(hierarchy).join(own));
    find.into_iter()
        .find(|path| path.join("cgroup.procs").exists())
        .context("find the own cgroup in /sys/fs/cgroup")
}
