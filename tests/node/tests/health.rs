//! Broken GPUs: which they are, that nothing of them is given out, and when they are whole again.

use anyhow::{Context as _, Result};
use gpunode_node_tests::{Lab, Node, until};
use gpunode_scenario::{GpuState, MigGroup, RecoveryAction, ReturnCode, Scenario, Topology};
use rustix::process::Signal;
use std::{
    fs,
    time::{Duration, Instant},
};

const GPU: &str = "nvidia.com/gpu";
const PART: &str = "nvidia.com/mig-3g.40gb";
/// NVIDIA's number of a GPU timeout, which only a reset cures.
const TIMEOUT: u64 = 46;

/// Two A100 of 80 GB, of which the second is divided.
fn divided() -> Result<Node> {
    let mut scenario = Scenario::new("mig", "NVIDIA A100-SXM4-80GB", 2, Topology::NvSwitch);
    scenario.mig = vec![MigGroup { gpus: vec![1], instances: vec!["3g.40gb".to_owned(), "3g.40gb".to_owned()] }];
    Node::new(scenario)
}

/// An agent that follows the events of its driver.
async fn lab(node: Node, config: &str, resource: &str, shares: usize) -> Result<Lab> {
    let lab = Lab::start(node, config)?;
    lab.kubelet.has(resource, |endpoint| endpoint.healthy().len() == shares).await?;
    lab.agent.logs("the events of the driver are followed").await?;
    Ok(lab)
}

/// Waits until exactly these are what the kubelet may not give out.
async fn broken(lab: &Lab, resource: &str, expected: &[&String]) -> Result<()> {
    let broken = |endpoint: &gpunode_node_tests::Endpoint| {
        let healthy = endpoint.healthy();
        endpoint.ids().iter().filter(|id| !healthy.contains(*id)).eq(expected.iter().copied())
    };
    lab.kubelet.has(resource, broken).await?;
    Ok(())
}

#[tokio::test]
async fn an_xid_takes_out_the_gpu_that_it_is_of_and_no_other() -> Result<()> {
    let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    lab.node.state()?.inject_xid(3, 79)?;
    broken(&lab, GPU, &[&uuids[3]]).await?;
    let refused = lab.kubelet.allocate(GPU, &[&uuids[3]]).await.err().context("a refusal")?;
    assert!(refused.message().contains("XID 79: GPU has fallen off the bus"), "{refused}");
    let line = lab.agent.logs("a device is broken").await?;
    assert!(line.contains(&uuids[3]) && line.contains("restart the machine"), "{line}");
    lab.node.state()?.inject_xid(5, TIMEOUT)?;
    broken(&lab, GPU, &[&uuids[3], &uuids[5]]).await?;
    assert_eq!(lab.kubelet.endpoint(GPU).registrations, 1);
    Ok(())
}

#[tokio::test]
async fn xids_of_applications_change_nothing_and_lists_of_xids_are_obeyed() -> Result<()> {
    let config = "health: {ignoreXids: [46], watchXids: [31]}";
    let lab = lab(Node::with_v100()?, config, GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    let state = lab.node.state()?;
    for xid in [13, 43, 45, 68, 94, 46] {
        state.inject_xid(0, xid)?;
    }
    // They come in order: what comes after has been heard after.
    state.inject_xid(1, 31)?;
    broken(&lab, GPU, &[&uuids[1]]).await?;
    state.inject_xid(2, 109)?;
    broken(&lab, GPU, &[&uuids[1], &uuids[2]]).await?;
    assert_eq!(lab.kubelet.endpoint(GPU).lists, 3);
    Ok(())
}

#[tokio::test]
async fn an_xid_of_a_mig_device_takes_out_that_one_and_one_of_the_gpu_all_of_them() -> Result<()> {
    let lab = lab(divided()?, "mig: {strategy: Mixed}", PART, 2).await?;
    let parts = lab.node.mig_uuids()?.concat();
    let state = lab.node.state()?;
    state.inject_mig_xid(1, TIMEOUT, (2, 0))?;
    let hit = lab.agent.logs("a device is broken").await?;
    let hit = parts.iter().find(|uuid| hit.contains(*uuid)).context("a MIG device")?;
    broken(&lab, PART, &[hit]).await?;
    state.inject_xid(1, TIMEOUT)?;
    broken(&lab, PART, &[&parts[0], &parts[1]]).await?;
    assert_eq!(lab.kubelet.endpoint(GPU).healthy().len(), 1, "the other GPU has nothing to do with it");
    Ok(())
}

/// A DGX-1 with a driver that tells no recovery action.
fn with_old_driver() -> Result<Node> {
    let mut scenario = Scenario::new("old", "Tesla V100-SXM2-32GB", 8, Topology::Dgx1Volta);
    "550.163.01".clone_into(&mut scenario.driver_version);
    let node = Node::new(scenario)?;
    node.reboot("first")?;
    node.load_module()?;
    Ok(node)
}

/// Lets the agent look at the GPUs, and waits until it has.
async fn look(lab: &Lab) -> Result<()> {
    let before = lab.agent.logged("the GPUs were looked at");
    lab.agent.signal(Signal::HUP)?;
    until("the GPUs were looked at", || (lab.agent.logged("the GPUs were looked at") > before).then_some(())).await
}

#[tokio::test]
async fn a_gpu_is_whole_again_when_the_driver_asks_for_nothing_more() -> Result<()> {
    let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    let state = lab.node.state()?;
    state.set_recovery_action(3, RecoveryAction::GpuReset)?;
    state.inject_xid(3, TIMEOUT)?;
    broken(&lab, GPU, &[&uuids[3]]).await?;
    lab.agent.logs("RecoveryPending").await?;
    state.set_recovery_action(3, RecoveryAction::None)?;
    // Of the XID only a look counts that comes a while after it.
    broken(&lab, GPU, &[]).await?;
    assert_eq!(lab.agent.logged("a device is broken"), 2);
    Ok(())
}

#[tokio::test]
async fn what_looks_show_takes_out_the_gpu_that_they_show_it_of_until_it_is_gone() -> Result<()> {
    type Change = fn(&mut GpuState);
    let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    let unknown = |state: &mut GpuState| {
        state.failing.insert("nvmlDeviceGetMemoryInfo".to_owned(), ReturnCode::Unknown);
    };
    let troubles: [(&str, Change); 5] = [
        ("Lost", |state| state.lost = true),
        ("NotAnswering", unknown),
        ("PageRetirementPending", |state| state.retired_pages.pending = true),
        ("NvLinkDown", |state| state.links_down = vec![0]),
        ("RecoveryPending", |state| state.recovery_action = RecoveryAction::DrainP2p),
    ];
    for (reason, trouble) in troubles {
        lab.node.state()?.update_gpu(5, trouble)?;
        lab.agent.signal(Signal::HUP)?;
        broken(&lab, GPU, &[&uuids[5]]).await.context(reason)?;
        lab.agent.logs(reason).await?;
        lab.node.state()?.update_gpu(5, |state| *state = GpuState::default())?;
        lab.agent.signal(Signal::HUP)?;
        broken(&lab, GPU, &[]).await.context(reason)?;
    }
    assert_eq!(lab.kubelet.endpoint(GPU).registrations, 1);
    Ok(())
}

#[tokio::test]
async fn memory_rows_that_wait_for_a_reset_take_out_the_gpu() -> Result<()> {
    let lab = lab(divided()?, "mig: {strategy: Mixed}", PART, 2).await?;
    let (parts, uuids) = (lab.node.mig_uuids()?.concat(), lab.node.uuids()?);
    lab.node.state()?.update_gpu(1, |state| state.row_remap.pending = true)?;
    lab.node.state()?.update_gpu(0, |state| state.row_remap.failed = true)?;
    lab.agent.signal(Signal::HUP)?;
    broken(&lab, PART, &[&parts[0], &parts[1]]).await?;
    broken(&lab, GPU, &[&uuids[0]]).await?;
    Ok(())
}

#[tokio::test]
async fn without_a_recovery_action_a_fault_outlives_the_agent_until_a_reset_or_a_boot_is_seen() -> Result<()> {
    let mut lab = lab(with_old_driver()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    lab.node.state()?.inject_xid(1, TIMEOUT)?;
    lab.node.state()?.inject_xid(2, 79)?;
    broken(&lab, GPU, &[&uuids[1], &uuids[2]]).await?;
    let file = lab.node.state_dir().join("health.json");
    until("the faults are saved", || fs::read_to_string(&file).ok().filter(|text| text.contains("79"))).await?;
    let lists = lab.kubelet.messages(GPU).len();
    lab.replace_agent().await?;
    lab.kubelet.has(GPU, |endpoint| endpoint.registrations == 2).await?;
    look(&lab).await?;
    broken(&lab, GPU, &[&uuids[1], &uuids[2]]).await?;
    for list in lab.kubelet.messages(GPU).get(lists..).context("the lists of the second agent")? {
        let healthy = |device: &&gpunode_node_tests::Device| device.health == "Healthy";
        assert_eq!(list.devices.iter().filter(healthy).count(), 6, "nothing is whole because of a restart");
    }
    lab.node.load_module()?;
    broken(&lab, GPU, &[&uuids[2]]).await?;
    lab.node.reboot("second")?;
    lab.replace_agent().await?;
    broken(&lab, GPU, &[]).await?;
    Ok(())
}

#[tokio::test]
async fn manual_recovery_waits_for_a_person() -> Result<()> {
    let lab = lab(Node::with_v100()?, "health: {recovery: Manual}", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    lab.node.state()?.lose(4)?;
    lab.agent.signal(Signal::HUP)?;
    broken(&lab, GPU, &[&uuids[4]]).await?;
    lab.node.state()?.restore(4)?;
    look(&lab).await?;
    look(&lab).await?;
    broken(&lab, GPU, &[&uuids[4]]).await?;
    fs::write(lab.node.state_dir().join("recovered"), "")?;
    lab.agent.signal(Signal::HUP)?;
    broken(&lab, GPU, &[]).await?;
    lab.agent.logs("as a person says").await?;
    Ok(())
}

#[tokio::test]
async fn a_file_of_faults_that_tells_nothing_is_set_aside() -> Result<()> {
    let node = Node::with_v100()?;
    fs::create_dir_all(node.state_dir())?;
    fs::write(node.state_dir().join("health.json"), "{")?;
    let lab = lab(node, "", GPU, 8).await?;
    lab.agent.logs("StateFileCorrupt").await?;
    assert_eq!(fs::read_to_string(lab.node.state_dir().join("health.json.corrupt"))?, "{");
    Ok(())
}

/// What the target of 10 ms is about, and what a busy machine adds to it.
#[tokio::test]
#[ignore = "a measurement"]
async fn measure_xid_to_list() -> Result<()> {
    const ROUNDS: usize = 100;
    let mut times = Vec::new();
    while times.len() < ROUNDS {
        let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
        for gpu in 0..8 {
            let before = lab.kubelet.messages(GPU).len();
            let start = Instant::now();
            lab.node.state()?.inject_xid(gpu, TIMEOUT)?;
            let messages = || lab.kubelet.messages(GPU).get(before).map(|list| list.at);
            times.push(until("the list has come", messages).await?.duration_since(start));
        }
    }
    times.truncate(ROUNDS);
    times.sort();
    let target = Duration::from_millis(10);
    let (median, p99, max) = (times[ROUNDS / 2], times[ROUNDS * 99 / 100], times[ROUNDS - 1]);
    let verdict = if p99 <= target { "met" } else { "missed" };
    println!("XID to list: median {median:?}, p99 {p99:?}, maximum {max:?} of {ROUNDS}; target {target:?}: {verdict}");
    assert!(p99 <= target, "XID to list: the 99th percentile {p99:?} misses {target:?}");
    Ok(())
}
