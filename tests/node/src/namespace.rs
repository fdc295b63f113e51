//! Mount namespaces of a simulated host: what is mounted there is seen nowhere else, and goes with the process that holds the
//! namespace. That ends when the test does, also where the test is killed.

use anyhow::{Context as _, Result, ensure};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Prepares the namespace with `sh`, says so, and ends with its standard input.
const HOLD: &str = "read -r line && echo \"$line\" && exec cat";

/// A mount namespace.
#[derive(Debug)]
pub struct Namespace {
    holder: Child,
}

impl Namespace {
    /// That of a host, in which `folder` can be mounted with propagation.
    pub fn of_host(folder: &Path) -> Result<Self> {
        let share = "mount --bind \"$0\" \"$0\" && mount --make-shared \"$0\"";
        Self::start(
            Command::new("unshare").args(["--mount", "--propagation", "private"]),
            share,
            &[folder],
        )
    }

    /// That of a host whose `folder` is a disk of so many bytes.
    pub fn with_small_disk(folder: &Path, bytes: usize) -> Result<Self> {
        let mount = format!("mount -t tmpfs -o size={bytes} tmpfs \"$0\"");
        Self::start(
            Command::new("unshare").args(["--mount", "--propagation", "private"]),
            &mount,
            &[folder],
        )
    }

    /// That of a container, as a runtime makes it: what is mounted on the host later is seen with `propagation` `slave`, and
    /// not with `private`. `source` is mounted on `target`.
    pub fn of_container(&self, propagation: &str, source: &Path, target: &Path) -> Result<Self> {
        let mut command = self.command("unshare");
        command.args(["--mount", "--propagation", propagation]);
        Self::start(
            &mut command,
            "mount --bind \"$0\" \"$1\" && cd \"$1\"",
            &[source, target],
        )
    }

    fn start(command: &mut Command, script: &str, arguments: &[&Path]) -> Result<Self> {
        command
            .args(["sh", "-c", &format!("{script} && {HOLD}")])
            .args(arguments);
        let holder = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("make a mount namespace")?;
        let mut namespace = Self { holder };
        namespace
            .holder
            .stdin
            .as_mut()
            .context("its input")?
            .write_all(b"ready\n")?;
        let mut line = String::new();
        BufReader::new(namespace.holder.stdout.as_mut().context("its output")?).read_line(&mut line)?;
        ensure!(
            line == "ready\n",
            "a mount namespace was not made; are the tests run as root?"
        );
        Ok(namespace)
    }

    /// A program in it. It becomes the process that is started.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .arg("--")
            .arg(program.as_ref());
        command
    }

    /// A program in a namespace like this, of which mounts propagate both ways, as a privileged pod has it.
    pub fn peer(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.command("unshare");
        command
            .args(["--mount", "--propagation", "unchanged"])
            .arg(program.as_ref());
        command
    }

    /// A path as it is seen from here.
    pub fn path(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Lines of its table of mounts that contain `text`.
    pub fn mounts(&self, text: &str) -> Result<Vec<String>> {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.holder.id()))?;
        Ok(table
            .lines()
            .filter(|line| line.contains(text))
            .map(str::to_owned)
            .collect())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        _ = self.holder.kill();
        _ = self.holder.wait();
    }
}
