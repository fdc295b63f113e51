//! Recovery of a GPU.

use super::{GPU, TIMEOUT, broken, lab, probe, with_old_driver};
use anyhow::{Context as _, Result};
use gpunode_node_tests::{Lab, Node, until};
use gpunode_scenario::{GpuProcess, GpuState, ProcessKind, RecoveryAction};
use rustix::process::Signal;
use std::{fs, time::Duration};
use tokio::time::sleep;

#[tokio::test]
async fn a_gpu_is_whole_again_when_the_driver_asks_for_nothing_more() -> Result<()> {
    let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    let state = lab.node.state()?;
    state.inject_xid_with_recovery(3, TIMEOUT, RecoveryAction::GpuReset)?;
    broken(&lab, GPU, &[&uuids[3]]).await?;
    lab.agent.logs("RecoveryPending").await?;
    state.set_recovery_action(3, RecoveryAction::None)?;
    // Only a probe some time after the XID counts.
    broken(&lab, GPU, &[]).await?;
    assert_eq!(lab.agent.logged("device is faulty"), 2);
    Ok(())
}

#[tokio::test]
async fn the_driver_grades_an_xid_that_comes_with_contained_errors_too() -> Result<()> {
    const DOUBLE_BIT: u64 = 48;
    let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    // Shows that this driver reports recovery actions.
    probe(&lab).await?;
    let state = lab.node.state()?;
    state.inject_xid(3, DOUBLE_BIT)?;
    broken(&lab, GPU, &[&uuids[3]]).await?;
    let line = lab.agent.logs("device is faulty").await?;
    assert!(line.contains("NoNewWork"), "{line}");
    broken(&lab, GPU, &[]).await?;
    state.inject_xid_with_recovery(4, DOUBLE_BIT, RecoveryAction::BusReset)?;
    broken(&lab, GPU, &[&uuids[4]]).await?;
    lab.agent.logs("bus reset").await?;
    probe(&lab).await?;
    let metrics = lab.agent.get("/metrics").await?;
    let expected = r#"gpunode_agent_faults{gpu="4",reason="Xid",grade="Broken"} 1"#;
    assert!(metrics.contains(expected), "{metrics}");
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
    until("the faults are saved", || {
        // Both, by GPU: any number may be part of a time in this file.
        let saved: serde_json::Value = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
        let faults = saved.pointer("/health/faults")?;
        (faults.get(&uuids[1]).is_some() && faults.get(&uuids[2]).is_some()).then_some(())
    })
    .await?;
    let lists = lab.kubelet.messages(GPU).len();
    lab.replace_agent().await?;
    lab.kubelet.has(GPU, |endpoint| endpoint.registrations == 2).await?;
    probe(&lab).await?;
    broken(&lab, GPU, &[&uuids[1], &uuids[2]]).await?;
    for list in lab
        .kubelet
        .messages(GPU)
        .get(lists..)
        .context("the lists of the second agent")?
    {
        let healthy = list.devices.iter().filter(|device| device.health == "Healthy");
        let healthy: Vec<_> = healthy.map(|device| &device.id).collect();
        // Before the driver has answered, no device is healthy.
        let is_expected =
            matches!(healthy.len(), 0 | 6) && !healthy.contains(&&uuids[1]) && !healthy.contains(&&uuids[2]);
        assert!(is_expected, "nothing is whole because of a restart: {healthy:?}");
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
    probe(&lab).await?;
    probe(&lab).await?;
    broken(&lab, GPU, &[&uuids[4]]).await?;
    fs::write(lab.node.state_dir().join("recovered"), "")?;
    lab.agent.signal(Signal::HUP)?;
    broken(&lab, GPU, &[]).await?;
    lab.agent.logs("a person declared the GPUs recovered").await?;
    Ok(())
}

#[tokio::test]
async fn a_file_of_faults_that_tells_nothing_is_set_aside() -> Result<()> {
    let node = Node::with_v100()?;
    fs::create_dir_all(node.state_dir())?;
    fs::write(node.state_dir().join("health.json"), "{")?;
    let lab = lab(node, "", GPU, 8).await?;
    lab.agent.logs("StateFileCorrupt").await?;
    assert_eq!(
        fs::read_to_string(lab.node.state_dir().join("health.json.corrupt"))?,
        "{"
    );
    Ok(())
}

#[tokio::test]
async fn without_a_recovery_action_a_reset_is_seen_by_counters_that_begin_anew() -> Result<()> {
    let lab = lab(with_old_driver()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    lab.node
        .state()?
        .update_gpu(1, |state| state.ecc_volatile.uncorrected = 3)?;
    lab.agent.signal(Signal::HUP)?;
    lab.agent.logs("UncorrectedEcc").await?;
    for gpu in [1, 2] {
        lab.node.state()?.inject_xid(gpu, TIMEOUT)?;
    }
    // As a GPU that is being reset.
    lab.node.state()?.lose(1)?;
    lab.agent.logs("Lost").await?;
    lab.node.state()?.update_gpu(1, |state| *state = GpuState::default())?;
    broken(&lab, GPU, &[&uuids[2]]).await
}

/// Looks until one has come that counts after an event.
async fn probe_later(lab: &Lab) -> Result<()> {
    let before = lab.agent.logged("all GPUs probed");
    // The second one is that which comes when the event has settled.
    until("it is probed twice", || {
        (lab.agent.logged("all GPUs probed") >= before + 2).then_some(())
    })
    .await?;
    probe(lab).await
}

#[tokio::test]
async fn without_a_recovery_action_an_application_has_to_end_with_its_processes_and_its_pod() -> Result<()> {
    let lab = lab(with_old_driver()?, "health: {watchXids: [94]}", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    let held = lab.kubelet.admit("pod", "main", GPU, 1).await?;
    let held = uuids
        .iter()
        .position(|uuid| held.ids.contains(uuid))
        .context("the GPU of the pod")?;
    let other = (held + 1) % uuids.len();
    let number = u32::try_from(other)?;
    let process = GpuProcess {
        pid: 4711,
        memory_mib: 1,
        kind: ProcessKind::Compute,
        instance: None,
    };
    lab.node.state()?.set_processes(number, vec![process])?;
    for gpu in [u32::try_from(held)?, number] {
        lab.node.state()?.inject_xid(gpu, 94)?;
    }
    let mut both = [&uuids[held], &uuids[other]];
    both.sort();
    broken(&lab, GPU, &both).await?;
    probe_later(&lab).await?;
    broken(&lab, GPU, &both).await?;
    lab.node.state()?.set_processes(number, Vec::new())?;
    lab.agent.signal(Signal::HUP)?;
    // The driver may hide the processes of containers.
    broken(&lab, GPU, &[&uuids[held]]).await?;
    lab.kubelet.release("pod");
    broken(&lab, GPU, &[]).await
}

#[tokio::test]
async fn applications_that_fail_without_end_keep_no_gpu_from_being_whole_again() -> Result<()> {
    let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    lab.node.state()?.inject_xid(3, TIMEOUT)?;
    broken(&lab, GPU, &[&uuids[3]]).await?;
    let storm = async {
        loop {
            // On the GPU itself, and on another one.
            lab.node.state()?.inject_xid(3, 13)?;
            lab.node.state()?.inject_xid(0, 13)?;
            sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::select! {
        whole = broken(&lab, GPU, &[]) => whole,
        failed = storm => failed,
    }
}
