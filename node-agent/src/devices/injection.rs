//! Ways in which containers get their devices, and devices that none of them can hand over. Pure.
//!
//! The CDI file sets `NVIDIA_VISIBLE_DEVICES=void`, which the container runtime applies after the variable of a response. So a
//! response may name devices by both: a runtime with CDI leaves nothing to NVIDIA's runtime, and one without CDI ignores the names.

use crate::{
    cdi::state::CdiState,
    kubelet::device_plugin_api::{CdiDevice, ContainerAllocateResponse, Mount},
};
use gpunode_cdi::qualified_name;
use gpunode_config::{AgentConfig, DeviceListStrategy};
use gpunode_crds::RuntimeStatus;
use gpunode_gpu::{InjectionWays, injects_by_cdi_alone};
use std::collections::{BTreeSet, HashMap};

/// Environment variable that tells NVIDIA's container runtime the GPUs of a container.
pub const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// Environment variable that tells NVIDIA's container runtime the IMEX channels of a container.
const IMEX_CHANNELS: &str = "NVIDIA_IMEX_CHANNELS";
/// Folder of the container in which names of mounts are devices, and value of the variable then (`apiMounts` in
/// k8s-device-plugin's `internal/plugin/server.go`; `getDevicesFromMounts` in nvidia-container-toolkit).
const DEVICE_MOUNTS: &str = "/var/run/nvidia-container-devices";
/// File of the host that such a mount shows.
const MOUNTED_FILE: &str = "/dev/null";
/// Name of this plugin in the key of an annotation. A key is unique in a container: `PLUGIN_DEVICE`, of at most 63 characters
/// (`AnnotationKey` in the Go package `tags.cncf.io/container-device-interface/pkg/cdi`).
const ANNOTATION_NAME: &str = "gpunode";

/// Ways in which containers get their devices, as the configuration says and the container runtime of the node offers them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectionRules {
    /// Strategies, of which each adds its part to a response.
    pub strategies: BTreeSet<DeviceListStrategy>,
    /// Prefix of the annotation that names CDI devices.
    pub annotation_prefix: String,
    /// Adds device nodes.
    pub pass_device_specs: bool,
    /// Variables that switch on GPUDirect Storage, RDMA network cards and GDRCopy in NVIDIA's container runtime.
    pub switches: Vec<&'static str>,
    /// IMEX channels that containers get where the node has them.
    pub imex_channels: Vec<u32>,
    /// Containers get no device but those of the CDI file: every strategy is CDI's, or nothing else on the node is known to give any.
    pub by_cdi_alone: bool,
}

impl Default for InjectionRules {
    fn default() -> Self {
        Self::of(&AgentConfig::default(), None)
    }
}

impl InjectionRules {
    /// Returns the rules of a configuration on a node with that container runtime, if it is known.
    pub fn of(config: &AgentConfig, runtime: Option<&RuntimeStatus>) -> Self {
        let strategies: BTreeSet<DeviceListStrategy> = config.effective_device_list_strategy().into_iter().collect();
        // Device nodes come without a file too.
        let runtime = runtime.filter(|_| !config.pass_device_specs());
        let ways = InjectionWays::of(config);
        let switches = [
            ("NVIDIA_GDS", config.gds()),
            ("NVIDIA_MOFED", config.mofed()),
            ("NVIDIA_GDRCOPY", config.gdrcopy()),
        ];
        Self {
            by_cdi_alone: strategies.iter().all(|strategy| strategy.is_cdi())
                || runtime.is_some_and(|runtime| injects_by_cdi_alone(ways, runtime)),
            strategies,
            annotation_prefix: config.cdi_annotation_prefix().to_owned(),
            pass_device_specs: config.pass_device_specs(),
            switches: switches
                .into_iter()
                .filter(|(_, on)| *on)
                .map(|(name, _)| name)
                .collect(),
            imex_channels: config.imex_channels(),
        }
    }

    fn has(&self, strategy: DeviceListStrategy) -> bool {
        self.strategies.contains(&strategy)
    }

    /// Returns the reason why no strategy can hand a device over.
    pub fn not_injectable(&self, uuid: &str, cdi: &CdiState) -> Option<String> {
        if !self.by_cdi_alone || cdi.described.contains(uuid) {
            return None;
        }
        let reason = cdi.left_out.get(uuid).or(cdi.problem.as_ref());
        let reason = reason.map_or("the file is not written yet", String::as_str);
        Some(format!("the CDI file does not describe it: {reason}"))
    }

    /// Returns the part of a response that names devices, with the IMEX channels of the node. Devices are named by CDI only if
    /// the file describes all of them: the variable that the file sets would keep NVIDIA's runtime from adding the others.
    pub fn response(
        &self,
        uuids: &[&str],
        described: &BTreeSet<String>,
        channels: &[u32],
    ) -> ContainerAllocateResponse {
        let mut response = ContainerAllocateResponse::default();
        let is_described = uuids.iter().all(|uuid| described.contains(*uuid));
        let names = || uuids.iter().map(|uuid| qualified_name(uuid));
        if is_described && self.has(DeviceListStrategy::CdiCri) {
            response.cdi_devices = names().map(|name| CdiDevice { name }).collect();
        }
        if is_described
            && self.has(DeviceListStrategy::CdiAnnotations)
            && let Some(first) = uuids.first()
        {
            // Other resources of the container have other devices. A name with a random part, as NVIDIA's, would make the
            // response to the same request another one.
            let key = format!(
                "{}{ANNOTATION_NAME}_{}",
                self.annotation_prefix,
                first.replace('/', "_")
            );
            response.annotations = [(key, names().collect::<Vec<_>>().join(","))].into();
        }
        let channels: Vec<String> = channels.iter().map(ToString::to_string).collect();
        if self.has(DeviceListStrategy::Envvar) {
            response.envs = variables(uuids.join(","), &channels);
        }
        if self.has(DeviceListStrategy::VolumeMounts) {
            response
                .envs
                .insert(VISIBLE_DEVICES.to_owned(), DEVICE_MOUNTS.to_owned());
            let channels = channels.iter().map(|channel| format!("imex/{channel}"));
            let devices = uuids.iter().map(|uuid| (*uuid).to_owned());
            response.mounts = devices.chain(channels).map(|name| device_mount(&name)).collect();
        }
        let switches = self.switches.iter();
        response
            .envs
            .extend(switches.map(|name| ((*name).to_owned(), "enabled".to_owned())));
        response
    }
}

fn variables(devices: String, channels: &[String]) -> HashMap<String, String> {
    let channels = (!channels.is_empty()).then(|| (IMEX_CHANNELS.to_owned(), channels.join(",")));
    channels
        .into_iter()
        .chain([(VISIBLE_DEVICES.to_owned(), devices)])
        .collect()
}

fn device_mount(name: &str) -> Mount {
    Mount {
        container_path: format!("{DEVICE_MOUNTS}/{name}"),
        host_path: MOUNTED_FILE.to_owned(),
        read_only: false,
    }
}

#[cfg(test)]
mod tests;
