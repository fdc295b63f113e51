//! Every state of a Node, as the API server tells them to who watches.

use crate::{Lab, eventually};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{
    process::{Child, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// A watch on one Node that keeps what it is told.
#[derive(Debug)]
pub struct NodeWatch {
    node: String,
    kubectl: Child,
    seen: Arc<Mutex<Vec<Value>>>,
}

impl NodeWatch {
    /// Starts watching; returns when the state that the Node has now is in.
    pub fn start(lab: &Lab, node: &str) -> Result<Self> {
        let mut kubectl = lab
            .cluster()
            .kubectl_command()
            .args([
                "get",
                "--raw",
                &format!("/api/v1/nodes?watch=true&fieldSelector=metadata.name%3D{node}"),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("start kubectl")?;
        let output = kubectl.stdout.take().context("open standard output of kubectl")?;
        let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
        let keep = Arc::clone(&seen);
        // Ends with kubectl.
        std::thread::spawn(move || {
            let events = serde_json::Deserializer::from_reader(std::io::BufReader::new(output)).into_iter::<Value>();
            for mut event in events.map_while(Result::ok) {
                keep.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(event["object"].take());
            }
        });
        let watch = Self {
            node: node.to_owned(),
            kubectl,
            seen,
        };
        watch.await_current(lab)?;
        Ok(watch)
    }

    /// The states seen since the start, in order, the one that the Node has now being the last.
    pub fn states(&self, lab: &Lab) -> Result<Vec<Value>> {
        self.await_current(lab)?;
        Ok(self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// The distinct numbers of a resource that the Node offered one after the other; `None` where it had no such key.
    pub fn allocatable(&self, lab: &Lab, resource: &str) -> Result<Vec<Option<u64>>> {
        let mut numbers: Vec<Option<u64>> = self
            .states(lab)?
            .iter()
            .map(|state| {
                state["status"]["allocatable"][resource]
                    .as_str()
                    .and_then(|number| number.parse().ok())
            })
            .collect();
        numbers.dedup();
        Ok(numbers)
    }

    fn await_current(&self, lab: &Lab) -> Result<()> {
        let version = version(&lab.node(&self.node)?)?;
        eventually("the watch has caught up", Duration::from_mins(3), || {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            // The first state that the watch brings may be a later one.
            let last = seen.last().context("no state")?;
            ensure!(
                self::version(last)? >= version,
                "{} states, the last of version {}, and not {version}",
                seen.len(),
                last["metadata"]["resourceVersion"]
            );
            Ok(())
        })
    }
}

/// Versions of one object grow (KEP-5504).
fn version(node: &Value) -> Result<u64> {
    let version = node["metadata"]["resourceVersion"].as_str();
    let version = version.with_context(|| format!("{node} has no version"))?;
    version.parse().context("read the version of a Node")
}

impl Drop for NodeWatch {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}
