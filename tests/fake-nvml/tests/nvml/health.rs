//! ECC, retired pages, remapped rows, recovery action.

use gpunode_scenario::{EccCounts, RecoveryAction, ReturnCode, Scenario, Topology};
use nvml_wrapper::{
    enum_wrappers::device::{EccCounter, MemoryError, RetirementCause},
    error::NvmlError,
};

use crate::{node::TestNode, raw};

const RECOVERY_ACTION: u32 = 230;
const NOT_SUPPORTED: u32 = 3;

#[test]
fn old_boards_retire_pages() {
    let node = TestNode::new("Tesla T4", 1, Topology::Pcie);
    let device = node.device(0);
    assert!(!device.are_pages_pending_retired().unwrap());
    assert!(
        device
            .retired_pages(RetirementCause::DoubleBitEccError)
            .unwrap()
            .is_empty()
    );
    node.state()
        .update_gpu(0, |gpu| {
            gpu.retired_pages.double_bit = vec![0x1000, 0x2000];
            gpu.retired_pages.pending = true;
        })
        .unwrap();
    assert!(device.are_pages_pending_retired().unwrap());
    let pages = device.retired_pages(RetirementCause::DoubleBitEccError).unwrap();
    assert_eq!(
        pages.iter().map(|page| page.address).collect::<Vec<_>>(),
        [0x1000, 0x2000]
    );
    assert!(
        device
            .retired_pages(RetirementCause::MultipleSingleBitEccErrors)
            .unwrap()
            .is_empty()
    );
    assert_eq!(raw::remapped_rows(node.nvml(), &device), Err(NOT_SUPPORTED));
}

#[test]
fn new_boards_remap_rows() {
    let node = TestNode::new("NVIDIA A100-SXM4-80GB", 1, Topology::NvSwitch);
    let device = node.device(0);
    assert_eq!(raw::remapped_rows(node.nvml(), &device), Ok([0; 4]));
    node.state()
        .update_gpu(0, |gpu| {
            gpu.row_remap.uncorrectable = 2;
            gpu.row_remap.pending = true;
        })
        .unwrap();
    assert_eq!(raw::remapped_rows(node.nvml(), &device), Ok([0, 2, 1, 0]));
    assert_eq!(raw::field(node.nvml(), &device, 144), Ok(Ok(1)));
    assert!(matches!(
        device.are_pages_pending_retired(),
        Err(NvmlError::NotSupported)
    ));
}

#[test]
fn ecc_errors_are_counted_by_kind() {
    let node = TestNode::new("Tesla T4", 1, Topology::Pcie);
    node.state()
        .update_gpu(0, |gpu| {
            gpu.ecc_volatile = EccCounts {
                corrected: 3,
                uncorrected: 1,
            };
            gpu.ecc_aggregate = EccCounts {
                corrected: 30,
                uncorrected: 10,
            };
        })
        .unwrap();
    let device = node.device(0);
    let count = |kind, counter| device.total_ecc_errors(kind, counter).unwrap();
    assert_eq!(count(MemoryError::Corrected, EccCounter::Volatile), 3);
    assert_eq!(count(MemoryError::Uncorrected, EccCounter::Volatile), 1);
    assert_eq!(count(MemoryError::Corrected, EccCounter::Aggregate), 30);
    assert_eq!(count(MemoryError::Uncorrected, EccCounter::Aggregate), 10);
}

#[test]
fn the_recovery_action_is_a_field_of_drivers_since_r570() {
    let node = TestNode::new("Tesla T4", 1, Topology::Pcie);
    let field = |node: &TestNode| raw::field(node.nvml(), &node.device(0), RECOVERY_ACTION).unwrap();
    assert_eq!(field(&node), Ok(0));
    node.state()
        .set_recovery_action(0, RecoveryAction::DrainAndReset)
        .unwrap();
    assert_eq!(field(&node), Ok(4));
    assert_eq!(raw::field(node.nvml(), &node.device(0), 1), Ok(Err(NOT_SUPPORTED)));

    let mut old = Scenario::new("test", "Tesla T4", 1, Topology::Pcie);
    old.driver_version = "535.183.06".to_owned();
    let node = TestNode::with(&old);
    assert_eq!(field(&node), Err(NOT_SUPPORTED));
    node.state()
        .fail(0, "nvmlDeviceGetFieldValues", ReturnCode::Unknown)
        .unwrap();
    assert_eq!(raw::field(node.nvml(), &node.device(0), RECOVERY_ACTION), Err(999));
}
