//! MIG of the nodes of `mig.yaml`: what their simulated drivers have, what their agents report, and what tests do to both.

use crate::{Lab, eventually};
use anyhow::{Context, Result, ensure};
use gpunode_scenario::{DriverState, Gpu, ReturnCode, Scenario, State, StateFile};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

/// Node with two A100 of 80 GiB and a V100, in this order, label `pool=mig-a100`.
pub const MIG_A100: &str = "mig-a100";
/// Nodes with an H100 each, label `pool=mig-h100`. The second one gives each MIG device another UUID.
pub const MIG_H100: [&str; 2] = ["mig-h100-a", "mig-h100-b"];

/// Time for a change of MIG, on a machine that is busy with other clusters.
const LIMIT: Duration = Duration::from_mins(3);

/// Profile and first memory slice of MIG devices, by UUID.
pub type MigDevices = BTreeMap<String, (String, u32)>;

/// Returns the UUIDs of the devices of a profile.
pub fn of_profile(devices: &MigDevices, profile: &str) -> BTreeSet<String> {
    let of_profile = devices.iter().filter(|(_, (name, _))| name == profile);
    of_profile.map(|(uuid, _)| uuid.clone()).collect()
}

impl Lab {
    /// Takes the cluster like [`Lab::enter`], with healthy GPUs that nobody has divided or keeps open.
    pub fn enter_undivided() -> Result<Self> {
        let lab = Self::enter()?;
        for node in [&[MIG_A100][..], &MIG_H100].concat() {
            let dir = lab.driver_of(node)?;
            lab.driver_state(node)?.update(|state| {
                // Numbers of events only grow.
                let last_event = state.last_event;
                *state = State {
                    last_event,
                    ..State::default()
                };
            })?;
            for gpu in Scenario::load(&dir)?.gpus()? {
                if gpu.board.max_mig_devices > 0 {
                    let changed = DriverState::update_mig(&dir, &gpu, |mig| {
                        mig.set_mode(false);
                        Ok(())
                    })?;
                    ensure!(
                        changed.is_ok(),
                        "turn MIG off on GPU {} of {node}: {changed:?}",
                        gpu.index
                    );
                }
            }
            eventually(&format!("nobody reports a layout of {node}"), LIMIT, || {
                let object = lab.get(&["gpunode", node])?;
                let gpus = object["status"]["gpus"].as_array().into_iter().flatten();
                let layouts: Vec<&Value> = gpus.map(|gpu| &gpu["mig"]).filter(|mig| !mig.is_null()).collect();
                ensure!(layouts.is_empty(), "its status has {layouts:?}");
                Ok(())
            })?;
        }
        Ok(lab)
    }

    /// The state of the GPUs of a node, which tests change.
    pub fn driver_state(&self, node: &str) -> Result<StateFile> {
        Ok(StateFile::open(self.driver_of(node)?)?)
    }

    /// A GPU of a node as its driver has it now.
    pub fn driver_gpu(&self, node: &str, index: usize) -> Result<Gpu> {
        let mut gpus = DriverState::gpus(&self.driver_of(node)?)?;
        ensure!(index < gpus.len(), "{node} has {} GPUs", gpus.len());
        Ok(gpus.swap_remove(index))
    }

    /// MIG devices of a GPU as its driver has them now.
    pub fn mig_devices(&self, node: &str, index: usize) -> Result<MigDevices> {
        let gpu = self.driver_gpu(node, index)?;
        let device = |(instance, compute): (&gpunode_scenario::GpuInstance, &gpunode_scenario::ComputeInstance)| {
            (compute.uuid.clone(), (compute.profile.name.clone(), instance.start))
        };
        Ok(gpu.mig_devices().map(device).collect())
    }

    /// Divides a GPU as another program would: profiles with their first memory slices. Gives its MIG devices, once they are
    /// reported.
    pub fn divide(&self, node: &str, index: usize, instances: &[(&str, u32)]) -> Result<MigDevices> {
        let dir = self.driver_of(node)?;
        let scenario = Scenario::load(&dir)?;
        let mut gpus = scenario.gpus()?;
        ensure!(index < gpus.len(), "{node} has {} GPUs", gpus.len());
        let gpu = gpus.swap_remove(index);
        let divided = DriverState::update_mig(&dir, &gpu, |mig| {
            mig.set_mode(true);
            for (name, start) in instances {
                let mut profiles = gpu.board.mig_profiles().into_iter();
                let profile = profiles
                    .find(|profile| profile.name == *name)
                    .ok_or(ReturnCode::NotFound)?;
                let instance = mig.create_instance(gpu.board, &profile, Some(*start))?;
                let mut kinds = profile.compute_profiles().into_iter();
                let whole = kinds
                    .find(|kind| kind.slices == profile.slices)
                    .ok_or(ReturnCode::NotFound)?;
                mig.create_compute_instance(&scenario, &gpu, instance, &whole, None)?;
            }
            Ok(())
        })?;
        ensure!(divided.is_ok(), "divide GPU {index} of {node}: {divided:?}");
        let devices = self.mig_devices(node, index)?;
        eventually(&format!("GPU {index} of {node} reports its MIG devices"), LIMIT, || {
            let object = self.get(&["gpunode", node])?;
            let reported = object["status"]["gpus"][index]["migDevices"].as_array();
            let reported = reported.into_iter().flatten();
            let reported: BTreeSet<&str> = reported.filter_map(|device| device["uuid"].as_str()).collect();
            let present: BTreeSet<&str> = devices.keys().map(String::as_str).collect();
            ensure!(reported == present, "it reports {reported:?}");
            Ok(())
        })?;
        Ok(devices)
    }

    /// Progress of a GPU towards its layout, as the agent reports it; `null` without a layout.
    pub fn mig_status(&self, node: &str, index: usize) -> Result<Value> {
        Ok(self.get(&["gpunode", node])?["status"]["gpus"][index]["mig"].clone())
    }

    /// Waits until a GPU is in a phase on the way to a layout, such as `1g.10gb:3,4g.40gb:1`, and gives its progress.
    pub fn await_mig(&self, node: &str, index: usize, wanted: &str, phase: &str) -> Result<Value> {
        eventually(&format!("GPU {index} of {node} is {phase}"), LIMIT, || {
            let status = self.mig_status(node, index)?;
            ensure!(
                status["wanted"] == wanted && status["phase"] == phase,
                "its MIG is {status}"
            );
            Ok(status)
        })
    }

    /// Waits until a GPU has a layout, and gives its MIG devices.
    pub fn await_layout(&self, node: &str, index: usize, layout: &str) -> Result<MigDevices> {
        let status = self.await_mig(node, index, layout, "Applied")?;
        ensure!(status["observed"] == layout, "its MIG is {status}");
        self.mig_devices(node, index)
    }

    /// Puts the policy `sharing` with a `devicePlugin` in YAML's flow style in force for a pool. Layouts come later than a
    /// configuration, once pods let them, so that no plan tells what nodes advertise in the end.
    pub fn put_layout(&self, pool: &str, device_plugin: &str) -> Result<()> {
        self.put_drained_layout(pool, device_plugin, "{policy: Wait}")
    }

    /// The same with rules for the pods that delay it.
    pub fn put_drained_layout(&self, pool: &str, device_plugin: &str, drain: &str) -> Result<()> {
        let policy = format!(
            "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {{name: sharing}}
spec:
  nodeSelector: {{matchLabels: {{pool: {pool}}}}}
  rollout: {{maxUnavailable: 1}}
  drain: {drain}
  devicePlugin: {device_plugin}
"
        );
        self.unplanned("sharing", || {
            let output = self.kubectl_with_input(&["apply", "-f", "-"], &policy)?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "apply {policy}: {said}");
            Ok(())
        })
    }

    fn driver_of(&self, node: &str) -> Result<PathBuf> {
        let driver = self.cluster().node(node)?.driver_dir();
        driver.with_context(|| format!("find the driver of {node}"))
    }
}
