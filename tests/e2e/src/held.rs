//! Device ids that the running containers of a node hold: processes from the kernel, ids from the kubelet's checkpoint.
//! Nothing of it comes from gpunode.

use crate::Lab;
use anyhow::{Context, Result, ensure};
use gpunode_cluster::Node;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Interval between the observations of [`HeldRecorder`]. Starts and ends of containers are much further apart.
const INTERVAL: Duration = Duration::from_millis(50);

/// Ids by pod. Pods of tests name themselves in `POD_NAME` and `POD_UID`.
pub type Held = BTreeMap<String, BTreeSet<String>>;

/// Returns what the containers that run on a node hold now.
pub fn held(node: &Node) -> Result<Held> {
    // Processes first: a container starts after its ids are written down, and they stay until it has ended.
    let running = running_pods()?;
    let remembered = checkpoint(node)?;
    let mut held = Held::new();
    for (uid, name) in running {
        if let Some(ids) = remembered.get(&uid) {
            held.entry(name).or_default().extend(ids.iter().cloned());
        }
    }
    Ok(held)
}

/// UIDs and names of the pods of tests that have a process, on whichever node.
fn running_pods() -> Result<BTreeMap<String, String>> {
    let mut pods = BTreeMap::new();
    for entry in fs::read_dir("/proc").context("list processes in /proc")? {
        // A process that ends meanwhile has no environment any more.
        let environment =
            fs::read(entry.context("list processes in /proc")?.path().join("environ")).unwrap_or_default();
        let value = |name: &str| {
            environment.split(|byte| *byte == 0).find_map(|entry| {
                entry
                    .strip_prefix(name.as_bytes())
                    .map(|value| String::from_utf8_lossy(value).into_owned())
            })
        };
        if let (Some(uid), Some(name)) = (value("POD_UID="), value("POD_NAME=")) {
            pods.insert(uid, name);
        }
    }
    Ok(pods)
}

/// Ids by pod UID, as the kubelet keeps them.
fn checkpoint(node: &Node) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let path = node.path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let checkpoint: Value = serde_json::from_str(&text).context("parse the kubelet's checkpoint")?;
    let mut pods: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in checkpoint["Data"]["PodDeviceEntries"].as_array().into_iter().flatten() {
        let ids = pods
            .entry(entry["PodUID"].as_str().context("read a pod's UID")?.to_owned())
            .or_default();
        for ids_of_numa_node in entry["DeviceIDs"].as_object().context("read a pod's devices")?.values() {
            ids.extend(
                ids_of_numa_node
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(str::to_owned),
            );
        }
    }
    Ok(pods)
}

/// The UUID of the device that an id is, or is a share of: `UUID`, `UUID::N` or `UUID-_-N`.
pub fn device_of(id: &str) -> &str {
    id.split_once("::")
        .or_else(|| id.split_once("-_-"))
        .map_or(id, |(device, _)| device)
}

/// Looks at a node again and again, from its start until it is asked what it saw.
#[derive(Debug)]
pub struct HeldRecorder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Recording>>>,
}

/// Observations of a [`HeldRecorder`].
#[derive(Debug, Default)]
pub struct Recording {
    /// Number of observations.
    pub looks: usize,
    /// Held devices, where they differ from the observation before.
    pub held: Vec<Held>,
}

impl HeldRecorder {
    /// Starts to look.
    pub fn start(lab: &Lab, node: &str) -> Result<Self> {
        let node = lab.cluster().node(node)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut recording = Recording::default();
            while !stopped.load(Ordering::Relaxed) {
                let held = held(&node)?;
                if recording.held.last() != Some(&held) {
                    recording.held.push(held);
                }
                recording.looks += 1;
                std::thread::sleep(INTERVAL);
            }
            Ok(recording)
        });
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends it.
    pub fn finish(mut self) -> Result<Recording> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("end the recorder a second time")?;
        thread.join().map_err(|_| anyhow::anyhow!("the recorder panicked"))?
    }
}

impl Drop for HeldRecorder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Recording {
    /// Fails where a device was, at any look, held whole by one container and in any way by another, or by more containers
    /// than `replicas`, or an id by two.
    pub fn check_never_overcommitted(&self, replicas: usize) -> Result<()> {
        for held in &self.held {
            let mut by_device: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
            for (pod, ids) in held {
                for id in ids {
                    by_device.entry(device_of(id)).or_default().push((id, pod));
                }
            }
            for (device, holds) in by_device {
                let whole = holds.iter().any(|(id, _)| *id == device);
                let most = if whole { 1 } else { replicas };
                let distinct: BTreeSet<&str> = holds.iter().map(|(id, _)| *id).collect();
                ensure!(
                    holds.len() <= most && distinct.len() == holds.len(),
                    "{device} is held by {holds:?}"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(held: &[(&str, &[&str])]) -> bool {
        let held = held
            .iter()
            .map(|(pod, ids)| ((*pod).to_owned(), ids.iter().map(|id| (*id).to_owned()).collect()))
            .collect();
        Recording {
            looks: 1,
            held: vec![held],
        }
        .check_never_overcommitted(2)
        .is_ok()
    }

    #[test]
    fn a_device_held_in_two_ways_is_overcommitted() {
        assert!(check(&[("a", &["GPU-1"]), ("b", &["GPU-2::0"]), ("c", &["GPU-2::1"])]));
        assert!(!check(&[("a", &["GPU-1"]), ("b", &["GPU-1::0"])]));
        assert!(!check(&[("a", &["GPU-1"]), ("b", &["GPU-1"])]));
        assert!(!check(&[("a", &["GPU-1::0"]), ("b", &["GPU-1::0"])]));
        assert!(!check(&[
            ("a", &["GPU-1::0"]),
            ("b", &["GPU-1::1"]),
            ("c", &["GPU-1::2"])
        ]));
    }

    #[test]
    fn the_device_of_an_id_is_its_uuid() {
        for id in ["GPU-1", "GPU-1::3", "GPU-1-_-3"] {
            assert_eq!(device_of(id), "GPU-1");
        }
    }
}
