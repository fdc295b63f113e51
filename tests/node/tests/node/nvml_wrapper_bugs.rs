//! Faults of nvml-wrapper that the agent works around. A test that fails here says that an upgrade has mended one.

use anyhow::Result;
use gpunode_node_tests::Node;
use gpunode_scenario::{Scenario, Topology};
use nvml_wrapper::{Nvml, enum_wrappers::nv_link::IntDeviceType};

#[test]
fn the_far_end_of_an_nvlink_is_never_told() -> Result<()> {
    let node = Node::new(Scenario::new("a100", "NVIDIA A100-SXM4-80GB", 2, Topology::NvSwitch))?;
    let nvml = Nvml::builder().lib_path(node.library().as_os_str()).init()?;
    let device = nvml.device_by_index(0)?;
    let link = device.link_wrapper_for(0);
    assert!(link.is_active()?);
    assert!(
        matches!(link.remote_device_type(0)?, IntDeviceType::Unknown),
        "node-agent/src/driver/nvml/raw.rs is not needed any more"
    );
    Ok(())
}
