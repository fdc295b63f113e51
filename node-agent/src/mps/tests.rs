use super::*;
use crate::cli::{AgentCli, AgentCommand};
use clap::Parser as _;
use serde_json::json;

const DEVICE: &str = "GPU-1";
const OTHER: &str = "GPU-2";

/// Supervises a node without driver, on which no daemon can start.
fn supervisor(node: &Path) -> Supervisor {
    for folder in ["state", "mps"] {
        fs::create_dir(node.join(folder)).unwrap();
    }
    assign(node, &[DEVICE]);
    let path = |name: &str| node.join(name).into_os_string();
    let arguments = [
        "gpunode-agent".into(),
        "mps".into(),
        "--host-root".into(),
        path("host"),
        "--state-dir".into(),
        path("state"),
        "--mps-dir".into(),
        path("mps"),
    ];
    let AgentCommand::Mps(args) = AgentCli::parse_from(arguments).command else {
        panic!("another command")
    };
    Supervisor::new(args.settings())
}

fn assign(node: &Path, devices: &[&str]) {
    // In the way of the devices' folders, so that nothing is mounted.
    for device in devices {
        fs::write(node.join("mps").join(device), "").unwrap();
    }
    let assignment = json!({"resource": "a.b/c", "sharing": {"strategy": "Mps", "replicas": 10}});
    let devices: BTreeMap<_, _> = devices.iter().map(|device| (*device, assignment.clone())).collect();
    fs::write(
        node.join("state/assignments.json"),
        json!({"version": 1, "devices": devices}).to_string(),
    )
    .unwrap();
}

fn desired(supervisor: &Supervisor) -> Vec<(&str, DesiredDaemon)> {
    supervisor
        .daemons
        .iter()
        .map(|(device, daemon)| (device.as_str(), *daemon.desired.borrow()))
        .collect()
}

#[test]
fn agents_know_the_pod_of_the_supervisor_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(supervisor_pod(folder.path()), None);
    for (uid, known) in [("first-uid", Some("first-uid")), ("next", Some("next")), ("", None)] {
        drop(lock(folder.path(), uid).unwrap());
        assert_eq!(supervisor_pod(folder.path()).as_deref(), known);
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_read_for_a_while_ends_nothing() {
    let node = tempfile::tempdir().unwrap();
    let mut supervisor = supervisor(node.path());
    supervisor.reconcile().await;
    let (mps, away) = (node.path().join("mps"), node.path().join("away"));
    fs::rename(&mps, &away).unwrap();
    fs::write(&mps, "no folder").unwrap();
    supervisor.reconcile().await;
    assert!(supervisor.problem.contains("list the folder"), "{}", supervisor.problem);
    assert_eq!(desired(&supervisor), [(DEVICE, DesiredDaemon::Run)]);
    assert_eq!(supervisor.readiness(), Ok(()));
    fs::remove_file(&mps).unwrap();
    fs::rename(&away, &mps).unwrap();
    assign(node.path(), &[DEVICE, OTHER]);
    supervisor.reconcile().await;
    assert_eq!(supervisor.problem, "");
    assert_eq!(
        desired(&supervisor),
        [(DEVICE, DesiredDaemon::Run), (OTHER, DesiredDaemon::Run)]
    );
}

#[tokio::test]
async fn while_the_gpus_are_released_no_daemon_is_wanted() {
    let node = tempfile::tempdir().unwrap();
    let mut supervisor = supervisor(node.path());
    supervisor.reconcile().await;
    let released = node.path().join("state/released");
    fs::write(&released, "").unwrap();
    supervisor.reconcile().await;
    assert_eq!(desired(&supervisor), [(DEVICE, DesiredDaemon::Gone)]);
    fs::remove_file(released).unwrap();
    supervisor.reconcile().await;
    assert_eq!(desired(&supervisor), [(DEVICE, DesiredDaemon::Run)]);
}

#[tokio::test]
async fn nothing_is_decided_while_nothing_can_be_read() {
    let node = tempfile::tempdir().unwrap();
    let mut supervisor = supervisor(node.path());
    fs::remove_dir_all(node.path().join("mps")).unwrap();
    for file in ["mps", "state/assignments.json"] {
        fs::write(node.path().join(file), "").unwrap();
    }
    supervisor.reconcile().await;
    assert!(supervisor.desired.is_none());
    assert!(supervisor.readiness().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_read_that_hangs_is_waited_for_and_no_other_is_begun() {
    let node = tempfile::tempdir().unwrap();
    let mut supervisor = supervisor(node.path());
    let (release, hanging) = watch::channel(());
    supervisor.reading = Some(tokio::spawn(async move {
        let mut hanging = hanging;
        hanging.changed().await.unwrap();
        (
            Ok(Assignments::new()),
            Ok(vec![DeviceFolder::of(Path::new("/nowhere"), DEVICE).unwrap()]),
        )
    }));
    for _ in 0..2 {
        supervisor.reconcile().await;
        assert!(
            supervisor.problem.contains("no answer from the file system"),
            "{}",
            supervisor.problem
        );
        assert!(supervisor.desired.is_none());
    }
    release.send(()).unwrap();
    supervisor.reconcile().await;
    assert_eq!(desired(&supervisor), [(DEVICE, DesiredDaemon::Gone)]);
    assert!(supervisor.reading.is_none());
}

#[tokio::test]
async fn a_task_that_panics_is_started_again_alone() {
    let node = tempfile::tempdir().unwrap();
    let mut supervisor = supervisor(node.path());
    assign(node.path(), &[DEVICE, OTHER]);
    supervisor.reconcile().await;
    let other = supervisor.daemons[OTHER].task.id();
    let daemon = supervisor.daemons.get_mut(DEVICE).unwrap();
    daemon.task.abort();
    daemon.task = tokio::spawn(async { panic!("by the test") });
    let panicked = daemon.task.id();
    timeout(Duration::from_secs(10), async {
        while !supervisor.daemons[DEVICE].task.is_finished() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    supervisor.reconcile().await;
    assert_eq!(
        desired(&supervisor),
        [(DEVICE, DesiredDaemon::Run), (OTHER, DesiredDaemon::Run)]
    );
    assert_ne!(supervisor.daemons[DEVICE].task.id(), panicked);
    assert_eq!(supervisor.daemons[OTHER].task.id(), other);
}

#[tokio::test]
async fn a_compute_mode_is_changed_after_the_change_before_it() {
    let node = tempfile::tempdir().unwrap();
    let mut supervisor = supervisor(node.path());
    supervisor.reconcile().await;
    let runner = &supervisor.daemons[DEVICE].runner;
    let (end, hangs) = std::sync::mpsc::channel::<()>();
    let soon = Duration::from_millis(20);
    let change = runner.driver_thread.run(move || hangs.recv());
    assert!(timeout(soon, change).await.is_err());
    assert!(timeout(soon, runner.restore_compute_mode()).await.is_err());
    drop(end);
    runner.restore_compute_mode().await.unwrap();
}
