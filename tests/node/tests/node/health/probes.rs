//! Results of probes of the GPUs.

use super::{GPU, PART, TIMEOUT, broken, divided, lab, probe};
use anyhow::{Context as _, Result};
use gpunode_node_tests::{Node, Stopwatch};
use gpunode_scenario::{GpuState, RecoveryAction, ReturnCode};
use rustix::process::Signal;
use std::{fs, time::Duration};

#[tokio::test]
async fn a_fault_that_a_probe_shows_withholds_its_gpu_until_it_is_gone() -> Result<()> {
    type Change = fn(&mut GpuState);
    let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    let unknown = |state: &mut GpuState| {
        state
            .failing
            .insert("nvmlDeviceGetMemoryInfo".to_owned(), ReturnCode::Unknown);
    };
    let troubles: [(&str, Change); 5] = [
        ("Lost", |state| state.lost = true),
        ("NotAnswering", unknown),
        ("UncorrectedEcc", |state| {
            (state.retired_pages.pending, state.retired_pages.pending_double_bit) = (true, true);
        }),
        ("NvLinkDown", |state| state.links_down = vec![0]),
        ("RecoveryPending", |state| {
            state.recovery_action = RecoveryAction::DrainP2p;
        }),
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
async fn memory_rows_that_could_not_be_replaced_take_out_the_gpu() -> Result<()> {
    let lab = lab(divided()?, "mig: {strategy: Mixed}", PART, 2).await?;
    let (parts, uuids) = (lab.node.mig_uuids()?.concat(), lab.node.uuids()?);
    for gpu in [0, 1] {
        lab.node
            .state()?
            .update_gpu(gpu, |state| state.row_remap.failed = true)?;
    }
    lab.agent.signal(Signal::HUP)?;
    broken(&lab, PART, &[&parts[0], &parts[1]]).await?;
    broken(&lab, GPU, &[&uuids[0]]).await?;
    Ok(())
}

#[tokio::test]
async fn memory_that_waits_for_a_reset_is_reported_and_takes_out_nothing() -> Result<()> {
    let pages = lab(Node::with_v100()?, "", GPU, 8).await?;
    let rows = lab(divided()?, "mig: {strategy: Mixed}", PART, 2).await?;
    pages
        .node
        .state()?
        .update_gpu(5, |state| state.retired_pages.pending = true)?;
    rows.node
        .state()?
        .update_gpu(1, |state| state.row_remap.pending = true)?;
    for (lab, resource, reason) in [(&pages, GPU, "PageRetirementPending"), (&rows, PART, "RowRemapPending")] {
        probe(lab).await?;
        let line = lab.agent.logs(reason).await?;
        assert!(line.contains("Degraded"), "{line}");
        broken(lab, resource, &[]).await?;
        assert_eq!(lab.kubelet.endpoint(resource).lists, 1);
    }
    // It keeps no XID from ending.
    rows.node.state()?.inject_xid(1, TIMEOUT)?;
    let parts = rows.node.mig_uuids()?.concat();
    broken(&rows, PART, &[&parts[0], &parts[1]]).await?;
    broken(&rows, PART, &[]).await
}

#[tokio::test]
async fn faults_that_the_policy_ignores_take_out_nothing() -> Result<()> {
    let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    probe(&lab).await?;
    lab.node.state()?.update_gpu(5, |state| state.links_down = vec![0])?;
    lab.agent.signal(Signal::HUP)?;
    broken(&lab, GPU, &[&uuids[5]]).await?;
    lab.apply("health: {ignore: [NvLinkDown]}")?;
    broken(&lab, GPU, &[]).await?;
    lab.apply("")?;
    broken(&lab, GPU, &[&uuids[5]]).await
}

#[tokio::test]
async fn a_call_that_fails_once_takes_out_nothing_and_one_that_fails_again_soon_does() -> Result<()> {
    const CALL: &str = "nvmlDeviceGetMemoryInfo";
    let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    probe(&lab).await?;
    lab.node.state()?.fail(5, CALL, ReturnCode::Unknown)?;
    lab.agent.signal(Signal::HUP)?;
    lab.agent.logs("a call to the driver fails").await?;
    lab.node.state()?.clear_failure(5, CALL)?;
    for _ in 0..2 {
        probe(&lab).await?;
    }
    assert_eq!(
        (lab.agent.logged("device is faulty"), lab.kubelet.endpoint(GPU).lists),
        (0, 1)
    );
    let metrics = lab.agent.get("/metrics").await?;
    assert!(
        metrics.contains(r#"gpunode_agent_nvml_errors_total{call="nvmlDeviceGetMemoryInfo_v2"} 1"#),
        "{metrics}"
    );

    lab.node.state()?.fail(5, CALL, ReturnCode::Unknown)?;
    let start = Stopwatch::start();
    lab.agent.signal(Signal::HUP)?;
    broken(&lab, GPU, &[&uuids[5]]).await?;
    // Looks are 15 s apart otherwise.
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_mig_device_with_a_call_that_fails_is_taken_out_alone() -> Result<()> {
    let lab = lab(divided()?, "mig: {strategy: Mixed}", PART, 2).await?;
    let parts = lab.node.mig_uuids()?.concat();
    lab.node
        .state()?
        .fail_mig(1, 0, "nvmlDeviceGetMemoryInfo", ReturnCode::Unknown)?;
    lab.agent.signal(Signal::HUP)?;
    broken(&lab, PART, &[&parts[0]]).await?;
    lab.node.state()?.clear_mig_failures(1)?;
    lab.agent.signal(Signal::HUP)?;
    broken(&lab, PART, &[]).await?;
    assert_eq!(
        lab.kubelet.endpoint(GPU).lists,
        1,
        "the other GPU has nothing to do with it"
    );
    Ok(())
}

#[tokio::test]
async fn a_gpu_that_hangs_is_withheld_and_the_others_are_probed_without_it() -> Result<()> {
    let lab = lab(Node::with_v100()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    probe(&lab).await?;
    lab.node.state()?.update_gpu(2, |state| state.hangs = true)?;
    let pending = |pending: bool| -> Result<()> {
        let action = if pending {
            RecoveryAction::DrainP2p
        } else {
            RecoveryAction::None
        };
        lab.node
            .state()?
            .update_gpu(5, |state| state.recovery_action = action)?;
        // XID 31 is no fault, but triggers a probe.
        lab.node.state()?.inject_xid(5, 31)?;
        Ok(())
    };
    pending(true)?;
    broken(&lab, GPU, &[&uuids[2], &uuids[5]]).await?;
    pending(false)?;
    broken(&lab, GPU, &[&uuids[2]]).await?;
    let lists = lab.kubelet.endpoint(GPU).lists;
    fs::write(lab.node.state_dir().join("recovered"), "")?;
    pending(false)?;
    lab.agent.logs("a person declared the GPUs recovered").await?;
    assert_eq!(
        lab.kubelet.endpoint(GPU).lists,
        lists,
        "it still hangs, whatever a person says"
    );
    // It is the first that is asked, and may only wait behind the other until a third has answered.
    lab.node.state()?.update_gpu(0, |state| state.hangs = true)?;
    pending(true)?;
    broken(&lab, GPU, &[&uuids[0], &uuids[2], &uuids[5]]).await?;
    for gpu in [0, 2, 5] {
        lab.node.state()?.update_gpu(gpu, |state| {
            *state = GpuState {
                xids: state.xids.clone(),
                ..GpuState::default()
            }
        })?;
    }
    broken(&lab, GPU, &[]).await
}

#[tokio::test]
async fn links_of_a_gpu_that_is_divided_may_be_down() -> Result<()> {
    let lab = lab(divided()?, "mig: {strategy: Mixed}", PART, 2).await?;
    probe(&lab).await?;
    for gpu in [0, 1] {
        lab.node.state()?.update_gpu(gpu, |state| state.links_down = vec![0])?;
    }
    probe(&lab).await?;
    broken(&lab, GPU, &[&lab.node.uuids()?[0]]).await?;
    broken(&lab, PART, &[]).await
}
