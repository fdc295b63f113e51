//! The part of a `GpuNode` that the planner reads, small enough to keep for every node.
//!
//! Of thousands of nodes most have one of few machine types, follow one of few policies and are healthy. Without what
//! only people read, and without the names of devices that nothing refers to, their specs and statuses are equal, and
//! are kept once.

use crate::{
    input::broken_devices::retain_holders_of_broken,
    interned::{InternPool, Interned, feed_document},
    time::whole_second,
};
use gpunode_config::known_fields;
use gpunode_crds::{
    ChangeState, ConditionType, Configuration, ConfigurationStep, DeviceHealth, DisruptiveChange, GpuDevice, GpuNode,
    GpuNodeSpec, GpuNodeStatus, HealthState, MigPhase, MigStatus, OPERATOR_FIELD_MANAGER, Reason,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ManagedFieldsEntry, OwnerReference};
use std::{
    collections::{BTreeSet, HashMap},
    hash::DefaultHasher,
    sync::{Arc, Mutex},
};

/// Reasons of an agent that cannot tell how GPUs are shared: it starts, or the driver does not answer for the moment.
const SILENT: [Reason; 2] = [Reason::HoldersUnknown, Reason::DriverNotReady];

/// Facts about one `GpuNode`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuNodeFacts {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion` of all the fields here.
    pub resource_version: String,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// Moment of the operator's last write to the spec; the API server keeps it for each field manager.
    pub written_at: Option<Timestamp>,
    /// `metadata.ownerReferences`.
    pub owners: Vec<OwnerReference>,
    /// The spec without its step and change, shared by the nodes that have the same.
    pub spec: Arc<GpuNodeSpec>,
    /// `spec.step`. Every node has another.
    pub step: Option<ConfigurationStep>,
    /// `status.finishedStep`: start of the last step that the agent finished. Every node has another.
    pub finished_step: Option<Timestamp>,
    /// `spec.change`. Every node has another.
    pub change: Option<DisruptiveChange>,
    /// `status.finishedChange`: `since` of the last change that the agent finished. Every node has another.
    pub finished_change: Option<Timestamp>,
    /// The conditions that the planner reads: the operator's own, `Ready`, `DriverAvailable`, and those of a silent
    /// agent. Those of the agent that are True have no message.
    pub conditions: Vec<Condition>,
    /// The rest of the status, as far as the planner reads it, shared by the nodes that have the same. Has no conditions,
    /// no finished step and no finished change.
    pub status: Option<Arc<GpuNodeStatus>>,
}

impl GpuNodeFacts {
    /// Reads the facts of a `GpuNode` and drops the rest of it.
    pub fn of(gpu_node: GpuNode) -> Self {
        let GpuNode {
            metadata: meta,
            mut spec,
            status,
        } = gpu_node;
        let written_at = meta.managed_fields.as_deref().and_then(written_at);
        let mut facts = Self {
            name: meta.name.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default(),
            resource_version: meta.resource_version.unwrap_or_default(),
            created: meta.creation_timestamp.map(|time| time.0),
            written_at,
            owners: meta.owner_references.unwrap_or_default(),
            step: spec.step.take(),
            change: spec.change.take(),
            spec: spec.interned(),
            ..Self::default()
        };
        if let Some(mut status) = status {
            facts.conditions = read_conditions(std::mem::take(&mut status.conditions));
            facts.finished_step = status.finished_step.take().map(|time| time.0);
            facts.finished_change = status.finished_change.take().map(|time| time.0);
            reduce(&mut status);
            facts.status = Some(status.interned());
        }
        facts.owners.shrink_to_fit();
        facts
    }

    /// Returns the status without its conditions.
    pub(crate) fn status(&self) -> Option<&GpuNodeStatus> {
        self.status.as_deref()
    }

    /// Returns the configuration in the spec.
    pub(crate) fn configuration(&self) -> Option<&Configuration> {
        self.spec.config.as_ref()
    }

    /// Returns the node's step in a rollout, unless the agent has finished it.
    pub(crate) fn unfinished_step(&self) -> Option<&ConfigurationStep> {
        self.step.as_ref().filter(|step| !self.has_finished(step))
    }

    /// Returns the start of the node's step in a rollout if the agent has finished it.
    pub(crate) fn finished_step_start(&self) -> Option<Timestamp> {
        let step = self.step.as_ref().filter(|step| self.has_finished(step))?;
        Some(step.started_at.0)
    }

    /// Returns true if the agent has finished the step. One that failed stays failed.
    fn has_finished(&self, step: &ConfigurationStep) -> bool {
        step.failed.is_none() && self.finished_step.map(whole_second) == Some(whole_second(step.started_at.0))
    }

    /// Returns the approval of a change under the configuration in the spec, unless the agent has finished it.
    pub fn unfinished_approval(&self) -> Option<&DisruptiveChange> {
        self.change_in(ChangeState::Approved)
            .filter(|change| !self.has_finished_change(change))
    }

    /// Returns the drain under way for the configuration in the spec.
    pub fn preparation(&self) -> Option<&DisruptiveChange> {
        self.change_in(ChangeState::Prepare)
    }

    /// Returns the last drain for the configuration in the spec, if it failed.
    pub(crate) fn failed_drain(&self) -> Option<&DisruptiveChange> {
        self.change_in(ChangeState::Failed)
    }

    /// Returns the last change for the configuration in the spec.
    pub(crate) fn last_change(&self) -> Option<&DisruptiveChange> {
        self.change.as_ref().filter(|change| !self.is_void(change))
    }

    fn change_in(&self, state: ChangeState) -> Option<&DisruptiveChange> {
        self.last_change().filter(|change| change.state == state)
    }

    /// Returns the start of the last change if the agent has finished it.
    pub(crate) fn finished_change_start(&self) -> Option<Timestamp> {
        let change = self.change.as_ref().filter(|change| self.has_finished_change(change))?;
        Some(change.since.0)
    }

    /// Returns true if a change belongs to another configuration than that in the spec.
    pub(crate) fn is_void(&self, change: &DisruptiveChange) -> bool {
        self.configuration().is_none_or(|config| config.hash != change.hash)
    }

    /// Returns true if the agent has finished the change.
    pub(crate) fn has_finished_change(&self, change: &DisruptiveChange) -> bool {
        self.finished_change.map(whole_second) == Some(whole_second(change.since.0))
    }

    /// Returns true if an agent reported the GPUs. Without a report the status may still hold the operator's own
    /// conditions.
    pub(crate) fn has_report(&self) -> bool {
        self.status()
            .is_some_and(|status| status.agent.is_some() || !status.gpus.is_empty())
    }

    /// Returns the reported GPUs; none if nothing is reported.
    pub(crate) fn gpus(&self) -> &[GpuDevice] {
        self.status().map_or(&[], |status| &status.gpus)
    }

    /// Returns true if the agent says that it cannot tell how GPUs are shared.
    pub(crate) fn is_silent(&self) -> bool {
        self.conditions.iter().any(is_of_silent_agent)
    }

    /// Returns true if the agent reports that the kubelet has not accepted every resource yet.
    pub(crate) fn is_registering(&self) -> bool {
        self.conditions.iter().any(is_of_registering_agent)
    }

    /// Returns true if nothing that the planner reads differs between two readings of a `GpuNode`.
    pub fn is_same_but_version(&self, other: &Self) -> bool {
        // Names each field, so that nobody forgets a new one here.
        let Self {
            name: _,
            uid,
            resource_version: _,
            created: _,
            // Moves with each write of the operator, of which the spec tells.
            written_at: _,
            owners,
            spec,
            step,
            finished_step,
            change,
            finished_change,
            conditions,
            status,
        } = self;
        (uid, owners, spec) == (&other.uid, &other.owners, &other.spec)
            && (step, finished_step) == (&other.step, &other.finished_step)
            && (change, finished_change) == (&other.change, &other.finished_change)
            && (conditions, status) == (&other.conditions, &other.status)
    }
}

impl Interned for GpuNodeSpec {
    fn pool() -> &'static Mutex<InternPool<Self>> {
        static POOL: Mutex<InternPool<GpuNodeSpec>> = Mutex::new(InternPool::new());
        &POOL
    }

    fn feed(&self, hasher: &mut DefaultHasher) {
        feed_document(self, hasher);
    }
}

impl Interned for GpuNodeStatus {
    fn pool() -> &'static Mutex<InternPool<Self>> {
        static POOL: Mutex<InternPool<GpuNodeStatus>> = Mutex::new(InternPool::new());
        &POOL
    }

    fn feed(&self, hasher: &mut DefaultHasher) {
        feed_document(self, hasher);
    }
}

/// Returns the moment of the operator's last write to the spec.
fn written_at(entries: &[ManagedFieldsEntry]) -> Option<Timestamp> {
    entries
        .iter()
        // Writes to the status have a subresource.
        .filter(|entry| entry.manager.as_deref() == Some(OPERATOR_FIELD_MANAGER) && entry.subresource.is_none())
        .filter_map(|entry| entry.time.as_ref().map(|time| time.0))
        .max()
}

/// Returns the conditions that the planner reads, without messages that it does not read.
fn read_conditions(mut read: Vec<Condition>) -> Vec<Condition> {
    let is_of = |condition: &Condition, types: &[ConditionType]| types.iter().any(|of| of.as_str() == condition.type_);
    read.retain_mut(|condition| {
        if is_of(condition, &ConditionType::OF_OPERATOR) {
            return true;
        }
        if condition.status == "True" {
            condition.message = String::new();
        }
        is_of(condition, &[ConditionType::Ready, ConditionType::DriverAvailable])
            || is_of_silent_agent(condition)
            || is_of_registering_agent(condition)
    });
    read.shrink_to_fit();
    read
}

fn is_of_silent_agent(condition: &Condition) -> bool {
    SILENT.iter().any(|reason| reason.as_str() == condition.reason)
}

fn is_of_registering_agent(condition: &Condition) -> bool {
    condition.reason == Reason::Registering.as_str()
}

/// Drops from a status what only people and other programs read.
fn reduce(status: &mut GpuNodeStatus) {
    retain_holders_of_broken(status);
    drop_known_fields(status);
    (status.hardware, status.in_use, status.held_by) = (None, None, None);
    status.holders_truncated = false;
    if let Some(agent) = &mut status.agent {
        (agent.pod, agent.pod_uid, agent.version) = (String::new(), String::new(), String::new());
    }
    // Whether there is one is all that counts.
    status.mps_daemons.truncate(1);
    for daemon in &mut status.mps_daemons {
        daemon.device = String::new();
    }
    for gpu in &mut status.gpus {
        (gpu.pci_bus_id, gpu.last_xid) = (None, None);
        // Groups of a MIG layout select by it.
        gpu.pci_device_id = gpu.pci_device_id.take().filter(|_| gpu.mig_mode.is_some());
        gpu.links = Vec::new();
        gpu.health = gpu.health.take().map(reduced_health);
        gpu.mig = gpu.mig.take().map(reduced_mig);
        for mig in &mut gpu.mig_devices {
            mig.health = mig.health.take().map(reduced_health);
        }
    }
    number_devices(status);
    for resource in &mut status.resources {
        resource.withheld = None;
        for device in &mut resource.devices {
            (device.name, device.numa_node) = (None, None);
        }
    }
}

/// Drops the long list of the agent's fields where the agent knows all that this build writes: an empty list is no
/// restriction either.
fn drop_known_fields(status: &mut GpuNodeStatus) {
    let Some(agent) = &mut status.agent else { return };
    let reported: BTreeSet<&str> = agent.config_fields.iter().map(String::as_str).collect();
    if known_fields().iter().all(|field| reported.contains(field.as_str())) {
        agent.config_fields = Vec::new();
    }
}

/// Keeps the fault of a broken device, which people read in evictions, and of others what decides.
fn reduced_health(health: DeviceHealth) -> DeviceHealth {
    let is_broken = health.is_broken();
    let DeviceHealth {
        state,
        grade,
        reason,
        message,
        since,
        broken_since,
        ..
    } = health;
    let is_unhealthy = state == HealthState::Unhealthy;
    DeviceHealth {
        state,
        grade,
        reason,
        message: message.filter(|_| is_broken),
        since: since.filter(|_| is_unhealthy),
        broken_since: broken_since.filter(|_| is_unhealthy),
        ..DeviceHealth::default()
    }
}

/// Keeps the phase, and of a GPU that cannot go on the reason and the message.
fn reduced_mig(mig: MigStatus) -> MigStatus {
    let MigStatus {
        phase, reason, message, ..
    } = mig;
    let needs_help = matches!(phase, MigPhase::Blocked | MigPhase::Failed | MigPhase::RebootRequired);
    MigStatus {
        phase,
        reason: reason.filter(|_| needs_help),
        message: message.filter(|_| needs_help),
        ..MigStatus::default()
    }
}

/// Replaces UUIDs of GPUs by their places where they only say which devices of the resources are which GPUs, so that
/// nodes with equal GPUs have equal statuses. Configurations may select MIG devices by UUID; evictions, devices that wait
/// for their change, and GPUs that cannot get their layout, name the device.
fn number_devices(status: &mut GpuNodeStatus) {
    let is_blocked = |gpu: &GpuDevice| gpu.mig.as_ref().is_some_and(|mig| mig.phase == MigPhase::Blocked);
    let has_names = |gpu: &GpuDevice| !gpu.mig_devices.is_empty() || is_blocked(gpu);
    let are_named = !status.holders.is_empty() || status.waiting.iter().any(|waiting| waiting.switches);
    if status.gpus.iter().any(has_names) || are_named {
        return;
    }
    let mut places = HashMap::new();
    for (gpu, place) in status.gpus.iter_mut().zip(0_u32..) {
        let place = place.to_string();
        let uuid = std::mem::replace(&mut gpu.uuid, place.clone());
        places.insert(uuid, place);
    }
    let devices = status.resources.iter_mut().flat_map(|resource| &mut resource.devices);
    for advertised in devices {
        if let Some(place) = places.get(&advertised.device) {
            advertised.device.clone_from(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn gpu(node: &str, index: u32, health: &Value) -> Value {
        // Boards of one product have several PCI ids.
        let pci_device_id = if node == "a" { "0x1DB510DE" } else { "0x1DB810DE" };
        json!({"index": index, "uuid": format!("GPU-{node}-{index}"), "product": "Tesla-V100-SXM2-32GB", "memoryMiB": 32768,
            "pciBusId": format!("0000:{index:02x}:00.0"), "pciDeviceId": pci_device_id, "health": health,
            "links": [{"peer": 0, "level": "SYS"}]})
    }

    fn facts(node: &str, gpus: &[Value]) -> GpuNodeFacts {
        GpuNodeFacts::of(serde_json::from_value(object(node, gpus)).unwrap())
    }

    fn object(node: &str, gpus: &[Value]) -> Value {
        let condition = |(of, status): (&str, &str)| {
            let changed = "1970-01-01T00:00:00Z";
            json!({"type": of, "status": status, "reason": "R", "message": "m", "lastTransitionTime": changed})
        };
        let conditions = [
            ("Ready", "True"),
            ("Registered", "True"),
            ("DriverAvailable", "False"),
            ("Conflict", "True"),
        ];
        let device = |gpu: &Value| json!({"device": gpu["uuid"], "shares": 4, "healthy": 4});
        let devices: Vec<_> = gpus.iter().map(device).collect();
        let holder = |gpu: &Value| {
            json!({"namespace": "ml", "pod": node, "container": "c", "resource": "nvidia.com/gpu", "device": gpu["uuid"],
                "count": 1})
        };
        let status = json!({
            "agent": {"pod": node, "podUid": node, "mode": "DevicePlugin", "version": "1", "configVersions": [1]},
            "hardware": "1 x T4", "inUse": "nvidia.com/gpu 1/8", "heldBy": format!("ml/{node}"), "configHash": "h",
            "gpus": gpus, "conditions": conditions.map(condition), "holders": gpus.iter().map(holder).collect::<Vec<_>>(),
            "resources": [{"name": "nvidia.com/gpu", "capacity": 8, "allocatable": 8, "registered": true, "devices": devices}],
        });
        json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": node, "uid": node, "resourceVersion": "7"},
            "spec": {"config": {"policy": "p", "version": 1, "hash": "h", "document": "{}"}}, "status": status})
    }

    #[test]
    fn healthy_nodes_of_one_kind_share_spec_and_status() {
        let healthy = json!({"state": "Healthy", "since": "2026-01-01T00:00:00Z"});
        let of = |node: &str| {
            facts(
                node,
                &[gpu(node, 0, &healthy), gpu(node, 1, &json!({"state": "Healthy"}))],
            )
        };
        let (one, other) = (of("a"), of("b"));
        assert!(Arc::ptr_eq(&one.spec, &other.spec));
        assert!(Arc::ptr_eq(
            one.status.as_ref().unwrap(),
            other.status.as_ref().unwrap()
        ));
        let status = one.status().unwrap();
        assert_eq!(
            (
                status.gpus[1].uuid.as_str(),
                status.resources[0].devices[1].device.as_str()
            ),
            ("1", "1")
        );
        assert!(status.holders.is_empty());
    }

    #[test]
    fn nodes_that_differ_in_their_steps_alone_share_spec_and_status() {
        let of = |second: u8, finished: u8| {
            let time = |second: u8| format!("2026-01-01T00:00:{second:02}Z");
            let mut object = object("a", &[]);
            object["spec"]["step"] = json!({"startedAt": time(second), "generation": 1});
            object["status"]["finishedStep"] = json!(time(finished));
            GpuNodeFacts::of(serde_json::from_value(object).unwrap())
        };
        let (one, other) = (of(1, 1), of(2, 1));
        assert!(Arc::ptr_eq(&one.spec, &other.spec));
        assert!(Arc::ptr_eq(
            one.status.as_ref().unwrap(),
            other.status.as_ref().unwrap()
        ));
        assert!(one.unfinished_step().is_none() && one.finished_step_start().is_some());
        assert!(other.unfinished_step().is_some() && other.finished_step_start().is_none());
        let finished = of(2, 2);
        assert!(!other.is_same_but_version(&finished) && !finished.is_same_but_version(&of(3, 2)));
        assert!(finished.is_same_but_version(&of(2, 2)));
    }

    #[test]
    fn nodes_that_differ_in_their_changes_alone_share_spec_and_status() {
        let of = |second: u8, finished: u8| {
            let time = |second: u8| format!("2026-01-01T00:00:{second:02}Z");
            let mut object = object("a", &[]);
            object["spec"]["change"] = json!({"state": "Approved", "hash": "h", "since": time(second)});
            object["status"]["finishedChange"] = json!(time(finished));
            GpuNodeFacts::of(serde_json::from_value(object).unwrap())
        };
        let (one, other) = (of(1, 1), of(2, 1));
        assert!(Arc::ptr_eq(&one.spec, &other.spec));
        assert!(Arc::ptr_eq(
            one.status.as_ref().unwrap(),
            other.status.as_ref().unwrap()
        ));
        assert!(one.unfinished_approval().is_none() && one.finished_change_start().is_some());
        assert!(other.unfinished_approval().is_some() && other.finished_change_start().is_none());
        let finished = of(2, 2);
        assert!(!other.is_same_but_version(&finished) && !finished.is_same_but_version(&of(3, 2)));
    }

    #[test]
    fn gpu_that_cannot_get_its_layout_keeps_its_name_reason_and_message() {
        let with = |phase: &str, uuid: &str| {
            let mut gpu = gpu("a", 0, &json!({"state": "Healthy"}));
            gpu["uuid"] = json!(uuid);
            gpu["mig"] = json!({"wanted": "1g.10gb:7", "observed": "off", "phase": phase, "reason": "InUse", "message": "m",
                "since": "2026-01-01T00:00:00Z", "attempts": 2});
            let mut object = object("a", &[gpu]);
            object["status"]["holders"] = json!([]);
            GpuNodeFacts::of(serde_json::from_value(object).unwrap())
        };
        let kept = |phase: &str| with(phase, "GPU-0").status().unwrap().gpus[0].clone();
        for (phase, uuid, message) in [
            ("Blocked", "GPU-0", Some("m")),
            ("Failed", "0", Some("m")),
            ("RebootRequired", "0", Some("m")),
            ("Waiting", "0", None),
        ] {
            let gpu = kept(phase);
            let mig = gpu.mig.unwrap();
            let told = (gpu.uuid.as_str(), mig.phase.as_str(), mig.message.as_deref());
            assert_eq!(told, (uuid, phase, message));
            assert!(mig.wanted.is_empty() && mig.since.is_none() && mig.attempts == 0);
            assert_eq!(mig.reason.is_some(), message.is_some());
        }
        let (one, other) = (with("AwaitingApproval", "GPU-0"), with("AwaitingApproval", "GPU-9"));
        assert!(Arc::ptr_eq(
            one.status.as_ref().unwrap(),
            other.status.as_ref().unwrap()
        ));
    }

    #[test]
    fn broken_device_keeps_its_name_fault_and_holders() {
        let broken =
            json!({"state": "Unhealthy", "message": "lost", "since": "2026-01-01T00:00:00Z", "action": "reboot"});
        let facts = facts("a", &[gpu("a", 0, &broken), gpu("a", 1, &json!({"state": "Healthy"}))]);
        let status = facts.status().unwrap();
        let health = status.gpus[0].health.clone().unwrap();
        assert!(health.message.as_deref() == Some("lost") && health.since.is_some() && health.action.is_none());
        let devices: Vec<_> = status.holders.iter().map(|holder| holder.device.as_str()).collect();
        assert_eq!((devices, status.gpus[1].uuid.as_str()), (vec!["GPU-a-0"], "GPU-a-1"));
    }

    #[test]
    fn conditions_are_kept_as_far_as_the_planner_reads_them() {
        let facts = facts("a", &[]);
        let kept: Vec<_> = facts
            .conditions
            .iter()
            .map(|condition| (condition.type_.as_str(), condition.message.as_str()))
            .collect();
        assert_eq!(kept, [("Ready", ""), ("DriverAvailable", "m"), ("Conflict", "m")]);
    }
}
