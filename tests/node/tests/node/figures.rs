//! Figures of `docs/benchmarks.md`; `make bench` prints them.

use anyhow::{Context as _, Result, ensure};
use gpunode_node_tests::{Agent, FakeKubelet, Lab, Node, node_of, until};
use gpunode_scenario::{MigGroup, Scenario, Topology};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Percentiles.
const MEDIAN: usize = 50;
const P99: usize = 99;
const ROUNDS: u32 = 20;
/// Time after which an idle agent has settled.
const IDLE: Duration = Duration::from_mins(1);

fn of_16(board: &str) -> Result<Node> {
    Node::new(Scenario::new("figures", board, 16, Topology::NvSwitch))
}

/// Prints a series, and of its figure that many percent are no greater.
#[expect(clippy::print_stdout, reason = "a measurement")]
fn summary(key: &str, mut times: Vec<Duration>, share: usize) -> Result<()> {
    times.sort();
    let at = |share: usize| {
        times
            .get((times.len() * share / 100).min(times.len().saturating_sub(1)))
            .copied()
    };
    let (median, p99, max) = (
        at(MEDIAN).context("a time")?,
        at(P99).context("a time")?,
        at(100).context("a time")?,
    );
    println!(
        "{key}: median {median:?}, p99 {p99:?}, maximum {max:?} of {}",
        times.len()
    );
    println!(
        "figure: {key} | {:.3} | ms",
        at(share).context("a time")?.as_secs_f64() * 1000.0
    );
    Ok(())
}

/// Allocate at the agent's socket, so many shares of one device each time. None is asked for twice: before a share is given
/// out again the agent checks that it is free, which is not what is measured here.
async fn allocate(lab: &Lab, resource: &str, shares: usize, calls: usize) -> Result<Vec<Duration>> {
    let uuids = lab.node.uuids()?;
    let ids = lab.kubelet.endpoint(resource).ids();
    let mut times = Vec::new();
    for call in 0..calls {
        let uuid = uuids.get(call % uuids.len()).context("a GPU")?;
        let all: Vec<&str> = ids
            .iter()
            .filter(|id| id.starts_with(uuid.as_str()))
            .map(String::as_str)
            .collect();
        let first = call / uuids.len() * shares;
        let start = Instant::now();
        lab.kubelet
            .allocate(resource, all.get(first..first + shares).context("shares")?)
            .await?;
        times.push(start.elapsed());
    }
    Ok(times)
}

/// From the signal after which the agent reads its configuration to the new list at the kubelet.
async fn lists(lab: &Lab, resource: &str, configs: [&str; 2]) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let before = lab.kubelet.endpoint(resource).lists;
        lab.node
            .configure(configs.get(round as usize % 2).context("a configuration")?)?;
        let start = Instant::now();
        lab.agent.signal(rustix::process::Signal::HUP)?;
        let expected = before + 1;
        until("the list has come", || {
            (lab.kubelet.endpoint(resource).lists >= expected).then_some(())
        })
        .await?;
        let messages = lab.kubelet.messages(resource);
        times.push(messages.get(before).context("the list")?.at.duration_since(start));
        lab.kubelet
            .has(resource, |endpoint| endpoint.healthy().len() == endpoint.devices.len())
            .await?;
    }
    Ok(times)
}

#[tokio::test]
#[ignore = "a measurement"]
async fn measure_64_replicas_of_16_gpus() -> Result<()> {
    let config = |replicas: u32| {
        format!("resources: [{{name: nvidia.com/gpu, sharing: {{strategy: TimeSlicing, replicas: {replicas}}}}}]")
    };
    let lab = Lab::start(of_16("Tesla V100-SXM2-32GB")?, &config(64))?;
    lab.kubelet
        .has("nvidia.com/gpu", |endpoint| endpoint.healthy().len() == 1024)
        .await?;
    summary("allocate-p99", allocate(&lab, "nvidia.com/gpu", 1, 1000).await?, P99)?;
    // Grants that no pod confirms are forgotten before anything can switch.
    let lab = Lab::start(of_16("Tesla V100-SXM2-32GB")?, &config(64))?;
    lab.kubelet
        .has("nvidia.com/gpu", |endpoint| endpoint.healthy().len() == 1024)
        .await?;
    summary(
        "change-replicas",
        lists(&lab, "nvidia.com/gpu", [&config(63), &config(64)]).await?,
        MEDIAN,
    )?;
    Ok(())
}

/// A node without GPU, whose agent has given its kubelet 1,000 shares of RDMA devices.
pub async fn with_companions_alone() -> Result<(Node, FakeKubelet, Agent)> {
    const SHARES: usize = 1000;
    let node = node_of(&[])?;
    let folder = node.host_root().join("dev/infiniband");
    fs::create_dir_all(&folder)?;
    ["rdma_cm", "umad0", "uverbs0"]
        .iter()
        .try_for_each(|name| fs::write(folder.join(name), ""))?;
    node.configure(&format!(
        "companions: [{{resource: rdma/hca, paths: [/dev/infiniband/*], group: Together, shares: {SHARES}, inject: {{mounts: {{}}}}}}]"
    ))?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let agent = Agent::run_with_arguments(&node, &["--companion-roots", "/dev/infiniband"])?;
    kubelet
        .has("rdma/hca", |endpoint| endpoint.healthy().len() == SHARES)
        .await?;
    Ok((node, kubelet, agent))
}

#[tokio::test]
#[ignore = "a measurement"]
async fn measure_memory_with_companions_alone() -> Result<()> {
    let (_node, kubelet, agent) = with_companions_alone().await?;
    kubelet.admit("pod", "main", "rdma/hca", 1).await?;
    sleep(IDLE).await;
    let tenths = agent.resident_kib()? * 10 / 1024;
    println!("figure: agent-rss-companions | {}.{} | MiB", tenths / 10, tenths % 10);
    Ok(())
}

#[tokio::test]
#[ignore = "a measurement"]
async fn measure_80_memory_units_of_16_gpus() -> Result<()> {
    const MEMORY: &str = "aliyun.com/gpu-mem";
    let config = "resources: [{name: aliyun.com/gpu-mem, sharing: {strategy: Memory}}]";
    let other = "resources: [{name: aliyun.com/gpu-mem, sharing: {strategy: Memory, unit: 1023Mi}}]";
    let lab = Lab::start(of_16("NVIDIA A100-SXM4-80GB")?, config)?;
    lab.kubelet
        .has(MEMORY, |endpoint| endpoint.healthy().len() == 1280)
        .await?;
    summary("allocate-unit-p99", allocate(&lab, MEMORY, 1, 1000).await?, P99)?;
    let lab = Lab::start(of_16("NVIDIA A100-SXM4-80GB")?, config)?;
    lab.kubelet
        .has(MEMORY, |endpoint| endpoint.healthy().len() == 1280)
        .await?;
    summary("allocate-units-p99", allocate(&lab, MEMORY, 8, 160).await?, P99)?;
    let lab = Lab::start(of_16("NVIDIA A100-SXM4-80GB")?, config)?;
    lab.kubelet
        .has(MEMORY, |endpoint| endpoint.healthy().len() == 1280)
        .await?;
    summary("change-units", lists(&lab, MEMORY, [other, config]).await?, MEDIAN)?;
    Ok(())
}

#[tokio::test]
#[ignore = "a measurement"]
async fn measure_the_choice_of_16_gpus_at_the_socket() -> Result<()> {
    let lab = Lab::start(of_16("Tesla V100-SXM2-32GB")?, "")?;
    let free = lab
        .kubelet
        .has("nvidia.com/gpu", |endpoint| endpoint.healthy().len() == 16)
        .await?
        .ids();
    for (key, sizes) in [("preferred-3-p99", 3..=3), ("preferred-all-p99", 1..=16)] {
        let mut times = Vec::new();
        for size in sizes.cycle().take(1000) {
            let start = Instant::now();
            let chosen = lab.kubelet.preferred("nvidia.com/gpu", &free, size).await?;
            times.push(start.elapsed());
            ensure!(chosen.len() == size, "{size}: {chosen:?}");
        }
        summary(key, times, P99)?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "a measurement"]
async fn measure_xid_to_list() -> Result<()> {
    const GPU: &str = "nvidia.com/gpu";
    let mut times = Vec::new();
    while times.len() < 100 {
        let lab = Lab::start(Node::with_v100()?, "")?;
        lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
        lab.agent.logs("following driver events").await?;
        for gpu in 0..8 {
            let before = lab.kubelet.messages(GPU).len();
            let start = Instant::now();
            lab.node.state()?.inject_xid(gpu, 79)?;
            let messages = || lab.kubelet.messages(GPU).get(before).map(|list| list.at);
            times.push(until("the list has come", messages).await?.duration_since(start));
        }
    }
    summary("xid-to-list", times, P99)
}

/// Each way to hand devices over, as far as they go together.
#[tokio::test]
#[ignore = "a measurement"]
async fn measure_allocations_by_every_strategy() -> Result<()> {
    const GPU: &str = "nvidia.com/gpu";
    for strategies in ["[CdiCri, CdiAnnotations, Envvar]", "[VolumeMounts, Envvar]"] {
        let sharing = "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 128}}]";
        let config = format!("deviceListStrategy: {strategies}\npassDeviceSpecs: true\n{sharing}");
        let lab = Lab::start(Node::with_v100()?, &config)?;
        lab.kubelet
            .has(GPU, |endpoint| endpoint.healthy().len() == 1024)
            .await?;
        summary("allocate-strategies-p99", allocate(&lab, GPU, 1, 1000).await?, P99)?;
    }
    Ok(())
}

/// From the signal after which the agent reads its configuration to the new CDI file. In between it reads the driver's files.
#[tokio::test]
#[ignore = "a measurement"]
async fn measure_the_cdi_file_of_112_mig_devices() -> Result<()> {
    let mut scenario = Scenario::new("figures", "NVIDIA A100-SXM4-80GB", 16, Topology::NvSwitch);
    scenario.mig = vec![MigGroup {
        gpus: (0..16).collect(),
        instances: vec!["1g.10gb".to_owned(); 7],
    }];
    let node = Node::new(scenario)?;
    symlink("/dev/null", node.host_root().join("dev/gdrdrv"))?;
    let config = |gdrcopy: bool| format!("mig: {{strategy: Mixed}}\ngdrcopy: {gdrcopy}");
    let lab = Lab::start(node, &config(false))?;
    lab.kubelet
        .has("nvidia.com/mig-1g.10gb", |endpoint| endpoint.healthy().len() == 112)
        .await?;
    let file = lab.node.cdi_dir().join("gpunode.dev-gpu.json");
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let before = fs::metadata(&file)?.ino();
        lab.node.configure(&config(round % 2 == 0))?;
        let start = Instant::now();
        lab.agent.signal(rustix::process::Signal::HUP)?;
        while fs::metadata(&file)?.ino() == before {
            ensure!(start.elapsed() < Duration::from_secs(20), "no new CDI file");
            sleep(Duration::from_millis(1)).await;
        }
        times.push(start.elapsed());
    }
    let devices = lab.node.cdi_file()?.context("the CDI file")?["devices"]
        .as_array()
        .map_or(0, Vec::len);
    ensure!(devices == 16 + 112, "{devices}");
    summary("cdi-file", times, 100)
}
