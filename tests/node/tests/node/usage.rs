//! Use of GPUs by the containers that hold them, beside what they were given, as an agent tells it.

use anyhow::{Context as _, Result, bail, ensure};
use gpunode_node_tests::{Agent, Lab, Node};
use gpunode_scenario::{GpuProcess, ProcessKind, ReturnCode};
use serde_json::Value;
use std::{
    fs,
    path::PathBuf,
    process::{Child, Command},
    time::{Duration, Instant},
};
use tokio::time::sleep;

const GPU: &str = "nvidia.com/gpu";
const LIMIT: Duration = Duration::from_mins(2);
const SLICED: &str = "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 4}}]\n\
                      usage: {interval: 5s, idleAfter: 1h}";
/// UIDs of pods, which the kubelet's double takes for their names too.
const ONE: &str = "1b4d2f6a-0c8e-4f3b-9a77-5d1e2c3b4a59";
const TWO: &str = "9c2e0b7a-1d3f-4a5b-8c6d-7e8f9a0b1c2d";

async fn report(agent: &Agent) -> Result<Value> {
    let answer = agent.get("/usage").await?;
    let (head, text) = answer.split_once("\r\n\r\n").context("find the body")?;
    ensure!(head.contains("content-type: application/json"), "{head}");
    Ok(serde_json::from_str(text)?)
}

/// Waits for a report that is as expected, and returns it.
async fn await_report(agent: &Agent, is_expected: impl Fn(&Value) -> bool) -> Result<Value> {
    let start = Instant::now();
    loop {
        let report = report(agent).await?;
        if is_expected(&report) {
            return Ok(report);
        }
        ensure!(start.elapsed() < LIMIT, "{report:#}\n{}", agent.log().join("\n"));
        sleep(Duration::from_millis(50)).await;
    }
}

fn containers(report: &Value) -> &[Value] {
    report["containers"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the container of a pod.
fn of_pod<'a>(report: &'a Value, pod: &str) -> Result<&'a Value> {
    let found = containers(report).iter().find(|of| of["pod"] == pod);
    found.with_context(|| format!("find {pod} in {report:#}"))
}

#[tokio::test]
async fn holders_have_what_they_were_given_and_their_figures_go_with_them_and_with_the_driver() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, SLICED)?;
    lab.kubelet.has(GPU, |endpoint| !endpoint.healthy().is_empty()).await?;
    lab.kubelet.admit(ONE, "main", GPU, 1).await?;
    // What a process of the host uses is nobody's.
    for gpu in 0..4 {
        let process = GpuProcess {
            pid: std::process::id(),
            memory_mib: 900,
            kind: ProcessKind::Compute,
            instance: None,
        };
        lab.node.state()?.set_processes(gpu, vec![process])?;
        lab.node.state()?.set_sm_percent(gpu, std::process::id(), 90)?;
    }
    let report = await_report(&lab.agent, |report| {
        containers(report).iter().any(|of| of["idleSeconds"].as_u64() > Some(0))
    })
    .await?;
    let of = of_pod(&report, ONE)?;
    assert_eq!(of["processes"], 0);
    assert_eq!(of["memoryUsedBytes"], 0);
    assert_eq!(of["memoryGivenBytes"], 15_360_u64 << 20);
    assert_eq!((&of["smUsedRatio"], &of["smGivenRatio"]), (&0.0.into(), &0.25.into()));
    assert_eq!(report["idleAfterSeconds"], 3600);
    let metrics = lab.agent.get("/metrics").await?;
    let series =
        format!(r#"gpunode_agent_container_sm_given_ratio{{namespace="default",pod="{ONE}",container="main",gpu="#);
    ensure!(metrics.contains(&series), "{metrics}");

    // The driver does not tell the use of SMs: then a process is use.
    for gpu in 0..4 {
        lab.node
            .state()?
            .fail(gpu, "nvmlDeviceGetProcessUtilization", ReturnCode::NotSupported)?;
    }
    let report = await_report(&lab.agent, |report| {
        of_pod(report, ONE).is_ok_and(|of| of["problem"].is_string())
    })
    .await?;
    let of = of_pod(&report, ONE)?;
    ensure!(of["smUsedRatio"].is_null() && of["memoryUsedBytes"] == 0, "{of:#}");
    lab.agent.logs("does not tell the SM use of processes").await?;

    // A driver that hangs: no figure is older than the hang.
    lab.node.state()?.update_gpu(0, |state| state.hangs = true)?;
    await_report(&lab.agent, |report| {
        containers(report).is_empty() && report["problem"].is_string()
    })
    .await?;
    let metrics = lab.agent.get("/metrics").await?;
    ensure!(!metrics.contains(ONE), "{metrics}");
    lab.node.state()?.update_gpu(0, |state| state.hangs = false)?;
    await_report(&lab.agent, |report| of_pod(report, ONE).is_ok()).await?;

    lab.kubelet.release(ONE);
    let report = await_report(&lab.agent, |report| containers(report).is_empty()).await?;
    ensure!(report["problem"].is_null(), "{report:#}");
    lab.apply("usage: {interval: 0s}")?;
    let report = await_report(&lab.agent, |report| report["problem"].is_string()).await?;
    assert_eq!(report["problem"], "usage.interval of the configuration is 0s");
    Ok(())
}

/// A process in the cgroup of a container, until the value is dropped.
struct ContainerProcess {
    process: Child,
    cgroup: PathBuf,
}

impl ContainerProcess {
    fn start(pod: &str, id: &str) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = mounts.find_map(|fields| match fields[..] {
            [_, folder, "cgroup2", ..] => Some(PathBuf::from(folder)),
            _ => None,
        });
        let pod = root
            .context("find the cgroups")?
            .join(format!("kubepods-test-pod{}.slice", pod.replace('-', "_")));
        let cgroup = pod.join(format!("cri-containerd-{id}.scope"));
        fs::create_dir_all(&cgroup).with_context(|| format!("create {}", cgroup.display()))?;
        let process = Command::new("sleep").arg("600").spawn()?;
        fs::write(cgroup.join("cgroup.procs"), process.id().to_string())?;
        Ok(Self { process, cgroup })
    }

    fn on_gpu(&self, memory_mib: u64) -> GpuProcess {
        GpuProcess {
            pid: self.process.id(),
            memory_mib,
            kind: ProcessKind::Compute,
            instance: None,
        }
    }
}

impl Drop for ContainerProcess {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        // The kernel lets go of the process a moment later.
        for _ in 0..100 {
            if fs::remove_dir(&self.cgroup).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        _ = self.cgroup.parent().map(fs::remove_dir);
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn processes_count_for_the_container_in_whose_cgroup_they_are_and_an_idle_holder_is_told() -> Result<()> {
    let ids = ["a1", "b2", "c3"].map(|start| format!("{start}{}", "0".repeat(62)));
    let config = "resources: [{name: aliyun.com/gpu-mem, devices: {indices: [0]}, sharing: {strategy: Memory}}]\n\
                  usage: {interval: 5s, idleAfter: 10s}";
    let lab = Lab::start(Node::with_t4()?, config)?;
    let units = "aliyun.com/gpu-mem";
    lab.kubelet
        .has(units, |endpoint| endpoint.healthy().len() == 15)
        .await?;
    // Two containers of one pod, and another pod.
    for (pod, container, count) in [(ONE, "train", 4), (ONE, "log", 1), (TWO, "main", 2)] {
        lab.kubelet.admit(pod, container, units, count).await?;
    }
    let links = lab.node.host_root().join("var/log/containers");
    fs::create_dir_all(&links)?;
    for (container, id) in ["train", "log"].iter().zip(&ids) {
        let link = links.join(format!("{ONE}_default_{container}-{id}.log"));
        std::os::unix::fs::symlink("/var/log/pods/nowhere", link)?;
    }
    let [train, log, main] =
        [(ONE, &ids[0]), (ONE, &ids[1]), (TWO, &ids[2])].map(|(pod, id)| ContainerProcess::start(pod, id));
    let (train, log, main) = (train?, log?, main?);
    let state = lab.node.state()?;
    state.set_processes(0, vec![train.on_gpu(3000), log.on_gpu(100), main.on_gpu(500)])?;
    state.set_sm_percent(0, train.process.id(), 60)?;
    state.set_sm_percent(0, log.process.id(), 10)?;

    let of = |report: &Value, container: &str| -> Result<Value> {
        let found = containers(report).iter().find(|of| of["container"] == container);
        found
            .cloned()
            .with_context(|| format!("find {container} in {report:#}"))
    };
    let report = await_report(&lab.agent, |report| {
        of(report, "main").is_ok_and(|of| of["idleSeconds"].as_u64() >= Some(10))
    })
    .await?;
    for (container, used_mib, given_gib, sm, is_idle) in [
        ("train", 3000_u64, 4_u64, 0.6, false),
        ("log", 100, 1, 0.1, false),
        ("main", 500, 2, 0.0, true),
    ] {
        let of = of(&report, container)?;
        assert_eq!(of["memoryUsedBytes"], used_mib << 20, "{of:#}");
        assert_eq!(of["memoryGivenBytes"], given_gib << 30, "{of:#}");
        assert_eq!(of["smUsedRatio"], sm, "{of:#}");
        ensure!(
            of["smGivenRatio"].is_null(),
            "units of memory say nothing of the SMs: {of:#}"
        );
        assert_eq!(
            of["idleSeconds"].as_u64() >= report["idleAfterSeconds"].as_u64(),
            is_idle,
            "{of:#}"
        );
    }
    // It wakes up, and its memory is hidden.
    state.set_sm_percent(0, main.process.id(), 5)?;
    state.update_gpu(0, |state| state.hides_process_memory = true)?;
    let report = await_report(&lab.agent, |report| {
        of(report, "main").is_ok_and(|of| of["memoryUsedBytes"].is_null())
    })
    .await?;
    let of_main = of(&report, "main")?;
    ensure!(
        of_main["idleSeconds"] == 0 && of_main["smUsedRatio"] == 0.05,
        "{of_main:#}"
    );
    if of_main["problem"] != "the driver does not tell the memory of processes" {
        bail!("{of_main:#}");
    }
    Ok(())
}
