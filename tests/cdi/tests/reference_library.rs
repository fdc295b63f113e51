//! The file that the agent writes, as container runtimes read it.

use anyhow::{Context as _, Result, ensure};
use gpunode_cdi_tests::{CdiLibrary, LibraryVerdict, read_cdi_files};
use gpunode_node_tests::{Lab, Node};
use gpunode_scenario::{MigGroup, Scenario, Topology};
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, path::Path};

/// Two A100, one of them divided into two MIG devices.
fn with_mig() -> Result<Node> {
    let mut scenario = Scenario::new("mig", "NVIDIA A100-SXM4-80GB", 2, Topology::NvSwitch);
    scenario.mig = vec![MigGroup {
        gpus: vec![1],
        instances: vec!["3g.40gb".to_owned(), "3g.40gb".to_owned()],
    }];
    Node::new(scenario)
}

/// Returns the content of the file that an agent writes on the node.
async fn cdi_file(node: Node, config: &str, resource: &str) -> Result<(Lab, Value)> {
    let lab = Lab::start(node, config)?;
    lab.kubelet.has(resource, |_| true).await?;
    let file = lab.node.cdi_file()?.context("the CDI file")?;
    Ok((lab, file))
}

/// Each device node is `/dev/null` on the host: only root can make others.
fn with_nodes_of_this_machine(mut file: Value) -> Value {
    let redirect = |edits: &mut Value| {
        for node in edits["deviceNodes"].as_array_mut().into_iter().flatten() {
            node["hostPath"] = json!("/dev/null");
        }
    };
    redirect(&mut file["containerEdits"]);
    for device in file["devices"].as_array_mut().into_iter().flatten() {
        redirect(&mut device["containerEdits"]);
    }
    file["cdiVersion"] = json!("0.5.0");
    file
}

fn write(folder: &Path, file: &Value) -> Result<()> {
    Ok(fs::write(folder.join("gpunode.dev-gpu.json"), file.to_string())?)
}

fn names(file: &Value) -> BTreeSet<String> {
    let devices = file["devices"].as_array().into_iter().flatten();
    devices
        .filter_map(|device| device["name"].as_str())
        .map(|name| format!("gpunode.dev/gpu={name}"))
        .collect()
}

#[tokio::test]
#[ignore = "needs Go: make test"]
async fn every_version_of_the_library_finds_every_device() -> Result<()> {
    for (node, config, resource) in [
        (Node::with_v100()?, "", "nvidia.com/gpu"),
        (Node::with_t4()?, "", "nvidia.com/gpu"),
        (with_mig()?, "mig: {strategy: Mixed}", "nvidia.com/mig-3g.40gb"),
    ] {
        let (lab, file) = cdi_file(node, config, resource).await?;
        for library in CdiLibrary::ALL {
            let verdict = read_cdi_files(library, &lab.node.cdi_dir(), &[], &Value::Null)?;
            assert!(verdict.errors.is_empty(), "{library:?}: {:?}", verdict.errors);
            assert_eq!(
                verdict.devices.into_iter().collect::<BTreeSet<_>>(),
                names(&file),
                "{library:?}"
            );
        }
    }
    Ok(())
}

/// A program that finds no error anywhere would show nothing.
#[tokio::test]
#[ignore = "needs Go: make test"]
async fn every_version_of_the_library_finds_an_error() -> Result<()> {
    let (_lab, file) = cdi_file(Node::with_t4()?, "", "nvidia.com/gpu").await?;
    let mut bad_name = file.clone();
    bad_name["devices"][0]["name"] = json!("MIG-GPU-1/7/0");
    let mut too_low = file.clone();
    too_low["cdiVersion"] = json!("0.3.0");
    // Of the devices, the library looks at the last alone.
    too_low["containerEdits"]["deviceNodes"][0]["hostPath"] = json!("/dev/null");
    let mut no_vendor = file.clone();
    no_vendor["kind"] = json!("gpu");
    for (what, bad) in [("name", bad_name), ("version", too_low), ("kind", no_vendor)] {
        let folder = tempfile::tempdir()?;
        write(folder.path(), &bad)?;
        for library in CdiLibrary::ALL {
            let verdict = read_cdi_files(library, folder.path(), &[], &Value::Null)?;
            ensure!(
                !verdict.errors.is_empty() && verdict.devices.is_empty(),
                "{library:?}, {what}: {verdict:?}"
            );
        }
    }
    Ok(())
}

fn strings(value: &Value, name: &str) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items
        .filter_map(|item| item[name].as_str())
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
#[ignore = "needs Go: make test"]
async fn a_container_gets_its_own_device_and_nothing_is_left_for_nvidias_runtime() -> Result<()> {
    let (lab, file) = cdi_file(Node::with_t4()?, "", "nvidia.com/gpu").await?;
    let folder = tempfile::tempdir()?;
    write(folder.path(), &with_nodes_of_this_machine(file))?;
    let uuid = lab.node.uuids()?.remove(1);
    // As the kubelet fills it from the answer to Allocate, and as a pod says it that wants all GPUs.
    for variable in [
        format!("NVIDIA_VISIBLE_DEVICES={uuid}"),
        "NVIDIA_VISIBLE_DEVICES=all".to_owned(),
    ] {
        let before = json!({"ociVersion": "1.0.2", "process": {"cwd": "/", "env": ["A=1", variable]}});
        for library in CdiLibrary::ALL {
            let name = format!("gpunode.dev/gpu={uuid}");
            let LibraryVerdict { refused, spec, .. } = read_cdi_files(library, folder.path(), &[&name], &before)?;
            assert_eq!(refused, "", "{library:?}");
            let devices: BTreeSet<String> = strings(&spec["linux"]["devices"], "path").into_iter().collect();
            let expected = ["/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidiactl"].map(str::to_owned);
            assert_eq!(devices, BTreeSet::from(expected), "{library:?}");
            // The library appends. Of two, runc, crun and NVIDIA's runtime take the last.
            let visible = spec["process"]["env"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .rfind(|variable| variable.starts_with("NVIDIA_VISIBLE_DEVICES="));
            assert_eq!(visible, Some("NVIDIA_VISIBLE_DEVICES=void"), "{library:?}");
            let hooks = spec["hooks"]["createContainer"].as_array().map_or(0, Vec::len);
            assert_eq!(hooks, 4, "{library:?}: {}", spec["hooks"]);
            let mounts = strings(&spec["mounts"], "destination");
            let cuda = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05";
            assert!(mounts.iter().any(|mount| mount == cuda), "{library:?}: {mounts:?}");
        }
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs Go: make test"]
async fn a_device_that_the_file_does_not_have_is_refused_by_name() -> Result<()> {
    let (lab, _) = cdi_file(Node::with_t4()?, "", "nvidia.com/gpu").await?;
    let before = json!({"ociVersion": "1.0.2"});
    for library in CdiLibrary::ALL {
        let verdict = read_cdi_files(library, &lab.node.cdi_dir(), &["gpunode.dev/gpu=0"], &before)?;
        assert!(
            verdict.refused.contains("gpunode.dev/gpu=0"),
            "{library:?}: {}",
            verdict.refused
        );
    }
    Ok(())
}
