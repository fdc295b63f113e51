//! A machine made of namespaces: its own file system, network, processes and host name.
//!
//! Its first process holds the namespaces. When that process ends, the kernel kills all others in it, takes its mounts
//! and its network devices away, and nothing of it is left but its folder: there is nothing to forget in a clean-up.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{
    files,
    process::{Identity, Process},
    wait,
};

/// The script of the first process.
const SETUP: &str = include_str!("sandbox.sh");
/// Folder of the programs, as seen from inside.
pub(crate) const BIN: &str = "/opt/cluster/bin";
/// The program that holds the namespaces.
pub(crate) const HOLDER: &str = "pause";

const START_TIMEOUT: Duration = Duration::from_mins(1);

/// A sandbox, running or not.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    /// Folder of the cluster, absolute.
    cluster: PathBuf,
    /// Folder of the sandbox relative to it, such as `nodes/cpu`; identifies it.
    id: String,
    logs: PathBuf,
}

/// Parts of the machine that are visible inside.
#[derive(Debug)]
pub(crate) struct Bind {
    pub(crate) source: PathBuf,
    pub(crate) target: &'static str,
    pub(crate) writable: bool,
}

impl Sandbox {
    pub(crate) fn new(cluster: &Path, logs: &Path, id: impl Into<String>) -> Self {
        let id = id.into();
        Sandbox {
            logs: logs.join(&id),
            cluster: cluster.to_owned(),
            id,
        }
    }

    /// The folder that is `/` inside.
    pub(crate) fn root(&self) -> PathBuf {
        self.cluster.join(&self.id).join("root")
    }

    /// Writes a file that the inside sees at `path`.
    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) -> Result<()> {
        let path = self.root().join(path.trim_start_matches('/'));
        files::replace(&path, content.as_ref())
    }

    /// Starts the first process; `gpus` is the number of `/dev/nvidiaN` nodes where there is a driver.
    pub(crate) fn start(&self, hostname: &str, gpus: Option<usize>, binds: &[Bind]) -> Result<()> {
        let tunables = self.cluster.join(&self.id).join("tunables");
        for folder in [&self.root(), &tunables, &self.logs] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        // Hosts and accounts of the machine stay out: a sandbox looks the same everywhere.
        self.write("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")?;
        self.write("/etc/group", "root:x:0:\ntty:x:5:\n")?;
        self.write("/etc/hosts", format!("127.0.0.1 localhost\n127.0.1.1 {hostname}\n"))?;
        self.write("/etc/resolv.conf", "")?;
        self.write("/etc/machine-id", format!("{}\n", machine_id(&self.root())))?;

        let mut arguments: Vec<OsString> = [
            "--mount",
            "--net",
            "--pid",
            "--uts",
            "--ipc",
            "--fork",
            "--kill-child",
            "--",
            "sh",
            "-c",
            SETUP,
            "sandbox",
        ]
        .map(OsString::from)
        .to_vec();
        arguments.push(self.root().into());
        arguments.push(hostname.into());
        arguments.push(tunables.into());
        arguments.push(gpus.map_or("none".to_owned(), |gpus| gpus.to_string()).into());
        for bind in binds {
            arguments.push(if bind.writable { "rw" } else { "ro" }.into());
            arguments.push(bind.source.clone().into());
            arguments.push(bind.target.into());
        }
        let mut command = Command::new("setsid");
        command.arg("--fork").arg("unshare").args(arguments);
        self.launch(command, HOLDER)
            .with_context(|| format!("set up the namespaces of {}", self.id))
    }

    /// The process that holds the namespaces.
    pub(crate) fn holder(&self) -> Result<Process> {
        match self.identity(HOLDER).find()? {
            Some(process) => Ok(process),
            None => bail!("{} does not run", self.id),
        }
    }

    /// A command that runs inside.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let holder = self.holder()?.pid().to_string();
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &holder, "--mount", "--uts", "--ipc", "--net", "--pid", "--"])
            .arg(program)
            .current_dir("/");
        Ok(command)
    }

    /// A command of the machine that sees the network of the inside.
    pub(crate) fn network_command(&self, program: &str) -> Result<Command> {
        let net = format!("--net=/proc/{}/ns/net", self.holder()?.pid());
        let mut command = Command::new("nsenter");
        command.arg(net).arg("--").arg(program);
        Ok(command)
    }

    /// Starts one of the cluster's programs inside, to run on its own; its output goes to its log.
    pub(crate) fn daemon(&self, program: &str, arguments: &[String]) -> Result<()> {
        let mut command = self.command("setsid")?;
        command.arg("--fork").arg(format!("{BIN}/{program}")).args(arguments);
        self.launch(command, program)
            .with_context(|| format!("start {program} in {}", self.id))
    }

    /// The process of one of the cluster's programs, if it runs.
    pub(crate) fn process(&self, program: &str) -> Result<Option<Process>> {
        self.identity(program).find()
    }

    /// Log of a program.
    pub(crate) fn log(&self, program: &str) -> PathBuf {
        self.logs.join(format!("{program}.log"))
    }

    /// The last lines of a program's log, for an error message.
    pub(crate) fn log_tail(&self, program: &str) -> String {
        let path = self.log(program);
        let read = || -> std::io::Result<String> {
            let mut file = File::open(&path)?;
            let start = file.metadata()?.len().saturating_sub(1000);
            file.seek(SeekFrom::Start(start))?;
            let mut tail = Vec::new();
            file.read_to_end(&mut tail)?;
            Ok(String::from_utf8_lossy(&tail).trim().to_owned())
        };
        let tail = read().unwrap_or_default();
        format!("{} ends with:\n{tail}", path.display())
    }

    fn identity(&self, program: &str) -> Identity {
        Identity {
            cluster: self.cluster.clone(),
            role: format!("{}/{program}", self.id),
        }
    }

    fn launch(&self, mut command: Command, program: &str) -> Result<()> {
        let path = self.log(program);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("open the log {}", path.display()))?;
        let identity = self.identity(program);
        command
            .env_clear()
            .envs(identity.environment())
            .env("HOME", "/root")
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("share the log")?)
            .stderr(log);
        let status = command.status().context("run setsid")?;
        if !status.success() {
            bail!("{status}; {}", self.log_tail(program));
        }
        // While a process executes another program its environment cannot be read: one look that finds
        // nothing is no proof.
        let mut missing = 0;
        wait::until(&format!("{program} to start"), START_TIMEOUT, || {
            if identity.find()?.is_some() {
                return Ok(Some(()));
            }
            missing = if identity.any()? { 0 } else { missing + 1 };
            if missing > 5 {
                bail!("it ended at once; {}", self.log_tail(program));
            }
            Ok(None)
        })
    }
}

/// Different for every sandbox, and the same after a new start in the same place.
fn machine_id(root: &Path) -> String {
    format!("{:.32x}", Sha256::digest(root.as_os_str().as_encoded_bytes()))
}
