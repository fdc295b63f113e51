//! The CDI file of the node.

use anyhow::{Context as _, Result, ensure};
use gpunode_node_tests::{Agent, CriAnswer, FakeKubelet, FakeRuntime, Lab, Node, until};
use gpunode_scenario::{MigGroup, Scenario, Topology};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};
use tokio::time::sleep;

const GPU: &str = "nvidia.com/gpu";

/// Strings in the field `name` of each item of the list at `path`.
fn strings(value: &Value, path: &str, name: &str) -> Vec<String> {
    let items = value.pointer(path).and_then(Value::as_array).into_iter().flatten();
    items
        .filter_map(|item| Some(item.get(name)?.as_str()?.to_owned()))
        .collect()
}

fn named(file: &Value) -> Vec<String> {
    strings(file, "/devices", "name")
}

/// Waits for a file that meets the condition.
async fn file_with(node: &Node, condition: impl Fn(&Value) -> bool) -> Result<Value> {
    let find = || node.cdi_file().ok().flatten().filter(&condition);
    until("the CDI file is as expected", find).await
}

#[tokio::test]
async fn each_device_is_in_the_file_before_the_kubelet_can_allocate_it() -> Result<()> {
    let node = Node::with_v100()?;
    node.configure("")?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    for _ in 0..3 {
        let mut agent = Agent::run(&node)?;
        kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 8).await?;
        let file = node.cdi_file()?.context("the CDI file")?;
        ensure!(named(&file) == node.uuids()?, "{file}");
        agent.kill().await?;
        kubelet.is_gone(GPU).await?;
        // As after a reboot.
        std::fs::remove_dir_all(node.cdi_dir())?;
    }
    Ok(())
}

#[tokio::test]
async fn a_container_gets_its_device_nodes_and_the_files_of_the_driver() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, "")?;
    lab.kubelet.has(GPU, |_| true).await?;
    let file = lab.node.cdi_file()?.context("the CDI file")?;
    assert_eq!(file["kind"], "gpunode.dev/gpu");
    assert_eq!(file["cdiVersion"], "0.3.0");
    assert_eq!(
        strings(&file, "/devices/2/containerEdits/deviceNodes", "path"),
        ["/dev/nvidia2"]
    );
    assert_eq!(
        strings(&file, "/containerEdits/deviceNodes", "path"),
        ["/dev/nvidia-uvm", "/dev/nvidiactl"]
    );
    let mounts = strings(&file, "/containerEdits/mounts", "containerPath");
    for path in [
        "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05",
        "/usr/bin/nvidia-smi",
        "/run/nvidia-persistenced/socket",
    ] {
        assert!(mounts.iter().any(|mount| mount == path), "{path}: {mounts:?}");
    }
    let hosts = strings(&file, "/containerEdits/mounts", "hostPath");
    assert!(
        hosts.iter().all(|path| path.starts_with("/run/nvidia/driver/")),
        "{hosts:?}"
    );
    let programs = strings(&file, "/containerEdits/hooks", "path");
    assert_eq!(programs, ["/usr/bin/nvidia-cdi-hook"; 4]);
    assert_eq!(file["containerEdits"]["env"][1], "NVIDIA_VISIBLE_DEVICES=void");
    Ok(())
}

#[tokio::test]
async fn a_mig_device_has_its_capabilities_and_no_others() -> Result<()> {
    let mut scenario = Scenario::new("mig", "NVIDIA A100-SXM4-80GB", 2, Topology::NvSwitch);
    scenario.mig = vec![MigGroup {
        gpus: vec![1],
        instances: vec!["3g.40gb".to_owned(), "3g.40gb".to_owned()],
    }];
    let lab = Lab::start(Node::new(scenario)?, "mig: {strategy: Mixed}")?;
    lab.kubelet.has("nvidia.com/mig-3g.40gb", |_| true).await?;
    let file = lab.node.cdi_file()?.context("the CDI file")?;
    assert_eq!(named(&file).len(), 4, "both GPUs and both MIG devices: {file}");
    let nodes = |at: usize| strings(&file, &format!("/devices/{at}/containerEdits/deviceNodes"), "path");
    let (first, second) = (nodes(2), nodes(3));
    assert_eq!((first.len(), second.len()), (3, 3));
    assert_eq!(
        (first[0].as_str(), second[0].as_str()),
        ("/dev/nvidia1", "/dev/nvidia1")
    );
    assert!(
        first[1..].iter().all(|node| !second.contains(node)),
        "{first:?} {second:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_device_without_its_node_is_left_out_unless_it_is_assigned_already() -> Result<()> {
    let node = Node::with_t4()?;
    node.set_device_node(3, false)?;
    let config = "resources: [{name: nvidia.com/gpu, devices: {indices: [0, 1]}}]";
    let mut lab = Lab::start(node, config)?;
    lab.kubelet.has(GPU, |endpoint| endpoint.devices.len() == 2).await?;
    let uuids = lab.node.uuids()?;
    let file = lab.node.cdi_file()?.context("the CDI file")?;
    assert_eq!(named(&file), uuids[..3]);
    let line = lab.agent.logs("does not describe a device").await?;
    assert!(line.contains(&uuids[3]) && line.contains("/dev/nvidia3"), "{line}");

    // A container may hold GPU 0, and nobody can hold GPU 2.
    lab.node.set_device_node(0, false)?;
    lab.node.set_device_node(2, false)?;
    lab.replace_agent().await?;
    file_with(&lab.node, |file| named(file) == [uuids[1].as_str(), uuids[0].as_str()]).await?;
    Ok(())
}

#[tokio::test]
async fn a_device_that_a_runtime_with_cdi_alone_cannot_give_is_unhealthy_until_it_can() -> Result<()> {
    let node = Node::with_t4()?;
    node.set_device_node(3, false)?;
    let handlers = json!({"defaultRuntimeName": "runc", "runtimes": {"runc": {"options": {}}}});
    let config = CriAnswer::Config(json!({"containerd": handlers, "enableCDI": true, "cdiSpecDirs": ["/var/run/cdi"]}));
    let socket = "run/containerd/containerd.sock";
    let _runtime = FakeRuntime::start(&node, socket, ("containerd", "2.1.4"), config)?;
    let lab = Lab::start(node, "deviceListStrategy: [Envvar, CdiCri]")?;
    let list = lab.kubelet.has(GPU, |endpoint| endpoint.devices.len() == 4).await?;
    let uuids = lab.node.uuids()?;
    assert_eq!(list.healthy(), uuids[..3].iter().cloned().collect(), "{list:?}");
    let refused = lab.kubelet.allocate(GPU, &[&uuids[3]]).await.unwrap_err();
    assert!(
        format!("{refused:#}").contains("the CDI file does not describe it"),
        "{refused:#}"
    );

    lab.node.set_device_node(3, true)?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
    let answer = lab.kubelet.allocate(GPU, &[&uuids[3]]).await?;
    assert_eq!(answer.cdi_devices[0].name, format!("gpunode.dev/gpu={}", uuids[3]));
    Ok(())
}

#[tokio::test]
async fn without_a_library_of_the_driver_there_is_no_file_and_containers_get_the_variable() -> Result<()> {
    let node = Node::with_t4()?;
    node.remove_library("libcuda")?;
    let lab = Lab::start(node, "")?;
    lab.kubelet.has(GPU, |_| true).await?;
    let line = lab.agent.logs("the CDI file describes no device").await?;
    assert!(
        line.contains("find libcuda.so.580.95.05 below /run/nvidia/driver"),
        "{line}"
    );
    assert_eq!(lab.node.cdi_file()?, None);
    let uuid = &lab.node.uuids()?[0];
    let answer = lab.kubelet.allocate(GPU, &[uuid]).await?;
    assert_eq!(answer.envs["NVIDIA_VISIBLE_DEVICES"], *uuid);
    Ok(())
}

#[tokio::test]
async fn a_runtime_that_looks_for_cdi_files_elsewhere_is_told_no_names() -> Result<()> {
    let node = Node::with_t4()?;
    let handlers = json!({"defaultRuntimeName": "runc", "runtimes": {"runc": {"options": {}}}});
    let config = CriAnswer::Config(json!({"containerd": handlers, "cdiSpecDirs": ["/etc/cdi"]}));
    let socket = "run/containerd/containerd.sock";
    let _runtime = FakeRuntime::start(&node, socket, ("containerd", "2.1.4"), config)?;
    let lab = Lab::start(node, "")?;
    lab.kubelet.has(GPU, |_| true).await?;
    let uuid = &lab.node.uuids()?[0];
    let answer = lab.kubelet.allocate(GPU, &[uuid]).await?;
    assert!(answer.cdi_devices.is_empty(), "{answer:?}");
    assert_eq!(answer.envs["NVIDIA_VISIBLE_DEVICES"], *uuid);
    lab.agent.logs("looks for CDI files in /etc/cdi").await?;
    Ok(())
}

#[tokio::test]
async fn a_change_to_cdi_withholds_no_device_while_the_file_is_made() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, "deviceListStrategy: [Envvar]")?;
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
    let before = lab.kubelet.messages(GPU).len();
    lab.apply("deviceListStrategy: [CdiCri]")?;
    file_with(&lab.node, |file| named(file).len() == 4).await?;
    lab.kubelet.is_listed().await?;
    let uuid = &lab.node.uuids()?[0];
    let answer = lab.kubelet.allocate(GPU, &[uuid]).await?;
    assert_eq!(answer.cdi_devices[0].name, format!("gpunode.dev/gpu={uuid}"));
    for list in lab.kubelet.messages(GPU).iter().skip(before) {
        assert!(list.devices.iter().all(|device| device.health == "Healthy"), "{list:?}");
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_killed_at_any_moment_leaves_a_whole_file_that_names_what_is_held() -> Result<()> {
    let mut lab = Lab::start(Node::with_t4()?, "")?;
    lab.kubelet.has(GPU, |_| true).await?;
    let held = lab.kubelet.admit("pod", "main", GPU, 1).await?.ids.remove(0);
    let path = lab.node.cdi_dir().join("gpunode.dev-gpu.json");
    let (ends, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (reader_ends, reader_reads, reader_held) = (ends.clone(), reads.clone(), held.clone());
    // A container runtime, which reads the file at any time.
    let reader = thread::spawn(move || -> Result<()> {
        while !reader_ends.load(Ordering::Relaxed) {
            let file: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
            ensure!(
                named(&file).contains(&reader_held),
                "{reader_held} is held and not named: {file}"
            );
            reader_reads.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    });
    for round in 0..8_u32 {
        lab.node.set_device_node(round % 4, round >= 4)?;
        lab.replace_agent().await?;
        // Before, during and after the first write of the next agent.
        sleep(Duration::from_millis(u64::from(round) * 40)).await;
        let before = reads.load(Ordering::Relaxed);
        let goes_on = || reads.load(Ordering::Relaxed) >= before + 5 || reader.is_finished();
        until("the runtime goes on reading", || goes_on().then_some(())).await?;
    }
    ends.store(true, Ordering::Relaxed);
    reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
    file_with(&lab.node, |file| named(file).len() == 4).await?;
    Ok(())
}
