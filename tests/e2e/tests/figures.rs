//! The figures of `docs/benchmarks.md` that need the local cluster; `make bench` prints them.

use anyhow::{Context, Result, ensure};
use gpunode_cluster::Node;
use gpunode_e2e::{CPU, KubeletLog, Lab, NAMESPACE, V100};
use serde_json::{Value, json};
use std::{
    fs,
    time::{Duration, Instant},
};

const GPU: &str = "nvidia.com/gpu";
const POLICY: &str = "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: figures}
spec:
  nodeSelector: {matchLabels: {pool: training}}
  labels: {accelerator: nvidia-tesla-v100}
  taints: [{key: dedicated, value: v100, effect: NoSchedule}]
  devicePlugin: {}
";

fn resident(process: &gpunode_cluster::Process) -> Result<f64> {
    let path = format!("/proc/{}/status", process.pid());
    let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("find VmRSS")?;
    let kib: f64 = line
        .trim()
        .trim_end_matches("kB")
        .trim()
        .parse()
        .context("parse VmRSS")?;
    Ok(kib / 1024.0)
}

/// Applies the policy, without the plan that tests take before.
fn apply_policy(lab: &Lab) -> Result<()> {
    let output = lab.kubectl_with_input(&["apply", "-f", "-"], POLICY)?;
    ensure!(
        output.status.success(),
        "kubectl apply: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[test]
#[ignore = "a measurement: make bench"]
fn measure_a_policy_an_idle_minute_and_changes() -> Result<()> {
    let lab = Lab::enter()?;
    let audit = lab.audit()?;
    let start = Instant::now();
    apply_policy(&lab)?;
    lab.await_allocatable(V100, GPU, 8)?;
    println!(
        "figure: apply-to-allocatable | {:.1} | s",
        start.elapsed().as_secs_f64()
    );
    lab.await_ready("figures")?;
    let writes = audit.gpunode_writes()?;
    let to_nodes = writes.iter().filter(|event| event.resource() == "nodes").count();
    println!("figure: writes-per-node | {to_nodes} |");
    let audit = lab.audit()?;
    std::thread::sleep(Duration::from_mins(1));
    println!("figure: writes-idle | {} |", audit.gpunode_writes()?.len());

    let leader = lab.leader()?;
    for pod in lab.operator_pods()? {
        let role = if pod == leader { "leader" } else { "standby" };
        let resident = resident(&lab.operator_process(&pod)?)?;
        println!("operator, {role}:");
        println!("figure: operator-rss | {resident:.1} | MiB");
    }
    let plugin = lab.await_plugin(V100)?;
    let agent = lab
        .cluster()
        .node(V100)?
        .container_process(NAMESPACE, &plugin, "agent")?;
    println!("figure: agent-rss | {:.1} | MiB", resident(&agent)?);
    let pod = lab.agent_pod(CPU, "discovery")?;
    let discovery = lab.cluster().node(CPU)?.container_process(NAMESPACE, &pod, "agent")?;
    println!("figure: discovery-rss | {:.1} | MiB", resident(&discovery)?);

    let log = KubeletLog::from_now(&lab, V100)?;
    for replicas in [4, 2, 3] {
        let sharing = json!({"strategy": "TimeSlicing", "replicas": replicas});
        let resource = json!({"name": GPU, "sharing": sharing});
        let patch = json!({"spec": {"devicePlugin": {"resources": [resource]}}}).to_string();
        lab.kubectl(&["patch", "gpunodepolicy", "figures", "--type", "merge", "-p", &patch])?;
        lab.await_allocatable(V100, GPU, 8 * replicas)?;
    }
    println!("figure: change-unhealthy | {} |", log.lost_endpoints()?.len());
    Ok(())
}

/// Runs a container that ends at once, and returns the time from the request to its end.
fn container_time(node: &Node, snapshotter: &str, device: &str, name: &str) -> Result<Duration> {
    let (snapshotter, device) = (format!("--snapshotter={snapshotter}"), format!("--device={device}"));
    let start = Instant::now();
    // Without a control group of its own, which would be one of the machine's.
    let options: [&str; 6] = ["run", "--rm", "--null-io", "--cgroup=", &snapshotter, &device];
    node.ctr(options.into_iter().chain(["gpunode.test/busybox:1", name, "/bin/true"]))?;
    Ok(start.elapsed())
}

/// A CDI file for tests, until this is dropped.
struct TestCdiFile(std::path::PathBuf);

impl Drop for TestCdiFile {
    fn drop(&mut self) {
        // It names devices that no pod asks for.
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
#[ignore = "a measurement: make bench"]
fn measure_container_starts_with_hooks_and_without() -> Result<()> {
    const ROUNDS: usize = 60;
    let lab = Lab::enter()?;
    apply_policy(&lab)?;
    lab.await_allocatable(V100, GPU, 8)?;
    let node = lab.cluster().node(V100)?;
    let config = fs::read_to_string(node.path("/etc/containerd/config.toml")).context("read containerd's settings")?;
    let snapshotter = config
        .lines()
        .find_map(|line| line.trim().strip_prefix("snapshotter = \"")?.strip_suffix('"'))
        .context("find the snapshotter")?;

    let mut file = lab.cdi_file(V100)?;
    let uuid = file["devices"][0]["name"].as_str().context("find a device")?.to_owned();
    let hooks = file["containerEdits"]["hooks"].as_array().map_or(0, Vec::len);
    let program = file["containerEdits"]["hooks"][0]["path"].clone();
    ensure!(
        program.as_str().is_some_and(|path| path.ends_with("/gpunode-hook")),
        "the hook program is {program}"
    );
    // The same without hooks.
    file["kind"] = json!("gpunode.test/plain");
    file["containerEdits"]["hooks"] = Value::Array(Vec::new());
    let plain = TestCdiFile(node.path("/run/cdi/gpunode.test-plain.json"));
    fs::write(&plain.0, file.to_string()).context("write the file without hooks")?;

    // Pairs, because the time of a container varies more between minutes than by the hooks.
    let mut longer = Vec::new();
    for round in 0..ROUNDS {
        let (mut with, mut without) = (0.0, 0.0);
        let mut kinds = [("gpunode.dev/gpu", &mut with), ("gpunode.test/plain", &mut without)];
        // Each comes first as often as the other: the container before leaves work to containerd.
        kinds.rotate_left(round % 2);
        for (kind, time) in kinds {
            let name = format!("figure-{round}");
            let took = container_time(&node, snapshotter, &format!("{kind}={uuid}"), &name)?;
            *time = took.as_secs_f64() * 1000.0;
        }
        longer.push(with - without);
    }
    longer.sort_by(f64::total_cmp);
    let (tenth, middle, last_tenth) = (longer[ROUNDS / 10], longer[ROUNDS / 2], longer[ROUNDS - ROUNDS / 10]);
    println!("{hooks} calls of hooks take longer by {tenth:.1}, {middle:.1}, {last_tenth:.1} ms (10 %, 50 %, 90 %)");
    println!("figure: container-start-hooks | {middle:.1} | ms");
    Ok(())
}
