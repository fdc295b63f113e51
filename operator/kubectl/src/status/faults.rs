//! Faults of devices: a name for tables, and a description with the next step. Pure.

use super::devices::{DeviceAvailability, DeviceSummary};
use gpunode_crds::{DeviceHealth, FaultGrade, FaultReason};
use std::collections::{BTreeMap, BTreeSet};

/// Most faults that are described; `-o json` has all of them.
const MAX_FAULTS: usize = 16;

/// Returns the name of a fault, such as `XID 79` or `Lost`.
pub fn fault_name(fault: &DeviceHealth) -> String {
    match (fault.reason, fault.xid) {
        (Some(FaultReason::Xid), Some(xid)) => format!("XID {xid}"),
        (reason, _) => reason.map_or("unknown", FaultReason::as_str).to_owned(),
    }
}

/// Names the faults of a node and their GPUs, such as `XID 79 (GPU 1), missing (GPUs 2, 3)`.
pub fn fault_names(devices: &[DeviceSummary]) -> String {
    let mut faults: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for device in devices {
        let is_absent = matches!(
            device.state,
            DeviceAvailability::Missing | DeviceAvailability::NoMpsDaemon
        );
        let name = match &device.fault {
            _ if is_absent => device.state.text().to_owned(),
            Some(fault) => fault_name(fault),
            None => continue,
        };
        faults.entry(name).or_default().extend(device.gpu);
    }
    let fault = |(name, gpus): (String, BTreeSet<u32>)| {
        let noun = if gpus.len() == 1 { "GPU" } else { "GPUs" };
        let gpus: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        format!("{name} ({noun} {})", gpus.join(", "))
    };
    faults.into_iter().map(fault).collect::<Vec<_>>().join(", ")
}

/// Describes each fault once, with all devices that have it: the reason, the action, when it clears, and the pods that hold the
/// devices.
pub fn fault_descriptions(devices: &[DeviceSummary]) -> Vec<String> {
    let mut groups: Vec<(&DeviceHealth, Vec<&DeviceSummary>)> = Vec::new();
    for device in devices {
        let Some(fault) = &device.fault else { continue };
        match groups.iter_mut().find(|(first, _)| is_same(first, fault)) {
            Some((_, like)) => like.push(device),
            None => groups.push((fault, vec![device])),
        }
    }
    let described = groups.iter().map(|(fault, devices)| description(fault, devices));
    described.take(MAX_FAULTS).collect()
}

/// Returns true where two faults differ in their begin at most.
fn is_same(a: &DeviceHealth, b: &DeviceHealth) -> bool {
    (a.grade, a.reason, a.xid) == (b.grade, b.reason, b.xid)
        && (&a.message, &a.action, &a.waits_for) == (&b.message, &b.action, &b.waits_for)
}

fn description(fault: &DeviceHealth, devices: &[&DeviceSummary]) -> String {
    let reason = fault.reason.map_or("reason unknown", FaultReason::as_str);
    let begins = devices
        .iter()
        .filter_map(|device| device.fault.as_ref()?.since.as_ref());
    let since = begins
        .map(|since| since.0)
        .min()
        .map(|since| format!(" since {since}"))
        .unwrap_or_default();
    let holders = devices.iter().flat_map(|device| &device.holders);
    let pods: BTreeSet<String> = holders
        .map(|holder| format!("{}/{}", holder.namespace, holder.pod))
        .collect();
    let held = (!pods.is_empty()).then(|| format!("held by {}", pods.into_iter().collect::<Vec<_>>().join(", ")));
    let waits = fault.waits_for.as_ref().map(|waits| format!("clears after: {waits}"));
    let what = fault.message.as_deref().unwrap_or(reason);
    let state = match fault.grade {
        Some(FaultGrade::Degraded) => "degraded",
        _ => "unhealthy",
    };
    let what = Some(format!("{} {state}{since}: {what}", subject(devices)));
    let may_stay = fault.grade == Some(FaultGrade::NoNewWork) && held.is_some();
    let stays = may_stay.then(|| "gpunode does not evict them".to_owned());
    let parts = [what, fault.action.clone(), waits, held, stays];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Names the devices with their verb, such as `GPUs 0, 1 are`.
fn subject(devices: &[&DeviceSummary]) -> String {
    let names: Vec<String> = devices.iter().map(|device| device.name()).collect();
    let is_whole = |device: &&DeviceSummary| device.gpu.is_some() && !device.is_mig();
    match names.as_slice() {
        [name] => format!("{name} is"),
        _ if devices.iter().all(is_whole) => {
            let gpus: Vec<String> = devices
                .iter()
                .filter_map(|device| device.gpu)
                .map(|gpu| gpu.to_string())
                .collect();
            format!("GPUs {} are", gpus.join(", "))
        }
        _ => format!("{} are", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::GpuNode;
    use serde_json::{Value, json};

    fn devices() -> Vec<DeviceSummary> {
        let fault = |xid: i32, since: &str| {
            json!({"state": "Unhealthy", "reason": "Xid", "xid": xid, "since": since,
                "message": format!("XID {xid}"), "action": "reboot the node", "waitsFor": "node reboot"})
        };
        let gpu = |index: u32, health: &Value| json!({"index": index, "uuid": format!("GPU-{index}"), "product": "T4", "memoryMiB": 1, "health": health});
        let mut missing = gpu(4, &json!({"state": "Healthy"}));
        missing["missingSince"] = json!("2026-01-02T03:04:05Z");
        let gpus = [
            gpu(0, &fault(79, "2026-01-02T03:04:07Z")),
            gpu(1, &fault(48, "2026-01-02T03:04:05Z")),
            gpu(2, &fault(79, "2026-01-02T03:04:05Z")),
            gpu(3, &json!({"state": "Unhealthy", "reason": "Lost", "xid": 79})),
            missing,
            gpu(
                5,
                &json!({"state": "Healthy", "grade": "Degraded", "reason": "RowRemapPending", "message": "rows wait"}),
            ),
            gpu(
                6,
                &json!({"state": "Unhealthy", "grade": "NoNewWork", "reason": "NvLinkDown", "message": "a link is down"}),
            ),
            gpu(
                7,
                &json!({"state": "Unhealthy", "grade": "NoNewWork", "reason": "MpsDaemonDied",
                    "message": "the MPS control daemon died", "action": "delete the pods that use the device"}),
            ),
        ];
        let holder = |pod: &str, device: &str| json!({"namespace": "team", "pod": pod, "container": "c", "resource": "nvidia.com/gpu", "device": device, "count": 1});
        let gpu_node = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
            "status": {"gpus": gpus, "holders": [holder("a", "GPU-6"), holder("b", "GPU-7")]}});
        let gpu_node: GpuNode = serde_json::from_value(gpu_node).expect("a GpuNode");
        DeviceSummary::all(&gpu_node)
    }

    #[test]
    fn faults_have_short_names_with_their_gpus() {
        assert_eq!(
            fault_names(&devices()),
            "Lost (GPU 3), MpsDaemonDied (GPU 7), NvLinkDown (GPU 6), RowRemapPending (GPU 5), XID 48 (GPU 1), XID 79 (GPUs 0, 2), missing (GPU 4)"
        );
        assert_eq!(fault_names(&[]), "");
    }

    #[test]
    fn one_fault_of_several_gpus_is_told_once() {
        assert_eq!(
            fault_descriptions(&devices()),
            [
                "GPUs 0, 2 are unhealthy since 2026-01-02T03:04:05Z: XID 79; reboot the node; clears after: node reboot",
                "GPU 1 is unhealthy since 2026-01-02T03:04:05Z: XID 48; reboot the node; clears after: node reboot",
                "GPU 3 is unhealthy: Lost",
                "GPU 5 is degraded: rows wait",
                "GPU 6 is unhealthy: a link is down; held by team/a; gpunode does not evict them",
                "GPU 7 is unhealthy: the MPS control daemon died; delete the pods that use the device; held by team/b; \
                 gpunode does not evict them",
            ]
        );
        let states: Vec<&str> = devices().iter().skip(5).map(|device| device.state.text()).collect();
        assert_eq!(states, ["not advertised", "unhealthy", "unhealthy"]);
    }
}
