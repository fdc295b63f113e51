//! Identity and memory of every board, written out once more.

use std::collections::BTreeSet;

use gpunode_scenario::{AdditionalBoards, Board, MigGroup, ReturnCode, Scenario, Topology};
use nvml_wrapper::error::NvmlError;

use crate::{
    node::{TestNode, folder, load},
    raw,
};

/// Name, MiB, compute capability, NVML architecture, PCI device id, watts.
type Expected = (&'static str, u64, (i32, i32), u32, u32, u32);

const BOARDS: [Expected; 15] = [
    ("Tesla V100-SXM2-32GB", 32768, (7, 0), 5, 0x1DB5, 300),
    ("Tesla V100-SXM2-16GB", 16384, (7, 0), 5, 0x1DB1, 300),
    ("Tesla T4", 15360, (7, 5), 6, 0x1EB8, 70),
    ("NVIDIA T4", 15360, (7, 5), 6, 0x1EB8, 70),
    ("NVIDIA DGX Display", 4096, (7, 5), 6, 0x1FB0, 50),
    ("NVIDIA A30", 24576, (8, 0), 7, 0x20B7, 165),
    ("NVIDIA A100-SXM4-40GB", 40960, (8, 0), 7, 0x20B0, 400),
    ("NVIDIA A100-SXM4-80GB", 81920, (8, 0), 7, 0x20B2, 400),
    ("NVIDIA A100 80GB PCIe", 81920, (8, 0), 7, 0x20B5, 300),
    ("NVIDIA L4", 23034, (8, 9), 8, 0x27B8, 72),
    ("NVIDIA L40S", 46068, (8, 9), 8, 0x26B5, 350),
    ("NVIDIA H100 80GB HBM3", 81559, (9, 0), 9, 0x2330, 700),
    ("NVIDIA H200", 143_771, (9, 0), 9, 0x2335, 700),
    ("NVIDIA B200", 183_359, (10, 0), 10, 0x2901, 1000),
    ("NVIDIA GB200", 189_471, (10, 0), 10, 0x2941, 1200),
];

#[test]
fn every_board_reports_what_the_table_says() {
    assert_eq!(BOARDS.len(), Board::all().len());
    let mut scenario = Scenario::new("test", BOARDS[0].0, 1, Topology::Pcie);
    scenario.additional = BOARDS[1..]
        .iter()
        .map(|board| AdditionalBoards {
            board: board.0.to_owned(),
            count: 1,
            topology: Topology::Pcie,
        })
        .collect();
    let node = TestNode::with(&scenario);

    for ((name, mib, capability, architecture, pci_device, watts), index) in BOARDS.into_iter().zip(0..) {
        let device = node.device(index);
        assert_eq!(device.name().unwrap(), name);
        assert_eq!(device.memory_info().unwrap().total, mib << 20, "{name}");
        let found = device.cuda_compute_capability().unwrap();
        assert_eq!((found.major, found.minor), capability, "{name}");
        assert_eq!(device.architecture().unwrap().as_c(), architecture, "{name}");
        assert_eq!(
            device.pci_info().unwrap().pci_device_id,
            pci_device << 16 | 0x10DE,
            "{name}"
        );
        assert_eq!(device.enforced_power_limit().unwrap(), watts * 1000, "{name}");
    }
}

#[test]
fn a_gpu_is_found_by_each_of_its_names() {
    let node = TestNode::dgx1();
    let mut uuids = BTreeSet::new();
    for index in 0..8 {
        let device = node.device(index);
        let uuid = device.uuid().unwrap();
        let pci = device.pci_info().unwrap();
        assert_eq!(device.index().unwrap(), index);
        assert_eq!(device.minor_number().unwrap(), index);
        assert_eq!(
            node.nvml().device_by_uuid(uuid.as_str()).unwrap().index().unwrap(),
            index
        );
        for address in [
            pci.bus_id.clone(),
            format!("0000:{:02x}:00.0", pci.bus),
            format!("{:x}:0.0", pci.bus),
        ] {
            let found = node.nvml().device_by_pci_bus_id(address.as_str());
            assert_eq!(found.unwrap().index().unwrap(), index, "{address}");
        }
        assert!(uuids.insert(uuid));
    }
    assert_eq!(node.device(0).pci_info().unwrap().bus_id, "00000000:06:00.0");

    assert_eq!(node.nvml().device_count().unwrap(), 8);
    assert!(matches!(node.nvml().device_by_index(8), Err(NvmlError::InvalidArg)));
    assert!(matches!(node.nvml().device_by_uuid("GPU-0"), Err(NvmlError::NotFound)));
    assert!(matches!(
        node.nvml().device_by_pci_bus_id("0000:ff:00.0"),
        Err(NvmlError::NotFound)
    ));
    assert!(matches!(
        node.nvml().device_by_pci_bus_id("first"),
        Err(NvmlError::InvalidArg)
    ));
}

#[test]
fn versions_come_from_the_scenario() {
    let mut scenario = Scenario::new("test", "Tesla T4", 0, Topology::Pcie);
    scenario.driver_version = "550.163.01".to_owned();
    scenario.cuda_version = "12.4".to_owned();
    let node = TestNode::with(&scenario);
    assert_eq!(node.nvml().sys_driver_version().unwrap(), "550.163.01");
    assert_eq!(node.nvml().sys_nvml_version().unwrap(), "12.550.163.01");
    assert_eq!(node.nvml().sys_cuda_driver_version().unwrap(), 12040);
    assert_eq!(node.nvml().device_count().unwrap(), 0);
}

#[test]
fn a_driver_before_510_lacks_the_versions_that_came_then() {
    let mut scenario = Scenario::new("test", "Tesla T4", 1, Topology::Pcie);
    scenario.driver_version = "470.256.02".to_owned();
    let node = TestNode::with(&scenario);
    let device = node.device(0);
    assert!(matches!(device.memory_info(), Err(NvmlError::FunctionNotFound)));
    let processes = device.running_compute_processes_count();
    assert!(matches!(processes, Err(NvmlError::FunctionNotFound)));
}

#[test]
fn a_driver_before_470_names_mig_devices_by_their_place_and_does_not_find_them_by_it() {
    let mut scenario = Scenario::new("test", "NVIDIA A30", 1, Topology::Pcie);
    scenario.driver_version = "460.106.00".to_owned();
    scenario.mig = vec![MigGroup {
        gpus: vec![0],
        instances: vec!["1g.6gb".to_owned()],
    }];
    let node = TestNode::with(&scenario);
    let device = node.device(0);
    let uuid = device.mig_device_by_index(0).unwrap().uuid().unwrap();
    assert_eq!(uuid, format!("MIG-{}/3/0", device.uuid().unwrap()));
    let found = node.nvml().device_by_uuid(uuid.as_str());
    assert!(matches!(found, Err(NvmlError::NotFound)));
}

#[test]
fn modules_of_a_base_board_have_no_graphics_processes() {
    let v100 = TestNode::dgx1();
    let processes = v100.device(0).running_graphics_processes_count();
    assert!(matches!(processes, Err(NvmlError::NotSupported)));
}

#[test]
fn mig_is_off_where_there_is_mig() {
    let a100 = TestNode::new("NVIDIA A100-SXM4-40GB", 1, Topology::NvSwitch);
    let mode = a100.device(0).mig_mode().unwrap();
    assert_eq!((mode.current, mode.pending), (0, 0));
    assert!(matches!(
        a100.device(0).mig_device_by_index(0),
        Err(NvmlError::NotFound)
    ));

    let t4 = TestNode::new("Tesla T4", 1, Topology::Pcie);
    assert!(matches!(t4.device(0).mig_mode(), Err(NvmlError::NotSupported)));
    assert!(matches!(
        t4.device(0).mig_device_by_index(0),
        Err(NvmlError::NotSupported)
    ));
    assert_eq!(t4.device(0).mig_device_count().unwrap(), 0);
}

#[test]
fn without_a_scenario_there_is_no_driver() {
    let dir = folder(None);
    assert!(matches!(load(dir.path()), Err(NvmlError::DriverNotLoaded)));

    let impossible = Scenario::new("test", "Tesla T4", 1, Topology::NvSwitch);
    let dir = folder(Some(&impossible));
    assert!(matches!(load(dir.path()), Err(NvmlError::Unknown)));
}

#[test]
fn init_is_counted() {
    let node = TestNode::new("Tesla T4", 1, Topology::Pcie);
    raw::init(node.nvml()).unwrap();
    raw::shutdown(node.nvml()).unwrap();
    assert_eq!(node.nvml().device_count().unwrap(), 1);
    raw::shutdown(node.nvml()).unwrap();
    assert!(matches!(node.nvml().device_count(), Err(NvmlError::Uninitialized)));
    assert_eq!(raw::shutdown(node.nvml()), Err(ReturnCode::Uninitialized.code()));
    raw::init(node.nvml()).unwrap();
    assert_eq!(node.nvml().device_count().unwrap(), 1);
}
