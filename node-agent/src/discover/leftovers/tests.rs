use super::*;
use crate::{
    cli::{AgentCli, AgentCommand},
    kubelet::podresources::tests::{Kubelet, serve},
};
use clap::Parser as _;
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
    ]);
    let AgentCommand::Discover(args) = cli.command else {
        panic!("not discover")
    };
    args
}

async fn probed(args: &NodeArgs, previous: &mut Option<LeftoverDevices>) -> Option<DeviceSnapshot> {
    probe(args, &args.pod_resources(), DesiredDevices::default(), previous)
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
    timeout(Duration::from_secs(20), given_up).await.unwrap();
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
