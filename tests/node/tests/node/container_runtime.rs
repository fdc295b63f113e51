//! The container runtime of the node, as `inspect` shows it and `run` logs it.

use anyhow::{Result, ensure};
use gpunode_node_tests::{Agent, CriAnswer, FakeKubelet, FakeRuntime, Lab, Node};
use gpunode_scenario::{FabricState, Scenario, Topology};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{sleep, timeout};

const GPU: &str = "nvidia.com/gpu";
const CONTAINERD: &str = "run/containerd/containerd.sock";
const CRIO: &str = "run/crio/crio.sock";
const K3S: &str = "run/k3s/containerd/containerd.sock";

/// Configuration of a containerd 2 with its defaults.
fn containerd_2() -> CriAnswer {
    config(&json!({"cdiSpecDirs": ["/etc/cdi", "/var/run/cdi"]}))
}

fn config(more: &Value) -> CriAnswer {
    let mut config = json!({"containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"options": {}}}}});
    if let (Some(config), Some(more)) = (config.as_object_mut(), more.as_object()) {
        config.extend(more.clone());
    }
    CriAnswer::Config(config)
}

/// Runs `inspect`, which must end with this code and show all of these parts in lines of at most 80 columns.
async fn inspect(node: &Node, code: i32, parts: &[&str]) -> Result<String> {
    let (ended, table) = Agent::inspect(node).await?;
    ensure!(ended == Some(code), "{ended:?}: {table}");
    let text = words(&table);
    for part in parts {
        ensure!(text.contains(part), "{part}: {table}");
    }
    ensure!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    Ok(table)
}

/// Saves a configuration as an agent does.
fn save_config(node: &Node, document: &str) -> Result<()> {
    let saved = json!({"format": 1, "node": "n", "version": 1, "hash": "h", "document": document});
    std::fs::create_dir_all(node.state_dir())?;
    Ok(std::fs::write(node.state_dir().join("config.json"), saved.to_string())?)
}

/// Returns the words of a table without its line breaks.
fn words(table: &str) -> String {
    table.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn a_containerd_with_cdi_gives_pods_their_gpus() -> Result<()> {
    let node = Node::with_t4()?;
    let _runtime = FakeRuntime::start(&node, CONTAINERD, ("containerd", "2.1.4"), containerd_2())?;
    let parts = [
        "containerd 2.1.4 with CDI",
        "default handler runc",
        "root /run/nvidia/driver",
        "4 x Tesla-T4",
    ];
    let table = inspect(&node, 0, &parts).await?;
    ensure!(!table.contains("no GPU "), "{table}");
    Ok(())
}

#[tokio::test]
async fn a_containerd_without_cdi_and_toolkit_gives_pods_none() -> Result<()> {
    let node = Node::with_t4()?;
    let off = config(&json!({"enableCDI": false, "cdiSpecDirs": ["/etc/cdi", "/var/run/cdi"]}));
    let _runtime = FakeRuntime::start(&node, CONTAINERD, ("containerd", "1.7.27"), off)?;
    let table = inspect(&node, 1, &["CDI is off in containerd 1.7.27", "`enable_cdi = true`"]).await?;
    let first = table.lines().nth(1).unwrap_or_default();
    ensure!(first.starts_with("no GPU    containers"), "{table}");
    Ok(())
}

#[tokio::test]
async fn a_driver_that_the_cdi_file_cannot_describe_gives_pods_none() -> Result<()> {
    let node = Node::with_t4()?;
    node.remove_library("libcuda")?;
    let _runtime = FakeRuntime::start(&node, CONTAINERD, ("containerd", "2.1.4"), containerd_2())?;
    let table = inspect(&node, 1, &["CDI file describes none", "libcuda.so.580.95.05"]).await?;
    let first = table.lines().nth(1).unwrap_or_default();
    ensure!(first.starts_with("no GPU    containers"), "{table}");
    Ok(())
}

#[tokio::test]
async fn the_configuration_that_an_agent_saved_counts() -> Result<()> {
    let node = Node::with_t4()?;
    let _runtime = FakeRuntime::start(&node, CONTAINERD, ("containerd", "2.1.4"), containerd_2())?;
    save_config(&node, "deviceListStrategy: [Envvar]")?;
    inspect(&node, 1, &["NVIDIA's container runtime alone"]).await?;
    Ok(())
}

#[tokio::test]
async fn a_described_gpu_that_pods_cannot_get_hides_none_that_the_cdi_file_lacks() -> Result<()> {
    let node = Node::with_t4()?;
    node.set_device_node(3, false)?;
    let _runtime = FakeRuntime::start(&node, CONTAINERD, ("containerd", "2.1.4"), containerd_2())?;
    for (index, code, part) in [(3, 1, "/dev/nvidia3"), (0, 0, "containerd 2.1.4 with CDI")] {
        save_config(
            &node,
            &format!("resources: [{{name: nvidia.com/gpu, devices: {{indices: [{index}]}}}}]"),
        )?;
        let table = inspect(&node, code, &[part]).await?;
        ensure!(!words(&table).contains("every device"), "{table}");
    }
    Ok(())
}

#[tokio::test]
async fn a_node_without_driver_says_so_first() -> Result<()> {
    let node = Node::without_driver(Scenario::new("t4", "Tesla T4", 4, Topology::Pcie))?;
    let _runtime = FakeRuntime::start(&node, CONTAINERD, ("containerd", "2.1.4"), containerd_2())?;
    let table = inspect(&node, 1, &["libnvidia-ml.so.1"]).await?;
    let first = table.lines().nth(1).unwrap_or_default();
    ensure!(first.starts_with("no GPU    driver"), "{table}");
    Ok(())
}

#[tokio::test]
async fn gpus_outside_their_fabric_are_said_and_where_all_are_pods_get_none() -> Result<()> {
    let node = Node::new(Scenario::new("fabric", "NVIDIA H200", 4, Topology::NvSwitch))?;
    let _runtime = FakeRuntime::start(&node, CONTAINERD, ("containerd", "2.1.4"), containerd_2())?;
    let table = inspect(&node, 0, &[]).await?;
    ensure!(!table.contains("fabric"), "{table}");
    for (outside, code, part) in [
        (1, 0, "fabric 1 GPU has not joined the NVLink fabric"),
        (4, 1, "no GPU fabric 4 GPUs have not joined the NVLink fabric"),
    ] {
        for gpu in 0..outside {
            node.state()?
                .update_gpu(gpu, |gpu| gpu.fabric = FabricState::InProgress)?;
        }
        let table = inspect(&node, code, &[]).await?;
        ensure!(words(&table).contains(part), "{part}: {table}");
    }
    Ok(())
}

#[tokio::test]
async fn a_runtime_that_does_not_tell_is_unknown_and_no_failure() -> Result<()> {
    for (answer, part) in [
        (CriAnswer::Junk, "crictl info"),
        (CriAnswer::Huge(8 * 1024 * 1024), "Status"),
        (CriAnswer::StatusRefused, "refused by the test"),
        (CriAnswer::StatusNever, "no answer to Status"),
        (CriAnswer::Never, "no answer to Version"),
        (CriAnswer::Unimplemented, "unknown service"),
    ] {
        let node = Node::with_t4()?;
        let _runtime = FakeRuntime::start(&node, CONTAINERD, ("containerd", "2.1.4"), answer.clone())?;
        let table = inspect(&node, 0, &["unknown containers"]).await?;
        ensure!(words(&table).contains(part), "{answer:?}: {table}");
    }
    Ok(())
}

#[tokio::test]
async fn a_dead_or_foreign_socket_does_not_hide_the_runtime() -> Result<()> {
    let node = Node::with_t4()?;
    let dead = node.host_root().join(K3S);
    if let Some(folder) = dead.parent() {
        std::fs::create_dir_all(folder)?;
    }
    drop(std::os::unix::net::UnixListener::bind(&dead)?);
    let _foreign = FakeRuntime::start(&node, CRIO, ("cri-o", "1.34.1"), CriAnswer::Unimplemented)?;
    let _runtime = FakeRuntime::start(&node, CONTAINERD, ("containerd", "2.1.4"), containerd_2())?;
    inspect(&node, 0, &["containerd 2.1.4 with CDI"]).await?;
    Ok(())
}

#[tokio::test]
async fn an_agent_notices_another_runtime_at_the_same_socket() -> Result<()> {
    let node = Node::with_t4()?;
    let old = FakeRuntime::start(&node, CONTAINERD, ("containerd", "1.7.27"), containerd_2())?;
    let lab = Lab::start(node, "")?;
    lab.agent.logs("1.7.27").await?;
    drop(old);
    let _new = FakeRuntime::start(&lab.node, CONTAINERD, ("containerd", "2.1.4"), containerd_2())?;
    lab.agent.logs("2.1.4").await?;
    Ok(())
}

#[tokio::test]
async fn an_agent_whose_first_list_waits_for_the_runtime_is_not_ready() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("")?;
    let _runtime = FakeRuntime::start(&node, CONTAINERD, ("containerd", "2.1.4"), CriAnswer::Never)?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let agent = Agent::run(&node)?;
    let until_registered = async {
        while kubelet.endpoint(GPU).registrations == 0 {
            let ready = agent.readyz().await?;
            // The registration may come in between.
            let is_registered = kubelet.endpoint(GPU).registrations > 0;
            ensure!(is_registered || !ready.starts_with("HTTP/1.1 200"), "{ready}");
            sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    };
    timeout(Duration::from_mins(2), until_registered).await??;
    kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
    agent.await_ready().await
}
