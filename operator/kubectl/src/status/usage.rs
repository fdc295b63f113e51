//! Reads what containers use from the agents of nodes, through the API server's proxy to their pods.

use super::{node::NodeSummary, node_usage::NodeUsage};
use futures::{AsyncReadExt as _, StreamExt as _, stream};
use gpunode_config::is_dns_subdomain;
use gpunode_crds::{AgentMode, GpuNode, UsageReport};
use kube::{Client, ResourceExt, core::Request};
use std::{io, time::Duration};
use tokio::time::timeout;

/// Port on which agents serve their report.
const PORT: u16 = 8081;
/// Longest wait for one agent.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Agents that are asked at the same time.
const AT_ONCE: usize = 8;
/// Largest report that is read. The largest that an agent sends has half of that.
const MAX_BYTES: u64 = 1 << 20;
/// Role of `manifests/default` in the namespace of the agents that allows the proxy.
const ROLE: &str = "gpunode-usage-viewer";

/// Error of reading the report of an agent.
#[derive(Debug, thiserror::Error)]
enum AgentReportError {
    #[error(
        "its status names a pod {0:?}, which cannot be; see who writes it: `kubectl get gpunode NODE --show-managed-fields -o yaml`"
    )]
    NoPodName(String),
    #[error("you may not read its agent through the API server; ask for the Role {ROLE} in namespace {0}")]
    Forbidden(String),
    #[error("pod {0} is gone, or its version does not report it")]
    Missing(String),
    #[error("the API server does not reach pod {pod} on port {PORT}: {reason}")]
    Unreachable {
        /// Namespace and name.
        pod: String,
        /// First line of the API server's message.
        reason: String,
    },
    #[error("no answer within {TIMEOUT:?}")]
    NoAnswer,
    #[error("its agent's answer ends early: {0}")]
    Cut(#[from] io::Error),
    #[error("its agent's answer is no report: {0}")]
    NoReport(#[from] serde_json::Error),
    #[error(transparent)]
    Name(#[from] kube::core::request::Error),
    #[error(transparent)]
    Request(kube::Error),
}

/// Asks the agents of these nodes, except those on whose node nobody holds a device. `namespace` is that of the agents.
pub async fn read_usage(client: &Client, namespace: &str, nodes: &mut [NodeSummary], gpu_nodes: &[GpuNode]) {
    let asked = nodes.iter_mut().filter_map(|node| {
        let gpu_node = gpu_nodes.iter().find(|gpu_node| gpu_node.name_any() == node.name)?;
        let status = gpu_node.status.as_ref()?;
        let agent = status
            .agent
            .as_ref()
            .filter(|agent| agent.mode == AgentMode::DevicePlugin)?;
        (!status.holders.is_empty()).then(|| (node, agent.pod.clone()))
    });
    let reads = asked.map(|(node, pod)| async move {
        let read = timeout(TIMEOUT, read(client, namespace, &pod)).await;
        let read = read.unwrap_or(Err(AgentReportError::NoAnswer));
        let unreadable = |error: AgentReportError| NodeUsage::Unreadable {
            unreadable: error.to_string(),
        };
        node.usage = Some(read.map_or_else(unreadable, NodeUsage::Report));
    });
    stream::iter(reads).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

/// Returns the report of an agent.
async fn read(client: &Client, namespace: &str, pod: &str) -> Result<UsageReport, AgentReportError> {
    // A node writes this name, and an administrator asks for it: a path in it would make a request of the node's choice.
    if !is_dns_subdomain(pod) {
        return Err(AgentReportError::NoPodName(pod.to_owned()));
    }
    let pods = Request::new(format!("/api/v1/namespaces/{namespace}/pods"));
    let request = pods.get_subresource("proxy/usage", &format!("{pod}:{PORT}"))?;
    let stream = client.request_stream(request).await;
    let stream = stream.map_err(|error| refusal(error, namespace, pod))?;
    let mut text = Vec::new();
    stream.take(MAX_BYTES).read_to_end(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}

fn refusal(error: kube::Error, namespace: &str, pod: &str) -> AgentReportError {
    let status = match error {
        kube::Error::Api(status) => status,
        error => return AgentReportError::Request(error),
    };
    let pod = format!("{namespace}/{pod}");
    match status.code {
        403 => AgentReportError::Forbidden(namespace.to_owned()),
        404 => AgentReportError::Missing(pod),
        _ => AgentReportError::Unreachable {
            pod,
            reason: status.message.lines().next().unwrap_or_default().to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::node::summarise_node;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::convert::Infallible;

    fn gpu_node(name: &str, mode: &str, holders: &Value) -> GpuNode {
        serde_json::from_value(json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": {},
            "status": {"holders": holders,
                "agent": {"pod": format!("agent-{name}"), "podUid": "u", "mode": mode, "version": "1", "configVersions": []}}}))
        .expect("a GpuNode")
    }

    fn failure(code: u16, message: &str) -> (u16, String) {
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message});
        (code, status.to_string())
    }

    /// Returns what is told of each node, and the paths that were asked for.
    async fn told(
        answer: impl Fn(&str) -> (u16, String) + Clone + Send + 'static,
    ) -> (Vec<Option<NodeUsage>>, Vec<String>) {
        let holder = json!([{"namespace": "ml", "pod": "a", "container": "c", "resource": "a.b/c", "device": "GPU-0", "count": 1}]);
        let gpu_nodes = [
            gpu_node("n1", "DevicePlugin", &holder),
            gpu_node("n2", "DevicePlugin", &json!([])),
            gpu_node("n3", "Discovery", &holder),
            // A node that would have somebody else make a request.
            gpu_node("n4:8080/metrics?", "DevicePlugin", &holder),
        ];
        let mut nodes: Vec<NodeSummary> = gpu_nodes
            .iter()
            .map(|gpu_node| summarise_node(gpu_node, None))
            .collect();
        let (sender, asked) = std::sync::mpsc::channel();
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let (code, text) = answer(&path);
            _ = sender.send(path);
            async move {
                let response = Response::builder().status(code).body(Body::from(text.into_bytes()));
                Ok::<_, Infallible>(response.expect("a response"))
            }
        });
        let client = Client::new(service, "default");
        read_usage(&client, "g", &mut nodes, &gpu_nodes).await;
        drop(client);
        (
            nodes.into_iter().map(|node| node.usage).collect(),
            asked.try_iter().collect(),
        )
    }

    #[tokio::test]
    async fn agents_are_asked_by_the_proxy_where_somebody_holds_a_device() {
        let report = || UsageReport {
            omitted: 7,
            ..UsageReport::default()
        };
        let text = serde_json::to_string(&report()).expect("JSON");
        let (usage, asked) = told(move |_| (200, text.clone())).await;
        assert_eq!(usage[..3], [Some(NodeUsage::Report(report())), None, None]);
        let refused = |usage: &NodeUsage| matches!(usage, NodeUsage::Unreadable { unreadable } if unreadable.contains("cannot be"));
        assert!(usage[3].as_ref().is_some_and(refused), "{usage:?}");
        assert_eq!(asked, ["/api/v1/namespaces/g/pods/agent-n1:8081/proxy/usage"]);
    }

    #[tokio::test]
    async fn a_report_that_cannot_be_read_is_one_line_with_the_reason() {
        for (answer, expected) in [
            (
                failure(403, "pods \"x\" is forbidden"),
                "ask for the Role gpunode-usage-viewer in namespace g",
            ),
            (
                failure(404, "pods \"x\" not found"),
                "pod g/agent-n1 is gone, or its version does not report it",
            ),
            (
                (
                    404,
                    "not found; the paths are /livez, /readyz and /metrics\n".to_owned(),
                ),
                "or its version does not report it",
            ),
            (
                failure(503, "dial tcp: i/o timeout\nmore"),
                "does not reach pod g/agent-n1 on port 8081: dial tcp: i/o timeout",
            ),
            ((200, "nonsense".to_owned()), "its agent's answer is no report"),
        ] {
            let (usage, _) = told(move |_| answer.clone()).await;
            let Some(Some(NodeUsage::Unreadable { unreadable })) = usage.first() else {
                panic!("{usage:?}")
            };
            assert!(
                unreadable.contains(expected) && !unreadable.contains('\n'),
                "{unreadable}"
            );
        }
    }
}
