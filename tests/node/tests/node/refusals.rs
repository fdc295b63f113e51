//! Lists that no kubelet takes, and ids that nobody was offered.

use anyhow::Result;
use gpunode_node_tests::{Lab, Node, node_of};
use tonic::Code;

const SHARED: &str = "nvidia.com/gpu.shared";
const MEMORY: &str = "aliyun.com/gpu-mem";

#[tokio::test]
async fn a_list_that_no_kubelet_takes_is_refused_and_the_old_one_stays() -> Result<()> {
    // The kubelet's own answers name the resource once per share, and are larger than the list.
    let long = format!("{}/{}", "long.".repeat(8) + "example", "n".repeat(63));
    let of = |replicas: u32| {
        format!("resources: [{{name: {long}, sharing: {{strategy: TimeSlicing, replicas: {replicas}}}}}]")
    };
    let lab = Lab::start(Node::with_v100()?, &of(2))?;
    let kubelet = &lab.kubelet;
    kubelet.has(&long, |endpoint| endpoint.devices.len() == 16).await?;
    lab.apply(&of(8192))?;
    let line = lab.agent.logs("configuration rejected").await?;
    assert!(line.contains("65536") && line.contains("replicas"), "{line}");
    assert_eq!(kubelet.endpoint(&long).lists, 1);

    // One that it takes works.
    lab.apply(&of(6000))?;
    kubelet.has(&long, |endpoint| endpoint.healthy().len() == 48000).await?;
    let held = kubelet.admit("pod", "main", &long, 1).await?.ids.remove(0);
    kubelet.is_listed().await?;
    // The held share is one of the three that stay.
    lab.apply(&of(3))?;
    kubelet
        .has(&long, |endpoint| {
            endpoint.healthy().len() == 8 * 3 && endpoint.devices.len() == 8 * 3 && endpoint.healthy().contains(&held)
        })
        .await?;
    Ok(())
}

#[tokio::test]
async fn ids_of_another_form_number_or_resource_are_refused_by_name() -> Result<()> {
    let config = "resources:
- {name: nvidia.com/gpu.shared, devices: {indices: [0]}, sharing: {strategy: TimeSlicing, replicas: 2}}
- {name: aliyun.com/gpu-mem, sharing: {strategy: Memory}}
";
    let lab = Lab::start(node_of(&["Tesla T4", "Tesla T4"])?, config)?;
    let kubelet = &lab.kubelet;
    for resource in [SHARED, MEMORY] {
        kubelet.has(resource, |_| true).await?;
    }
    let uuids = lab.node.uuids()?;
    for bad in ["", "::2", "::00", "::+1", "::-1", "-_-0", "::0::0"] {
        kubelet.is_refused(SHARED, &format!("{}{bad}", uuids[0])).await?;
    }
    for bad in ["", "-_-15", "-_-01", "::0"] {
        kubelet.is_refused(MEMORY, &format!("{}{bad}", uuids[1])).await?;
    }
    kubelet.is_refused(SHARED, &format!("{}-_-0", uuids[1])).await?;
    kubelet.is_refused(MEMORY, &format!("{}::0", uuids[0])).await?;
    for resource in [SHARED, MEMORY] {
        assert_eq!(
            kubelet.allocate(resource, &[]).await.unwrap_err().code(),
            Code::InvalidArgument
        );
    }
    Ok(())
}
