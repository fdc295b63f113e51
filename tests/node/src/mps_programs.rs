//! Stand-ins for NVIDIA's MPS programs: the installation in a node's driver, daemon processes, and clients.

use crate::{Agent, FakeKubelet, Foreign, Namespace, Node, until, wait::PATIENCE};
use anyhow::{Context as _, Result, ensure};
use gpunode_scenario::{ComputeMode, DriverState};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

/// Folder in which the supervisor looks for the kubelet's checkpoint.
const CHECKPOINTS: &str = "var/lib/kubelet/device-plugins";
/// Variable by which the supervisor finds its daemons.
const MARK: &str = "GPUNODE_MPS_DAEMON=";

/// A node whose driver has the MPS programs. Daemons that are left when it is dropped are killed.
#[derive(Debug)]
pub struct MpsNode {
    /// The node.
    pub node: Node,
    /// Mount namespace of its supervisor, daemons and clients.
    pub host: Namespace,
    /// Says who holds devices.
    pub kubelet: FakeKubelet,
}

impl MpsNode {
    /// A node with 8 V100.
    pub fn new() -> Result<Self> {
        let node = Node::with_v100()?;
        let folder = node.host_root().join("run/nvidia/driver/usr/bin");
        fs::create_dir_all(&folder)?;
        fs::copy(
            programs()?.join("nvidia-cuda-mps-control"),
            folder.join("nvidia-cuda-mps-control"),
        )?;
        fs::create_dir_all(node.state_dir())?;
        fs::create_dir_all(node.mps_dir())?;
        fs::create_dir_all(node.host_root().join(CHECKPOINTS))?;
        let host = Namespace::of_host(&node.mps_dir())?;
        let kubelet = FakeKubelet::start(node.device_plugins())?;
        Ok(Self { node, host, kubelet })
    }

    /// A container holds a share of these devices, as far as the kubelet's checkpoint says, and nobody of any other.
    pub fn hold(&self, devices: &[&str]) -> Result<()> {
        let entry = |device: &&str| json!({"PodUID": "a", "ContainerName": "b", "ResourceName": "a.b/c", "DeviceIDs": {"-1": [format!("{device}::0")]}});
        let entries: Vec<_> = devices.iter().map(entry).collect();
        let checkpoint = json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1});
        let folder = self.node.host_root().join(CHECKPOINTS);
        fs::write(folder.join("new"), checkpoint.to_string())?;
        Ok(fs::rename(
            folder.join("new"),
            folder.join("kubelet_internal_checkpoint"),
        )?)
    }

    /// Starts a supervisor for the first GPU; returns the node, that GPU and the supervisor.
    pub fn supervised() -> Result<(Self, String, Agent)> {
        let mps = Self::new()?;
        let gpu = mps.gpu(0)?;
        mps.assign(&[&gpu])?;
        let agent = mps.supervisor()?;
        Ok((mps, gpu, agent))
    }

    /// Starts a supervisor.
    pub fn supervisor(&self) -> Result<Agent> {
        Agent::mps(&self.node, &self.host)
    }

    /// UUID of a GPU.
    pub fn gpu(&self, index: usize) -> Result<String> {
        self.node.uuids()?.into_iter().nth(index).context("a GPU of that index")
    }

    /// Writes what an agent writes where these devices are shared by MPS.
    pub fn assign(&self, devices: &[&str]) -> Result<()> {
        let assignment = json!({"resource": "a.b/c", "sharing": {"strategy": "Mps", "replicas": 10}});
        let devices: BTreeMap<_, _> = devices.iter().map(|device| (*device, assignment.clone())).collect();
        self.write_assignments(&json!({"version": 1, "devices": devices}).to_string())
    }

    /// Writes any text there.
    pub fn write_assignments(&self, text: &str) -> Result<()> {
        let new = self.node.state_dir().join("new");
        fs::write(&new, text)?;
        Ok(fs::rename(new, self.node.state_dir().join("assignments.json"))?)
    }

    /// A file or folder of a device, as the host sees it.
    pub fn path(&self, device: &str, name: &str) -> PathBuf {
        self.host.path(&self.place(device, name))
    }

    /// The same as the node's programs name it.
    pub fn place(&self, device: &str, name: &str) -> PathBuf {
        self.node.mps_dir().join(device).join(name)
    }

    /// Process of a device's daemon.
    pub fn daemon(&self, device: &str) -> Option<Pid> {
        self.daemons(device).into_iter().next()
    }

    /// Processes with the mark of a device's daemon.
    pub fn daemons(&self, device: &str) -> Vec<Pid> {
        let folder = self.node.mps_dir().join(device);
        marked(&folder.display().to_string())
            .into_iter()
            .map(|(pid, _)| pid)
            .collect()
    }

    /// A process of another container that looks like a device's daemon, as far as its environment goes.
    pub fn foreign(&self, device: &str) -> Result<Foreign> {
        Foreign::start(&format!("{MARK}{}", self.node.mps_dir().join(device).display()))
    }

    /// Waits until the daemon of a device answers, and says which process it is.
    pub async fn answers(&self, device: &str) -> Result<Pid> {
        until("the daemon answers", || {
            self.path(device, "answered")
                .exists()
                .then(|| self.daemon(device))
                .flatten()
        })
        .await
    }

    /// Waits until nothing of a device's daemon is left.
    pub async fn is_gone(&self, device: &str) -> Result<()> {
        let gone = || (!self.node.mps_dir().join(device).exists() && self.daemon(device).is_none()).then_some(());
        until("nothing of the daemon is left", gone).await
    }

    /// Compute mode of a GPU.
    pub fn compute_mode(&self, index: u32) -> Result<ComputeMode> {
        let folder = self.node.library().parent().context("the library's folder")?.to_owned();
        Ok(DriverState::load(&folder)?.gpu(index).compute_mode)
    }

    /// Replaces the control program by one that does not know the option for clients of all users.
    pub fn install_older_program(&self) -> Result<()> {
        let folder = self.node.host_root().join("run/nvidia/driver/usr/bin");
        let (program, new) = (folder.join("nvidia-cuda-mps-control"), folder.join("new"));
        let mut content = fs::read(&program)?;
        let (option, other) = (b"-multiuser-server", b"-not-in-older-one");
        while let Some(at) = content.windows(option.len()).position(|bytes| bytes == option) {
            content
                .get_mut(at..at + option.len())
                .context("the option in the program")?
                .copy_from_slice(other);
        }
        fs::copy(&program, &new)?;
        fs::write(&new, content)?;
        Ok(fs::rename(new, program)?)
    }

    /// Starts a client with the environment and the shared memory of a container.
    pub fn client(&self, device: &str, percentage: &str, memory: &str) -> Result<MpsClient> {
        self.client_of(0, device, percentage, memory)
    }

    /// Starts a client of a user; returns once it is served.
    pub fn client_of(&self, user: u32, device: &str, percentage: &str, memory: &str) -> Result<MpsClient> {
        let mut client = self.waiting_client(user, device, percentage, memory)?;
        client.await_limits(PATIENCE)?;
        Ok(client)
    }

    /// Starts a client of a user, which waits for the daemon.
    pub fn waiting_client(&self, user: u32, device: &str, percentage: &str, memory: &str) -> Result<MpsClient> {
        let container = self
            .host
            .of_container("private", &self.place(device, "shm"), Path::new("/dev/shm"))?;
        let mut child = container
            .command(programs()?.join("mps-client"))
            .env("MPS_STAND_IN_UID", user.to_string())
            .env("CUDA_MPS_PIPE_DIRECTORY", self.place(device, "pipe"))
            .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage)
            .env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", memory)
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("the client's output")?;
        let (sender, served) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            _ = BufReader::new(output).read_line(&mut line);
            _ = sender.send(line);
        });
        Ok(MpsClient {
            child,
            limits: String::new(),
            served,
            container,
        })
    }
}

impl Drop for MpsNode {
    fn drop(&mut self) {
        for (pid, _) in marked(&self.node.mps_dir().display().to_string()) {
            _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Processes whose mark begins with a path, and the mark.
fn marked(path: &str) -> Vec<(Pid, String)> {
    let mark = format!("{MARK}{path}");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let find = |pid: &str| {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let variables = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let found = variables
            .into_iter()
            .find(|variable| variable.starts_with(&mark))?
            .into_owned();
        Some((Pid::from_raw(pid.parse().ok()?)?, found))
    };
    processes
        .filter_map(|process| find(process.file_name().to_str()?))
        .collect()
}

/// A client of a daemon; killed when dropped.
#[derive(Debug)]
pub struct MpsClient {
    child: Child,
    /// Limits that it reports.
    pub limits: String,
    served: Receiver<String>,
    /// Mount namespace of its container.
    pub container: Namespace,
}

impl MpsClient {
    /// Waits until the daemon serves it.
    pub fn await_limits(&mut self, limit: Duration) -> Result<()> {
        let limits = self.served.recv_timeout(limit);
        self.limits = limits.context("the MPS daemon does not serve the client")?;
        Ok(())
    }

    /// Returns true while it has its daemon.
    pub fn is_served(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }
}

impl Drop for MpsClient {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Folder of the programs, built once per test program.
fn programs() -> Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.as_deref().map_err(|error| anyhow::anyhow!("{error}"))
}

fn build() -> Result<PathBuf> {
    // A test program is TARGET/PROFILE/deps/NAME.
    let program = env::current_exe().context("find this test program")?;
    let folder = program
        .ancestors()
        .nth(3)
        .context("find the target folder")?
        .join("mps-control");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mps-control/build.sh");
    let status = Command::new(script)
        .arg(&folder)
        // As in `built.rs`.
        .env_remove("RUSTC_BOOTSTRAP")
        .status()
        .context("run tests/mps-control/build.sh")?;
    ensure!(
        status.success(),
        "build of the stand-in for NVIDIA's MPS programs failed: {status}"
    );
    Ok(folder)
}
