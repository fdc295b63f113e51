//! The check against the simulated driver, with the output of nvidia-smi for the same board and for one that differs.

use anyhow::Result;
use gpunode_node_tests::{Node, built};
use gpunode_scenario::{AdditionalBoards, FabricState, Gpu, MigGroup, RecoveryAction, ReturnCode, Scenario, Topology};
use std::{
    env,
    fs::{self, Permissions},
    num::ParseIntError,
    os::unix::fs::PermissionsExt as _,
    process::Command,
};

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

fn check(node: &Node, smi: &str, limit: &str) -> Result<Checked> {
    let folder = tempfile::tempdir()?;
    let output_of_smi = folder.path().join("nvidia-smi.xml");
    fs::write(&output_of_smi, smi)?;
    run(program(node)?
        .arg("--nvidia-smi")
        .arg(output_of_smi)
        .args(["--limit", limit]))
}

/// Runs the check with a program that prints `output` in place of nvidia-smi, and ends with `status`.
fn check_with_program(node: &Node, output: &str, status: i32) -> Result<Checked> {
    let folder = tempfile::tempdir()?;
    let (smi, output_of_smi) = (folder.path().join("nvidia-smi"), folder.path().join("output"));
    fs::write(&output_of_smi, output)?;
    fs::write(
        &smi,
        format!("#!/bin/sh\ncat {}\nexit {status}\n", output_of_smi.display()),
    )?;
    fs::set_permissions(&smi, Permissions::from_mode(0o755))?;
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [folder.path().to_owned()].into_iter().chain(env::split_paths(&path));
    run(program(node)?.env("PATH", env::join_paths(folders)?))
}

fn program(node: &Node) -> Result<Command> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpunode-gpu-check"));
    command
        .arg("--agent")
        .arg(&built()?.agent)
        .arg("--host-root")
        .arg(node.host_root())
        .arg("--library")
        .arg(node.library());
    Ok(command)
}

#[expect(clippy::print_stdout, reason = "a test's output")]
fn run(command: &mut Command) -> Result<Checked> {
    let output = command.output()?;
    let checked = Checked {
        succeeded: output.status.success(),
        table: String::from_utf8(output.stdout)?,
        error: String::from_utf8(output.stderr)?,
    };
    println!("{}\n{}", checked.table, checked.error);
    Ok(checked)
}

/// The part of the output of nvidia-smi that says which GPUs a scenario has, and how they are divided.
fn smi_of(scenario: &Scenario) -> Result<String> {
    let device = |(gi, ci): (u32, u32)| {
        format!(
            "<mig_device><gpu_instance_id>{gi}</gpu_instance_id>\
             <compute_instance_id>{ci}</compute_instance_id></mig_device>"
        )
    };
    let gpu = |gpu: &Gpu| {
        let devices = gpu.mig_devices().map(|(instance, compute)| (instance.id, compute.id));
        let mode = match (&gpu.mig, gpu.board.max_mig_devices) {
            (Some(_), _) => "Enabled",
            (None, 0) => "N/A",
            (None, _) => "Disabled",
        };
        format!(
            "<gpu><product_name>{}</product_name><uuid>{}</uuid><minor_number>{}</minor_number>\
             <pci><pci_bus_id>0000{}</pci_bus_id></pci><fb_memory_usage><total>{} MiB</total></fb_memory_usage>\
             <mig_mode><current_mig>{mode}</current_mig></mig_mode><mig_devices>{}</mig_devices></gpu>",
            gpu.name,
            gpu.uuid,
            gpu.minor,
            gpu.pci_bus_id,
            gpu.memory_mib,
            devices.map(device).collect::<String>()
        )
    };
    let gpus: String = scenario.gpus()?.iter().map(gpu).collect();
    Ok(format!(
        "<nvidia_smi_log><driver_version>{}</driver_version>{gpus}</nvidia_smi_log>",
        scenario.driver_version
    ))
}

/// Checks a scenario that has to pass, and returns the table.
fn passes(scenario: Scenario) -> Result<String> {
    let smi = smi_of(&scenario)?;
    let checked = check(&Node::new(scenario)?, &smi, PATIENCE)?;
    assert!(checked.succeeded, "{}", checked.error);
    Ok(checked.table)
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
        for what in [
            "memory",
            "look-up by PCI address",
            "fabric state",
            "field 31, pages to be retired",
            "agent: Allocate",
        ] {
            assert!(checked.table.contains(&format!("\n| {what} | ")), "{what}");
        }
        for row in [
            "| agent: GPUs whose events are followed | 1 | 1 | same |",
            "| agent: rounds of probes | 3 | 3 | same |",
            "| CUDA version | 13.0 | 13.0 | same |",
        ] {
            assert!(checked.table.contains(row), "{row}");
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
fn several_gpus_pass_and_a_display_board_is_left_out() -> Result<()> {
    let mut scenario = Scenario::new("station", "NVIDIA DGX Display", 1, Topology::Pcie);
    scenario.additional = vec![AdditionalBoards {
        board: "NVIDIA A100-SXM4-80GB".to_owned(),
        count: 2,
        topology: Topology::Pcie,
    }];
    let table = passes(scenario)?;
    for row in [
        "| display boards, which gpunode leaves out |  | NVIDIA DGX Display | not compared |",
        "| GPUs, by UUID | 2 | 2 | same |",
        "| NVML index | each its own | each its own | same |",
        "| agent: GPUs whose events are followed | 2 | 2 | same |",
        "| agent: devices of the list | 2 | 2 | same |",
    ] {
        assert!(table.contains(row), "{row}");
    }
    Ok(())
}

#[test]
fn gpus_under_mig_pass_with_and_without_instances() -> Result<()> {
    for instances in [vec!["1g.18gb".to_owned(), "3g.71gb".to_owned()], vec![]] {
        let has_devices = !instances.is_empty();
        let mut scenario = Scenario::new("h200", "NVIDIA H200", 1, Topology::NvSwitch);
        scenario.mig = vec![MigGroup {
            gpus: vec![0],
            instances,
        }];
        let table = passes(scenario)?;
        assert!(table.contains("| MIG mode | Enabled | Enabled | same |"));
        let row = if has_devices {
            "/dev/nvidia0, 2 in /dev/nvidia-caps/ | "
        } else {
            "| agent: devices of the list |  | none: MIG is on, and no GPU has an instance | not compared |"
        };
        assert!(table.contains(row), "{row}");
    }
    Ok(())
}

#[test]
fn a_fault_that_only_a_probe_sees_differs() -> Result<()> {
    let node = v100()?;
    node.state()?
        .fail(0, "nvmlDeviceGetTotalEccErrors", ReturnCode::Unknown)?;
    let checked = check(&node, V100, PATIENCE)?;
    assert!(!checked.succeeded);
    let uuid = node.uuids()?.concat();
    for difference in [
        format!(
            "agent: calls of the probes that fail: expected none, measured nvmlDeviceGetTotalEccErrors of {uuid}: "
        ),
        format!("agent: faults: expected none, measured {uuid} NotAnswering: "),
    ] {
        assert!(checked.error.contains(&difference), "{difference}");
    }
    Ok(())
}

#[test]
fn a_gpu_that_waits_for_its_fabric_is_named_with_the_reason() -> Result<()> {
    let node = h200()?;
    node.state()?
        .update_gpu(0, |gpu| gpu.fabric = FabricState::NotStarted)?;
    let checked = check(
        &node,
        &H200.replace("<state>Completed<", "<state>Not Started<"),
        PATIENCE,
    )?;
    let uuid = node.uuids()?.concat();
    for difference in [
        format!("agent: unhealthy devices: expected none, measured {uuid}"),
        format!("agent: faults: expected none, measured {uuid} FabricNotReady: "),
    ] {
        assert!(checked.error.contains(&difference), "{difference}");
    }
    Ok(())
}

#[test]
fn nvidia_smi_that_warns_is_compared_and_one_that_fails_is_quoted() -> Result<()> {
    let node = v100()?;
    let warning = "WARNING: infoROM is corrupted at gpu 0000:11:00.0";
    let checked = check_with_program(&node, &format!("{V100}{warning}\n"), 14)?;
    assert!(checked.succeeded, "{}", checked.error);
    let row = format!("| nvidia-smi warns |  | exit status: 14: {warning} | not compared |");
    assert!(checked.table.contains(&row));
    assert!(checked.table.contains("| memory | 32768 MiB | 32768 MiB | same |"));

    let cut = V100.split_once("<pci>").map_or(V100, |(cut, _)| cut);
    let checked = check_with_program(&node, &format!("{cut}\nUnable to determine the device handle"), 15)?;
    assert!(!checked.succeeded);
    assert!(
        checked
            .error
            .contains("nvidia-smi -q -x: expected an answer, measured exit status: 15: ")
    );
    assert!(checked.error.contains("Unable to determine the device handle"));
    assert!(!checked.error.contains("<nvidia_smi_log>"));
    Ok(())
}

#[test]
fn each_gpu_has_its_own_time() -> Result<()> {
    let scenario = Scenario::new("t4", "Tesla T4", 2, Topology::Pcie);
    let smi = smi_of(&scenario)?;
    let node = Node::new(scenario)?;
    node.state()?.update_gpu(1, |gpu| gpu.init_ms = 1000)?;
    let checked = check(&node, &smi, PATIENCE)?;
    let what = "| nvmlInit + first call about each GPU, by session |  | ";
    let row = checked.table.lines().find_map(|line| line.strip_prefix(what));
    // Such as `2 + 0, 1000 ms`.
    let times = row.and_then(|row| row.split_once(" + ")?.1.split_once(" ms"));
    let times: Vec<u64> = times
        .into_iter()
        .flat_map(|(times, _)| times.split(", "))
        .map(str::parse::<u64>)
        .collect::<Result<_, ParseIntError>>()?;
    assert!(
        matches!(times[..], [first, second] if first < 1000 && second >= 1000),
        "{times:?}"
    );
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
        "no GPU is known",
    ] {
        assert!(checked.error.contains(what), "{what}");
    }
    Ok(())
}
