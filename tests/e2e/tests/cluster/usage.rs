//! Use of shared GPUs by containers, in `kubectl gpunode status NODE`: processes of real containers, which the simulated driver
//! lists.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{Lab, T4, eventually};
use gpunode_scenario::{GpuProcess, ProcessKind};
use serde_json::Value;
use std::{fs, process::Command, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);
/// GPU 0 in time slices and GPU 1 in units of memory.
const SHARED: &str = "{usage: {interval: 5s, idleAfter: 20s}, resources: [
    {name: nvidia.com/gpu, devices: {indices: [0]}, sharing: {strategy: TimeSlicing, replicas: 4}},
    {name: aliyun.com/gpu-mem, devices: {indices: [1]}, sharing: {strategy: Memory}}]}";

/// Processes on the GPUs of a node, until the value is dropped.
struct GpuWork<'a>(&'a Lab);

impl GpuWork<'_> {
    /// Lets the first process of a pod work on a GPU.
    fn start(&self, pod: &str, gpu: u32, memory_mib: u64, sm_percent: u32) -> Result<()> {
        let processes = self.0.cluster().node(T4)?.container_processes("default", pod, "main")?;
        let process = processes.first().with_context(|| format!("find a process of {pod}"))?;
        let pid = pid_in_node(&process.pid())?;
        let state = self.0.driver_state(T4)?;
        state.update_gpu(gpu, |state| {
            state.processes.push(GpuProcess {
                pid,
                memory_mib,
                kind: ProcessKind::Compute,
                instance: None,
            });
            state.sm_percent.insert(pid, sm_percent);
        })?;
        Ok(())
    }
}

impl Drop for GpuWork<'_> {
    fn drop(&mut self) {
        if let Ok(state) = self.0.driver_state(T4) {
            for gpu in 0..2 {
                _ = state.update_gpu(gpu, |state| {
                    state.processes.clear();
                    state.sm_percent.clear();
                });
            }
        }
    }
}

/// Returns the id of a process in the PID namespace of its node, which is the host's to the pods there.
fn pid_in_node(pid: &impl ToString) -> Result<u32> {
    let pid = pid.to_string();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("read process {pid}"))?;
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let ids = ids.with_context(|| format!("find the ids of process {pid}"))?;
    // This machine, the node, the container.
    let in_node = ids.split_whitespace().nth(1).context("find the id in the node")?;
    Ok(in_node.parse()?)
}

fn status(lab: &Lab) -> Result<String> {
    let output = Command::new(Lab::repository().join("target/cluster/bin/kubectl-gpunode"))
        .args(["status", T4, "--kubeconfig"])
        .arg(lab.cluster().kubeconfig())
        .output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the cells of the row of a pod in the table of what containers use.
fn row(text: &str, pod: &str) -> Result<Vec<String>> {
    let (_, table) = text.split_once("USED / GIVEN").with_context(|| text.to_owned())?;
    let row = table
        .lines()
        .find(|line| line.contains(pod))
        .with_context(|| text.to_owned())?;
    Ok(row
        .split("   ")
        .map(str::trim)
        .filter(|cell| !cell.is_empty())
        .map(str::to_owned)
        .collect())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn pods_on_shared_gpus_are_shown_with_what_they_use_and_idle_ones_are_named() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::sharing("inference", SHARED))?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 4)?;
    lab.await_allocatable(T4, "aliyun.com/gpu-mem", 15)?;
    lab.apply(&samples::holding("turns", "inference", 2, "nvidia.com/gpu", 1))?;
    lab.apply(&samples::holding("units", "inference", 1, "aliyun.com/gpu-mem", 4))?;
    let (turns, units) = (lab.await_running("turns", 2)?, lab.await_running("units", 1)?);
    let [busy, idle] = &turns[..] else {
        anyhow::bail!("{turns:?}")
    };
    let unit = units.first().context("find the pod with units")?;
    let work = GpuWork(&lab);
    work.start(busy, 0, 2048, 60)?;
    work.start(idle, 0, 512, 0)?;
    work.start(unit, 1, 3072, 25)?;
    eventually("the figures are shown, and who is idle", LIMIT, || {
        let text = status(&lab)?;
        for (pod, memory, sm) in [
            (busy, "2.0/15.0 GiB", "60/25%"),
            (idle, "0.5/15.0 GiB", "0/25%"),
            (unit, "3.0/4.0 GiB", "25%"),
        ] {
            let row = row(&text, pod)?;
            ensure!(
                row.iter().any(|cell| cell == memory) && row.iter().any(|cell| cell == sm),
                "{row:?} in {text}"
            );
        }
        let named = text
            .lines()
            .find(|line| line.contains("idle for 20s or longer:"))
            .unwrap_or_default();
        ensure!(named.contains(idle.as_str()), "{text}");
        ensure!(
            !named.contains(busy.as_str()) && !named.contains(unit.as_str()),
            "{text}"
        );
        Ok(())
    })?;
    drop(work);
    // Figures that change all the time are no reason to write a status.
    let version = || -> Result<Value> { Ok(lab.get(&["gpunode", T4])?["metadata"]["resourceVersion"].clone()) };
    let before = version()?;
    eventually("the processes have gone from the figures", LIMIT, || {
        let row = row(&status(&lab)?, busy)?;
        ensure!(row.iter().any(|cell| cell == "0.0/15.0 GiB"), "{row:?}");
        Ok(())
    })?;
    assert_eq!(version()?, before);
    Ok(())
}
