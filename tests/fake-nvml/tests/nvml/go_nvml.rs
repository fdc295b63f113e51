//! NVIDIA's own Go binding on the simulated library.

use std::{path::Path, process::Command};

use gpunode_scenario::{Scenario, Topology};

use crate::node::folder;

#[test]
#[ignore = "needs Go: make test"]
fn go_nvml_finds_what_it_expects() {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("go-nvml");
    for (expectations, board, count, topology) in [
        ("v100", "Tesla V100-SXM2-32GB", 8, Topology::Dgx1Volta),
        ("t4", "Tesla T4", 4, Topology::Pcie),
        ("a100", "NVIDIA A100-SXM4-40GB", 8, Topology::NvSwitch),
    ] {
        let dir = folder(Some(&Scenario::new("go-nvml", board, count, topology)));
        let output = Command::new("go")
            .args(["run", ".", expectations])
            .arg(dir.path().join("libnvidia-ml.so.1"))
            .current_dir(&module)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{expectations}:\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
