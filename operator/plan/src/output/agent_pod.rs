//! The pod of an agent. It depends on the image and on what the agent does, and on nothing else.
//!
//! Every default that the API server would fill in is written out (`daemonset` says why).

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
/// Where a pod reads its policy: `daemonset::POLICY_NAME_LABEL` on itself.
const POLICY_FIELD: &str = "metadata.labels['gpunode.dev/policy']";
/// Port of the agent's `--admin-address`.
const ADMIN_PORT: i32 = 8081;
/// Where the kubelet listens for device plugins; a constant of the kubelet.
const DEVICE_PLUGINS: &str = "/var/lib/kubelet/device-plugins";
/// Where the kubelet answers who holds what; a constant of the kubelet below its folder.
const POD_RESOURCES: &str = "/var/lib/kubelet/pod-resources";
/// Where an agent keeps its state on a node.
const STATE: &str = "/var/lib/gpunode";
/// Where MPS control daemons and their clients meet; gone after a reboot, as they are.
const RUN: &str = "/run/gpunode";

/// What an agent does.
#[derive(Clone, Copy)]
pub enum Component<'a> {
    /// It reports hardware.
    Discovery,
    /// It runs the device plugin for a policy.
    DevicePlugin {
        /// Name of the policy.
        policy: &'a str,
    },
    /// It runs MPS control daemons.
    Mps,
}

struct Mount {
    name: &'static str,
    path: &'static str,
    at: &'static str,
    type_: &'static str,
    read_only: bool,
}

/// The pod of an agent.
pub fn agent_pod(image: &str, component: Component<'_>) -> PodSpec {
    let mounts = mounts(component);
    let labelled = |label: String| Some(BTreeMap::from([(label, "true".to_owned())]));
    let (node_selector, affinity) = match component {
        Component::Discovery => (None, Some(discovery_affinity())),
        Component::DevicePlugin { policy } => (labelled(policy_label(policy)), None),
        Component::Mps => (labelled(MPS_LABEL.to_owned()), None),
    };
    let is_mps = matches!(component, Component::Mps);
    PodSpec {
        containers: vec![container(image, component, &mounts)],
        volumes: Some(mounts.iter().map(Mount::volume).collect()),
        node_selector,
        affinity,
        // GPU nodes carry taints of their own, and an agent must stay where one is added.
        tolerations: Some(vec![Toleration {
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        }]),
        priority_class_name: Some("system-node-critical".to_owned()),
        service_account_name: Some(SERVICE_ACCOUNT.to_owned()),
        service_account: Some(SERVICE_ACCOUNT.to_owned()),
        // It asks nothing of the API server, and a privileged pod that lives long is no place for a token.
        automount_service_account_token: is_mps.then_some(false),
        // NVIDIA's DaemonSet of MPS daemons has it: a server learns the process ids of its clients, which are in other pods.
        host_pid: is_mps.then_some(true),
        // Daemons whose clients are still there are given that long.
        termination_grace_period_seconds: Some(if is_mps { 30 } else { 5 }),
        restart_policy: Some("Always".to_owned()),
        dns_policy: Some("ClusterFirst".to_owned()),
        scheduler_name: Some("default-scheduler".to_owned()),
        security_context: Some(PodSecurityContext::default()),
        ..PodSpec::default()
    }
}

fn container(image: &str, component: Component<'_>, mounts: &[Mount]) -> Container {
    let args = match component {
        Component::Discovery => "discover",
        Component::DevicePlugin { .. } => "run",
        Component::Mps => "mps",
    };
    let is_mps = matches!(component, Component::Mps);
    let env = [
        ("NODE_NAME", "spec.nodeName"),
        ("POD_NAME", "metadata.name"),
        ("POD_UID", "metadata.uid"),
    ];
    // The supervisor of MPS daemons speaks for no node.
    let env = env.into_iter().filter(|(name, _)| !is_mps || *name == "POD_UID");
    let policy = matches!(component, Component::DevicePlugin { .. }).then_some(("POLICY_NAME", POLICY_FIELD));
    let env = env.chain(policy);
    let requests = [("cpu", "10m"), ("memory", "32Mi")];
    Container {
        name: CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        args: Some(vec![args.to_owned()]),
        env: Some(env.map(|(name, field)| field_env(name, field)).collect()),
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
        volume_mounts: Some(mounts.iter().map(Mount::volume_mount).collect()),
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

impl Mount {
    fn propagation(&self) -> Option<&'static str> {
        match self.read_only {
            // What a driver container or the MPS pod mounts later on the host is seen too, and kept from no unmount.
            true => Some("HostToContainer"),
            // The MPS pod mounts file systems there, of which the kubelet gives clients theirs; they outlive the pod.
            false if self.path == RUN => Some("Bidirectional"),
            false => None,
        }
    }

    fn volume(&self) -> Volume {
        Volume {
            name: self.name.to_owned(),
            host_path: Some(HostPathVolumeSource {
                path: self.path.to_owned(),
                type_: Some(self.type_.to_owned()),
            }),
            ..Volume::default()
        }
    }

    fn volume_mount(&self) -> VolumeMount {
        VolumeMount {
            name: self.name.to_owned(),
            mount_path: self.at.to_owned(),
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

/// Linux nodes that run containers and that no device plugin of ours governs.
fn discovery_affinity() -> Affinity {
    let requirement = |key: &str, operator: &str, values: &[&str]| NodeSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: (!values.is_empty()).then(|| values.iter().map(|value| (*value).to_owned()).collect()),
    };
    let term = NodeSelectorTerm {
        match_expressions: Some(vec![
            requirement("kubernetes.io/os", "In", &["linux"]),
            requirement(GOVERNED_LABEL, "DoesNotExist", &[]),
            requirement("type", "NotIn", &["virtual-kubelet"]),
        ]),
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

/// Only the device plugin talks to the kubelet, and only its agents write what is kept on the node. All see who holds what,
/// since nothing that is held may change. The MPS daemons get the folder that their clients mount.
fn mounts(component: Component<'_>) -> Vec<Mount> {
    let (is_plugin, is_mps) = (
        matches!(component, Component::DevicePlugin { .. }),
        matches!(component, Component::Mps),
    );
    let mount = |name, path, type_, read_only| Mount {
        name,
        path,
        at: path,
        type_,
        read_only,
    };
    let host = Mount {
        name: "host",
        path: "/",
        at: "/host",
        type_: "",
        read_only: true,
    };
    // The kubelet's memory of who holds what lies there too, which discovery reads.
    let plugins = mount("device-plugins", DEVICE_PLUGINS, "Directory", !is_plugin);
    let state = mount("state", STATE, "DirectoryOrCreate", is_mps);
    let pod_resources = mount("pod-resources", POD_RESOURCES, "Directory", true);
    let mps = mount("mps", RUN, "DirectoryOrCreate", !is_mps);
    let all = [host, plugins, state, pod_resources, mps];
    all.into_iter()
        .filter(|mount| !(is_mps && mount.name == "device-plugins"))
        .collect()
}
