//! Results of probes of the GPUs.

use super::{GPU, PART, TIMEOUT, broken, divided, lab, probe};
use anyhow::{Context as _, Result};
use gpunode_node_tests::{Node, Stopwatch};
use gpunode_scenario::{GpuState, RecoveryAction, ReturnCode};
use rustix::process::Signal;
use std::{collections::BTreeSet, time::Duration};

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
async fn only_the_gpu_that_hangs_is_at_fault_and_containers_keep_the_others() -> Result<()> {
    let mut lab = lab(Node::with_v100()?, "", GPU, 8).await?;
    let uuids = lab.node.uuids()?;
    let held: BTreeSet<String> = lab
        .kubelet
        .admit("pod", "main", GPU, 1)
        .await?
        .ids
        .into_iter()
        .collect();
    lab.kubelet.is_listed().await?;
    let hanging = uuids
        .iter()
        .rposition(|uuid| !held.contains(uuid))
        .context("a free GPU")?;
    probe(&lab).await?;
    lab.node
        .state()?
        .update_gpu(u32::try_from(hanging)?, |state| state.hangs = true)?;
    // Reads the hardware too, and either call may be the first one.
    lab.agent.signal(Signal::HUP)?;
    lab.agent.logs("DriverBlocked").await?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy() == held).await?;
    let at_fault = |line: &String| line.contains(r#""reason":"NotAnswering""#);
    let at_fault: Vec<_> = lab.agent.log().into_iter().filter(at_fault).collect();
    assert!(
        at_fault.len() == 1 && at_fault[0].contains(&uuids[hanging]),
        "{at_fault:?}"
    );

    lab.replace_agent().await?;
    // It reads the hardware for 30 s first.
    lab.agent.logs("no answer within").await?;
    let endpoint = lab.kubelet.endpoint(GPU);
    assert_eq!((endpoint.registrations, endpoint.ids().len()), (2, 8));
    assert_eq!(endpoint.healthy(), held);
    assert!(lab.kubelet.admit("next", "main", GPU, 1).await.is_err());

    lab.node
        .state()?
        .update_gpu(u32::try_from(hanging)?, |state| state.hangs = false)?;
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
