//! The MPS control daemons of a node.

use crate::{Lab, NAMESPACE, eventually};
use anyhow::{Context, Result, bail, ensure};
use gpunode_cluster::Process;
use gpunode_scenario::{ComputeMode, DriverState};
use serde_json::Value;
use std::{fs, time::Duration};

/// Name of the driver's program.
const PROGRAM: &str = "nvidia-cuda-mps-control";

impl Lab {
    /// The pod that supervises the MPS daemons of a node; `null` where there is none.
    pub fn mps_pod(&self, node: &str) -> Result<Value> {
        let pods = self.get(&[
            "pods",
            "-n",
            NAMESPACE,
            "--field-selector",
            &format!("spec.nodeName={node}"),
        ])?;
        let is_mps = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["name"] == "gpunode-mps";
        Ok(pods["items"]
            .as_array()
            .into_iter()
            .flatten()
            .find(is_mps)
            .cloned()
            .unwrap_or_default())
    }

    /// The control daemon of a device; none where it does not run.
    pub fn mps_daemon(&self, node: &str, uuid: &str) -> Result<Option<Process>> {
        let pod = self.mps_pod(node)?;
        let (Some(name), Some(container)) = (
            pod["metadata"]["name"].as_str(),
            pod["spec"]["containers"][0]["name"].as_str(),
        ) else {
            return Ok(None);
        };
        let device = format!("CUDA_VISIBLE_DEVICES={uuid}");
        let mut daemons = Vec::new();
        for process in self
            .cluster()
            .node(node)?
            .container_processes(NAMESPACE, name, container)?
        {
            // A process that ends meanwhile has neither.
            let read = |file: &str| fs::read(format!("/proc/{}/{file}", process.pid())).unwrap_or_default();
            let (arguments, environment) = (read("cmdline"), read("environ"));
            let mut arguments = arguments.split(|byte| *byte == 0);
            let is_program = arguments
                .next()
                .is_some_and(|program| program.ends_with(PROGRAM.as_bytes()));
            let is_daemon = is_program && arguments.any(|argument| argument == b"-d");
            if is_daemon
                && environment
                    .split(|byte| *byte == 0)
                    .any(|entry| entry == device.as_bytes())
            {
                daemons.push(process);
            }
        }
        match daemons.len() {
            0 | 1 => Ok(daemons.pop()),
            more => bail!("{more} control daemons run for {uuid}"),
        }
    }

    /// Waits until the control daemon of a device runs, and gives it.
    pub fn await_mps_daemon(&self, node: &str, uuid: &str) -> Result<Process> {
        eventually(
            &format!("an MPS daemon runs for {uuid}"),
            Duration::from_mins(3),
            || self.mps_daemon(node, uuid)?.context("there is none"),
        )
    }

    /// The compute mode of a GPU, as the simulated driver has it.
    pub fn compute_mode(&self, node: &str, index: u32) -> Result<ComputeMode> {
        let driver = self.cluster().node(node)?.driver_dir()?;
        Ok(DriverState::load(&driver)
            .context("read the driver's modes")?
            .gpu(index)
            .compute_mode)
    }

    /// Waits until a node needs no MPS any more: no label, no pod and so no daemon. Where no device plugin is left, it takes
    /// half a minute until a pod that the kubelet's checkpoint names is known to be gone, and some looks.
    pub fn await_no_mps(&self, node: &str) -> Result<()> {
        eventually(&format!("{node} has no MPS"), Duration::from_mins(3), || {
            let label = self.node(node)?["metadata"]["labels"]["gpunode.dev/mps"].clone();
            ensure!(label.is_null(), "its label is {label}");
            let pod = self.mps_pod(node)?;
            ensure!(pod.is_null(), "there is pod {}", pod["metadata"]["name"]);
            Ok(())
        })
    }
}
