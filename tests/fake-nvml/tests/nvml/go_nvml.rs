//! NVIDIA's own Go binding on the simulated library.

use std::{
    path::Path,
    process::{Command, Output},
};

use gpunode_scenario::{MigGroup, Scenario, Topology};

use crate::node::folder;

/// Runs the Go program with the expectations of that name on a node.
fn walk(expectations: &str, board: &str, count: u32, topology: Topology) -> Output {
    walk_scenario(expectations, &Scenario::new("go-nvml", board, count, topology))
}

fn walk_scenario(expectations: &str, scenario: &Scenario) -> Output {
    let dir = folder(Some(scenario));
    Command::new("go")
        .args(["run", ".", expectations])
        .arg(dir.path().join("libnvidia-ml.so.1"))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("go-nvml"))
        .output()
        .unwrap()
}

#[test]
#[ignore = "needs Go: make test"]
fn go_nvml_finds_what_it_expects() {
    for (expectations, board, count, topology) in [
        ("v100", "Tesla V100-SXM2-32GB", 8, Topology::Dgx1Volta),
        ("t4", "Tesla T4", 4, Topology::Pcie),
        ("a100", "NVIDIA A100-SXM4-40GB", 8, Topology::NvSwitch),
    ] {
        found_what_it_expects(&walk(expectations, board, count, topology));
    }
}

#[test]
#[ignore = "needs Go: make test"]
fn go_nvml_finds_mig_devices() {
    let mut scenario = Scenario::new("go-nvml", "NVIDIA A100-SXM4-40GB", 1, Topology::NvSwitch);
    let instances = ["1g.5gb", "1g.5gb+me", "1c.3g.20gb", "2c.3g.20gb"]
        .map(str::to_owned)
        .to_vec();
    scenario.mig = vec![MigGroup {
        gpus: vec![0],
        instances,
    }];
    found_what_it_expects(&walk_scenario("mig", &scenario));
}

fn found_what_it_expects(output: &Output) {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// A program that finds no difference anywhere would show nothing.
#[test]
#[ignore = "needs Go: make test"]
fn go_nvml_finds_a_difference() {
    let output = walk("t4", "Tesla T4", 3, Topology::Pcie);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("t4: 19 answers compared, 2 differ"));
}
