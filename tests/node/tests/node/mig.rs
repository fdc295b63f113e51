//! MIG devices that exist, under NVIDIA's strategies, names and ids.

use anyhow::Result;
use gpunode_node_tests::{Lab, Node};
use gpunode_scenario::{MigGroup, Scenario, Topology};

const GPU: &str = "nvidia.com/gpu";
const SMALL: &str = "nvidia.com/mig-1g.10gb";

/// Four A100 of 80 GB: 0 is whole, the others are divided like this.
fn node(layouts: [&[&str]; 3]) -> Result<Node> {
    let mut scenario = Scenario::new("mig", "NVIDIA A100-SXM4-80GB", 4, Topology::NvSwitch);
    let group = |(gpu, instances): (u32, &[&str])| MigGroup {
        gpus: vec![gpu],
        instances: instances.iter().map(|name| (*name).to_owned()).collect(),
    };
    scenario.mig = (1..).zip(layouts).map(group).collect();
    Node::new(scenario)
}

fn equal() -> Result<Node> {
    node([&["3g.40gb", "3g.40gb"]; 3])
}

fn unequal() -> Result<Node> {
    node([
        &["3g.40gb", "3g.40gb"],
        &["1g.10gb", "1g.10gb+me", "1c.3g.40gb"],
        &["7g.80gb"],
    ])
}

#[tokio::test]
async fn under_none_every_gpu_is_whole() -> Result<()> {
    let lab = Lab::start(equal()?, "mig: {strategy: None}")?;
    let endpoint = lab.kubelet.has(GPU, |_| true).await?;
    assert_eq!(endpoint.ids(), lab.node.uuids()?);
    Ok(())
}

#[tokio::test]
async fn under_none_a_gpu_on_which_nothing_can_run_is_not_offered_and_said_to_be() -> Result<()> {
    let lab = Lab::start(node([&["7g.80gb"], &[], &["7g.80gb"]])?, "")?;
    let endpoint = lab.kubelet.has(GPU, |_| true).await?;
    let mut uuids = lab.node.uuids()?;
    let empty = uuids.remove(2);
    assert_eq!(endpoint.ids(), uuids);
    assert!(lab.agent.logs("MigWithoutInstances").await?.contains(&empty) || lab.agent.logged("GPU 2") > 0);
    Ok(())
}

#[tokio::test]
async fn under_single_equal_mig_devices_are_offered_as_gpus() -> Result<()> {
    let config = "mig: {strategy: Single}\nresources: [{name: nvidia.com/gpu, devices: {indices: [1, 2, 3]}}]";
    let lab = Lab::start(equal()?, config)?;
    let endpoint = lab.kubelet.has(GPU, |_| true).await?;
    assert_eq!(endpoint.ids(), lab.node.mig_uuids()?.concat());
    let uuid = &endpoint.ids()[4];
    assert!(uuid.starts_with("MIG-"), "{uuid}");
    let admitted = lab.kubelet.admit("pod", "main", GPU, 1).await?;
    assert_eq!(admitted.response.envs["NVIDIA_VISIBLE_DEVICES"], admitted.ids[0]);
    Ok(())
}

#[tokio::test]
async fn under_single_unequal_devices_are_not_offered_and_said_to_be_while_others_are() -> Result<()> {
    // The second resource has equal devices.
    let config = "mig: {strategy: Single}
resources:
- {name: nvidia.com/gpu.large, devices: {indices: [3]}}
- {name: nvidia.com/gpu}
";
    let lab = Lab::start(unequal()?, config)?;
    lab.kubelet
        .has("nvidia.com/gpu.large", |endpoint| endpoint.devices.len() == 1)
        .await?;
    lab.agent.logs("MigInstancesUnequal").await?;
    assert_eq!(lab.kubelet.connected(), ["nvidia.com/gpu.large"]);

    // A configuration without that contradiction offers the rest too.
    lab.apply(&config.replace(
        "{name: nvidia.com/gpu}",
        "{name: nvidia.com/gpu, devices: {indices: [1]}}",
    ))?;
    lab.kubelet.has(GPU, |endpoint| endpoint.devices.len() == 2).await?;
    assert_eq!(lab.kubelet.endpoint("nvidia.com/gpu.large").lists, 1);
    Ok(())
}

#[tokio::test]
async fn under_mixed_mig_devices_are_offered_by_nvidias_names() -> Result<()> {
    let lab = Lab::start(unequal()?, "mig: {strategy: Mixed}\npassDeviceSpecs: true")?;
    let whole = lab.kubelet.has(GPU, |_| true).await?;
    assert_eq!(whole.ids(), lab.node.uuids()?[..1]);
    for (resource, devices) in [
        ("nvidia.com/mig-3g.40gb", 2),
        (SMALL, 1),
        ("nvidia.com/mig-1g.10gb.me", 1),
        ("nvidia.com/mig-1c.3g.40gb", 1),
        ("nvidia.com/mig-7g.80gb", 1),
    ] {
        lab.kubelet
            .has(resource, |endpoint| endpoint.devices.len() == devices)
            .await?;
    }
    assert_eq!(lab.kubelet.connected().len(), 6);

    let device = lab.run_pod("working", "nvidia.com/mig-7g.80gb", 4711).await?;
    assert_eq!(lab.node.mig_uuids()?[3], [device]);
    assert!(lab.node.state()?.read()?.gpu(3).uses_instance(0, Some(0)));
    lab.end_pod("working", 4711)?;
    assert!(!lab.node.state()?.read()?.gpu(3).uses_instance(0, None));

    let admitted = lab.kubelet.admit("pod", "main", SMALL, 1).await?;
    let uuids = lab.node.mig_uuids()?;
    assert!(uuids[2].contains(&admitted.ids[0]), "of GPU 2: {uuids:?}");
    let nodes: Vec<&str> = admitted
        .response
        .devices
        .iter()
        .map(|device| device.host_path.as_str())
        .collect();
    assert_eq!(nodes[..3], ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia2"]);
    assert_eq!(nodes.len(), 5, "{nodes:?}");
    assert!(
        nodes[3..]
            .iter()
            .all(|node| node.starts_with("/dev/nvidia-caps/nvidia-cap")),
        "{nodes:?}"
    );
    Ok(())
}

#[tokio::test]
async fn an_entry_takes_mig_devices_by_profile_and_shares_them() -> Result<()> {
    let config = "mig: {strategy: Mixed}
resources:
- {name: nvidia.com/small, devices: {migProfiles: ['1g.*']}, sharing: {strategy: TimeSlicing, replicas: 3}}
- {name: nvidia.com/large-mem, devices: {kind: MigDevice, indices: [1]}, sharing: {strategy: Memory}}
";
    let lab = Lab::start(unequal()?, config)?;
    let small = lab
        .kubelet
        .has("nvidia.com/small", |endpoint| endpoint.devices.len() == 6)
        .await?;
    assert!(
        small.ids().iter().all(|id| id.starts_with("MIG-") && id.contains("::")),
        "{:?}",
        small.ids()
    );
    // 40 192 MiB each.
    lab.kubelet
        .has("nvidia.com/large-mem", |endpoint| endpoint.devices.len() == 78)
        .await?;
    lab.kubelet.has("nvidia.com/mig-1c.3g.40gb", |_| true).await?;
    let admitted = lab.kubelet.admit("pod", "main", "nvidia.com/large-mem", 39).await?;
    assert_eq!(admitted.response.envs["ALIYUN_COM_GPU_MEM_IDX"], "1");
    assert_eq!(admitted.response.envs["ALIYUN_COM_GPU_MEM_DEV"], "39");
    Ok(())
}

#[tokio::test]
async fn a_gpu_and_its_mig_devices_are_never_offered_together() -> Result<()> {
    let only = "resources: [{name: nvidia.com/gpu, devices: {indices: [1]}}]";
    let lab = Lab::start(equal()?, only)?;
    let uuid = lab.node.uuids()?.remove(1);
    let parts = lab.node.mig_uuids()?.remove(1);
    lab.kubelet.has(GPU, |_| true).await?;
    lab.kubelet.admit("pod", "main", GPU, 1).await?;
    lab.kubelet.is_listed().await?;
    let single = format!("mig: {{strategy: Single}}\n{only}");
    lab.apply(&single)?;
    gpunode_node_tests::until("it is in force", || {
        (lab.agent.logged("configuration in force") == 2).then_some(())
    })
    .await?;
    lab.kubelet.advertises(GPU, &[(&uuid, true)]).await?;
    for part in &parts {
        lab.kubelet.is_refused(GPU, part).await?;
    }
    lab.kubelet.release("pod");
    lab.kubelet
        .advertises(GPU, &[(&parts[0], true), (&parts[1], true)])
        .await?;

    // And back, with one part held.
    let held = lab.kubelet.admit("pod", "main", GPU, 1).await?.ids.remove(0);
    lab.kubelet.is_listed().await?;
    lab.apply(only)?;
    let free = if held == parts[0] { &parts[1] } else { &parts[0] };
    gpunode_node_tests::until("the free part is withdrawn", || {
        (lab.kubelet.endpoint(GPU).healthy().into_iter().collect::<Vec<_>>() == [held.clone()]).then_some(())
    })
    .await?;
    assert!(!lab.kubelet.endpoint(GPU).ids().contains(&uuid), "{free}");
    lab.kubelet.release("pod");
    lab.kubelet.advertises(GPU, &[(&uuid, true)]).await?;
    Ok(())
}
