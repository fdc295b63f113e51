//! The check against the simulated driver, with the output of nvidia-smi for the same board and for one that differs.

use anyhow::Result;
use gpunode_node_tests::{Node, built};
use gpunode_scenario::{MigGroup, RecoveryAction, Scenario, Topology};
use std::{fs, process::Command};

const V100: &str = include_str!("../testdata/v100.xml");
const H200: &str = include_str!("../testdata/h200.xml");

/// Seconds that nothing takes here, also on a busy machine.
const PATIENCE: &str = "60";

struct Checked {
    succeeded: bool,
    table: String,
    error: String,
}

fn v100() -> Result<Node> {
    Node::new(Scenario::new("v100", "Tesla V100-SXM2-32GB", 1, Topology::Pcie))
}

fn h200() -> Result<Node> {
    Node::new(Scenario::new("h200", "NVIDIA H200", 1, Topology::NvSwitch))
}

#[expect(clippy::print_stdout, reason = "a test's output")]
fn check(node: &Node, smi: &str, limit: &str) -> Result<Checked> {
    let folder = tempfile::tempdir()?;
    let output_of_smi = folder.path().join("nvidia-smi.xml");
    fs::write(&output_of_smi, smi)?;
    let output = Command::new(env!("CARGO_BIN_EXE_gpunode-gpu-check"))
        .arg("--agent")
        .arg(&built()?.agent)
        .arg("--host-root")
        .arg(node.host_root())
        .arg("--library")
        .arg(node.library())
        .arg("--nvidia-smi")
        .arg(output_of_smi)
        .args(["--limit", limit])
        .output()?;
    let checked = Checked {
        succeeded: output.status.success(),
        table: String::from_utf8(output.stdout)?,
        error: String::from_utf8(output.stderr)?,
    };
    println!("{}\n{}", checked.table, checked.error);
    Ok(checked)
}

#[test]
fn a_board_that_answers_as_nvidia_smi_says_passes() -> Result<()> {
    for (node, smi, title) in [
        (
            v100()?,
            V100,
            "### 1 x Tesla-V100-SXM2-32GB, driver 580.95.05, CUDA 13.0, ",
        ),
        (h200()?, H200, "### 1 x NVIDIA-H200, driver 580.95.05, CUDA 13.0, "),
    ] {
        let checked = check(&node, smi, PATIENCE)?;
        assert!(checked.succeeded, "{}", checked.error);
        assert!(checked.table.starts_with(title), "{}", checked.table);
        assert!(!checked.table.contains("differs"), "{}", checked.table);
        for what in ["memory", "look-up by bus id", "fabric state", "agent: Allocate"] {
            assert!(checked.table.contains(&format!("\n| {what} | ")), "{what}");
        }
    }
    Ok(())
}

#[test]
fn a_board_that_differs_fails_with_each_difference() -> Result<()> {
    let node = v100()?;
    node.state()?.set_recovery_action(0, RecoveryAction::NodeReboot)?;
    let checked = check(&node, &V100.replace("32768 MiB", "16384 MiB"), PATIENCE)?;
    assert!(!checked.succeeded);
    for difference in [
        "memory: expected 16384 MiB, measured 32768 MiB",
        "field 230, recovery action: expected None, measured 2",
    ] {
        assert!(checked.error.contains(difference), "{difference}");
    }
    assert!(
        checked
            .table
            .contains("| memory | 16384 MiB | 32768 MiB | **differs** |")
    );

    let smi = H200.replace("<state>Completed<", "<state>In Progress<");
    let checked = check(&h200()?, &smi.replace("pending>No<", "pending>Yes<"), PATIENCE)?;
    assert!(!checked.succeeded);
    for difference in [
        "2 of ",
        "fabric state: expected In Progress, measured Completed, status 0",
        "field 144, rows to be remapped: expected Yes, measured 0",
    ] {
        assert!(checked.error.contains(difference), "{difference}");
    }
    Ok(())
}

#[test]
fn another_gpu_than_nvidia_smi_shows_is_named() -> Result<()> {
    let node = v100()?;
    let uuid = node.uuids()?.concat();
    let checked = check(&node, &V100.replace(&uuid, "GPU-other"), PATIENCE)?;
    assert!(!checked.succeeded);
    let difference = format!("GPUs, by UUID: expected 1, measured 1, without GPU-other, also {uuid}");
    assert!(checked.error.contains(&difference));
    Ok(())
}

#[test]
fn a_gpu_under_mig_is_advertised_by_its_instances() -> Result<()> {
    let mut scenario = Scenario::new("h200", "NVIDIA H200", 1, Topology::NvSwitch);
    scenario.mig = vec![MigGroup {
        gpus: vec![0],
        instances: vec!["1g.18gb".to_owned(), "3g.71gb".to_owned()],
    }];
    let node = Node::new(scenario)?;
    let checked = check(&node, H200, PATIENCE)?;
    assert!(!checked.succeeded);
    assert!(checked.error.contains("MIG mode: expected Disabled, measured Enabled"));
    assert!(
        checked
            .error
            .contains("MIG devices, by instance: expected none, measured ")
    );
    assert!(checked.table.contains("| agent: devices of the list | 2 | 2 | same |"));
    Ok(())
}

#[test]
fn a_gpu_that_hangs_ends_the_check_and_the_call_is_named() -> Result<()> {
    let node = v100()?;
    node.state()?.update_gpu(0, |gpu| gpu.hangs = true)?;
    let checked = check(&node, V100, "3")?;
    assert!(!checked.succeeded);
    let named = checked
        .error
        .lines()
        .find(|line| line.starts_with("the driver's answers: "));
    assert!(named.is_some_and(|line| line.contains("printed nothing for 3s after: nvml")));
    assert!(
        checked
            .error
            .contains("the agent's inventory: expected an answer, measured ")
    );
    Ok(())
}

#[test]
fn a_machine_without_a_driver_fails_with_what_is_missing() -> Result<()> {
    let node = v100()?;
    node.remove_driver()?;
    let checked = check(&node, "NVIDIA-SMI has failed", PATIENCE)?;
    assert!(!checked.succeeded);
    for what in [
        "nvidia-smi -q -x: ",
        "the driver's answers: ",
        "the agent's inventory: ",
        "no device to advertise",
    ] {
        assert!(checked.error.contains(what), "{what}");
    }
    Ok(())
}
