//! GPUs shared by MPS, as the kubelet and containers see it; the daemons have tests of their own.

use anyhow::Result;
use gpunode_node_tests::{Admitted, Lab, MpsDaemons, Node, Rejection, node_of, until};
use gpunode_scenario::ReturnCode;
use std::collections::BTreeSet;
use tonic::Code;

const MPS: &str = "nvidia.com/gpu.mps";
const TENTHS: &str = "resources: [{name: nvidia.com/gpu.mps, sharing: {strategy: Mps, replicas: 10}}]";

fn gpus(admitted: &Admitted) -> BTreeSet<&str> {
    admitted.ids.iter().filter_map(|id| id.split("::").next()).collect()
}

fn two_t4() -> Result<(Node, MpsDaemons)> {
    let node = node_of(&["Tesla T4", "Tesla T4"])?;
    let daemons = MpsDaemons::none(&node);
    Ok((node, daemons))
}

#[tokio::test]
async fn a_container_gets_its_part_of_threads_and_memory_and_the_daemon_of_its_gpu() -> Result<()> {
    let (node, daemons) = two_t4()?;
    for uuid in node.uuids()? {
        daemons.start(&uuid)?;
    }
    let lab = Lab::start(node, TENTHS)?;
    lab.kubelet.has(MPS, |endpoint| endpoint.healthy().len() == 20).await?;
    // 15 360 MiB.
    for (n, percent, mib) in [(1, "10", 1536), (2, "20", 3072), (5, "50", 7680), (10, "100", 15360)] {
        let admitted = lab.kubelet.admit(&format!("pod-{n}"), "main", MPS, n).await?;
        let (gpus, response) = (gpus(&admitted), &admitted.response);
        assert_eq!(gpus.len(), 1, "{n} shares are of one GPU: {gpus:?}");
        let uuid = gpus.first().copied().unwrap_or_default();
        let pipe = lab.node.mps_dir().join(uuid).join("pipe").display().to_string();
        assert_eq!(response.envs["NVIDIA_VISIBLE_DEVICES"], uuid);
        assert_eq!(response.envs["CUDA_MPS_PIPE_DIRECTORY"], pipe);
        assert_eq!(response.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], percent);
        assert_eq!(response.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], format!("0={mib}M"));
        assert_eq!(response.envs.len(), 4, "{:?}", response.envs);
        let mounts: Vec<_> = response
            .mounts
            .iter()
            .map(|mount| (&*mount.host_path, &*mount.container_path))
            .collect();
        let shm = lab.node.mps_dir().join(uuid).join("shm").display().to_string();
        assert_eq!(mounts, [(&*pipe, &*pipe), (&*shm, "/dev/shm")]);
        lab.kubelet.release(&format!("pod-{n}"));
    }
    Ok(())
}

#[tokio::test]
async fn a_gpu_of_unknown_memory_gets_no_memory_limit() -> Result<()> {
    let node = node_of(&["Tesla T4"])?;
    let daemons = MpsDaemons::none(&node);
    for uuid in node.uuids()? {
        daemons.start(&uuid)?;
    }
    node.state()?
        .fail(0, "nvmlDeviceGetMemoryInfo", ReturnCode::NotSupported)?;
    let lab = Lab::start(node, TENTHS)?;
    lab.kubelet.has(MPS, |endpoint| endpoint.healthy().len() == 10).await?;
    let admitted = lab.kubelet.admit("pod", "main", MPS, 1).await?;
    let envs = &admitted.response.envs;
    assert_eq!(envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "10");
    assert!(!envs.contains_key("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), "{envs:?}");
    Ok(())
}

#[tokio::test]
async fn shares_go_to_the_gpu_with_the_fewest_held_on_which_they_fit() -> Result<()> {
    let (node, daemons) = two_t4()?;
    let uuids = node.uuids()?;
    for uuid in &uuids {
        daemons.start(uuid)?;
    }
    let lab = Lab::start(node, TENTHS)?;
    lab.kubelet.has(MPS, |endpoint| endpoint.healthy().len() == 20).await?;
    for (pod, (shares, gpu)) in [(4, 0), (3, 1), (2, 1), (4, 0), (5, 1)].into_iter().enumerate() {
        let admitted = lab.kubelet.admit(&format!("pod-{pod}"), "main", MPS, shares).await?;
        assert_eq!(gpus(&admitted), BTreeSet::from([&*uuids[gpu]]), "pod {pod}");
    }
    Ok(())
}

#[tokio::test]
async fn a_gpu_is_offered_when_its_daemon_answers_and_withdrawn_while_it_does_not() -> Result<()> {
    let (node, daemons) = two_t4()?;
    let uuids = node.uuids()?;
    let lab = Lab::start(node, TENTHS)?;
    let kubelet = &lab.kubelet;
    kubelet
        .has(MPS, |endpoint| {
            endpoint.devices.len() == 20 && endpoint.healthy().is_empty()
        })
        .await?;
    let Err(Rejection::Kubelet(why)) = kubelet.admit("early", "main", MPS, 1).await else {
        anyhow::bail!("admitted")
    };
    assert!(why.starts_with("no healthy devices present"), "{why}");
    let early = kubelet.allocate(MPS, &[&format!("{}::0", uuids[0])]).await.unwrap_err();
    assert_ne!(early.code(), Code::Ok);
    assert!(early.message().contains(&uuids[0]), "{}", early.message());

    daemons.start(&uuids[0])?;
    kubelet
        .has(MPS, |endpoint| {
            endpoint.healthy_of(&uuids[0]) == 10 && endpoint.healthy().len() == 10
        })
        .await?;
    kubelet.admit("pod", "main", MPS, 2).await?;
    daemons.kill(&uuids[0]);
    kubelet.has(MPS, |endpoint| endpoint.healthy().is_empty()).await?;
    let fault = lab.agent.logs("MpsDaemonDied").await?;
    assert!(fault.contains("NoNewWork"), "{fault}");
    daemons.start(&uuids[0])?;
    kubelet.has(MPS, |endpoint| endpoint.healthy().len() == 10).await?;
    assert_eq!(kubelet.endpoint(MPS).registrations, 1);
    Ok(())
}

#[tokio::test]
async fn a_gpu_is_given_whole_only_after_its_daemon_has_gone() -> Result<()> {
    let node = node_of(&["Tesla T4"])?;
    let uuid = node.uuids()?.remove(0);
    let daemons = MpsDaemons::none(&node);
    daemons.start(&uuid)?;
    let lab = Lab::start(node, TENTHS)?;
    lab.kubelet.has(MPS, |endpoint| endpoint.healthy().len() == 10).await?;
    lab.kubelet.admit("pod", "main", MPS, 2).await?;

    lab.apply("resources: [{name: nvidia.com/gpu}]")?;
    lab.kubelet.has(MPS, |endpoint| endpoint.healthy().len() == 2).await?;
    assert!(lab.kubelet.endpoint("nvidia.com/gpu").devices.is_empty());
    lab.kubelet.release("pod");
    // In exclusive compute mode nobody but the daemon could use it.
    lab.kubelet
        .has("nvidia.com/gpu", |endpoint| endpoint.healthy().is_empty())
        .await?;
    daemons.remove(&uuid)?;
    lab.kubelet
        .has("nvidia.com/gpu", |endpoint| endpoint.healthy().len() == 1)
        .await?;
    until("the old name is gone", || {
        (lab.kubelet.connected() == ["nvidia.com/gpu"]).then_some(())
    })
    .await?;
    assert_eq!(lab.kubelet.advertised_twice(), None);
    Ok(())
}

#[tokio::test]
async fn shares_that_fit_the_node_but_no_gpu_are_refused() -> Result<()> {
    let (node, daemons) = two_t4()?;
    for uuid in node.uuids()? {
        daemons.start(&uuid)?;
    }
    let lab = Lab::start(node, TENTHS)?;
    let kubelet = &lab.kubelet;
    kubelet.has(MPS, |endpoint| endpoint.healthy().len() == 20).await?;
    kubelet.admit("a", "main", MPS, 7).await?;
    kubelet.admit("b", "main", MPS, 6).await?;
    let refused = kubelet.admit("cannot-fit", "main", MPS, 5).await;
    let Err(Rejection::Plugin(refused)) = refused else {
        anyhow::bail!("{refused:?}")
    };
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused.message().contains("at most 4 on one GPU (GPU 1)"),
        "{}",
        refused.message()
    );
    assert_eq!(kubelet.schedulable(MPS), 4);
    Ok(())
}
