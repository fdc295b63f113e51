//! The agent while the operator evicts the pods of devices that change.

use crate::mig_layout::{AFTER, BEFORE, LARGE, SMALL, node, offers_after, offers_before};
use anyhow::{Result, ensure};
use gpunode_node_tests::{Agent, ApiServer, FakeKubelet, until};
use serde_json::json;

#[tokio::test]
#[ignore = "needs root: make test"]
async fn devices_of_a_drain_are_withdrawn_until_it_fails_or_their_pods_are_gone() -> Result<()> {
    let (api_server, node) = (ApiServer::start().await?, node()?);
    api_server.configure(BEFORE);
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let _agent = Agent::run_beside(&api_server, &node)?;
    offers_before(&kubelet, &node).await?;
    let held = kubelet.admit("small", "main", SMALL, 3).await?.ids;
    kubelet.is_listed().await?;

    // Two of the three instances have to go.
    api_server.request("Prepare", AFTER);
    kubelet.has(SMALL, |endpoint| endpoint.healthy().len() == 1).await?;
    ensure!(kubelet.endpoint(LARGE).healthy().len() == 1, "the other instance stays");
    api_server.request("Failed", AFTER);
    kubelet.has(SMALL, |endpoint| endpoint.healthy().len() == 3).await?;
    until("the GPU says why it waits", || {
        let mig = api_server.status("/gpus/0/mig")?;
        (mig["phase"] == "Blocked" && mig["reason"] == "DrainTimedOut").then_some(())
    })
    .await?;
    assert_eq!(kubelet.in_use(SMALL), held.into_iter().collect());

    api_server.request("Prepare", AFTER);
    kubelet.has(SMALL, |endpoint| endpoint.healthy().len() == 1).await?;
    kubelet.release("small");
    until("the GPU waits for its approval", || {
        (api_server.status("/gpus/0/mig/phase")? == json!("AwaitingApproval")).then_some(())
    })
    .await?;
    ensure!(
        kubelet.endpoint(SMALL).healthy().len() <= 1,
        "what goes is offered to nobody"
    );
    api_server.request("Approved", AFTER);
    offers_after(&kubelet, &node).await?;
    assert_eq!(kubelet.advertised_twice(), None);
    Ok(())
}
