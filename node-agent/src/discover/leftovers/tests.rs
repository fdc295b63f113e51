use super::*;
use crate::{
    cli::{AgentCli, AgentCommand},
    driver::{hardware::DriverState, nvml::DriverReading},
    kubelet::podresources::tests::{Kubelet, serve},
};
use clap::Parser as _;
use gpunode_cdi::{CdiDevice, CdiDeviceNode, CdiSpec, ContainerEdits, KIND};
use gpunode_gpu::{Gpu, Inventory};
use std::path::Path;

fn args(folder: &Path) -> NodeArgs {
    let at = |name: &str| folder.join(name).display().to_string();
    let cli = AgentCli::parse_from([
        "gpunode-agent",
        "discover",
        "--node-name=a",
        &format!("--state-dir={}", at("state")),
        &format!("--mps-dir={}", at("mps")),
        &format!("--pod-resources-socket={}", at("kubelet.sock")),
        &format!("--device-plugin-dir={}", at("")),
        &format!("--cdi-dir={}", at("cdi")),
    ]);
    let AgentCommand::Discover(args) = cli.command else {
        panic!("not discover")
    };
    args
}

async fn probed(args: &NodeArgs, previous: &mut Option<LeftoverDevices>) -> Option<DeviceSnapshot> {
    let disk = BlockingThread::default();
    probe(args, &args.pod_resources(), &disk, Arc::default(), previous)
        .await
        .unwrap()
}

const LEFT: &str =
    r#"{"version":1,"devices":{"GPU-1":{"resource":"a.b/c","sharing":{"strategy":"Mps","replicas":2}}}}"#;

#[tokio::test]
async fn on_a_node_on_which_nothing_was_left_nothing_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = probed(&args(folder.path()), &mut None).await.unwrap();
    assert!(snapshot.daemons_known && snapshot.daemons.is_empty() && snapshot.holders_unknown.is_none());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_daemon_stays_as_long_as_its_holders_are_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path());
    std::fs::create_dir(&args.host.state_dir).unwrap();
    std::fs::write(args.host.state_dir.join("assignments.json"), LEFT).unwrap();
    let snapshot = probed(&args, &mut None).await.unwrap();
    assert_eq!((snapshot.daemons.len(), snapshot.assignments.len()), (1, 1));
    assert!(snapshot.holders_unknown.is_some());
}

#[tokio::test]
async fn while_an_agent_holds_the_lock_nothing_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path());
    let lock = NodeLock::take(&args.host.state_dir).unwrap().unwrap();
    std::fs::write(args.host.state_dir.join("assignments.json"), LEFT).unwrap();
    let mut previous = None;
    assert!(probed(&args, &mut previous).await.is_none());
    drop(lock);
    assert!(probed(&args, &mut previous).await.is_some());
}

#[tokio::test]
async fn a_damaged_file_is_left_to_the_next_device_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path());
    std::fs::create_dir(&args.host.state_dir).unwrap();
    std::fs::write(args.host.state_dir.join("assignments.json"), "{").unwrap();
    probed(&args, &mut None).await.unwrap();
    assert_eq!(
        std::fs::read_to_string(args.host.state_dir.join("assignments.json")).unwrap(),
        "{"
    );
}

#[tokio::test]
async fn what_nobody_holds_is_given_up_when_that_is_certain() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path());
    std::fs::create_dir(&args.host.state_dir).unwrap();
    std::fs::write(args.host.state_dir.join("assignments.json"), LEFT).unwrap();
    serve(folder.path(), Kubelet::Idle);
    let mut previous = None;
    let first = probed(&args, &mut previous).await.unwrap();
    assert_eq!(
        first.assignments.len(),
        1,
        "the agent before may have given something out last"
    );
    // An agent that ran in between may have, too.
    drop(NodeLock::take(&args.host.state_dir).unwrap().unwrap());
    let given_up = async {
        while !assignments::read(&args.host.state_dir).unwrap().is_empty() {
            assert!(probed(&args, &mut previous).await.is_some());
            sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(Duration::from_mins(1), given_up).await.unwrap();
    assert!(probed(&args, &mut previous).await.unwrap().daemons.is_empty());
}

#[tokio::test]
async fn a_device_that_is_held_stays_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path());
    std::fs::create_dir(&args.host.state_dir).unwrap();
    let left = LEFT.replace(r#"{"strategy":"Mps","replicas":2}"#, r#"{"strategy":"Whole"}"#);
    std::fs::write(args.host.state_dir.join("assignments.json"), left).unwrap();
    serve(folder.path(), Kubelet::Held);
    let snapshot = probed(&args, &mut None).await.unwrap();
    assert_eq!(snapshot.assignments.len(), 1);
    let holder = snapshot.holders.first().unwrap();
    assert_eq!((holder.pod.as_str(), holder.device.as_str()), ("train", "GPU-1"));
    assert!(snapshot.pending_changes[0].pods == ["team/train"]);
}

#[tokio::test]
async fn a_device_leaves_the_cdi_file_with_its_last_holder_and_the_file_goes_with_the_last_device() {
    let device = |name: &str| CdiDevice {
        name: name.to_owned(),
        ..CdiDevice::default()
    };
    let left = CdiSpec {
        kind: KIND.to_owned(),
        devices: ["GPU-0", "GPU-1"].map(device).into(),
        ..CdiSpec::default()
    };
    for (kubelet, names) in [(Kubelet::Refuses, 2), (Kubelet::Held, 1), (Kubelet::Idle, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let args = args(folder.path());
        std::fs::create_dir(&args.host.state_dir).unwrap();
        let file = CdiFile::new(&args.cdi_dir);
        file.put(Some(&left)).unwrap();
        serve(folder.path(), kubelet);
        probed(&args, &mut None).await.unwrap();
        assert_eq!(file.read().unwrap().map_or(0, |spec| spec.devices.len()), names);
        assert_eq!(file.exists(), names > 0);
    }
}

#[tokio::test]
async fn a_held_name_does_not_lead_to_the_device_that_took_the_place_of_its_own() {
    let node = CdiDeviceNode {
        path: "/dev/nvidia0".to_owned(),
        host_path: None,
    };
    let left = CdiSpec {
        kind: KIND.to_owned(),
        devices: vec![CdiDevice {
            name: "GPU-1".to_owned(),
            container_edits: ContainerEdits {
                device_nodes: vec![node],
                ..ContainerEdits::default()
            },
        }],
        ..CdiSpec::default()
    };
    let gpu = Gpu {
        uuid: "GPU-2".to_owned(),
        minor: Some(0),
        ..Gpu::default()
    };
    let inventory = Inventory {
        gpus: vec![gpu],
        ..Inventory::default()
    };
    let hardware = Hardware {
        driver: DriverState::Answers,
        reading: Some(DriverReading {
            inventory,
            ..DriverReading::default()
        }),
        ..Hardware::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path());
    std::fs::create_dir(&args.host.state_dir).unwrap();
    let file = CdiFile::new(&args.cdi_dir);
    file.put(Some(&left)).unwrap();
    serve(folder.path(), Kubelet::Held);
    let disk = BlockingThread::default();
    probe(&args, &args.pod_resources(), &disk, hardware.into(), &mut None)
        .await
        .unwrap();
    assert!(!file.exists());
}

#[tokio::test]
async fn holders_are_told_while_the_cdi_file_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path());
    std::fs::create_dir(&args.host.state_dir).unwrap();
    let left = LEFT.replace(r#"{"strategy":"Mps","replicas":2}"#, r#"{"strategy":"Whole"}"#);
    std::fs::write(args.host.state_dir.join("assignments.json"), left).unwrap();
    std::fs::write(&args.cdi_dir, "no folder").unwrap();
    serve(folder.path(), Kubelet::Held);
    let mut previous = None;
    let snapshot = probed(&args, &mut previous).await.unwrap();
    assert!(!snapshot.holders.is_empty());
    let error = previous.unwrap().cdi_error.unwrap();
    assert!(error.starts_with("read the CDI file: "), "{error}");
}
