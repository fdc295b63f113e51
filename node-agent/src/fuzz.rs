//! Fuzz tests of what the agent reads from its disk and from the kubelet. `cargo test` runs each for a moment, `make soak` for as
//! long as it is told.

use crate::{
    cdi::file::CdiFile,
    configuration::saved::SavedConfig,
    devices::state::{
        DeviceState,
        tests::{configured, nothing_held},
    },
    handover::record::HandoverRecord,
    health::store as health_store,
    kubelet::checkpoint::{self, CheckpointAge, PodFolders},
    mig::record_file::RecordFile,
    mps::answers::DaemonAnswers,
    store::assignments,
};
use gpunode_fuzz::{Mutation, fuzz};
use gpunode_gpu::DesiredCompanions;
use std::{
    collections::BTreeSet,
    fs, io,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};
use tokio::{runtime::Builder, sync::watch};

const CHECKPOINTS: [&str; 2] = [
    r#"{"Data":{"PodDeviceEntries":[{"PodUID":"a","ContainerName":"init","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["GPU-0"],"1":["GPU-1"]},"AllocResp":"CgA="},{"PodUID":"b","ContainerName":"main","ResourceName":"a.b/c","DeviceIDs":{"-1":["GPU-0::0"]},"AllocResp":""}],"RegisteredDevices":{"nvidia.com/gpu":["GPU-1"]}},"Checksum":4294967295}"#,
    r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#,
];

/// Files of the state folder, as this version writes them.
const STATE_FILES: [(&str, &str); 6] = [
    (
        "assignments.json",
        r#"{"version": 1, "devices": {"GPU-0": {"resource": "a.b/c", "sharing": {"strategy": "TimeSlicing", "replicas": 4}}, "GPU-1": {"resource": "a.b/m", "sharing": {"strategy": "Memory", "unitMiB": 1024, "units": 16}, "gpuUuid": "GPU-9"}}}"#,
    ),
    (
        "config.json",
        r#"{"format": 1, "node": "n", "version": 1, "hash": "0123", "document": "resources: [{name: a.b/c}]\n", "uid": "1"}"#,
    ),
    (
        "mig.json",
        r#"{"format": 1, "gpus": {"GPU-0": {"run": {"boot": "b", "driver": "d"}, "applied": {"enabled": true, "instances": []}}}, "persistent": ["GPU-0"]}"#,
    ),
    (
        "handover.json",
        r#"{"format": 1, "asked": {"who": {"version": "1", "pod": "p"}, "times": 2, "atMs": 5}, "letGo": ["a"], "policy": "p"}"#,
    ),
    (
        "health.json",
        r#"{"format": 1, "health": {"faults": {}, "run": {"boot": "b", "driver": "d"}, "ticket": 3}, "last_xids": {"GPU-0": [[79, "2026-01-01T00:00:00Z"]]}, "links": {"GPU-0": [0, 1]}, "recovered": "2026-01-01T00:00:00Z", "served_by_dra": true}"#,
    ),
    (
        gpunode_cdi::FILE_NAME,
        r#"{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "GPU-0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}], "containerEdits": {"env": ["A=b"], "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"]}]}}"#,
    ),
];

fn load_records(folder: &Path) -> io::Result<RecordFile> {
    let (published, _) = watch::channel(None);
    RecordFile::load(folder, published, Arc::new(AtomicBool::new(false)))
}

#[test]
fn a_checkpoint_of_the_kubelet_is_read_or_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(checkpoint::CHECKPOINT_FILE);
    fuzz(|mutation: Mutation| {
        let text = mutation.bytes(&CHECKPOINTS);
        fs::write(&file, &text).unwrap();
        let (pods, age) = (PodFolders::default(), CheckpointAge::default());
        let read = checkpoint::remembered(folder.path(), &pods, &age, Instant::now());
        match (read, checkpoint::devices_of_pods(folder.path())) {
            (Ok(shares), Ok(pods)) => {
                let devices: BTreeSet<&str> = shares.iter().map(|(_, id)| gpunode_gpu::device_of(id)).collect();
                let of_pods: BTreeSet<&str> = pods.values().flatten().map(String::as_str).collect();
                assert_eq!(devices, of_pods);
            }
            (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string()),
            (one, other) => panic!("{one:?}, but {other:?}"),
        }
    });
}

#[test]
fn state_files_without_damage_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (name, good) in STATE_FILES {
        fs::write(folder.join(name), good).unwrap();
    }
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    assert_eq!(assignments::read(folder).unwrap().len(), 2);
    assert!(SavedConfig::load(folder, "n").content().is_some());
    assert!(load_records(folder).unwrap().is_persistent("GPU-0"));
    assert_ne!(HandoverRecord::load(folder), HandoverRecord::default());
    assert!(runtime.block_on(health_store::load(folder)).served_by_dra);
    assert!(CdiFile::new(folder).read().unwrap().is_some());
}

#[test]
fn a_damaged_state_file_is_read_or_counts_as_none() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    fuzz(|(number, mutation): (u8, Mutation)| {
        let folder = folder.path();
        let (name, good) = STATE_FILES[usize::from(number) % STATE_FILES.len()];
        fs::write(folder.join(name), mutation.bytes(&[good])).unwrap();
        match name {
            "assignments.json" => {
                let saved = assignments::SavedAssignments::load(folder);
                let mut state = DeviceState::restore(saved.assignments(), saved.claimed_files());
                state.set_daemon_answers(DaemonAnswers::new(), Duration::ZERO);
                state.set_desired(configured("resources: [{name: a.b/c}]"), Instant::now());
                state.set_companions(&DesiredCompanions::default(), &BTreeSet::new(), Instant::now());
                state.observe(nothing_held(Instant::now()));
                let snapshot = state.snapshot();
                let shares: usize = snapshot.advertised.iter().map(|list| list.resource.shares.len()).sum();
                assert!(shares <= 200_000, "{shares} shares");
            }
            "config.json" => {
                let saved = SavedConfig::load(folder, "n").content();
                _ = saved.map(|candidate| gpunode_config::load(&candidate.document));
            }
            "mig.json" => {
                let mut records = load_records(folder).unwrap();
                records
                    .update("GPU-7", |record| record.run.boot = "now".to_owned())
                    .unwrap();
                let again = load_records(folder).unwrap();
                assert_eq!(again.records(), records.records());
            }
            "handover.json" => {
                let record = HandoverRecord::load(folder);
                record.save(folder).unwrap();
                assert_eq!(HandoverRecord::load(folder), record);
            }
            "health.json" => _ = runtime.block_on(health_store::load(folder)),
            _ => {
                let file = CdiFile::new(folder);
                if let Ok(Some(spec)) = file.read() {
                    file.put(Some(&spec)).unwrap();
                    assert_eq!(file.read().unwrap(), Some(spec));
                }
            }
        }
        // The next round begins with an empty folder, but for what was set aside.
        _ = fs::remove_file(folder.join(name));
    });
}
