//! State of the node's MPS control daemons, which agents read from the files of the supervisor.

use super::device_folder::DeviceFolder;
use crate::runtime::clock::since_boot;
use gpunode_crds::{MpsDaemon, MpsDaemonState};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    time::Duration,
};

/// Longest age of a fresh answer. The supervisor probes every two seconds, and a question that gets no answer takes two more: one
/// such question is no death. The answer of a daemon that is gone is removed at once.
const FRESH: Duration = Duration::from_secs(8);

/// Last answer of each daemon, as time since boot, by the UUID of the device.
pub type DaemonAnswers = BTreeMap<String, Option<Duration>>;

/// Reads the answers, and the time of the read; blocks. A missing folder means no daemons.
pub fn read(mps_dir: &Path) -> io::Result<(DaemonAnswers, Duration)> {
    let folders = DeviceFolder::all(mps_dir)?;
    let answers = folders
        .iter()
        .map(|folder| (folder.uuid().to_owned(), folder.read_answered()))
        .collect();
    Ok((answers, since_boot()))
}

/// Returns the state of every running or desired daemon, sorted by device. `mps` are the devices whose assignment is MPS.
pub fn daemons(mps: &BTreeSet<String>, answers: &DaemonAnswers, now: Duration) -> Vec<MpsDaemon> {
    let devices: BTreeSet<&String> = mps.iter().chain(answers.keys()).collect();
    let state = |device| {
        let answered = answers.get(device).copied().flatten();
        if !mps.contains(device) {
            MpsDaemonState::Stopping
        } else if answered
            .and_then(|then| now.checked_sub(then))
            .is_some_and(|age| age < FRESH)
        {
            MpsDaemonState::Answering
        } else {
            MpsDaemonState::NotAnswering
        }
    };
    devices
        .into_iter()
        .map(|device| MpsDaemon {
            device: device.clone(),
            state: state(device),
        })
        .collect()
}

/// Returns the reasons why devices cannot be allocated now, by UUID, for `Allocator::set_unavailable`.
pub fn unavailable(daemons: &[MpsDaemon]) -> BTreeMap<String, String> {
    let reason = |daemon: &MpsDaemon| match daemon.state {
        MpsDaemonState::Answering | MpsDaemonState::Unknown => None,
        MpsDaemonState::NotAnswering => {
            Some("its MPS control daemon does not answer; see the log of gpunode-mps on this node")
        }
        MpsDaemonState::Stopping => Some("its former MPS control daemon is still stopping"),
    };
    daemons
        .iter()
        .filter_map(|daemon| Some((daemon.device.clone(), reason(daemon)?.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn states(mps: &[&str], answers: &[(&str, Option<u64>)], now: u64) -> Vec<(String, MpsDaemonState)> {
        let mps = mps.iter().map(|device| (*device).to_owned()).collect();
        let answers = answers
            .iter()
            .map(|(device, at)| ((*device).to_owned(), at.map(Duration::from_millis)));
        let daemons = daemons(&mps, &answers.collect(), Duration::from_millis(now));
        daemons
            .into_iter()
            .map(|daemon| (daemon.device, daemon.state))
            .collect()
    }

    #[test]
    fn only_a_fresh_answer_counts() {
        use MpsDaemonState::{Answering, NotAnswering};
        for (answered, state) in [
            (Some(10_000), Answering),
            (Some(2_001), Answering),
            (Some(2_000), NotAnswering),
            // An answer from an earlier boot.
            (Some(10_001), NotAnswering),
            (None, NotAnswering),
        ] {
            assert_eq!(
                states(&["GPU-1"], &[("GPU-1", answered)], 10_000),
                [("GPU-1".to_owned(), state)],
                "{answered:?}"
            );
        }
        assert_eq!(states(&["GPU-1"], &[], 10_000), [("GPU-1".to_owned(), NotAnswering)]);
    }

    #[test]
    fn a_device_that_leaves_mps_is_unavailable_until_its_folder_is_gone() {
        let stopping = states(&[], &[("GPU-1", Some(10_000))], 10_000);
        assert_eq!(stopping, [("GPU-1".to_owned(), MpsDaemonState::Stopping)]);
        let daemon = |device: &str, state| MpsDaemon {
            device: device.to_owned(),
            state,
        };
        let reasons = unavailable(&[
            daemon("GPU-1", MpsDaemonState::Stopping),
            daemon("GPU-2", MpsDaemonState::Answering),
            daemon("GPU-3", MpsDaemonState::NotAnswering),
        ]);
        assert_eq!(reasons.keys().collect::<Vec<_>>(), ["GPU-1", "GPU-3"]);
    }

    #[test]
    fn what_the_supervisor_writes_is_read() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read(&root.path().join("missing")).unwrap().0, DaemonAnswers::new());
        for (device, text) in [("GPU-1", "1234"), ("GPU-2", "x"), ("other", "1")] {
            fs::create_dir(root.path().join(device)).unwrap();
            fs::write(root.path().join(device).join("answered"), text).unwrap();
        }
        fs::create_dir(root.path().join("GPU-3")).unwrap();
        let (answers, now) = read(root.path()).unwrap();
        let expected = [
            ("GPU-1", Some(Duration::from_millis(1234))),
            ("GPU-2", None),
            ("GPU-3", None),
        ];
        assert_eq!(answers, expected.map(|(device, at)| (device.to_owned(), at)).into());
        assert!(now > Duration::from_secs(1));
    }
}
