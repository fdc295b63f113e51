//! Compute mode and persistence mode: the node's, not the process's.

use gpunode_scenario::{ComputeMode as Mode, MigGroup, Scenario, Topology};
use nvml_wrapper::{Nvml, enum_wrappers::device::ComputeMode, error::NvmlError};

use crate::{
    node::TestNode,
    thread::{as_nobody, with_read_only},
};

fn t4() -> TestNode {
    TestNode::new("Tesla T4", 2, Topology::Pcie)
}

fn set(nvml: &Nvml, mode: ComputeMode) -> Result<(), NvmlError> {
    nvml.device_by_index(0).unwrap().set_compute_mode(mode)
}

fn get(nvml: &Nvml) -> ComputeMode {
    nvml.device_by_index(0).unwrap().compute_mode().unwrap()
}

/// A second process: the library under another name has an own copy of everything.
pub(crate) fn another_process(node: &TestNode) -> Nvml {
    let name = node.dir().join("another-process.so");
    std::fs::copy(node.dir().join("libnvidia-ml.so.1"), &name).unwrap();
    Nvml::builder().lib_path(name.as_os_str()).init().unwrap()
}

#[test]
#[ignore = "needs root: make test"]
fn modes_are_shared_outlive_processes_and_end_with_a_reboot() {
    let node = t4();
    assert_eq!(get(node.nvml()), ComputeMode::Default);
    set(node.nvml(), ComputeMode::ExclusiveProcess).unwrap();
    node.device(0).set_persistent(true).unwrap();

    let other = another_process(&node);
    assert_eq!(get(&other), ComputeMode::ExclusiveProcess);
    assert!(other.device_by_index(0).unwrap().is_in_persistent_mode().unwrap());
    assert_eq!(node.device(1).compute_mode().unwrap(), ComputeMode::Default);
    set(&other, ComputeMode::Prohibited).unwrap();
    drop(other);
    assert_eq!(get(node.nvml()), ComputeMode::Prohibited);
    assert_eq!(node.state().driver().unwrap().gpu(0).compute_mode, Mode::Prohibited);

    node.state().reboot().unwrap();
    assert_eq!(get(node.nvml()), ComputeMode::Default);
    node.state().reboot().unwrap();
}

/// Pods see the driver root through a read-only mount.
#[test]
#[ignore = "needs root: make test"]
fn a_privileged_process_sets_modes_where_the_library_is_mounted_read_only() {
    let node = t4();
    with_read_only(node.dir(), || {
        assert!(std::fs::write(node.dir().join("probe"), "").is_err());
        set(node.nvml(), ComputeMode::ExclusiveProcess).unwrap();
        assert_eq!(get(node.nvml()), ComputeMode::ExclusiveProcess);
        assert!(std::fs::write(node.dir().join("probe"), "").is_err());
    });
    assert_eq!(get(node.nvml()), ComputeMode::ExclusiveProcess);
}

#[test]
#[ignore = "needs root: make test"]
fn ordinary_users_may_only_look() {
    let node = t4();
    as_nobody(|| {
        assert!(matches!(
            set(node.nvml(), ComputeMode::Prohibited),
            Err(NvmlError::NoPermission)
        ));
        assert!(matches!(
            node.device(0).set_persistent(true),
            Err(NvmlError::NoPermission)
        ));
        assert_eq!(get(node.nvml()), ComputeMode::Default);
    });
}

#[test]
fn a_gpu_that_can_be_divided_has_no_mode() {
    let mut scenario = Scenario::new("test", "NVIDIA A100-SXM4-40GB", 1, Topology::NvSwitch);
    scenario.mig = vec![MigGroup {
        gpus: vec![0],
        instances: Vec::new(),
    }];
    let node = TestNode::with(&scenario);
    assert!(matches!(
        set(node.nvml(), ComputeMode::ExclusiveProcess),
        Err(NvmlError::NotSupported)
    ));
    assert_eq!(get(node.nvml()), ComputeMode::Default);
}
