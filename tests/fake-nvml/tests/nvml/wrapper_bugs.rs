//! Bugs of nvml-wrapper 0.13.0 that gpunode works around. A test that
//! fails here says that an upgrade has repaired one, and that the workaround can go.

use gpunode_scenario::Topology;
use nvml_wrapper::{bitmasks::event::EventTypes, enum_wrappers::nv_link::IntDeviceType};

use crate::{node::TestNode, raw};

/// Bug 2: the type of the remote end is written to a temporary.
#[test]
fn remote_device_type_is_always_unknown() {
    let node = TestNode::new("NVIDIA A100-SXM4-40GB", 8, Topology::NvSwitch);
    let device = node.device(0);
    let found = device.link_wrapper_for(0).remote_device_type(0).unwrap();
    assert_eq!(found, IntDeviceType::Unknown);
    assert_eq!(raw::remote_device_type(node.nvml(), &device, 0), Ok(2));
}

/// Bug 4: a set that one GPU refuses is gone, although NVML lets it be used.
#[test]
fn a_refused_registration_consumes_the_set() {
    let node = TestNode::new("Tesla T4", 1, Topology::Pcie);
    let set = node.nvml().create_event_set().unwrap();
    let unsupported = EventTypes::CRITICAL_XID_ERROR | EventTypes::POWER_SOURCE_CHANGE;
    assert!(node.device(0).register_events(unsupported, set).is_err());
}
