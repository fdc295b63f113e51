//! Metrics of an agent, as Prometheus reads them.

use anyhow::{Context as _, Result, ensure};
use gpunode_node_tests::{Agent, FakeKubelet, Lab, Node, until};
use gpunode_scenario::{GpuProcess, ProcessKind, Scenario, Topology};
use rustix::process::Signal;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::{Duration, Instant},
};
use tokio::time::sleep;

const GPU: &str = "nvidia.com/gpu";
const LIMIT: Duration = Duration::from_mins(2);

/// Values by series of an answer in the OpenMetrics format, which is checked: every family has its help and type once, every
/// series belongs to one and is there once, counters end in `_total`, durations are in seconds, and the end is marked.
fn read(answer: &str) -> Result<BTreeMap<String, f64>> {
    ensure!(
        answer.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{answer}"
    );
    let (_, text) = answer.split_once("\r\n\r\n").context("find the body")?;
    ensure!(text.ends_with("# EOF\n"), "{text}");
    let (mut types, mut help, mut values) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some((name, _)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            ensure!(help.insert(name), "{line}: twice");
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            ensure!(types.insert(name, kind).is_none(), "{line}: twice");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').context("a series and its value")?;
            let name = series.split('{').next().unwrap_or_default();
            let suffixes = ["", "_total", "_info", "_bucket", "_sum", "_count"];
            let belongs = |suffix: &&str| {
                name.strip_suffix(*suffix)
                    .is_some_and(|family| types.contains_key(family))
            };
            let suffix = suffixes
                .iter()
                .rev()
                .find(|suffix| belongs(suffix))
                .context("the family of the series")?;
            let kind = types
                .get(name.strip_suffix(suffix).unwrap_or_default())
                .copied()
                .unwrap_or_default();
            let fits = match *suffix {
                "" => kind == "gauge",
                "_total" => kind == "counter",
                "_info" => kind == "info",
                _ => kind == "histogram" && name.contains("_seconds"),
            };
            ensure!(fits && name.starts_with("gpunode_agent_"), "{line}: a {kind}");
            ensure!(
                values.insert(series.to_owned(), value.parse()?).is_none(),
                "{line}: twice"
            );
        }
    }
    ensure!(types.keys().eq(&help), "help of {help:?}, types of {types:?}");
    Ok(values)
}

async fn metrics(agent: &Agent) -> Result<BTreeMap<String, f64>> {
    read(&agent.get("/metrics").await?)
}

/// Waits until the metrics are as expected: the agent counts what it has done a moment after others have seen it.
async fn await_metrics(agent: &Agent, as_expected: impl Fn(&BTreeMap<String, f64>) -> bool) -> Result<()> {
    let start = Instant::now();
    loop {
        let values = metrics(agent).await?;
        if as_expected(&values) {
            return Ok(());
        }
        ensure!(start.elapsed() < LIMIT, "{values:#?}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_the_agent_does_is_counted() -> Result<()> {
    let lab = Lab::start(Node::with_v100()?, "")?;
    let ids = lab
        .kubelet
        .has(GPU, |endpoint| endpoint.healthy().len() == 8)
        .await?
        .ids();
    lab.kubelet.allocate(GPU, &[ids.first().context("an id")?]).await?;
    lab.kubelet.preferred(GPU, &ids, 2).await?;
    ensure!(lab.kubelet.allocate(GPU, &["GPU-nobody"]).await.is_err());
    for (series, expected) in [
        (
            r#"gpunode_agent_devices{resource="nvidia.com/gpu",health="healthy"}"#,
            8.0,
        ),
        (
            r#"gpunode_agent_devices{resource="nvidia.com/gpu",health="unhealthy"}"#,
            0.0,
        ),
        (
            r#"gpunode_agent_allocations_total{resource="nvidia.com/gpu",result="granted"}"#,
            1.0,
        ),
        (
            r#"gpunode_agent_allocations_total{resource="nvidia.com/gpu",result="refused"}"#,
            1.0,
        ),
        (
            r#"gpunode_agent_registrations_total{resource="nvidia.com/gpu",result="accepted"}"#,
            1.0,
        ),
        (r#"gpunode_agent_rpc_duration_seconds_count{method="Allocate"}"#, 2.0),
        (
            r#"gpunode_agent_rpc_duration_seconds_count{method="GetPreferredAllocation"}"#,
            1.0,
        ),
        (
            r#"gpunode_agent_rpc_duration_seconds_count{method="ListAndWatch"}"#,
            1.0,
        ),
        (r#"gpunode_agent_rpc_duration_seconds_count{method="Register"}"#, 1.0),
    ] {
        let counted = |values: &BTreeMap<String, f64>| values.get(series) == Some(&expected);
        await_metrics(&lab.agent, counted)
            .await
            .with_context(|| format!("{series} is not {expected}"))?;
    }
    let values = metrics(&lab.agent).await?;
    for start in ["gpunode_agent_config_info{hash=", "gpunode_agent_build_info{version="] {
        ensure!(
            values
                .iter()
                .any(|(series, value)| series.starts_with(start) && (value - 1.0).abs() < 0.1)
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_kubelet_that_refuses_is_counted() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("")?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    kubelet.refuse(2);
    let agent = Agent::run(&node)?;
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    let failed = r#"gpunode_agent_registrations_total{resource="nvidia.com/gpu",result="failed"}"#;
    await_metrics(&agent, |values| values.get(failed) == Some(&2.0)).await
}

#[tokio::test]
async fn discovery_counts_gpus_of_no_resource() -> Result<()> {
    let node = Node::without_driver(Scenario::new("cpu", "Tesla T4", 0, Topology::Pcie))?;
    let agent = Agent::discover(&node)?;
    agent.await_ready().await?;
    let values = metrics(&agent).await?;
    let devices = r#"gpunode_agent_devices{resource="",health="healthy"}"#;
    ensure!(values.get(devices) == Some(&0.0), "{values:#?}");
    ensure!(
        values
            .keys()
            .any(|series| series.starts_with("gpunode_agent_build_info{")),
        "{values:#?}"
    );
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_with_gpus_is_counted_until_it_is_over() -> Result<()> {
    let lab = Lab::start(
        Node::with_v100()?,
        "resources: [{name: nvidia.com/gpu, sharing: {strategy: Memory}}]",
    )?;
    lab.kubelet.has(GPU, |endpoint| !endpoint.healthy().is_empty()).await?;
    let faults = |values: &BTreeMap<String, f64>| -> Vec<f64> {
        let faults = values
            .iter()
            .filter(|(series, _)| series.starts_with("gpunode_agent_faults{"));
        faults.map(|(_, value)| *value).collect()
    };
    let values = metrics(&lab.agent).await?;
    ensure!(faults(&values).is_empty(), "units that are withheld are no fault");
    lab.node.state()?.lose(0)?;
    lab.agent.signal(Signal::HUP)?;
    await_metrics(&lab.agent, |values| faults(values) == [1.0]).await?;
    lab.node.state()?.restore(0)?;
    lab.agent.signal(Signal::HUP)?;
    await_metrics(&lab.agent, |values| faults(values).is_empty()).await
}

#[tokio::test]
async fn a_gpu_with_two_faults_is_counted_once_and_held_shares_are_counted() -> Result<()> {
    let lab = Lab::start(Node::with_v100()?, "")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    for pod in ["a", "b"] {
        lab.kubelet.admit(pod, "main", GPU, 1).await?;
    }
    let held = r#"gpunode_agent_held_shares{resource="nvidia.com/gpu"}"#;
    await_metrics(&lab.agent, |values| values.get(held) == Some(&2.0)).await?;
    lab.agent.logs("following driver events").await?;
    for xid in [79, 48] {
        lab.node.state()?.inject_xid(1, xid)?;
    }
    until("both faults have begun", || {
        (lab.agent.logged("device is faulty") == 2).then_some(())
    })
    .await?;
    await_metrics(&lab.agent, |values| {
        let faults = values
            .iter()
            .filter(|(series, _)| series.starts_with("gpunode_agent_faults{"));
        let (series, counts): (Vec<&String>, Vec<f64>) = faults.map(|(series, count)| (series, *count)).unzip();
        let expected = r#"gpunode_agent_faults{gpu="1",reason="Xid","#;
        counts == [1.0] && series.iter().all(|series| series.starts_with(expected))
    })
    .await
}

#[tokio::test]
async fn a_process_on_a_gpu_that_nobody_holds_is_named_and_counted_while_it_runs() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, "")?;
    let series = |gpu: u32| format!(r#"gpunode_agent_unaccounted_processes{{gpu="{gpu}"}}"#);
    let mut process = Command::new("sleep").arg("300").spawn()?;
    let on_gpu = GpuProcess {
        pid: process.id(),
        memory_mib: 1,
        kind: ProcessKind::Compute,
        instance: None,
    };
    let named = format!("{} (sleep, of ", process.id());
    let seen = async {
        lab.node.state()?.set_processes(2, vec![on_gpu])?;
        let line = lab
            .agent
            .logs("GPU 2 is used by processes of no container that holds it: ")
            .await?;
        ensure!(line.contains(&named), "{line}");
        let values = metrics(&lab.agent).await?;
        let counts = [1, 2].map(|gpu| values.get(&series(gpu)).copied());
        ensure!(counts == [Some(0.0), Some(1.0)], "{values:?}");
        anyhow::Ok(())
    };
    let seen = seen.await;
    let ends = (process.kill(), process.wait());
    ends.0?;
    ends.1?;
    seen?;
    // The driver lists it still.
    await_metrics(&lab.agent, |values| values.get(&series(2)) == Some(&0.0)).await
}
