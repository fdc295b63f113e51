//! Diagnosis of a node: findings about driver, GPUs, container runtime and neighbours, the worst first, each with what to do.
//!
//! `gpunode-agent inspect` makes them on the node and `kubectl gpunode doctor` from afar, both from a `GpuNode` status.
//!
//! | module | what it does |
//! |---|---|
//! | `text` | findings as a table of a limited width |

mod text;

pub use text::findings_table;

use crate::injection::{GpuInjection, InjectionObstacle, InjectionWays, injection, runtime_name};
use gpunode_crds::{
    CdiMode, ConditionType, DRA_DRIVER, EVERY_GPU_ANSWERS, GpuDevice, GpuNodeStatus, HealthState, Reason,
    RuntimeStatus, SelinuxMode, named, plural,
};
use serde::Serialize;

/// Maximum number of names in a message.
const MAX_NAMED: usize = 3;

/// Weight of a finding, the heaviest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FindingSeverity {
    /// Pods get no GPU.
    NoGpu,
    /// Some pods, or some GPUs, are affected.
    Warning,
    /// The agent cannot tell.
    Unknown,
    /// Nothing to do.
    #[serde(rename = "ok")]
    Fine,
}

impl FindingSeverity {
    /// Returns the word in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::NoGpu => "no GPU",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Fine => "ok",
        }
    }
}

/// A statement about a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Weight.
    pub severity: FindingSeverity,
    /// Part of the node, such as `driver`.
    pub subject: &'static str,
    /// Reason in one word for programs; the same for the same problem of several nodes.
    pub reason: &'static str,
    /// Sentence for people.
    pub message: String,
    /// Next step, if there is something to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
}

/// Facts beside the status of a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeSurroundings<'a> {
    /// Ways into a container that the configuration uses.
    pub ways: InjectionWays,
    /// Name and handler of each RuntimeClass of the cluster; none if they are unknown.
    pub runtime_classes: Option<&'a [(String, String)]>,
    /// Number of GPUs that have not joined their NVLink fabric.
    pub outside_fabric: usize,
    /// File names of the sockets of other device plugins.
    pub other_plugins: &'a [String],
    /// Names of the DRA drivers on the node.
    pub dra_drivers: &'a [String],
}

/// Returns the findings about a node, the worst first.
pub fn diagnose(status: &GpuNodeStatus, surroundings: &NodeSurroundings<'_>) -> Vec<Finding> {
    let mut findings = driver(status);
    findings.extend(gpus(status));
    findings.extend(fabric(status, surroundings.outside_fabric));
    findings.push(containers(status.runtime.as_ref(), surroundings));
    let runtime = status.runtime.as_ref();
    findings.extend(runtime.and_then(|runtime| left_out(runtime, surroundings.ways)));
    // A mode that nobody could read is not off.
    let known = |runtime: &&RuntimeStatus| runtime.selinux.is_some() || runtime.problem.is_none();
    findings.extend(status.runtime.as_ref().filter(known).map(selinux));
    findings.extend(policy(status));
    findings.extend(neighbours(status, surroundings));
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Returns true if the findings mean that pods get no GPU.
pub fn is_without_gpus(findings: &[Finding]) -> bool {
    findings
        .iter()
        .any(|finding| finding.severity == FindingSeverity::NoGpu)
}

impl Finding {
    fn new(severity: FindingSeverity, subject: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            severity,
            subject,
            reason,
            message: message.into(),
            action: None,
        }
    }

    fn with_action(self, action: impl Into<String>) -> Self {
        Self {
            action: Some(action.into()),
            ..self
        }
    }
}

fn driver(status: &GpuNodeStatus) -> Vec<Finding> {
    let subject = "driver";
    let Some(condition) = ConditionType::DriverAvailable.find(&status.conditions) else {
        if status.resources.iter().any(|resource| resource.companion) {
            let message = "the node has no NVIDIA GPU, and needs none for its companions";
            return vec![Finding::new(FindingSeverity::Fine, subject, "CompanionsAlone", message)];
        }
        let missing = Finding::new(FindingSeverity::NoGpu, subject, "NoGpus", "the node has no NVIDIA GPU");
        return vec![missing.with_action("check the machine with `lspci -d 10de:`")];
    };
    if condition.status == "False" {
        let released = condition.reason == Reason::Released.as_str();
        let (severity, reason) = if released {
            (FindingSeverity::Warning, "Released")
        } else {
            (FindingSeverity::NoGpu, "DriverUnavailable")
        };
        return vec![Finding::new(severity, subject, reason, condition.message.clone())];
    }
    let version = status.driver_version.as_deref().unwrap_or("of unknown version");
    let cuda = status.cuda_version.as_ref().map(|cuda| format!(", CUDA {cuda}"));
    let root = status.runtime.as_ref().and_then(|runtime| runtime.driver_root.as_ref());
    let root = root.map(|root| format!(", root {root}"));
    let message = format!("{version}{}{}", cuda.unwrap_or_default(), root.unwrap_or_default());
    let answers = Finding::new(FindingSeverity::Fine, subject, "DriverAnswers", message);
    let silent = (condition.message != EVERY_GPU_ANSWERS).then(|| silent_gpus(&condition.message));
    [Some(answers), silent].into_iter().flatten().collect()
}

fn gpus(status: &GpuNodeStatus) -> Vec<Finding> {
    let subject = "GPUs";
    let is_unhealthy = |gpu: &&GpuDevice| {
        let state = gpu.health.as_ref().map(|health| health.state);
        state == Some(HealthState::Unhealthy) || gpu.missing_since.is_some()
    };
    let unhealthy: Vec<&GpuDevice> = status.gpus.iter().filter(is_unhealthy).collect();
    let summary = status
        .hardware
        .clone()
        .unwrap_or_else(|| plural(status.gpus.len(), "GPU", "GPUs"));
    if unhealthy.is_empty() {
        let found = (!status.gpus.is_empty()).then(|| Finding::new(FindingSeverity::Fine, subject, "Healthy", summary));
        return found.into_iter().collect();
    }
    let names = unhealthy.iter().map(|gpu| {
        let message = gpu.health.as_ref().and_then(|health| health.message.as_deref());
        format!("GPU {} ({})", gpu.index, message.unwrap_or("missing"))
    });
    let severity = if unhealthy.len() == status.gpus.len() {
        FindingSeverity::NoGpu
    } else {
        FindingSeverity::Warning
    };
    let message = format!("{summary}; unhealthy: {}", named(names, MAX_NAMED));
    let repair = unhealthy.iter().find_map(|gpu| gpu.health.as_ref()?.action.clone());
    let action = repair.unwrap_or_else(|| "see docs/health.md".to_owned());
    vec![Finding::new(severity, subject, "GpusUnhealthy", message).with_action(action)]
}

fn silent_gpus(reasons: &str) -> Finding {
    let found = Finding::new(FindingSeverity::Warning, "GPUs", "GpusSilent", reasons);
    found.with_action("see `dmesg` for the GPU's XID, and docs/health.md for what it means")
}

fn fabric(status: &GpuNodeStatus, outside: usize) -> Vec<Finding> {
    let subject = "fabric";
    if outside > 0 {
        let severity = if outside == status.gpus.len() {
            FindingSeverity::NoGpu
        } else {
            FindingSeverity::Warning
        };
        let gpus = plural(outside, "GPU has", "GPUs have");
        let message = format!("{gpus} not joined the NVLink fabric; CUDA fails there with error 802");
        let found = Finding::new(severity, subject, "FabricIncomplete", message);
        return vec![found.with_action("see that nvidia-fabricmanager runs, and look at its log")];
    }
    let place = status.gpus.iter().find_map(|gpu| gpu.fabric.as_ref());
    let found = place.map(|place| {
        let message = format!("clique {} of NVLink fabric {}", place.clique_id, place.cluster_uuid);
        Finding::new(FindingSeverity::Fine, subject, "FabricComplete", message)
    });
    found.into_iter().collect()
}

fn containers(runtime: Option<&RuntimeStatus>, surroundings: &NodeSurroundings<'_>) -> Finding {
    let subject = "containers";
    let unreported = RuntimeStatus::default();
    let told = runtime.unwrap_or(&unreported);
    let name = runtime_name(told);
    let ways = surroundings.ways;
    match injection(ways, runtime) {
        GpuInjection::Cdi => {
            let message = format!("{name} with CDI{}", default_handler(told));
            Finding::new(FindingSeverity::Fine, subject, "Cdi", message)
        }
        GpuInjection::DefaultHandler(handler) => {
            let cdi = match told.cdi {
                Some(CdiMode::Enabled) => "CDI on",
                Some(CdiMode::Disabled) => "CDI off",
                None => "CDI unknown",
            };
            let message = format!("{name}, {cdi}; default handler {handler} runs NVIDIA's container runtime");
            Finding::new(FindingSeverity::Fine, subject, "NvidiaRuntime", message)
        }
        GpuInjection::NamedHandlers(handlers) => named_handlers(&name, &handlers, surroundings.runtime_classes),
        GpuInjection::Impossible(obstacle) => {
            let reason = match obstacle {
                InjectionObstacle::CdiDisabled => "CdiDisabled",
                InjectionObstacle::CdiDirMissing => "CdiDirMissing",
                InjectionObstacle::CdiFileMissing => "CdiFileMissing",
                InjectionObstacle::EnvvarRefused => "EnvvarRefused",
                InjectionObstacle::NvidiaRuntimeMissing => "NvidiaRuntimeMissing",
            };
            let found = Finding::new(FindingSeverity::NoGpu, subject, reason, obstacle.message(ways, told));
            found.with_action(obstacle.action(ways, told))
        }
        GpuInjection::Unknown(reason) => {
            let found = Finding::new(FindingSeverity::Unknown, subject, "RuntimeUnknown", reason);
            found.with_action("look at CDI and at the handlers yourself with `crictl info` on the node")
        }
    }
}

/// Returns the finding about devices that containers cannot get by CDI while they get others.
fn left_out(runtime: &RuntimeStatus, ways: InjectionWays) -> Option<Finding> {
    let default = runtime.default_handler.as_ref();
    let is_default = default.is_some_and(|default| runtime.nvidia_handlers.contains(default));
    // NVIDIA's container runtime adds these by the variable or the mounts.
    let is_added = is_default && ways.nvidia_runtime && !ways.is_refused(runtime);
    let devices = runtime.cdi_left_out.as_ref().filter(|_| !is_added)?;
    let message = format!("gpunode's CDI file does not describe every device: {devices}");
    let found = Finding::new(FindingSeverity::Warning, "containers", "CdiFileIncomplete", message);
    Some(found.with_action("resolve it: only NVIDIA's container runtime gives these devices to containers"))
}

/// Judges a runtime whose handlers for GPUs must be named: a RuntimeClass has to exist, and pods have to name it.
fn named_handlers(runtime: &str, handlers: &[String], classes: Option<&[(String, String)]>) -> Finding {
    let subject = "containers";
    let handler = named(handlers, MAX_NAMED);
    let cdi = "switch CDI on in the container runtime, or make it the default handler";
    let Some(classes) = classes else {
        let message = format!("{runtime}: only pods whose RuntimeClass has handler {handler} get GPUs");
        return Finding::new(FindingSeverity::Warning, subject, "RuntimeClassNeeded", message).with_action(cdi);
    };
    let matching = classes.iter().filter(|(_, handler)| handlers.contains(handler));
    let matching: Vec<&str> = matching.map(|(name, _)| name.as_str()).collect();
    if matching.is_empty() {
        let message = format!(
            "{runtime}: only pods whose RuntimeClass has handler {handler} get GPUs, and the cluster has no such RuntimeClass"
        );
        let action = format!("create a RuntimeClass with handler {handler}, or {cdi}");
        return Finding::new(FindingSeverity::NoGpu, subject, "RuntimeClassMissing", message).with_action(action);
    }
    let message = format!(
        "{runtime}: only pods with RuntimeClass {} get GPUs",
        named(matching, MAX_NAMED)
    );
    let action = format!("set `runtimeClassName` in pods that request GPUs, or {cdi}");
    Finding::new(FindingSeverity::Warning, subject, "RuntimeClassNeeded", message).with_action(action)
}

fn default_handler(runtime: &RuntimeStatus) -> String {
    let default = runtime.default_handler.as_ref();
    default
        .map(|default| format!(", default handler {default}"))
        .unwrap_or_default()
}

fn selinux(runtime: &RuntimeStatus) -> Finding {
    let subject = "SELinux";
    match runtime.selinux {
        Some(SelinuxMode::Enforcing) => {
            let message = "enforcing; gpunode cannot tell if its policy lets containers open the GPUs";
            let found = Finding::new(FindingSeverity::Unknown, subject, "SelinuxEnforcing", message);
            found.with_action("if a container cannot open a GPU, look for denials with `ausearch -m avc -ts recent`")
        }
        Some(SelinuxMode::Permissive) => {
            Finding::new(FindingSeverity::Fine, subject, "SelinuxPermissive", "permissive")
        }
        None => Finding::new(FindingSeverity::Fine, subject, "SelinuxOff", "off"),
    }
}

/// Returns the conditions of the device plugin that do not hold; one of another plugin's resource is among the neighbours.
fn policy(status: &GpuNodeStatus) -> Vec<Finding> {
    let of_plugin = [
        (
            ConditionType::ConfigurationAccepted,
            "ConfigurationRejected",
            "correct `spec.devicePlugin` of the policy",
        ),
        (
            ConditionType::Registered,
            "NotRegistered",
            "if it stays so, look at the logs of the kubelet and of the agent on the node",
        ),
        (
            ConditionType::DevicesOffered,
            "DevicesWithheld",
            "resolve it, or look at the log of the agent on the node",
        ),
    ];
    let mut resources = status.resources.iter();
    let offers = resources.any(|resource| resource.registered && resource.allocatable > 0);
    let driver = ConditionType::DriverAvailable.find(&status.conditions);
    let is_released = driver.is_some_and(|condition| condition.reason == Reason::Released.as_str());
    let severity = if offers || is_released || status.gpus.is_empty() {
        FindingSeverity::Warning
    } else {
        FindingSeverity::NoGpu
    };
    let elsewhere = [Reason::ServedByAnother, Reason::NoConfiguration].map(Reason::as_str);
    let finding = |(of, reason, action): (ConditionType, &'static str, &'static str)| {
        let condition = of.find(&status.conditions)?;
        let fails = condition.status == "False" && !elsewhere.contains(&condition.reason.as_str());
        let found = fails.then(|| Finding::new(severity, "policy", reason, condition.message.clone()))?;
        Some(found.with_action(action))
    };
    of_plugin.into_iter().filter_map(finding).collect()
}

fn neighbours(status: &GpuNodeStatus, surroundings: &NodeSurroundings<'_>) -> Vec<Finding> {
    let served = ConditionType::ResourceServedByAnother.find(&status.conditions);
    let served = served.filter(|condition| condition.status == "True").map(|condition| {
        let message = condition.message.clone();
        Finding::new(FindingSeverity::Warning, "plugins", "ServedByAnother", message)
    });
    let plugins = (!surroundings.other_plugins.is_empty()).then(|| {
        let names = named(surroundings.other_plugins, MAX_NAMED);
        let is_nvidia = |name: &String| name.contains("nvidia");
        if surroundings.other_plugins.iter().any(is_nvidia) {
            let message = format!("other device plugins have sockets here: {names}");
            let found = Finding::new(FindingSeverity::Warning, "plugins", "OtherGpuPlugin", message);
            found.with_action("remove NVIDIA's device plugin: gpunode does not register a resource that it serves")
        } else {
            Finding::new(
                FindingSeverity::Fine,
                "plugins",
                "OtherPlugins",
                format!("beside gpunode: {names}"),
            )
        }
    });
    let drivers = (!surroundings.dra_drivers.is_empty()).then(|| {
        let names = named(surroundings.dra_drivers, MAX_NAMED);
        if surroundings.dra_drivers.iter().any(|name| name == DRA_DRIVER) {
            let message = format!("{names} allocates the same GPUs, and gpunode gives out none beside it");
            let found = Finding::new(FindingSeverity::Warning, "DRA", "GpusServedByDra", message);
            found.with_action("let one of the two serve the GPUs of this node")
        } else {
            Finding::new(
                FindingSeverity::Fine,
                "DRA",
                "OtherDrivers",
                format!("drivers: {names}"),
            )
        }
    });
    [served, plugins, drivers].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;
