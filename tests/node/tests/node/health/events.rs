//! Events of the driver.

use super::{GPU, PART, TIMEOUT, broken, divided, lab, probe};
use anyhow::{Context as _, Result};
use gpunode_node_tests::{Node, Stopwatch, until};
use gpunode_scenario::ReturnCode;
use std::time::Duration;

#[tokio::test]
async fn an_xid_takes_out_the_gpu_that_it_is_of_and_no_other() -> Result<()> {
    let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    lab.node.state()?.inject_xid(3, 79)?;
    broken(&lab, GPU, &[&uuids[3]]).await?;
    let refused = lab
        .kubelet
        .allocate(GPU, &[&uuids[3]])
        .await
        .err()
        .context("a refusal")?;
    assert!(
        refused.message().contains("XID 79: GPU has fallen off the bus"),
        "{refused}"
    );
    let line = lab.agent.logs("device is faulty").await?;
    assert!(line.contains(&uuids[3]) && line.contains("reboot the node"), "{line}");
    let metrics = lab.agent.get("/metrics").await?;
    assert!(metrics.contains(r#"gpunode_agent_xids_total{xid="79"} 1"#), "{metrics}");
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
    let line = lab.agent.logs("XID does not make the device unhealthy").await?;
    assert!(line.contains(&uuids[0]) && line.contains(r#""xid":13"#), "{line}");
    let metrics = lab.agent.get("/metrics").await?;
    assert!(!metrics.contains(r#"gpunode_agent_faults{gpu="0""#), "{metrics}");
    state.inject_xid(2, 109)?;
    broken(&lab, GPU, &[&uuids[1], &uuids[2]]).await?;
    assert_eq!(lab.kubelet.endpoint(GPU).lists, 3);
    Ok(())
}

#[tokio::test]
async fn an_xid_that_does_not_count_is_announced_once_for_each_device() -> Result<()> {
    const LINE: &str = "XID does not make the device unhealthy";
    let lab = lab(divided()?, "mig: {strategy: Mixed}", PART, 2).await?;
    let parts = lab.node.mig_uuids()?.concat();
    let state = lab.node.state()?;
    for instance in [(1, 0), (2, 0), (1, 0)] {
        state.inject_mig_xid(1, 13, instance)?;
    }
    // What comes after has been heard after.
    state.inject_xid(0, TIMEOUT)?;
    broken(&lab, GPU, &[&lab.node.uuids()?[0]]).await?;
    for part in &parts {
        let lines: Vec<String> = lab.agent.log().into_iter().filter(|line| line.contains(LINE)).collect();
        assert_eq!(lines.iter().filter(|line| line.contains(part)).count(), 1, "{lines:#?}");
    }
    broken(&lab, PART, &[]).await
}

#[tokio::test]
async fn an_xid_of_a_mig_device_takes_out_that_one_and_one_of_the_gpu_all_of_them() -> Result<()> {
    let lab = lab(divided()?, "mig: {strategy: Mixed}", PART, 2).await?;
    let parts = lab.node.mig_uuids()?.concat();
    let state = lab.node.state()?;
    state.inject_mig_xid(1, TIMEOUT, (2, 0))?;
    let hit = lab.agent.logs("device is faulty").await?;
    let hit = parts.iter().find(|uuid| hit.contains(*uuid)).context("a MIG device")?;
    broken(&lab, PART, &[hit]).await?;
    state.inject_xid(1, TIMEOUT)?;
    broken(&lab, PART, &[&parts[0], &parts[1]]).await?;
    assert_eq!(
        lab.kubelet.endpoint(GPU).healthy().len(),
        1,
        "the other GPU has nothing to do with it"
    );
    Ok(())
}

#[tokio::test]
async fn an_xid_of_a_mig_device_takes_out_its_gpu_where_that_is_offered_whole() -> Result<()> {
    let lab = lab(divided()?, "", GPU, 2).await?;
    lab.node.state()?.inject_mig_xid(1, TIMEOUT, (2, 0))?;
    broken(&lab, GPU, &[&lab.node.uuids()?[1]]).await
}

#[tokio::test]
async fn a_gpu_that_reports_no_events_is_told_once_and_the_others_are_followed() -> Result<()> {
    let node = Node::with_v100()?;
    node.state()?
        .fail(2, "nvmlDeviceGetSupportedEventTypes", ReturnCode::NotSupported)?;
    node.load_module()?;
    let lab = lab(node, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    lab.agent.logs("the GPU reports no events").await?;
    // Another session.
    lab.node.load_module()?;
    let followed = || (lab.agent.logged("following driver events") >= 2).then_some(());
    until("the events of the other driver are followed", followed).await?;
    for gpu in [2, 3] {
        lab.node.state()?.inject_xid(gpu, TIMEOUT)?;
    }
    broken(&lab, GPU, &[&uuids[3]]).await?;
    assert_eq!(lab.agent.logged("the GPU reports no events"), 1);
    Ok(())
}

/// The event set is undefined then (nvml.h).
#[tokio::test]
async fn a_gpu_whose_registration_fails_costs_the_others_no_events() -> Result<()> {
    let node = Node::with_v100()?;
    node.state()?.fail(2, "nvmlDeviceRegisterEvents", ReturnCode::Unknown)?;
    let lab = lab(node, "", GPU, 8).await?;
    lab.node.state()?.inject_xid(3, TIMEOUT)?;
    broken(&lab, GPU, &[&lab.node.uuids()?[3]]).await
}

/// `nvml.h` lets a look-up by UUID fail while any GPU of the node is lost.
#[tokio::test]
async fn of_eight_gpus_one_is_lost_and_seven_stay_healthy_and_followed() -> Result<()> {
    for code in [ReturnCode::GpuIsLost, ReturnCode::Unknown] {
        let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
        let uuids = lab.node.uuids()?;
        let state = lab.node.state()?;
        let lists = lab.kubelet.messages(GPU).len();
        state.update_gpu(2, |gpu| (gpu.lost, gpu.lost_code) = (true, Some(code)))?;
        // Two probes: a call that fails once takes out nothing.
        for _ in 0..2 {
            probe(&lab).await?;
        }
        broken(&lab, GPU, &[&uuids[2]]).await?;
        // A new session registers the others too.
        lab.node.load_module()?;
        let followed = || (lab.agent.logged("following driver events") >= 2).then_some(());
        until("the events of the other GPUs are followed", followed).await?;
        state.inject_xid(3, TIMEOUT)?;
        broken(&lab, GPU, &[&uuids[2], &uuids[3]]).await?;
        for list in lab.kubelet.messages(GPU).iter().skip(lists) {
            let healthy = list.devices.iter().filter(|device| device.health == "Healthy");
            assert!(healthy.count() >= 6, "no other GPU was ever held back");
        }
        let pod = lab.kubelet.admit("pod", "main", GPU, 6).await?;
        assert_eq!(pod.ids.len(), 6);
    }
    Ok(())
}

/// NVML counts without the lost GPU then, and the indices behind it shift.
#[tokio::test]
async fn a_gpu_that_a_new_session_does_not_list_stays_lost_and_moves_no_other() -> Result<()> {
    let config = "resources: [{name: nvidia.com/gpu, devices: {indices: [0, 1, 2, 3]}}, \
                  {name: a.b/rest, devices: {indices: [4, 5, 6, 7]}}]";
    let lab = lab(Node::with_v100()?, config, GPU, 4).await?;
    let rest = lab
        .kubelet
        .has("a.b/rest", |endpoint| endpoint.healthy().len() == 4)
        .await?;
    let uuids = lab.node.uuids()?;
    let state = lab.node.state()?;
    state.update_gpu(2, |gpu| (gpu.lost, gpu.unlisted) = (true, true))?;
    // Another session.
    lab.node.load_module()?;
    let followed = || (lab.agent.logged("following driver events") >= 2).then_some(());
    until("the events of the other GPUs are followed", followed).await?;
    lab.agent.logs("find GPU 2: the driver no longer lists it").await?;
    broken(&lab, GPU, &[&uuids[2]]).await?;
    state.inject_xid(3, TIMEOUT)?;
    broken(&lab, GPU, &[&uuids[2], &uuids[3]]).await?;
    assert_eq!(lab.kubelet.endpoint("a.b/rest").ids(), rest.ids());
    assert_eq!(lab.kubelet.endpoint("a.b/rest").lists, rest.lists);
    Ok(())
}

#[tokio::test]
async fn a_lost_gpu_that_ends_the_wait_for_events_costs_the_others_none() -> Result<()> {
    for code in [ReturnCode::GpuIsLost, ReturnCode::Unknown] {
        let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
        let uuids = lab.node.uuids()?;
        let state = lab.node.state()?;
        state.lose(2)?;
        let lost = Stopwatch::start();
        state.fail(2, "nvmlEventSetWait", code)?;
        let followed = || (lab.agent.logged("following driver events") >= 2).then_some(());
        until("the events of the other GPUs are followed", followed).await?;
        let gap = lost.elapsed();
        assert!(
            gap < Duration::from_millis(4500),
            "after {gap:?}; a whole new session comes after 5 s"
        );
        state.inject_xid(3, TIMEOUT)?;
        broken(&lab, GPU, &[&uuids[2], &uuids[3]]).await?;
    }
    Ok(())
}
