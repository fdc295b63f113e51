//! NVIDIA's own Go binding on the simulated library.

use std::{
    path::Path,
    process::{Command, Output},
};

use gpunode_scenario::{Scenario, Topology};

use crate::node::folder;

/// Runs the Go program with the expectations of that name on a node.
fn walk(expectations: &str, board: &str, count: u32, topology: Topology) -> Output {
    let dir = folder(Some(&Scenario::new("go-nvml", board, count, topology)));
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
        let output = walk(expectations, board, count, topology);
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// A program that finds no difference anywhere would show nothing.
#[test]
#[ignore = "needs Go: make test"]
fn go_nvml_finds_a_difference() {
    let output = walk("t4", "Tesla T4", 3, Topology::Pcie);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("t4: 19 answers compared, 2 differ"));
}
