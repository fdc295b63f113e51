//! XIDs and event sets.

use std::{
    thread,
    time::{Duration, Instant},
};

use gpunode_scenario::{ReturnCode, Topology};
use nvml_wrapper::{bitmasks::event::EventTypes, error::NvmlError};

use crate::{node::TestNode, raw::RawEventSet};

const XID: u64 = 8;
const TIMEOUT: u32 = 10;
/// Longer than any machine needs; no test waits that long when all is well.
const LONG_MS: u32 = 30_000;

fn t4() -> TestNode {
    TestNode::new("Tesla T4", 2, Topology::Pcie)
}

fn set_of_all(node: &TestNode) -> RawEventSet<'_> {
    let set = RawEventSet::new(node.nvml());
    for index in 0..2 {
        set.register(&node.device(index), XID).unwrap();
    }
    set
}

#[test]
fn an_xid_is_delivered_once_to_each_set() {
    let node = t4();
    let sets = [set_of_all(&node), set_of_all(&node)];
    node.state().inject_xid(1, 79).unwrap();
    for set in &sets {
        let event = set.wait(LONG_MS).unwrap();
        assert!(RawEventSet::is_of(&event, &node.device(1)));
        assert_eq!((event.eventType, event.eventData), (XID, 79));
        assert_eq!((event.gpuInstanceId, event.computeInstanceId), (u32::MAX, u32::MAX));
        assert_eq!(set.wait(0).unwrap_err(), TIMEOUT);
    }
}

#[test]
fn events_before_the_registration_are_not_delivered() {
    let node = t4();
    node.state().inject_xid(0, 13).unwrap();
    let set = set_of_all(&node);
    assert_eq!(set.wait(0).unwrap_err(), TIMEOUT);
    // Registering again does not lose what came since.
    node.state().inject_xid(0, 31).unwrap();
    set.register(&node.device(0), XID).unwrap();
    assert_eq!(set.wait(LONG_MS).unwrap().eventData, 31);
}

#[test]
fn events_come_in_the_order_in_which_they_happened() {
    let node = t4();
    let set = set_of_all(&node);
    for (gpu, xid) in [(1, 48), (0, 63), (1, 64), (0, 94)] {
        node.state().inject_xid(gpu, xid).unwrap();
    }
    let delivered: Vec<_> = (0..4).map(|_| set.wait(LONG_MS).unwrap().eventData).collect();
    assert_eq!(delivered, [48, 63, 64, 94]);
}

#[test]
fn a_mig_event_names_its_instance() {
    let node = TestNode::new("NVIDIA A100-SXM4-40GB", 1, Topology::NvSwitch);
    let set = RawEventSet::new(node.nvml());
    set.register(&node.device(0), XID).unwrap();
    node.state().inject_mig_xid(0, 43, (3, 0)).unwrap();
    let event = set.wait(LONG_MS).unwrap();
    assert_eq!((event.gpuInstanceId, event.computeInstanceId), (3, 0));
}

#[test]
fn a_wait_is_woken() {
    let node = t4();
    let set = set_of_all(&node);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let set = set;
            let code = set.wait(LONG_MS).unwrap().eventData;
            (code, Instant::now())
        });
        // Other changes wake the wait too, and it goes on.
        node.state().lose(0).unwrap();
        node.state().restore(0).unwrap();
        let injected = Instant::now();
        node.state().inject_xid(0, 79).unwrap();
        let (code, woken) = waiter.join().unwrap();
        assert_eq!(code, 79);
        // Milliseconds in practice; the bound tells a wake-up from looking again each second.
        assert!(woken.saturating_duration_since(injected) < Duration::from_millis(900));
    });
}

#[test]
fn an_idle_wait_ends_at_its_time() {
    let node = t4();
    let set = set_of_all(&node);
    let begin = Instant::now();
    assert_eq!(set.wait(50).unwrap_err(), TIMEOUT);
    assert!(begin.elapsed() >= Duration::from_millis(50));
}

#[test]
fn a_lost_gpu_still_tells_its_xid() {
    let node = t4();
    let set = set_of_all(&node);
    node.state().inject_xid(0, 79).unwrap();
    let device = node.device(0);
    node.state().lose(0).unwrap();
    let event = set.wait(LONG_MS).unwrap();
    assert!(RawEventSet::is_of(&event, &device));
    assert_eq!(set.register(&device, XID), Err(ReturnCode::GpuIsLost.code()));
}

#[test]
fn a_wait_can_be_made_to_fail() {
    let node = t4();
    let set = set_of_all(&node);
    node.state().fail(1, "nvmlEventSetWait", ReturnCode::GpuIsLost).unwrap();
    assert_eq!(set.wait(LONG_MS).unwrap_err(), ReturnCode::GpuIsLost.code());
}

#[test]
fn a_registration_that_answers_unknown_leaves_the_set_undefined() {
    let node = t4();
    let set = set_of_all(&node);
    let state = node.state();
    state.fail(1, "nvmlDeviceRegisterEvents", ReturnCode::Unknown).unwrap();
    assert_eq!(set.register(&node.device(1), XID), Err(ReturnCode::Unknown.code()));
    state.inject_xid(0, 79).unwrap();
    assert_eq!(set.wait(0).unwrap_err(), TIMEOUT);
}

#[test]
fn types_that_never_happen_are_refused() {
    let node = t4();
    let supported = node.device(0).supported_event_types().unwrap();
    assert!(supported.contains(EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR));
    let set = RawEventSet::new(node.nvml());
    assert_eq!(
        set.register(&node.device(0), 16384),
        Err(ReturnCode::NotSupported.code())
    );
    // The set can still be used.
    set.register(&node.device(0), XID).unwrap();
    let (first, second) = set.free_twice();
    assert_eq!((first, second), (Ok(()), Err(ReturnCode::InvalidArgument.code())));
}

#[test]
fn sets_of_the_wrapper_work() {
    let node = t4();
    let set = node.nvml().create_event_set().unwrap();
    let set = node
        .device(0)
        .register_events(EventTypes::CRITICAL_XID_ERROR, set)
        .unwrap();
    assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));
    node.state().inject_xid(0, 62).unwrap();
    assert!(set.wait(LONG_MS).is_ok());
}
