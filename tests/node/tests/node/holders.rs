//! Holders of devices: a device that a container may hold does not count as free.

use anyhow::Result;
use gpunode_node_tests::{Agent, FakeKubelet, Lab, Node, PodResourcesAnswer, node_of, until};
use std::time::{Duration, Instant};

const GPU: &str = "nvidia.com/gpu";
const WHOLE: &str = "resources: [{name: nvidia.com/gpu}]";
const TWO: &str = "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 2}}]";

fn two_t4() -> Result<Node> {
    node_of(&["Tesla T4", "Tesla T4"])
}

#[tokio::test]
async fn nothing_changes_while_the_kubelet_does_not_say_who_holds_what() -> Result<()> {
    for answer in [PodResourcesAnswer::Unavailable, PodResourcesAnswer::RateLimited] {
        let lab = Lab::start(two_t4()?, WHOLE)?;
        let kubelet = &lab.kubelet;
        let uuids = lab.node.uuids()?;
        kubelet.has(GPU, |_| true).await?;
        kubelet.admit("job", "main", GPU, 1).await?;
        kubelet.is_listed().await?;
        kubelet.answer_pod_resources(answer);
        lab.apply(TWO)?;
        // The free one is withdrawn, and nobody knows that it is free.
        kubelet
            .advertises(GPU, &[(&uuids[0], true), (&uuids[1], false)])
            .await?;
        let calls = kubelet.pod_resources_calls();
        kubelet.release("job");
        until("it was asked again and again", || {
            (kubelet.pod_resources_calls() > calls + 4).then_some(())
        })
        .await?;
        kubelet
            .advertises(GPU, &[(&uuids[0], true), (&uuids[1], false)])
            .await?;
        assert!(
            kubelet.pod_resources_calls() < 100,
            "a kubelet that refuses is left in peace"
        );

        kubelet.answer_pod_resources(PodResourcesAnswer::Truth);
        kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
        assert_eq!(kubelet.advertised_twice(), None);
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_that_cannot_know_who_holds_what_offers_nothing() -> Result<()> {
    let node = two_t4()?;
    node.configure(TWO)?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    kubelet.answer_pod_resources(PodResourcesAnswer::Never);
    let agent = Agent::run(&node)?;
    let line = agent.logs("HoldersUnknown").await?;
    assert!(line.contains("pod-resources"), "{line}");
    assert!(kubelet.connected().is_empty());
    kubelet.answer_pod_resources(PodResourcesAnswer::Truth);
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
    Ok(())
}

#[tokio::test]
async fn an_allocation_that_comes_in_the_middle_of_a_change_counts_as_a_holder() -> Result<()> {
    let lab = Lab::start(node_of(&["Tesla T4"])?, WHOLE)?;
    let kubelet = &lab.kubelet;
    let uuid = lab.node.uuids()?.remove(0);
    kubelet.has(GPU, |_| true).await?;
    kubelet.answer_pod_resources(PodResourcesAnswer::Unavailable);
    lab.apply(TWO)?;
    kubelet.advertises(GPU, &[(&uuid, false)]).await?;

    // The kubelet picked before it had the list. It never says that somebody holds it: its pod ended at once.
    let start = Instant::now();
    kubelet.allocate(GPU, &[&uuid]).await?;
    kubelet.answer_pod_resources(PodResourcesAnswer::Truth);
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 2).await?;
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(5), "{took:?}");
    kubelet.is_refused(GPU, &uuid).await
}

#[tokio::test]
async fn what_an_init_container_holds_is_not_given_out_again_while_its_pod_runs() -> Result<()> {
    let lab = Lab::start(two_t4()?, WHOLE)?;
    let kubelet = &lab.kubelet;
    let uuids = lab.node.uuids()?;
    kubelet.has(GPU, |_| true).await?;
    // PodResources does not show it.
    kubelet.admit_init("job", "init", GPU, 1).await?;
    lab.apply(TWO)?;
    kubelet.has(GPU, |endpoint| endpoint.healthy_of(&uuids[1]) == 2).await?;
    // Longer than an allocation counts that nobody confirms.
    let start = Instant::now();
    until("the allocation is forgotten", || {
        (start.elapsed() > Duration::from_secs(7)).then_some(())
    })
    .await?;
    let endpoint = kubelet.endpoint(GPU);
    assert!(
        !endpoint.ids().contains(&format!("{}::0", uuids[0])),
        "{:?}",
        endpoint.ids()
    );

    kubelet.release("job");
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
    assert_eq!(kubelet.advertised_twice(), None);
    Ok(())
}

#[tokio::test]
async fn an_agent_that_lost_its_memory_offers_nothing_of_what_is_held() -> Result<()> {
    let mut lab = Lab::start(two_t4()?, TWO)?;
    let uuids = lab.node.uuids()?;
    lab.kubelet.has(GPU, |_| true).await?;
    let held = lab.kubelet.admit("job", "main", GPU, 1).await?.ids.remove(0);
    assert!(held.starts_with(&uuids[0]), "{held}");
    lab.agent.kill().await?;
    std::fs::write(lab.node.state_dir().join("assignments.json"), "{")?;
    lab.node.configure(WHOLE)?;
    lab.agent = Agent::run(&lab.node)?;
    lab.agent.logs("StateFileCorrupt").await?;
    assert_eq!(
        std::fs::read_to_string(lab.node.state_dir().join("assignments.json.corrupt"))?,
        "{"
    );
    lab.kubelet
        .has(GPU, |endpoint| {
            endpoint.registrations == 2 && endpoint.healthy().contains(&uuids[1])
        })
        .await?;
    let of_held = || lab.kubelet.endpoint(GPU).healthy_of(&uuids[0]);
    assert_eq!(of_held(), 0);
    lab.kubelet.release("job");
    lab.kubelet
        .advertises(GPU, &[(&uuids[0], true), (&uuids[1], true)])
        .await?;
    lab.kubelet.is_refused(GPU, &held).await
}

/// The kubelet's checkpoint has no claims, and a plugin hears nothing of them.
#[tokio::test]
async fn a_gpu_that_a_pod_has_by_a_claim_is_held_until_that_pod_ends() -> Result<()> {
    let lab = Lab::start(two_t4()?, WHOLE)?;
    let kubelet = &lab.kubelet;
    let uuids = lab.node.uuids()?;
    kubelet.advertises(GPU, &[(&uuids[0], true), (&uuids[1], true)]).await?;
    // Devices of other drivers hold no GPU.
    kubelet.claim("network", "main", "nic.example.com", "gpu-0");
    kubelet.claim("channel", "main", "compute-domain.nvidia.com", "channel-0");
    kubelet.claim("claiming", "main", "gpu.nvidia.com", "gpu-1");
    lab.apply(TWO)?;
    // The other GPU changes at once.
    kubelet.has(GPU, |endpoint| endpoint.healthy_of(&uuids[0]) == 2).await?;
    let endpoint = kubelet.endpoint(GPU);
    assert_eq!(endpoint.healthy_of(&uuids[1]), 0, "{:?}", endpoint.ids());
    kubelet.release("claiming");
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
    assert_eq!(kubelet.advertised_twice(), None);
    Ok(())
}

#[tokio::test]
async fn a_claim_that_does_not_tell_its_gpu_holds_all_of_them() -> Result<()> {
    let lab = Lab::start(two_t4()?, WHOLE)?;
    let kubelet = &lab.kubelet;
    let uuids = lab.node.uuids()?;
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 2).await?;
    kubelet.claim("claiming", "main", "gpu.nvidia.com", "gpu-vfio-0");
    kubelet
        .advertises(GPU, &[(&uuids[0], false), (&uuids[1], false)])
        .await?;
    assert!(kubelet.allocate(GPU, &[&uuids[0]]).await.is_err());
    kubelet.release("claiming");
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 2).await?;
    Ok(())
}
