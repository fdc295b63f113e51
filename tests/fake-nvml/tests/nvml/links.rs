//! Links between GPUs.

use std::collections::BTreeMap;

use gpunode_scenario::{DGX1_VOLTA_LINKS, FabricState, MigGroup, ReturnCode, Scenario, Topology};
use nvml_wrapper::{
    enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel},
    error::NvmlError,
};

use crate::{node::TestNode, raw};

const REMOTE_GPU: u32 = 0;
const REMOTE_SWITCH: u32 = 2;

/// `NVLinks` of a GPU by the index of the peer, as go-gpuallocator counts them: by PCI address.
fn links(node: &TestNode, index: u32) -> Vec<u32> {
    let device = node.device(index);
    let peers: BTreeMap<_, _> = (0..8)
        .map(|peer| (node.device(peer).pci_info().unwrap().bus_id, peer as usize))
        .collect();
    let mut counts = vec![0; peers.len()];
    for port in 0..18 {
        let link = device.link_wrapper_for(port);
        match link.is_active() {
            Ok(true) => counts[peers[&link.remote_pci_info().unwrap().bus_id]] += 1,
            Ok(false) => panic!("a DGX-1 uses every port, not {port}"),
            Err(NvmlError::InvalidArg) => assert!(port >= 6),
            Err(error) => panic!("{error}"),
        }
    }
    counts
}

#[test]
fn dgx1_has_the_cube_mesh() {
    let node = TestNode::dgx1();
    for (row, index) in DGX1_VOLTA_LINKS.iter().zip(0..) {
        assert_eq!(links(&node, index), row, "GPU {index}");
    }
    assert_eq!(raw::remote_device_type(node.nvml(), &node.device(0), 0), Ok(REMOTE_GPU));
    assert_eq!(node.device(0).link_wrapper_for(0).version().unwrap(), 2);
}

#[test]
fn a_bridge_is_down_while_a_gpu_at_its_end_is_divided() {
    let mut scenario = Scenario::new("test", "NVIDIA A30", 4, Topology::Bridge);
    scenario.mig = vec![MigGroup {
        gpus: vec![1],
        instances: Vec::new(),
    }];
    let node = TestNode::with(&scenario);
    let is_up = |gpu| node.device(gpu).link_wrapper_for(3).is_active().unwrap();
    assert_eq!([0, 1, 2, 3].map(is_up), [false, false, true, true]);
    let remote = node.device(2).link_wrapper_for(3).remote_pci_info().unwrap();
    assert_eq!(remote.bus_id, node.device(3).pci_info().unwrap().bus_id);
}

#[test]
fn a_link_is_down_while_the_gpu_at_its_end_is_lost() {
    let node = TestNode::new("NVIDIA A30", 4, Topology::Bridge);
    node.state().lose(1).unwrap();
    let is_up = |gpu| node.device(gpu).link_wrapper_for(3).is_active().unwrap();
    assert_eq!([0, 2, 3].map(is_up), [false, true, true]);
    node.state().restore(1).unwrap();
    assert!(is_up(0));
}

#[test]
fn dgx1_has_two_sockets_of_two_switches() {
    let node = TestNode::dgx1();
    for a in 0..8_u32 {
        for b in 0..8_u32 {
            let level = node.device(a).topology_common_ancestor(node.device(b)).unwrap();
            let expected = match (a, b) {
                _ if a == b => TopologyLevel::Internal,
                _ if a / 2 == b / 2 => TopologyLevel::Single,
                _ if a / 4 == b / 4 => TopologyLevel::HostBridge,
                _ => TopologyLevel::System,
            };
            assert_eq!(level, expected, "{a} and {b}");
        }
    }
    let neighbour = node.device(2).topology_nearest_gpus(TopologyLevel::Single).unwrap();
    assert_eq!(neighbour.len(), 1);
    assert_eq!(neighbour[0].index().unwrap(), 3);
    assert!(
        node.device(2)
            .topology_nearest_gpus(TopologyLevel::Multiple)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn cpus_and_memory_are_those_of_the_socket() {
    let node = TestNode::dgx1();
    assert_eq!(node.device(3).cpu_affinity(2).unwrap(), [0xffff, 0]);
    assert_eq!(node.device(4).cpu_affinity(2).unwrap(), [0xffff_0000, 0]);
}

/// NVML has this one for platforms whose GPUs are NUMA nodes themselves.
#[test]
fn memory_of_a_gpu_is_a_node_of_its_own_on_grace_alone() {
    let dgx1 = TestNode::dgx1();
    assert!(matches!(dgx1.device(0).numa_node_id(), Err(NvmlError::NotSupported)));
    let grace = TestNode::new("NVIDIA GB200", 4, Topology::NvSwitch);
    let nodes: Vec<_> = (0..4)
        .map(|index| grace.device(index).numa_node_id().unwrap())
        .collect();
    assert_eq!(nodes, [2, 3, 4, 5]);
}

#[test]
fn p2p_follows_the_links() {
    use P2pCapabilitiesIndex::{NvLink, Read};
    let node = TestNode::dgx1();
    let status = |a, b, capability| node.device(a).p2p_status(&node.device(b), capability).unwrap();
    assert_eq!(status(0, 4, NvLink), P2pStatus::Ok);
    assert_eq!(status(0, 4, Read), P2pStatus::Ok);
    assert_eq!(status(0, 5, NvLink), P2pStatus::NotSupported);
    assert_eq!(status(0, 5, Read), P2pStatus::IohTopologyNotSupported);
}

#[test]
fn dgx_a100_links_lead_to_switches() {
    let node = TestNode::new("NVIDIA A100-SXM4-40GB", 8, Topology::NvSwitch);
    let buses: Vec<_> = (0..8).map(|index| node.device(index).pci_info().unwrap().bus).collect();
    assert_eq!(buses, [0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD]);

    let device = node.device(5);
    let mut per_switch = BTreeMap::new();
    for port in 0..12 {
        assert_eq!(raw::remote_device_type(node.nvml(), &device, port), Ok(REMOTE_SWITCH));
        *per_switch
            .entry(raw::remote_bus(node.nvml(), &device, port).unwrap())
            .or_insert(0) += 1;
    }
    assert_eq!(per_switch.len(), 6);
    assert!(
        per_switch
            .into_iter()
            .all(|(bus, links)| links == 2 && !buses.contains(&bus))
    );
    assert_eq!(
        device
            .p2p_status(&node.device(0), P2pCapabilitiesIndex::NvLink)
            .unwrap(),
        P2pStatus::Ok
    );
    let fabric = raw::fabric(node.nvml(), &device, 0x0300_0028).map(|info| info.state);
    assert_eq!(fabric, Err(ReturnCode::NotSupported.code()));
}

#[test]
fn t4_has_no_nvlink() {
    let node = TestNode::new("Tesla T4", 4, Topology::Pcie);
    assert!(matches!(
        node.device(0).link_wrapper_for(0).is_active(),
        Err(NvmlError::NotSupported)
    ));
    let level = |a, b| node.device(a).topology_common_ancestor(node.device(b)).unwrap();
    assert_eq!(level(0, 1), TopologyLevel::HostBridge);
    assert_eq!(level(1, 2), TopologyLevel::System);
}

#[test]
fn ports_without_a_partner_are_inactive() {
    let node = TestNode::new("Tesla V100-SXM2-16GB", 1, Topology::Pcie);
    assert!(!node.device(0).link_wrapper_for(5).is_active().unwrap());
    assert!(matches!(
        node.device(0).link_wrapper_for(5).remote_pci_info(),
        Err(NvmlError::NotSupported)
    ));
    assert!(matches!(
        node.device(0).link_wrapper_for(6).is_active(),
        Err(NvmlError::InvalidArg)
    ));
}

#[test]
fn numbers_of_links_may_have_gaps() {
    let node = TestNode::dgx1();
    let gaps = [(1_u32, ReturnCode::NotSupported), (2, ReturnCode::InvalidArgument)];
    node.state()
        .update_gpu(0, |gpu| gpu.failing_links = gaps.into())
        .unwrap();
    let device = node.device(0);
    let is_active = |link| device.link_wrapper_for(link).is_active();
    assert!(is_active(0).unwrap() && is_active(3).unwrap());
    assert!(matches!(is_active(1), Err(NvmlError::NotSupported)));
    assert!(matches!(is_active(2), Err(NvmlError::InvalidArg)));
    assert!(node.device(1).link_wrapper_for(1).is_active().unwrap());
}

#[test]
fn a_link_goes_down_alone_and_comes_back() {
    let node = TestNode::dgx1();
    let up = |index: u32| -> Vec<u32> {
        (0..6)
            .filter(|port| node.device(index).link_wrapper_for(*port).is_active().unwrap())
            .collect()
    };
    node.state()
        .update_gpu(3, |state| state.links_down = vec![1, 4])
        .unwrap();
    assert_eq!((up(3), up(2)), (vec![0, 2, 3, 5], (0..6).collect()));
    node.state().update_gpu(3, |state| state.links_down.clear()).unwrap();
    assert_eq!(up(3), (0..6).collect::<Vec<_>>());
}

#[test]
fn links_to_switches_are_down_until_the_gpu_has_joined_the_fabric() {
    let node = TestNode::new("NVIDIA H100 80GB HBM3", 2, Topology::NvSwitch);
    for (state, number, is_up) in [
        (FabricState::NotStarted, 1, false),
        (FabricState::InProgress, 2, false),
        (FabricState::Failed, 3, false),
        (FabricState::Completed, 3, true),
    ] {
        node.state().update_gpu(1, |gpu| gpu.fabric = state).unwrap();
        let info = raw::fabric(node.nvml(), &node.device(1), 0x0300_0028).unwrap();
        assert_eq!((info.state, info.status == 0), (number, state != FabricState::Failed));
        assert_eq!(
            node.device(1).link_wrapper_for(0).is_active().unwrap(),
            is_up,
            "{state:?}"
        );
        assert!(node.device(0).link_wrapper_for(0).is_active().unwrap());
    }
}
