//! The agent: its inventory, and its work with the kubelet's double. Everything that it writes is in a temporary folder; it
//! gets no configuration that changes a GPU's settings.

use crate::{
    agent_log::{self, AgentLog},
    limited,
};
use anyhow::{Context as _, Result, bail};
use gpunode_crds::GpuNodeStatus;
use gpunode_node_tests::FakeKubelet;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

/// Configuration that advertises every GPU and every MIG device, with device nodes.
const CONFIG: &str = "mig: {strategy: Mixed}\npassDeviceSpecs: true\n";
/// Pause between two looks at the kubelet's double or at the agent's log.
const POLL: Duration = Duration::from_millis(5);
/// Number of rounds of probes that the check waits for. The first may have begun before the agent knew a GPU, and a call
/// that fails is a fault when it fails again.
pub const ROUNDS: usize = 3;

/// The agent's program, and where it finds the host and the driver.
#[derive(Debug)]
pub struct AgentProgram {
    /// The program.
    pub path: PathBuf,
    /// Root of the host.
    pub host_root: PathBuf,
    /// `--driver-roots` of the agent, if they are not the default ones.
    pub driver_roots: Option<String>,
}

/// Inventory that the agent reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentInventory {
    /// GPUs and versions, as in a `GpuNode`.
    pub status: GpuNodeStatus,
    /// The reason if the agent could not read everything.
    pub problem: Option<String>,
}

/// A run of the agent from its start to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentRun {
    /// Time from the start to the list with every device, or to the limit.
    pub listed_after: Duration,
    /// Rounds of probes that ended, of [`ROUNDS`].
    pub rounds: usize,
    /// Log until their end.
    pub log: AgentLog,
    /// Advertised devices after the probes, each with whether it is healthy.
    pub devices: BTreeMap<String, bool>,
    /// Resources without a healthy device.
    pub withheld: Vec<String>,
    /// Allocation of one device of each other resource.
    pub allocations: Vec<Allocation>,
    /// Exit status after SIGTERM, and the time until then; none if it did not end.
    pub end: Option<(String, Duration)>,
}

/// Allocation of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Name of the resource.
    pub resource: String,
    /// Id of the device.
    pub device: String,
    /// The agent's answer, or its error.
    pub answer: Result<Granted, String>,
}

/// Part of an answer that says which device a container gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// `NVIDIA_VISIBLE_DEVICES`.
    pub visible: String,
    /// Device nodes on the host.
    pub nodes: BTreeSet<String>,
    /// Those of them that the host does not have.
    pub missing: BTreeSet<String>,
}

impl AgentProgram {
    /// Runs `inventory`.
    pub fn inventory(&self, limit: Duration) -> Result<AgentInventory> {
        let finished = limited::run(&mut self.command("inventory"), limit)?;
        let reason = agent_log::reason(&finished.stderr);
        let Ok(status) = serde_json::from_str(&finished.stdout) else {
            bail!("{reason}");
        };
        Ok(AgentInventory {
            status,
            problem: (!finished.status.success()).then_some(reason),
        })
    }

    /// Runs `run` until it advertises `devices`, follows the events of its `gpus` GPUs and has probed them; allocates one
    /// device of each resource, and ends it. Goes on when one of these takes longer than `limit`.
    pub async fn work(&self, gpus: usize, devices: &BTreeSet<String>, limit: Duration) -> Result<AgentRun> {
        let folder = tempfile::tempdir().context("make a folder for the agent")?;
        let sockets = folder.path().join("kubelet/device-plugins");
        fs::create_dir_all(&sockets)?;
        let kubelet = FakeKubelet::start(sockets)?;
        let start = Instant::now();
        let mut agent = RunningAgent::start(self.command("run"), folder.path())?;
        let is_listed = |_: &RunningAgent| devices.is_subset(&listed(&kubelet).into_keys().collect());
        agent.wait(limit, is_listed).await?;
        let listed_after = start.elapsed();
        let is_registered = |agent: &RunningAgent| {
            let log = agent.log();
            log.followed + log.without_events.len() >= gpus
        };
        agent.wait(limit, is_registered).await?;
        let mut run = AgentRun {
            listed_after,
            rounds: agent.probe(limit).await?,
            log: agent.log(),
            devices: listed(&kubelet),
            ..AgentRun::default()
        };
        for resource in kubelet.connected() {
            let Some(device) = kubelet.endpoint(&resource).healthy().pop_first() else {
                run.withheld.push(resource);
                continue;
            };
            let answer = self.allocate(&kubelet, &resource, &device, limit).await;
            run.allocations.push(Allocation {
                resource,
                device,
                answer,
            });
        }
        run.end = agent.stop(limit).await?;
        Ok(run)
    }

    async fn allocate(
        &self,
        kubelet: &FakeKubelet,
        resource: &str,
        device: &str,
        limit: Duration,
    ) -> Result<Granted, String> {
        let answer = timeout(limit, kubelet.allocate(resource, &[device]))
            .await
            .map_err(|_| format!("no answer within {limit:?}"))?
            .map_err(|status| status.message().to_owned())?;
        let nodes: BTreeSet<String> = answer.devices.into_iter().map(|node| node.host_path).collect();
        let is_missing = |node: &&String| !self.host_root.join(node.trim_start_matches('/')).exists();
        Ok(Granted {
            visible: answer.envs.get("NVIDIA_VISIBLE_DEVICES").cloned().unwrap_or_default(),
            missing: nodes.iter().filter(is_missing).cloned().collect(),
            nodes,
        })
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.arg(what).arg("--host-root").arg(&self.host_root);
        if let Some(roots) = &self.driver_roots {
            command.arg("--driver-roots").arg(roots);
        }
        command
    }
}

/// Devices that the kubelet's double knows now, each with whether it is healthy.
fn listed(kubelet: &FakeKubelet) -> BTreeMap<String, bool> {
    let endpoints = kubelet.connected().into_iter().map(|name| kubelet.endpoint(&name));
    endpoints
        .flat_map(|endpoint| {
            let healthy = endpoint.healthy();
            endpoint.ids().into_iter().map(move |id| {
                let is_healthy = healthy.contains(&id);
                (id, is_healthy)
            })
        })
        .collect()
}

/// A running agent; killed when dropped.
struct RunningAgent {
    child: Child,
    log: PathBuf,
}

impl RunningAgent {
    fn start(mut command: Command, folder: &Path) -> Result<Self> {
        let (config, log) = (folder.join("config.yaml"), folder.join("log"));
        fs::write(&config, CONFIG).context("write the agent's configuration")?;
        let child = command
            .arg("--config")
            .arg(config)
            .arg("--device-plugin-dir")
            .arg(folder.join("kubelet/device-plugins"))
            .arg("--pod-resources-socket")
            .arg(folder.join("kubelet/pod-resources/kubelet.sock"))
            .arg("--state-dir")
            .arg(folder.join("state"))
            .arg("--mps-dir")
            .arg(folder.join("mps"))
            .arg("--cdi-dir")
            .arg(folder.join("cdi"))
            .args(["--admin-address", "127.0.0.1:0"])
            .env_remove("NODE_NAME")
            .env("KUBECONFIG", "/nonexistent")
            .env("RUST_LOG", agent_log::FILTER)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).context("make the agent's log")?)
            .spawn()
            .context("start the agent")?;
        Ok(Self { child, log })
    }

    /// Waits until `is_done`, at most for `limit`. Returns true if it is; fails if the agent has ended.
    async fn wait(&mut self, limit: Duration, is_done: impl Fn(&Self) -> bool) -> Result<bool> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the agent ended with {status}: {}", agent_log::reason(&self.log_text()));
            }
            if is_done(self) {
                return Ok(true);
            }
            if start.elapsed() > limit {
                return Ok(false);
            }
            sleep(POLL).await;
        }
    }

    /// Makes the agent probe the GPUs [`ROUNDS`] times, and returns the number of rounds that ended within `limit` each.
    async fn probe(&mut self, limit: Duration) -> Result<usize> {
        let before = self.log().rounds;
        for rounds in 0..ROUNDS {
            self.signal(Signal::HUP)?;
            if !self.wait(limit, |agent| agent.log().rounds > before + rounds).await? {
                return Ok(rounds);
            }
        }
        Ok(ROUNDS)
    }

    async fn stop(&mut self, limit: Duration) -> Result<Option<(String, Duration)>> {
        let start = Instant::now();
        self.signal(Signal::TERM)?;
        loop {
            let (status, waited) = (self.child.try_wait()?, start.elapsed());
            match status {
                None if waited < limit => sleep(POLL).await,
                status => return Ok(status.map(|status| (status.to_string(), waited))),
            }
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("send a signal to the agent")
    }

    fn log(&self) -> AgentLog {
        AgentLog::parse(&self.log_text())
    }

    fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        // Not awaited: one whose call into the driver hangs never ends.
        _ = self.child.kill();
    }
}
