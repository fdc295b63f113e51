//! The agent as a process.

use crate::{
    ApiServer, Namespace, Node, Stopwatch,
    built::built,
    until,
    wait::{PATIENCE, POLL},
};
use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{sleep, timeout};

/// A running agent; killed when dropped.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

/// Defect of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// Nothing.
    Good,
    /// It does not find the driver.
    WithoutDriver,
    /// It does not find the kubelet's socket of registrations.
    WithoutKubelet,
}

impl Agent {
    /// `run --config FILE` on a node.
    pub fn run(node: &Node) -> Result<Self> {
        Self::run_in_pod(node, "", Image::Good)
    }

    /// The same in the pod with that UID, and of an image that works or does not.
    pub fn run_in_pod(node: &Node, uid: &str, image: Image) -> Result<Self> {
        Self::run_with(Self::command(node, "run")?, node, uid, image)
    }

    /// The same as seen from a namespace.
    pub fn run_on(host: &Namespace, node: &Node, uid: &str) -> Result<Self> {
        Self::run_with(
            Self::arguments(host.command(&built()?.agent), node, "run"),
            node,
            uid,
            Image::Good,
        )
    }

    fn run_with(mut command: Command, node: &Node, uid: &str, image: Image) -> Result<Self> {
        let mut device_plugins = node.device_plugins();
        match image {
            Image::Good => {}
            Image::WithoutDriver => _ = command.args(["--driver-roots", "/nowhere"]),
            Image::WithoutKubelet => device_plugins.set_file_name("other"),
        }
        command
            .arg("--config")
            .arg(node.config())
            .arg("--device-plugin-dir")
            .arg(device_plugins)
            .arg("--cdi-dir")
            .arg(node.cdi_dir())
            .args(["--pod-uid", uid]);
        // It finds the socket of PodResources below that.
        command
            .arg("--kubelet-root")
            .arg(node.kubelet_root())
            .arg("--mps-dir")
            .arg(node.mps_dir());
        Self::start(command.arg("--state-dir").arg(node.state_dir()))
    }

    /// `run` on a node whose configuration was saved by an agent before, with an API server that does not answer.
    pub fn run_saved(node: &Node) -> Result<Self> {
        node.save_config()?;
        Self::run_without_api_server(node)
    }

    /// `run` on a node whose API server does not answer.
    pub fn run_without_api_server(node: &Node) -> Result<Self> {
        // Nobody listens at that port.
        Self::run_of_cluster(node, &node.kubeconfig("https://127.0.0.1:1", "")?)
    }

    /// `run` on a node that gets its configuration from an API server.
    pub fn run_beside(api_server: &ApiServer, node: &Node) -> Result<Self> {
        let kubeconfig = node.kubeconfig(&api_server.url(), api_server.certificate())?;
        Self::run_of_cluster(node, &kubeconfig)
    }

    fn run_of_cluster(node: &Node, kubeconfig: &Path) -> Result<Self> {
        let mut command = Self::command(node, "run")?;
        command
            .env("KUBECONFIG", kubeconfig)
            .args(["--node-name", crate::node::NAME]);
        command
            .arg("--device-plugin-dir")
            .arg(node.device_plugins())
            .arg("--cdi-dir")
            .arg(node.cdi_dir())
            .arg("--mps-dir")
            .arg(node.mps_dir());
        command.arg("--pod-resources-socket").arg(node.pod_resources());
        Self::start(command.arg("--state-dir").arg(node.state_dir()))
    }

    /// `mps` on a node, in the pod that the namespace of the host belongs to.
    pub fn mps(node: &Node, host: &Namespace) -> Result<Self> {
        let mut command = Self::arguments(host.peer(&built()?.agent), node, "mps");
        command
            .arg("--pod-resources-socket")
            .arg(node.pod_resources())
            .arg("--mps-dir")
            .arg(node.mps_dir());
        Self::start(command.arg("--state-dir").arg(node.state_dir()))
    }

    /// `run --config FILE` with further arguments.
    pub fn run_with_arguments(node: &Node, arguments: &[&str]) -> Result<Self> {
        let mut command = Self::command(node, "run")?;
        command.args(arguments);
        Self::run_with(command, node, "", Image::Good)
    }

    /// Returns the answer of `inventory` on a node.
    pub fn inventory(node: &Node, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new(&built()?.agent);
        command.arg("inventory").arg("--host-root").arg(node.host_root());
        let output = command.args(arguments).output().context("run the agent")?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {error}", output.status);
        serde_json::from_slice(&output.stdout).context("read the inventory")
    }

    /// `discover` on a node, with an API server that does not exist.
    pub fn discover(node: &Node) -> Result<Self> {
        let mut command = Self::command(node, "discover")?;
        Self::start(
            command
                .arg("--cdi-dir")
                .arg(node.cdi_dir())
                .args(["--node-name", "node"]),
        )
    }

    /// Runs `inspect` on a node to its end. Returns the exit code and the table.
    pub async fn inspect(node: &Node) -> Result<(Option<i32>, String)> {
        let mut command = tokio::process::Command::new(&built()?.agent);
        command.arg("inspect").arg("--host-root").arg(node.host_root());
        let output = timeout(PATIENCE, command.kill_on_drop(true).output());
        let output = output.await.context("wait for `inspect`")?.context("run `inspect`")?;
        let table = String::from_utf8(output.stdout).context("read the table of `inspect`")?;
        Ok((output.status.code(), table))
    }

    /// `run` without saying on which node.
    pub fn run_without_name(node: &Node) -> Result<Self> {
        Self::start(&mut Self::command(node, "run")?)
    }

    fn command(node: &Node, what: &str) -> Result<Command> {
        Ok(Self::arguments(Command::new(&built()?.agent), node, what))
    }

    fn arguments(mut command: Command, node: &Node, what: &str) -> Command {
        command
            .arg(what)
            .arg("--host-root")
            .arg(node.host_root())
            .args(["--admin-address", "127.0.0.1:0"]);
        command.env("KUBECONFIG", "/nonexistent").env_remove("NODE_NAME");
        command.env(
            "RUST_LOG",
            "info,kube_client=off,gpunode_agent::health=debug,gpunode_agent::health::probe_loop=info",
        );
        command
    }

    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stderr(Stdio::piped()).spawn().context("start the agent")?;
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = log.clone();
        let stderr = BufReader::new(child.stderr.take().context("read the agent's log")?);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Ok(Self { child, log })
    }

    /// The log so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of log lines with `text`.
    pub fn logged(&self, text: &str) -> usize {
        self.log().iter().filter(|line| line.contains(text)).count()
    }

    /// Waits for a log line that contains `text`.
    pub async fn logs(&self, text: &str) -> Result<String> {
        let find = || self.log().into_iter().find(|line| line.contains(text));
        until(&format!("the agent logs {text:?}"), find)
            .await
            .with_context(|| self.log().join("\n"))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.pid()?, signal)?)
    }

    /// Sends SIGTERM, and tells how the agent ended and how long that took.
    pub async fn stop(&mut self) -> Result<(ExitStatus, Duration)> {
        let start = Stopwatch::start();
        self.signal(Signal::TERM)?;
        Ok((self.end().await?, start.elapsed()))
    }

    /// Sends SIGTERM, and fails unless the agent ends well within a second.
    pub async fn stops_at_once(&mut self) -> Result<()> {
        let (status, took) = self.stop().await?;
        ensure!(
            status.success() && took < Duration::from_secs(1),
            "{status} after {took:?}"
        );
        Ok(())
    }

    /// Kills the agent, so that it can tidy nothing up.
    pub async fn kill(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.end().await?;
        Ok(())
    }

    /// Waits until the agent has ended.
    pub async fn end(&mut self) -> Result<ExitStatus> {
        let child = &mut self.child;
        until("the agent has ended", || child.try_wait().ok().flatten())
            .await
            .with_context(|| self.log().join("\n"))
    }

    /// Status line, headers and body of `/readyz`.
    pub async fn readyz(&self) -> Result<String> {
        self.get("/readyz").await
    }

    /// Returns the answer of the agent's HTTP server on a path.
    pub async fn get(&self, path: &str) -> Result<String> {
        let line = self.logs("serving /livez").await?;
        let line: Value = serde_json::from_str(&line)?;
        let address: SocketAddr = line["address"]
            .as_str()
            .context("the address in the log line")?
            .parse()?;
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Waits until `/readyz` says so.
    pub async fn await_ready(&self) -> Result<()> {
        let poll = async {
            while !self.readyz().await?.starts_with("HTTP/1.1 200") {
                sleep(POLL).await;
            }
            Ok(())
        };
        timeout(PATIENCE, poll).await.context("wait until the agent is ready")?
    }

    /// Returns true if it has loaded the library.
    pub fn has_loaded(&self, library: &Path) -> Result<bool> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.child.id())).context("read what is in memory")?;
        Ok(maps.contains(&*library.to_string_lossy()))
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let Some(line) = status.lines().find_map(|line| line.strip_prefix("VmRSS:")) else {
            bail!("the agent has ended");
        };
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// Time on a processor since the start, of threads and child processes that have ended too; in steps of 10 ms.
    pub fn processor_time(&self) -> Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The program's name, in brackets, may contain spaces.
        let (_, fields) = stat.rsplit_once(')').context("the fields of /proc/PID/stat")?;
        // utime, stime, cutime and cstime.
        let times = fields.split_whitespace().skip(11).take(4).map(str::parse::<u64>);
        // USER_HZ is 100 on every architecture that Linux runs GPUs on.
        Ok(Duration::from_millis(times.sum::<Result<u64, _>>()? * 10))
    }

    fn pid(&self) -> Result<Pid> {
        Pid::from_raw(i32::try_from(self.child.id())?).context("the agent's process id")
    }
}

#[expect(clippy::print_stdout, reason = "a test's output")]
impl Drop for Agent {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        // Shown when the test fails.
        println!("{}", self.log().join("\n"));
    }
}
