//! The findings about each node, from its last report.

use gpunode_config::load;
use gpunode_crds::{ConditionType, GpuNode, GpuNodeStatus, RuntimeStatus};
use gpunode_gpu::{Finding, FindingSeverity, InjectionWays, NodeSurroundings, diagnose};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;

/// A node with its findings, the worst first.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeExamination {
    /// Name of the node.
    pub node: String,
    pub findings: Vec<Finding>,
    /// True if the node has, or should have, GPUs for pods.
    #[serde(skip)]
    pub has_gpus: bool,
}

/// Examines a node. `classes` are name and handler of each RuntimeClass; none if they are unknown.
pub fn examine(gpu_node: &GpuNode, node: Option<&Node>, classes: Option<&[(String, String)]>) -> NodeExamination {
    let reported = gpu_node.status.clone().unwrap_or_default();
    let has_report = !reported.gpus.is_empty() || ConditionType::DriverAvailable.find(&reported.conditions).is_some();
    if !has_report && reported.agent.is_none() {
        return NodeExamination {
            node: gpu_node.name_any(),
            findings: vec![not_reported()],
            // The operator configured it, and its agent never came up.
            has_gpus: gpu_node.spec.config.is_some(),
        };
    }
    let runtime = reported.runtime.clone().or_else(|| unreported_runtime(node));
    let status = GpuNodeStatus { runtime, ..reported };
    let config = gpu_node.spec.config.as_ref();
    // A document that this version cannot read is one of a newer operator.
    let config = config.and_then(|config| load(&config.document).ok());
    let surroundings = NodeSurroundings {
        ways: config.as_ref().map(InjectionWays::of).unwrap_or_default(),
        runtime_classes: classes,
        ..NodeSurroundings::default()
    };
    let mut findings = diagnose(&status, &surroundings);
    if node.is_some_and(|node| !is_ready(node)) {
        // After the findings that mean no GPU: the report may be old.
        let first = findings.partition_point(|finding| finding.severity == FindingSeverity::NoGpu);
        findings.insert(first, not_ready());
    }
    NodeExamination {
        node: gpu_node.name_any(),
        findings,
        has_gpus: has_report,
    }
}

/// Returns the runtime that the kubelet names, for an agent that does not report it.
fn unreported_runtime(node: Option<&Node>) -> Option<RuntimeStatus> {
    let info = node?.status.as_ref()?.node_info.as_ref()?;
    let (name, version) = info.container_runtime_version.split_once("://")?;
    Some(RuntimeStatus {
        name: Some(name.to_owned()),
        version: Some(version.to_owned()),
        problem: Some(format!("the agent has not reported the settings of {name} {version}")),
        ..RuntimeStatus::default()
    })
}

fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn not_reported() -> Finding {
    Finding {
        severity: FindingSeverity::Unknown,
        subject: "agent",
        reason: "AgentNotReporting",
        message: "no agent has reported the GPUs of this node".to_owned(),
        action: Some(
            "see the pod of the agent on this node with `kubectl -n gpunode-system get pods -o wide`".to_owned(),
        ),
    }
}

fn not_ready() -> Finding {
    Finding {
        severity: FindingSeverity::Warning,
        subject: "node",
        reason: "NodeNotReady",
        message: "the kubelet is not Ready; the findings are those of the last report".to_owned(),
        action: Some("see `kubectl describe node`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn gpu_node(document: &str, runtime: &serde_json::Value) -> GpuNode {
        let condition = json!({"type": "DriverAvailable", "status": "True", "reason": "DriverAnswers", "message": "the driver answers",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let object = json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "a"},
            "spec": {"config": {"policy": "p", "version": 1, "hash": "h", "document": document}},
            "status": {
                "gpus": [{"index": 0, "uuid": "GPU-0", "product": "P", "memoryMiB": 1}],
                "conditions": [condition],
                "runtime": runtime,
            },
        });
        serde_json::from_value(object).expect("a GpuNode")
    }

    fn worst(gpu_node: &GpuNode, node: Option<&Node>) -> (FindingSeverity, &'static str, String) {
        let examined = examine(gpu_node, node, Some(&[]));
        let first = examined.findings.into_iter().next().expect("a finding");
        (first.severity, first.reason, first.message)
    }

    fn node(ready: &str) -> Node {
        let node = json!({"metadata": {"name": "a"}, "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "nodeInfo": {"containerRuntimeVersion": "containerd://2.1.4", "architecture": "", "bootID": "",
                "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "",
                "osImage": "", "systemUUID": ""},
        }});
        serde_json::from_value(node).expect("a Node")
    }

    #[test]
    fn the_configuration_of_the_node_decides_which_ways_count() {
        let cdi = json!({"name": "cri-o", "cdi": "Enabled", "handlers": ["crun"]});
        assert_eq!(worst(&gpu_node("{}", &cdi), None).0, FindingSeverity::Fine);
        let by_variable = gpu_node("{\"deviceListStrategy\": [\"Envvar\"]}", &cdi);
        let (severity, reason, _) = worst(&by_variable, None);
        assert_eq!((severity, reason), (FindingSeverity::NoGpu, "NvidiaRuntimeMissing"));
        // As of a newer operator.
        assert_eq!(worst(&gpu_node("{\"newer\": 1}", &cdi), None).0, FindingSeverity::Fine);
    }

    #[test]
    fn an_agent_that_reports_no_runtime_leaves_it_unknown() {
        let (severity, _, message) = worst(&gpu_node("{}", &serde_json::Value::Null), Some(&node("True")));
        assert_eq!(severity, FindingSeverity::Unknown);
        assert_eq!(message, "the agent has not reported the settings of containerd 2.1.4");
    }

    #[test]
    fn a_node_that_no_agent_reported_is_unknown() {
        let mut unreported = gpu_node("{}", &serde_json::Value::Null);
        unreported.status = None;
        let examined = examine(&unreported, None, None);
        let reasons: Vec<_> = examined.findings.iter().map(|finding| finding.reason).collect();
        assert_eq!((reasons, examined.has_gpus), (vec!["AgentNotReporting"], true));
        unreported.spec.config = None;
        assert!(!examine(&unreported, None, None).has_gpus);
    }

    #[test]
    fn a_node_out_of_reach_is_said_after_what_keeps_gpus_from_pods() {
        let (on, off) = (
            json!({"cdi": "Enabled"}),
            json!({"cdi": "Disabled", "handlers": ["runc"]}),
        );
        let reasons = |runtime| {
            let examined = examine(&gpu_node("{}", runtime), Some(&node("Unknown")), None);
            let reasons = examined.findings.iter().map(|finding| finding.reason);
            reasons.take(2).collect::<Vec<_>>()
        };
        assert_eq!(reasons(&on)[0], "NodeNotReady");
        assert_eq!(reasons(&off), ["CdiDisabled", "NodeNotReady"]);
    }
}
