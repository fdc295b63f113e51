//! MIG layouts: the agent divides GPUs, never under a pod, and whoever kills it finds the layout made all the same.

use anyhow::{Context as _, Result};
use gpunode_node_tests::{Agent, FakeKubelet, Lab, Node, until};
use gpunode_scenario::{GpuProcess, MigState, MigUuids, ReturnCode, Scenario, Topology};
use serde_json::Value;
use std::{collections::BTreeMap, fs, time::Instant};

pub const SMALL: &str = "nvidia.com/mig-1g.10gb";
pub const MEDIUM: &str = "nvidia.com/mig-2g.20gb";
pub const LARGE: &str = "nvidia.com/mig-4g.40gb";
pub const GPU: &str = "nvidia.com/gpu";

/// Profile ids of these boards.
const PROFILE_1G: u32 = 19;
pub const PROFILE_2G: u32 = 14;
pub const PROFILE_4G: u32 = 5;

pub const BEFORE: &str = "mig: {strategy: Mixed, layout: [{instances: {1g.10gb: 3, 4g.40gb: 1}}]}";
pub const AFTER: &str = "mig: {strategy: Mixed, layout: [{instances: {1g.10gb: 1, 2g.20gb: 1, 4g.40gb: 1}}]}";

pub fn node_of(board: &str, gpus: u32, uuids: MigUuids) -> Result<Node> {
    let mut scenario = Scenario::new("layouts", board, gpus, Topology::NvSwitch);
    scenario.mig_uuids = uuids;
    let node = Node::new(scenario)?;
    node.reboot("first")?;
    Ok(node)
}

/// A node with one A100 of 80 GB.
pub fn node() -> Result<Node> {
    node_of("NVIDIA A100-SXM4-80GB", 1, MigUuids::Returning)
}

pub fn mig(node: &Node) -> Option<MigState> {
    node.state().ok()?.driver().ok()?.mig.get(&0).cloned()
}

/// UUIDs by profile and first slice, as the driver has them.
pub fn devices(node: &Node) -> BTreeMap<(u32, u32), String> {
    let instances = mig(node).map(|mig| mig.instances).unwrap_or_default();
    let device = |instance: gpunode_scenario::GpuInstanceRecord| {
        let compute = instance.compute_instances.first()?;
        Some(((instance.profile, instance.start), compute.uuid.clone()))
    };
    instances.into_iter().filter_map(device).collect()
}

/// Waits until the driver has so many devices of a profile, and the kubelet may allocate just them.
pub async fn offers(kubelet: &FakeKubelet, node: &Node, (resource, profile, count): (&str, u32, usize)) -> Result<()> {
    let of_profile = || -> Vec<String> {
        let devices = devices(node).into_iter();
        let mut uuids: Vec<_> = devices
            .filter(|((of, _), _)| *of == profile)
            .map(|(_, uuid)| uuid)
            .collect();
        uuids.sort();
        uuids
    };
    until(&format!("{resource} has what the driver has"), || {
        let healthy: Vec<String> = kubelet.endpoint(resource).healthy().into_iter().collect();
        let offered = of_profile();
        (offered.len() == count && healthy == offered).then_some(())
    })
    .await
    .with_context(|| format!("the driver has {:?}, {:?}", of_profile(), kubelet.endpoint(resource)))
}

pub async fn offers_before(kubelet: &FakeKubelet, node: &Node) -> Result<()> {
    offers(kubelet, node, (SMALL, PROFILE_1G, 3)).await?;
    offers(kubelet, node, (LARGE, PROFILE_4G, 1)).await
}

pub async fn offers_after(kubelet: &FakeKubelet, node: &Node) -> Result<()> {
    for (resource, profile) in [(SMALL, PROFILE_1G), (MEDIUM, PROFILE_2G), (LARGE, PROFILE_4G)] {
        offers(kubelet, node, (resource, profile, 1)).await?;
    }
    assert_eq!(devices(node).len(), 3);
    Ok(())
}

/// Waits for a log line of the GPU in a phase.
pub async fn reaches(agent: &Agent, phase: &str) -> Result<String> {
    agent.logs(&format!("\"phase\":\"{phase}\"")).await
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn gpu_gets_its_layout_and_its_devices_are_advertised_with_cdi_names() -> Result<()> {
    let config = format!("{BEFORE}\ndeviceListStrategy: [CdiCri, Envvar]");
    let lab = Lab::start(node()?, &config)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    assert!(lab.kubelet.messages(GPU).is_empty(), "the GPU was never offered whole");
    lab.agent.await_ready().await?;
    reaches(&lab.agent, "Applied").await?;
    let admitted = lab.kubelet.admit("pod", "main", LARGE, 1).await?;
    let expected = devices(&lab.node)[&(PROFILE_4G, 0)].clone();
    assert_eq!(admitted.ids, [expected.as_str()]);
    assert_eq!(admitted.response.envs["NVIDIA_VISIBLE_DEVICES"], expected);
    let names: Vec<&str> = admitted
        .response
        .cdi_devices
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    assert_eq!(names, [format!("gpunode.dev/gpu={expected}")]);
    let file = lab.node.cdi_file()?.context("the CDI file")?.to_string();
    assert!(file.contains(&expected), "{file}");
    let metrics = lab.agent.get("/metrics").await?;
    for series in [
        r#"gpunode_agent_mig_gpus{phase="Applied"} 1"#,
        r#"gpunode_agent_mig_instances{profile="1g.10gb"} 3"#,
        r#"gpunode_agent_mig_largest_free_slices{gpu="0",slices="memory"} 0"#,
        r#"gpunode_agent_mig_attempts_total{result="done"} 1"#,
        "gpunode_agent_mig_change_duration_seconds_count 1",
    ] {
        assert!(metrics.contains(series), "{series} in {metrics}");
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn only_what_must_go_goes_and_pods_keep_their_devices() -> Result<()> {
    let mut lab = Lab::start(node()?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    let before = devices(&lab.node);
    let large = lab.kubelet.admit("large", "main", LARGE, 1).await?.ids;
    for pod in ["a", "b", "c"] {
        lab.kubelet.admit(pod, "main", SMALL, 1).await?;
    }
    lab.kubelet.is_listed().await?;
    lab.apply(AFTER)?;
    reaches(&lab.agent, "Waiting").await?;
    lab.agent.await_ready().await?;
    // A pod that ends gives its device to nobody: two have to go, and three are held.
    lab.kubelet.release("a");
    let withdrawn = || (lab.kubelet.schedulable(SMALL) == 0).then_some(());
    until("nobody can get the free device", withdrawn).await?;
    assert_eq!(devices(&lab.node), before, "pods still hold two of the three");
    lab.kubelet.release("b");
    lab.kubelet.release("c");
    offers_after(&lab.kubelet, &lab.node).await?;
    assert_eq!(large, [devices(&lab.node)[&(PROFILE_4G, 0)].clone()]);
    // Nothing is left to do, also for the next agent.
    let record = fs::read_to_string(lab.node.state_dir().join("mig.json"))?;
    let driver = mig(&lab.node).context("MIG")?;
    lab.replace_agent().await?;
    lab.agent.await_ready().await?;
    offers_after(&lab.kubelet, &lab.node).await?;
    assert_eq!(mig(&lab.node), Some(driver));
    assert_eq!(fs::read_to_string(lab.node.state_dir().join("mig.json"))?, record);
    assert_eq!(lab.kubelet.advertised_twice(), None);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn pods_on_instances_that_stay_never_notice() -> Result<()> {
    let lab = Lab::start(node()?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    let large = lab.kubelet.admit("large", "main", LARGE, 1).await?.ids;
    // The 2g begins at 4, so that only the 1g at 6 can stay.
    let last = devices(&lab.node)[&(PROFILE_1G, 6)].clone();
    let mut others = Vec::new();
    for pod in ["a", "b", "c"] {
        if lab.kubelet.admit(pod, "main", SMALL, 1).await?.ids != [last.as_str()] {
            others.push(pod);
        }
    }
    for pod in others {
        lab.kubelet.release(pod);
    }
    lab.kubelet.is_listed().await?;
    assert_eq!(lab.kubelet.in_use(SMALL), [last.clone()].into());
    lab.apply(AFTER)?;
    offers_after(&lab.kubelet, &lab.node).await?;
    let after = devices(&lab.node);
    assert_eq!(large, [after[&(PROFILE_4G, 0)].clone()]);
    assert_eq!(last, after[&(PROFILE_1G, 6)]);
    assert_eq!(lab.kubelet.in_use(SMALL), [last].into(), "the pod runs on");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn gpu_that_a_pod_holds_waits_and_is_offered_to_nobody_else() -> Result<()> {
    let lab = Lab::start(node()?, "mig: {strategy: Mixed}")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 1).await?;
    lab.kubelet.admit("pod", "main", GPU, 1).await?;
    lab.kubelet.is_listed().await?;
    lab.apply(BEFORE)?;
    let line = reaches(&lab.agent, "Waiting").await?;
    let line: Value = serde_json::from_str(&line)?;
    assert!(
        line.to_string().contains("hold GPU 0") || line.to_string().contains("waits"),
        "{line}"
    );
    assert!(!mig(&lab.node).is_some_and(|mig| mig.enabled));
    lab.kubelet.release("pod");
    offers_before(&lab.kubelet, &lab.node).await?;
    assert!(lab.kubelet.endpoint(GPU).healthy().is_empty());
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn process_of_nobody_blocks_a_change_until_it_ends() -> Result<()> {
    let lab = Lab::start(node()?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    let state = mig(&lab.node).context("MIG")?;
    let at = |start| {
        state
            .instances
            .iter()
            .find(|instance| instance.start == start)
            .map(|instance| instance.id)
    };
    let instance = at(4).context("the instance at 4")?;
    let process = GpuProcess {
        pid: std::process::id(),
        memory_mib: 100,
        kind: gpunode_scenario::ProcessKind::Compute,
        instance: Some((instance, 0)),
    };
    lab.node.state()?.update_gpu(0, |gpu| gpu.processes = vec![process])?;
    lab.apply(AFTER)?;
    let line = reaches(&lab.agent, "Blocked").await?;
    assert!(line.contains(&std::process::id().to_string()), "{line}");
    assert_eq!(mig(&lab.node).as_ref(), Some(&state));
    lab.node.state()?.update_gpu(0, |gpu| gpu.processes.clear())?;
    offers_after(&lab.kubelet, &lab.node).await
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn change_that_fails_in_the_middle_is_tried_again_and_nothing_half_made_is_offered() -> Result<()> {
    let lab = Lab::start(node()?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    let kept = devices(&lab.node)[&(PROFILE_4G, 0)].clone();
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    lab.node.state()?.fail(0, create, ReturnCode::Unknown)?;
    lab.apply(AFTER)?;
    reaches(&lab.agent, "Failed").await?;
    assert_eq!(devices(&lab.node).len(), 2, "what has to go is gone");
    lab.kubelet.advertises(LARGE, &[(&kept, true)]).await?;
    lab.node.state()?.clear_failure(0, create)?;
    offers_after(&lab.kubelet, &lab.node).await?;
    assert_eq!(devices(&lab.node)[&(PROFILE_4G, 0)], kept);
    Ok(())
}

#[tokio::test]
async fn change_that_was_begun_ends_although_no_layout_is_wanted_any_more() -> Result<()> {
    let mut lab = Lab::start(node()?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    for call in crate::mig_kills::CHANGES {
        lab.node.state()?.delay(0, call, 300)?;
    }
    lab.apply(AFTER)?;
    until("the change has begun", || (devices(&lab.node).len() < 4).then_some(())).await?;
    lab.agent.kill().await?;
    lab.node.configure("mig: {strategy: Mixed}")?;
    lab.agent = Agent::run(&lab.node)?;
    offers_after(&lab.kubelet, &lab.node).await?;
    assert_eq!(lab.kubelet.advertised_twice(), None);
    // What somebody else makes of the GPU from now on stays.
    let forgotten = || {
        let text = fs::read_to_string(lab.node.state_dir().join("mig.json")).ok()?;
        let records: Value = serde_json::from_str(&text).ok()?;
        records["gpus"].as_object()?.is_empty().then_some(())
    };
    until("the record is dropped", forgotten).await?;
    assert_eq!(devices(&lab.node).len(), 3);
    Ok(())
}

#[tokio::test]
async fn layout_from_long_ago_does_not_come_back_over_what_somebody_else_has_made() -> Result<()> {
    let mut lab = Lab::start(node()?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    let record = fs::read(lab.node.state_dir().join("mig.json"))?;
    let before = devices(&lab.node);
    lab.apply(AFTER)?;
    offers_after(&lab.kubelet, &lab.node).await?;
    let made = mig(&lab.node).context("MIG")?;
    // As if another program had made it, in a boot that this record does not know.
    lab.agent.kill().await?;
    let mut record: Value = serde_json::from_slice(&record)?;
    for gpu in record["gpus"].as_object_mut().context("GPUs")?.values_mut() {
        gpu["run"]["boot"] = "long ago".into();
    }
    fs::write(lab.node.state_dir().join("mig.json"), record.to_string())?;
    lab.agent = Agent::run(&lab.node)?;
    lab.agent.await_ready().await?;
    offers_after(&lab.kubelet, &lab.node).await?;
    assert_eq!(mig(&lab.node), Some(made));
    assert_ne!(devices(&lab.node), before);
    Ok(())
}

#[tokio::test]
async fn old_driver_gets_a_layout_whose_profiles_it_tells_once_mig_is_on() -> Result<()> {
    let mut scenario = Scenario::new("layouts", "NVIDIA A100-SXM4-80GB", 1, Topology::NvSwitch);
    "535.183.06".clone_into(&mut scenario.driver_version);
    let node = Node::new(scenario)?;
    node.reboot("first")?;
    let lab = Lab::start(node, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    assert!(lab.kubelet.messages(GPU).is_empty(), "the GPU was never offered whole");
    Ok(())
}

#[tokio::test]
async fn agent_without_layouts_writes_nothing_of_them() -> Result<()> {
    let lab = Lab::start(node()?, "")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 1).await?;
    lab.agent.await_ready().await?;
    assert!(!lab.node.state_dir().join("mig.json").exists());
    assert_eq!(mig(&lab.node), None);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn group_takes_its_gpus_and_leaves_the_others_as_they_are() -> Result<()> {
    let config = "mig: {strategy: Mixed, layout: [{devices: {indices: [0]}, preset: all-balanced}]}";
    let lab = Lab::start(node_of("NVIDIA A100-SXM4-80GB", 2, MigUuids::Returning)?, config)?;
    lab.kubelet.has(SMALL, |endpoint| endpoint.healthy().len() == 2).await?;
    lab.kubelet
        .has("nvidia.com/mig-3g.40gb", |endpoint| endpoint.healthy().len() == 1)
        .await?;
    let second = lab.node.uuids()?.remove(1);
    lab.kubelet.advertises(GPU, &[(&second, true)]).await?;
    lab.apply("mig: {strategy: Mixed, layout: [{devices: {indices: [0]}, disabled: true}]}")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 2).await?;
    assert_eq!(mig(&lab.node).map(|mig| mig.enabled), Some(false));
    Ok(())
}

/// The driver resets the board for its mode.
#[tokio::test]
#[ignore = "needs root: make test"]
async fn containers_get_the_number_that_a_gpu_has_after_its_mode_has_changed() -> Result<()> {
    let node = node()?;
    node.state()?.update_gpu(0, |gpu| gpu.minor_after_mode = Some(20))?;
    let config = format!("{BEFORE}\ndeviceListStrategy: [CdiCri, Envvar]\npassDeviceSpecs: true");
    let lab = Lab::start(node, &config)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    lab.agent.await_ready().await?;
    let file = lab.node.cdi_file()?.context("the CDI file")?.to_string();
    assert!(
        file.contains("\"/dev/nvidia20\"") && !file.contains("\"/dev/nvidia0\""),
        "{file}"
    );
    let admitted = lab.kubelet.admit("pod", "main", LARGE, 1).await?;
    let paths: Vec<String> = admitted
        .response
        .devices
        .into_iter()
        .map(|device| device.container_path)
        .collect();
    let is_other = |path: &String| path.starts_with("/dev/nvidia0");
    assert!(
        paths.contains(&"/dev/nvidia20".to_owned()) && !paths.iter().any(is_other),
        "{paths:?}"
    );
    Ok(())
}

/// From the first change, which is approved then, until the kubelet may allocate all devices.
#[tokio::test]
#[ignore = "a measurement: make bench"]
async fn measure_eight_gpus_of_seven_instances_until_they_are_offered() -> Result<()> {
    // Call, its time, and how often each GPU needs it.
    const CALLS: [(&str, u64, u64); 3] = [
        ("nvmlDeviceSetMigMode", 200, 1),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 100, 7),
        ("nvmlGpuInstanceCreateComputeInstance", 50, 7),
    ];
    let node = node_of("NVIDIA H100 80GB HBM3", 8, MigUuids::Returning)?;
    for gpu in 0..8 {
        for (call, ms, _) in CALLS {
            node.state()?.delay(gpu, call, ms)?;
        }
    }
    let lab = Lab::start(node, "")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    lab.apply("mig: {strategy: Mixed, layout: [{instances: {1g.10gb: 7}}]}")?;
    reaches(&lab.agent, "Applying").await?;
    let start = Instant::now();
    lab.kubelet
        .has(SMALL, |endpoint| endpoint.healthy().len() == 56)
        .await?;
    let took = start.elapsed();
    let calls: u64 = CALLS.iter().map(|(_, ms, count)| 8 * ms * count).sum();
    let more = (took.as_secs_f64() * 1000.0 / f64::from(u32::try_from(calls)?) - 1.0) * 100.0;
    println!("MIG: 56 devices of 8 GPUs are offered after {took:.2?}; the calls of the driver alone are {calls} ms");
    println!("figure: mig-change | {more:.1} | %");
    Ok(())
}
