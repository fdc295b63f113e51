//! MIG devices that exist, and profiles.

use std::collections::BTreeSet;

use gpunode_scenario::{AdditionalBoards, Board, MigGroup, ReturnCode, Scenario, Topology};
use nvml_wrapper::error::NvmlError;

use crate::{node::TestNode, raw_mig};

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn a100(groups: &[(&[u32], &[&str])]) -> Scenario {
    let mut scenario = Scenario::new("test", "NVIDIA A100-SXM4-80GB", 3, Topology::NvSwitch);
    let group = |(gpus, instances): &(&[u32], &[&str])| MigGroup {
        gpus: gpus.to_vec(),
        instances: names(instances),
    };
    scenario.mig = groups.iter().map(group).collect();
    scenario
}

fn divided() -> TestNode {
    TestNode::with(&a100(&[
        (&[0], &["1g.10gb+me", "1g.10gb", "1c.3g.40gb", "2c.3g.40gb"]),
        (&[1], &[]),
    ]))
}

#[test]
fn old_drivers_tell_no_profiles_while_the_mode_is_off() {
    let mut scenario = a100(&[(&[0], &[])]);
    for (version, told) in [("535.183.06", false), ("550.163.01", true)] {
        version.clone_into(&mut scenario.driver_version);
        let node = TestNode::with(&scenario);
        assert!(node.device(0).profile_info(0).is_ok());
        assert_eq!(node.device(1).profile_info(0).is_ok(), told, "{version}");
    }
}

#[test]
fn devices_are_found_by_index_and_tell_what_they_are() {
    let node = divided();
    let gpu = node.device(0);
    let mode = gpu.mig_mode().unwrap();
    assert_eq!((mode.current, mode.pending), (1, 1));
    assert_eq!(gpu.mig_device_count().unwrap(), 7);
    assert!(!gpu.mig_is_mig_device_handle().unwrap());
    assert!(matches!(gpu.attributes(), Err(NvmlError::NotSupported)));
    assert!(matches!(gpu.mig_parent_device(), Err(NvmlError::NotSupported)));

    let mut found = Vec::new();
    let mut uuids = BTreeSet::new();
    for index in 0..4 {
        let device = gpu.mig_device_by_index(index).unwrap();
        let attributes = device.attributes().unwrap();
        assert!(device.mig_is_mig_device_handle().unwrap());
        assert_eq!(device.index().unwrap(), index);
        assert_eq!(device.mig_parent_device().unwrap().uuid().unwrap(), gpu.uuid().unwrap());
        assert_eq!(device.memory_info().unwrap().total, attributes.memory_size_mb << 20);
        assert!(matches!(device.utilization_rates(), Err(NvmlError::NotSupported)));
        let uuid = device.uuid().unwrap();
        assert!(uuid.starts_with("MIG-") && uuid.len() == 40, "{uuid}");
        let same = node.nvml().device_by_uuid(uuid.as_str()).unwrap();
        assert_eq!(
            raw_mig::instance_ids(node.nvml(), &same),
            raw_mig::instance_ids(node.nvml(), &device)
        );
        uuids.insert(uuid);
        let name = device.name().unwrap();
        let name = name.strip_prefix("NVIDIA A100-SXM4-80GB MIG ").unwrap().to_owned();
        let (gpu_instance, compute_instance) = raw_mig::instance_ids(node.nvml(), &device).unwrap();
        found.push((name, gpu_instance, compute_instance, attributes.multiprocessor_count));
    }
    let expected = [
        ("1c.3g.40gb", 2, 0, 14),
        ("2c.3g.40gb", 2, 1, 28),
        ("1g.10gb+me", 7, 0, 14),
        ("1g.10gb", 8, 0, 14),
    ];
    let expected = expected.map(|(name, gpu, compute, processors)| (name.to_owned(), gpu, compute, processors));
    assert_eq!(found, expected);
    assert_eq!(uuids.len(), 4);
    assert!(matches!(gpu.mig_device_by_index(4), Err(NvmlError::NotFound)));
    assert!(matches!(gpu.mig_device_by_index(7), Err(NvmlError::InvalidArg)));
    assert!(matches!(gpu.utilization_rates(), Err(NvmlError::NotSupported)));

    let attributes = gpu.mig_device_by_index(1).unwrap().attributes().unwrap();
    assert_eq!(
        (
            attributes.gpu_instance_slice_count,
            attributes.compute_instance_slice_count
        ),
        (3, 2)
    );
    assert_eq!(
        (attributes.memory_size_mb, attributes.shared_copy_engine_count),
        (40192, 3)
    );
}

#[test]
fn mig_can_be_on_with_nothing_in_it() {
    let node = divided();
    assert_eq!(node.device(1).mig_mode().unwrap().current, 1);
    assert_eq!(node.device(1).mig_device_count().unwrap(), 7);
    assert!(matches!(
        node.device(1).mig_device_by_index(0),
        Err(NvmlError::NotFound)
    ));
    assert_eq!(node.device(2).mig_mode().unwrap().current, 0);
    assert!(node.device(2).utilization_rates().is_ok());
}

#[test]
fn instances_are_found_by_profile_and_by_id() {
    let node = divided();
    let (nvml, gpu) = (node.nvml(), node.device(0));
    // The kind 3_SLICE is the profile 9, of which one exists: at the upper half of the memory.
    let profile = gpu.profile_info(2).unwrap();
    assert_eq!((profile.id, profile.slice_count, profile.instance_count), (9, 3, 2));
    assert_eq!(raw_mig::gpu_instances(nvml, &gpu, profile.id).unwrap(), [(2, 9, 4, 4)]);
    assert_eq!(raw_mig::gpu_instances(nvml, &gpu, 0).unwrap(), []);
    assert_eq!(raw_mig::gpu_instance(nvml, &gpu, 7).unwrap(), (7, 20, 0, 1));
    assert_eq!(raw_mig::gpu_instance(nvml, &gpu, 3), Err(ReturnCode::NotFound.code()));
    assert_eq!(raw_mig::compute_instance(nvml, &gpu, 2, 1).unwrap(), (1, 1, 0, 2));
    assert_eq!(
        raw_mig::compute_instance(nvml, &gpu, 2, 2),
        Err(ReturnCode::NotFound.code())
    );
    assert_eq!(raw_mig::compute_instances(nvml, &gpu, 2, 0).unwrap(), [(0, 0, 2, 1)]);
    assert_eq!(
        raw_mig::possible_placements(nvml, &gpu, 14).unwrap(),
        [(0, 2), (2, 2), (4, 2)]
    );
    assert_eq!(
        raw_mig::possible_placements(nvml, &gpu, 4),
        Err(ReturnCode::NotSupported.code())
    );
    assert_eq!(
        raw_mig::gpu_instances(nvml, &node.device(2), 9),
        Err(ReturnCode::NotSupported.code())
    );
    assert!(matches!(gpu.profile_info(8), Err(NvmlError::NotSupported)));
    assert!(matches!(gpu.profile_info(17), Err(NvmlError::InvalidArg)));
    assert!(
        matches!(gpu.profile_info(5), Err(NvmlError::InvalidArg)) && gpu.profile_info(7).is_ok(),
        "kinds have gaps"
    );
}

/// The tables of profiles, written out once more.
#[test]
fn profiles_are_those_of_the_boards() {
    let expected = [
        ("NVIDIA A30", "1g.6gb 2g.12gb 4g.24gb 1g.6gb+me 2g.12gb+me"),
        (
            "NVIDIA A100-SXM4-40GB",
            "1g.5gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb 1g.5gb+me 1g.10gb",
        ),
        (
            "NVIDIA A100-SXM4-80GB",
            "1g.10gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb 1g.10gb+me 1g.20gb",
        ),
        (
            "NVIDIA A100 80GB PCIe",
            "1g.10gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb 1g.10gb+me 1g.20gb",
        ),
        (
            "NVIDIA H100 80GB HBM3",
            "1g.10gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb 1g.10gb+me 1g.20gb",
        ),
        (
            "NVIDIA H200",
            "1g.18gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb 1g.18gb+me 1g.35gb",
        ),
        (
            "NVIDIA B200",
            "1g.23gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb 1g.23gb+me 1g.45gb",
        ),
        (
            "NVIDIA GB200",
            "1g.23gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb 1g.23gb+me 1g.47gb",
        ),
    ];
    assert_eq!(
        expected.len(),
        Board::all().iter().filter(|board| board.max_mig_devices > 0).count()
    );
    let mut scenario = Scenario::new("test", "Tesla T4", 1, Topology::Pcie);
    let boards = expected.iter().map(|(board, _)| (*board).to_owned());
    scenario.additional = boards
        .map(|board| AdditionalBoards {
            board,
            count: 1,
            topology: Topology::Pcie,
        })
        .collect();
    let off = TestNode::with(&scenario);
    let named = raw_mig::profile_name(off.nvml(), &off.device(1), 0);
    assert_eq!(named, Err(ReturnCode::NotSupported.code()), "nvml.h asks for the mode");
    assert!(
        off.device(1).profile_info(0).is_ok(),
        "and of the older call it does not"
    );
    let gpus = (1..).zip(expected).map(|(index, _)| index).collect();
    let instances = Vec::new();
    scenario.mig = vec![MigGroup { gpus, instances }];
    let node = TestNode::with(&scenario);
    for (index, (board, profiles)) in (1..).zip(expected) {
        let named = (0..17).filter_map(|kind| raw_mig::profile_name(node.nvml(), &node.device(index), kind).ok());
        let named: Vec<_> = named
            .map(|name| name.strip_prefix("MIG ").unwrap().to_owned())
            .collect();
        assert_eq!(named.join(" "), profiles, "{board}");
    }
    assert!(matches!(node.device(0).profile_info(0), Err(NvmlError::NotSupported)));
}

#[test]
fn one_device_or_its_lookup_fails_alone() {
    let node = divided();
    let gpu = node.device(0);
    let state = node.state();
    state
        .fail_mig(0, 1, "nvmlDeviceGetMigDeviceHandleByIndex", ReturnCode::Unknown)
        .unwrap();
    state.fail_mig(0, 2, "nvmlDeviceGetUUID", ReturnCode::NotReady).unwrap();
    assert!(matches!(gpu.mig_device_by_index(1), Err(NvmlError::Unknown)));
    let third = gpu.mig_device_by_index(2).unwrap();
    assert!(third.uuid().is_err());
    assert!(third.name().is_ok());
    assert!(gpu.mig_device_by_index(0).unwrap().uuid().is_ok());
    assert!(gpu.uuid().is_ok());
    state.clear_mig_failures(0).unwrap();
    assert!(third.uuid().is_ok());

    state.lose(0).unwrap();
    assert!(matches!(third.uuid(), Err(NvmlError::GpuLost)));
}

#[test]
fn impossible_instances_are_refused_with_the_field() {
    let refused = |groups: &[(&[u32], &[&str])]| a100(groups).gpus().unwrap_err().to_string();
    assert_eq!(
        refused(&[(&[0, 3], &[])]),
        "mig[0].gpus[1]: there is no GPU 3, only 3 GPUs"
    );
    assert_eq!(
        refused(&[(&[0], &[]), (&[0], &[])]),
        "mig[1].gpus[0]: GPU 0 is named twice"
    );
    assert!(
        refused(&[(&[0], &["1g.10gb", "1g.5gb"])]).starts_with("mig[0].instances[1]: NVIDIA A100-SXM4-80GB has no")
    );
    assert!(refused(&[(&[0], &["4g.40gb", "4g.40gb"])]).starts_with("mig[0].instances: they need 8 compute slices"));
    let mut t4 = Scenario::new("test", "Tesla T4", 1, Topology::Pcie);
    t4.mig = vec![MigGroup {
        gpus: vec![0],
        instances: Vec::new(),
    }];
    assert_eq!(
        t4.gpus().unwrap_err().to_string(),
        "mig[0].gpus[0]: GPU 0 is a Tesla T4, which has no MIG"
    );
}

#[test]
fn uuids_are_stable_and_different_on_every_gpu_and_node() {
    let scenario = |node: &str| Scenario {
        node: node.to_owned(),
        ..a100(&[(&[0, 1], &["3g.40gb", "3g.40gb"])])
    };
    let uuids = |node: &str| -> Vec<String> {
        let gpus = scenario(node).gpus().unwrap();
        gpus.iter()
            .flat_map(|gpu| gpu.mig_devices().map(|(_, compute)| compute.uuid.clone()))
            .collect()
    };
    assert_eq!(uuids("a"), uuids("a"));
    assert_eq!(
        uuids("a").into_iter().chain(uuids("b")).collect::<BTreeSet<_>>().len(),
        8
    );
}
