//! The pod of an agent. It depends on the image, on the agent's component and on options of the whole installation alone.
//!
//! It spells out every default that the API server would fill in, so that live and desired specs compare as a whole.

use crate::{input::facts::NodeFacts, output::host_paths::HostPaths};
use gpunode_crds::{GOVERNED_LABEL, MPS_LABEL, policy_label};
use k8s_openapi::{
    api::core::v1::{
        Affinity, Container, EnvVar, EnvVarSource, HTTPGetAction, HostPathVolumeSource, NodeAffinity, NodeSelector,
        NodeSelectorRequirement, NodeSelectorTerm, ObjectFieldSelector, PodSecurityContext, PodSpec, Probe,
        ResourceRequirements, SecurityContext, Toleration, Volume, VolumeMount,
    },
    apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString},
};
use std::collections::BTreeMap;

const SERVICE_ACCOUNT: &str = "gpunode-agent";
const CONTAINER: &str = "agent";
/// Field with the pod's policy: its own label [`crate::names::POLICY_NAME_LABEL`].
const POLICY_FIELD: &str = "metadata.labels['gpunode.dev/policy']";
/// Port of the agent's `--admin-address`.
const ADMIN_PORT: i32 = 8081;
/// Folder in which the kubelet listens for device plugins; a constant of the kubelet, whatever its `--root-dir`
/// (`k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/constants.go`, `DevicePluginPath`).
const DEVICE_PLUGINS: &str = "/var/lib/kubelet/device-plugins";
/// Folder of the kubelet's pod resources API below its `--root-dir` (`pkg/kubelet/kubelet_getters.go`, `getPodResourcesDir`).
const POD_RESOURCES: &str = "pod-resources";
/// Folder in which container runtimes look for CDI files that do not outlive a boot (CDI, `SPEC.md`).
const CDI: &str = "/var/run/cdi";
/// Folder of the agent's state on a node.
const STATE: &str = "/var/lib/gpunode";
/// Folder in which MPS daemons and their clients meet; gone after a reboot, as they are.
const RUN: &str = "/run/gpunode";

/// Label of the nodes on which agents run.
const OS: (&str, &str) = ("kubernetes.io/os", "linux");
/// Labels of nodes on which none runs: those of a virtual kubelet, and those of AWS Fargate.
const VIRTUAL: (&str, &str) = ("type", "virtual-kubelet");
const FARGATE: (&str, &str) = ("eks.amazonaws.com/compute-type", "fargate");

/// Component that an agent runs as.
#[derive(Clone, Copy)]
pub enum AgentComponent<'a> {
    /// Reports hardware.
    Discovery,
    /// Runs the device plugin for a policy.
    DevicePlugin {
        /// Name of the policy.
        policy: &'a str,
    },
    /// Runs MPS control daemons.
    Mps,
}

struct HostMount {
    name: &'static str,
    path: String,
    at: String,
    type_: &'static str,
    read_only: bool,
}

/// Returns the pod of an agent.
pub fn agent_pod(image: &str, paths: &HostPaths, component: AgentComponent<'_>) -> PodSpec {
    let mounts = mounts(paths, component);
    let labelled = |label: String| Some(BTreeMap::from([(label, "true".to_owned())]));
    let node_selector = match component {
        AgentComponent::Discovery => None,
        AgentComponent::DevicePlugin { policy } => labelled(policy_label(policy)),
        AgentComponent::Mps => labelled(MPS_LABEL.to_owned()),
    };
    let is_mps = matches!(component, AgentComponent::Mps);
    PodSpec {
        containers: vec![container(image, paths, component, &mounts)],
        volumes: Some(mounts.iter().map(HostMount::volume).collect()),
        node_selector,
        affinity: Some(node_affinity(matches!(component, AgentComponent::Discovery))),
        // GPU nodes have taints of their own, and an agent must stay where somebody adds one.
        tolerations: Some(vec![Toleration {
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        }]),
        priority_class_name: Some("system-node-critical".to_owned()),
        service_account_name: Some(SERVICE_ACCOUNT.to_owned()),
        service_account: Some(SERVICE_ACCOUNT.to_owned()),
        // It needs nothing from the API server, and a long-lived privileged pod is no place for a token.
        automount_service_account_token: is_mps.then_some(false),
        // As in NVIDIA's DaemonSet of MPS daemons: a server needs the process ids of its clients in other pods. The driver lists
        // only processes of the caller's PID namespace, and the device plugin's agent reports those that took a GPU.
        host_pid: (!matches!(component, AgentComponent::Discovery)).then_some(true),
        // Gives daemons time while their clients are still there.
        termination_grace_period_seconds: Some(if is_mps { 30 } else { 5 }),
        restart_policy: Some("Always".to_owned()),
        dns_policy: Some("ClusterFirst".to_owned()),
        scheduler_name: Some("default-scheduler".to_owned()),
        security_context: Some(PodSecurityContext::default()),
        ..PodSpec::default()
    }
}

fn container(image: &str, paths: &HostPaths, component: AgentComponent<'_>, mounts: &[HostMount]) -> Container {
    let command = match component {
        AgentComponent::Discovery => "discover",
        AgentComponent::DevicePlugin { .. } => "run",
        AgentComponent::Mps => "mps",
    };
    let is_mps = matches!(component, AgentComponent::Mps);
    let env = [
        ("NODE_NAME", "spec.nodeName"),
        ("POD_NAME", "metadata.name"),
        ("POD_UID", "metadata.uid"),
    ];
    // The supervisor of MPS daemons reports on no node.
    let env = env.into_iter().filter(|(name, _)| !is_mps || *name == "POD_UID");
    let policy = matches!(component, AgentComponent::DevicePlugin { .. }).then_some(("POLICY_NAME", POLICY_FIELD));
    let env = env.chain(policy);
    let requests = [("cpu", "10m"), ("memory", "32Mi")];
    Container {
        name: CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        args: Some(vec![command.to_owned()]),
        env: Some(
            env.map(|(name, field)| field_env(name, field))
                .chain(paths.variables())
                .collect(),
        ),
        resources: Some(ResourceRequirements {
            requests: Some(
                requests
                    .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
                    .into(),
            ),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            // It opens the host's /dev/nvidia*, which the device cgroup allows to privileged containers alone where
            // NVIDIA's container runtime is not there to allow them one by one.
            privileged: Some(true),
            read_only_root_filesystem: Some(true),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts.iter().map(HostMount::volume_mount).collect()),
        // The end of the container is the end of every client's CUDA context: worse than a supervisor that hangs, whose
        // devices the agent takes back by itself.
        liveness_probe: (!is_mps).then(|| probe("/livez", 10)),
        // A pod that is not Ready is replaced without waiting for the next one: it is to be Ready as soon as it serves.
        readiness_probe: Some(probe("/readyz", 1)),
        termination_message_path: Some("/dev/termination-log".to_owned()),
        termination_message_policy: Some("File".to_owned()),
        ..Container::default()
    }
}

impl HostMount {
    fn propagation(&self) -> Option<&'static str> {
        match self.read_only {
            // Shows later mounts of a driver container or the MPS pod, and blocks no unmount.
            true => Some("HostToContainer"),
            // The MPS pod mounts file systems there that the kubelet gives to clients; they outlive the pod.
            false if self.path == RUN => Some("Bidirectional"),
            false => None,
        }
    }

    fn volume(&self) -> Volume {
        Volume {
            name: self.name.to_owned(),
            host_path: Some(HostPathVolumeSource {
                path: self.path.clone(),
                type_: Some(self.type_.to_owned()),
            }),
            ..Volume::default()
        }
    }

    fn volume_mount(&self) -> VolumeMount {
        VolumeMount {
            name: self.name.to_owned(),
            mount_path: self.at.clone(),
            read_only: self.read_only.then_some(true),
            mount_propagation: self.propagation().map(str::to_owned),
            ..VolumeMount::default()
        }
    }
}

fn field_env(name: &str, field: &str) -> EnvVar {
    let field_ref = ObjectFieldSelector {
        api_version: Some("v1".to_owned()),
        field_path: field.to_owned(),
    };
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(field_ref),
            ..EnvVarSource::default()
        }),
        value: None,
    }
}

fn probe(path: &str, period_seconds: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(ADMIN_PORT),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(5),
        success_threshold: Some(1),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}

/// Returns true if discovery runs on a node, by the rules of its affinity.
pub fn runs_discovery(node: &NodeFacts) -> bool {
    let has = |(key, value): (&str, &str)| node.labels.get(key) == Some(value);
    has(OS) && !has(VIRTUAL) && !has(FARGATE) && !node.labels.contains_key(GOVERNED_LABEL)
}

/// Selects Linux nodes that run containers of the host: no virtual nodes, where a DaemonSet's pod waits for ever, and for
/// discovery none that a policy governs.
fn node_affinity(is_discovery: bool) -> Affinity {
    let requirement = |key: &str, operator: &str, values: &[&str]| NodeSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: (!values.is_empty()).then(|| values.iter().map(|value| (*value).to_owned()).collect()),
    };
    let mut requirements = vec![
        requirement(OS.0, "In", &[OS.1]),
        requirement(VIRTUAL.0, "NotIn", &[VIRTUAL.1]),
        requirement(FARGATE.0, "NotIn", &[FARGATE.1]),
    ];
    if is_discovery {
        requirements.push(requirement(GOVERNED_LABEL, "DoesNotExist", &[]));
    }
    let term = NodeSelectorTerm {
        match_expressions: Some(requirements),
        match_fields: None,
    };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            preferred_during_scheduling_ignored_during_execution: None,
        }),
        ..Affinity::default()
    }
}

/// Returns the mounts of a component. Only the device plugin talks to the kubelet. Its agents and discovery write state and the
/// CDI file on the node. All see who holds which device, since no device in use may change. The MPS daemons get the folder that
/// their clients mount. The driver is below the host's root, wherever it is.
fn mounts(paths: &HostPaths, component: AgentComponent<'_>) -> Vec<HostMount> {
    let (is_plugin, is_mps) = (
        matches!(component, AgentComponent::DevicePlugin { .. }),
        matches!(component, AgentComponent::Mps),
    );
    let mount = |name, path: &str, type_, read_only| HostMount {
        name,
        path: path.to_owned(),
        at: path.to_owned(),
        type_,
        read_only,
    };
    let host = HostMount {
        at: "/host".to_owned(),
        ..mount("host", "/", "", true)
    };
    // Discovery reads the kubelet's checkpoint of device holders there.
    let plugins = mount("device-plugins", DEVICE_PLUGINS, "Directory", !is_plugin);
    let state = mount("state", STATE, "DirectoryOrCreate", is_mps);
    let folder = paths.kubelet_root.as_path().join(POD_RESOURCES).display().to_string();
    let pod_resources = mount("pod-resources", &folder, "Directory", true);
    let mps = mount("mps", RUN, "DirectoryOrCreate", !is_mps);
    let cdi = mount("cdi", CDI, "DirectoryOrCreate", false);
    let all = [host, plugins, state, pod_resources, mps, cdi];
    all.into_iter()
        .filter(|mount| !(is_mps && ["device-plugins", "cdi"].contains(&mount.name)))
        .collect()
}
