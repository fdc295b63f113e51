//! The figures of `docs/benchmarks.md` that need the local cluster; `make bench` prints them.

use anyhow::{Context, Result};
use gpunode_e2e::{CPU, KubeletLog, Lab, NAMESPACE, V100};
use serde_json::json;
use std::time::{Duration, Instant};

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

#[test]
#[ignore = "a measurement: make bench"]
fn measure_a_policy_an_idle_minute_and_changes() -> Result<()> {
    let lab = Lab::enter()?;
    let audit = lab.audit()?;
    let start = Instant::now();
    // Without the plan that tests take before.
    let output = lab.kubectl_with_input(&["apply", "-f", "-"], POLICY)?;
    anyhow::ensure!(
        output.status.success(),
        "kubectl apply: {}",
        String::from_utf8_lossy(&output.stderr)
    );
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
