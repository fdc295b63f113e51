//! Words and commands of `docs/troubleshooting.md` about a node that is down, an agent that waits, and a resource that nobody
//! serves.

use crate::{samples, staying_up};
use anyhow::{Context, Result, ensure};
use gpunode_cluster::Signal;
use gpunode_e2e::{CPU, Lab, NAMESPACE, T4, condition, documented_commands, eventually, page_commands};
use serde_json::Value;
use std::{net::TcpListener, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);
const GPU: &str = "nvidia.com/gpu";
const PAGE: &str = "troubleshooting.md";

/// The T4 node without a kubelet, until this is dropped.
struct NodeDown<'a>(&'a Lab);

impl<'a> NodeDown<'a> {
    fn begin(lab: &'a Lab) -> Result<Self> {
        let down = Self(lab);
        lab.cluster().node(T4)?.stop_kubelet()?;
        // The node controller would write the same 50 s later.
        let unknown = r#"{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}"#;
        lab.kubectl(&["patch", "node", T4, "--subresource=status", "-p", unknown])?;
        Ok(down)
    }
}

impl Drop for NodeDown<'_> {
    fn drop(&mut self) {
        // Where that fails, the next test says so.
        let _ = self.0.cluster().node(T4).and_then(|node| node.start_kubelet());
    }
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_that_is_down_is_named_by_its_policy_and_its_pods_keep_their_gpus() -> Result<()> {
    const WORDS: &str = "NodeNotReady: the node is not Ready; see the kubelet on it";
    let lab = Lab::enter()?;
    lab.move_operator_off(T4)?;
    samples::advertise_four_t4(&lab, "")?;
    lab.apply(&samples::deployment("holder", "inference", 1))?;
    let pod = lab.await_running("holder", 1)?.pop().context("find the pod")?;
    let container =
        || -> Result<Value> { Ok(lab.get(&["pod", &pod])?["status"]["containerStatuses"][0]["containerID"].clone()) };
    let (before, gpus) = (container()?, lab.visible(&pod)?);
    let down = NodeDown::begin(&lab)?;
    eventually("the policy names the node", LIMIT, || {
        let policy = lab.get(&["gpunodepolicy", "sharing"])?;
        let degraded = condition(&policy, "Degraded");
        let message = degraded["message"].as_str().unwrap_or_default();
        ensure!(
            degraded["status"] == "True" && message.contains(&format!("{T4}: {WORDS}")),
            "its status is {}",
            policy["status"]
        );
        Ok(())
    })?;
    let status = lab.gpunode(&["status"])?;
    ensure!(
        status.starts_with("PROBLEMS\n") && status.contains(&format!("node {T4}: {WORDS}")),
        "{status}"
    );
    let table = lab.kubectl(&["get", "node", T4])?;
    ensure!(table.contains("NotReady"), "{table}");
    drop(down);
    lab.await_ready("sharing")?;
    eventually("the policy names nobody any more", LIMIT, || {
        let degraded = condition(&lab.get(&["gpunodepolicy", "sharing"])?, "Degraded");
        ensure!(degraded["status"] == "False", "it is {degraded}");
        Ok(())
    })?;
    // A kubelet that has just started does not know its pods.
    let seen = eventually("the pod can be asked", LIMIT, || lab.visible(&pod))?;
    assert_eq!((container()?, seen), (before, gpus));
    Ok(())
}

/// Runs the page's command that asks a pod for `/readyz`, with a free port of this machine, until there is an answer.
fn await_readyz(lab: &Lab, pod: &str, port: &str, expected: &str) -> Result<()> {
    let commands = page_commands(PAGE)?;
    let command = commands
        .into_iter()
        .find(|command| command.contains(&format!("port-forward POD {port} & ")))
        .with_context(|| format!("find the command for port {port} on the page"))?;
    eventually(&format!("/readyz of {pod} says {expected:?}"), LIMIT, || {
        let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let command = command
            .replace(&format!("POD {port}"), &format!("{pod} {free}:{port}"))
            .replace(&format!("localhost:{port}"), &format!("localhost:{free}"));
        let text = lab.shell(lab.cluster().folder(), &command)?;
        ensure!(text.contains(expected), "it says {text:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn readyz_through_a_port_forward_says_what_a_pod_waits_for() -> Result<()> {
    let lab = Lab::enter()?;
    for pod in lab.operator_pods()? {
        await_readyz(&lab, &pod, "8080", "ok")?;
    }
    samples::advertise_four_t4(&lab, "")?;
    let first = lab.await_plugin(T4)?;
    await_readyz(&lab, &first, "8081", "ok")?;

    // An agent that hangs does not let the next one take over.
    let agent = lab.cluster().node(T4)?.container_process(NAMESPACE, &first, "agent")?;
    let image = staying_up::tag(&lab, "1")?;
    agent.signal(Signal::STOP)?;
    let seen = lab
        .patch_policy("sharing", &format!(r#"{{"spec":{{"image":"{image}"}}}}"#))
        .and_then(|change| {
            let next = eventually("the next agent runs", LIMIT, || next_agent(&lab, &first))?;
            await_readyz(&lab, &next, "8081", "WaitingForPredecessor")?;
            Ok((change, next))
        });
    agent.signal(Signal::CONT)?;
    let (change, next) = seen?;
    change.check()?;
    lab.await_ready("sharing")?;
    await_readyz(&lab, &next, "8081", "ok")
}

/// The plugin pod beside the first one, once it runs.
fn next_agent(lab: &Lab, first: &str) -> Result<String> {
    let component = "app.kubernetes.io/component=device-plugin";
    let pods = lab.get(&["pods", "-n", NAMESPACE, "-l", component])?;
    let mut items = pods["items"].as_array().into_iter().flatten();
    let next = items
        .find(|pod| pod["metadata"]["name"] != first && pod["status"]["phase"] == "Running")
        .with_context(|| format!("they are {}", crate::sharing::phases(&pods)))?;
    Ok(next["metadata"]["name"].as_str().context("read its name")?.to_owned())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn the_patch_of_the_page_removes_a_resource_that_nobody_serves_from_a_node() -> Result<()> {
    let lab = Lab::enter()?;
    // As a kubelet leaves it whose plugin has gone.
    let left = format!(r#"{{"status":{{"capacity":{{"{GPU}":"0"}},"allocatable":{{"{GPU}":"0"}}}}}}"#);
    lab.kubectl(&[
        "patch",
        "node",
        CPU,
        "--subresource=status",
        "--type=merge",
        "-p",
        &left,
    ])?;
    let keys = || -> Result<Vec<Value>> {
        let status = lab.node(CPU)?["status"].clone();
        Ok(["capacity", "allocatable"]
            .map(|list| status[list][GPU].clone())
            .to_vec())
    };
    assert_eq!(keys()?, ["0", "0"]);

    let page = format!("docs/{PAGE}");
    let mut commands = documented_commands()?
        .into_iter()
        .filter(|command| command.page == page);
    let command = commands
        .find(|command| command.text.starts_with("kubectl patch node NODE "))
        .context("find the command on the page")?;
    lab.shell(
        lab.cluster().folder(),
        &command.text.replace("node NODE", &format!("node {CPU}")),
    )?;
    assert_eq!(keys()?, [Value::Null, Value::Null]);

    // The kubelet that starts reports all it knows.
    lab.cluster().node(CPU)?.restart_kubelet()?;
    let heartbeat = || -> Result<Value> { Ok(condition(&lab.node(CPU)?, "Ready")["lastHeartbeatTime"].clone()) };
    let before = heartbeat()?;
    eventually("the kubelet has reported", LIMIT, || {
        ensure!(heartbeat()? != before);
        Ok(())
    })?;
    assert_eq!(keys()?, [Value::Null, Value::Null], "it does not come back");
    Ok(())
}
