use super::*;
use crate::{Assignment, Device, DeviceHold, Gpu, Inventory, LayoutHolds, MigDevice, MigInstance, MigMode};
use gpunode_config::load;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn gpu(index: u32, name: &str) -> Gpu {
    Gpu {
        index,
        uuid: format!("GPU-{index:08}-0000-0000-0000-000000000000"),
        name: name.to_owned(),
        memory_mib: 16384,
        compute_capability: Some((8, 0)),
        ..Gpu::default()
    }
}

/// A GPU divided by MIG into devices of these profiles; the first digit is the number of slices and of 10 GiB.
fn divided(index: u32, profiles: &[&str]) -> Gpu {
    let mig = |(at, profile): (u32, &&str)| {
        let slices = profile
            .chars()
            .next()
            .and_then(|digit| digit.to_digit(10))
            .unwrap_or_default();
        MigInstance {
            index: at,
            facts: MigDevice {
                uuid: format!("MIG-{index:08}-{at:04}-0000-0000-000000000000"),
                profile: (*profile).to_owned(),
                memory_mib: u64::from(slices) * 9984,
                ..MigDevice::default()
            },
            ..MigInstance::default()
        }
    };
    let mig_devices = (0..).zip(profiles).map(mig).collect();
    Gpu {
        mig_mode: Some(MigMode::Enabled),
        mig_devices,
        ..gpu(index, "NVIDIA A100-SXM4-80GB")
    }
}

fn node(gpus: Vec<Gpu>) -> Inventory {
    Inventory {
        gpus,
        ..Inventory::default()
    }
}

fn t4s(count: u32) -> Inventory {
    node((0..count).map(|index| gpu(index, "Tesla T4")).collect())
}

/// `RESOURCE INDEX xSHARES` of each device.
fn offered(inventory: &Inventory, config: &str) -> Vec<String> {
    let config = load(config).unwrap();
    let line = |DesiredDevice { device, assignment }| {
        let Assignment { resource, sharing, .. } = assignment;
        format!("{resource} {} x{}", Device::index(&device), sharing.shares())
    };
    desired_devices(inventory, &config)
        .unwrap()
        .devices
        .into_iter()
        .map(line)
        .collect()
}

fn problems(inventory: &Inventory, config: &str) -> Vec<(DeviceProblemKind, String)> {
    let wanted = desired_devices(inventory, &load(config).unwrap()).unwrap();
    wanted
        .problems
        .into_iter()
        .map(|problem| (problem.kind, problem.message))
        .collect()
}

#[test]
fn without_resources_every_gpu_is_the_default_one() {
    assert_eq!(offered(&t4s(2), ""), ["nvidia.com/gpu 0 x1", "nvidia.com/gpu 1 x1"]);
}

#[test]
fn a_gpu_belongs_to_the_first_entry_that_selects_it() {
    let inventory = node(vec![gpu(0, "Tesla V100"), gpu(1, "Tesla V100"), gpu(2, "Tesla T4")]);
    let config = "
resources:
- {name: a.b/one, devices: {indices: [1], products: ['Tesla-V100*']}}
- {name: a.b/two, devices: {products: ['*']}, sharing: {strategy: TimeSlicing, replicas: 3}}
- {name: a.b/none}
";
    assert_eq!(
        offered(&inventory, config),
        ["a.b/one 1 x1", "a.b/two 0 x3", "a.b/two 2 x3"]
    );
}

#[test]
fn conditions_of_a_selector_must_all_hold() {
    let mut inventory = t4s(3);
    inventory.gpus[2].compute_capability = Some((7, 0));
    inventory.gpus[1].memory_mib = 81559;
    let selected = |devices: &str| offered(&inventory, &format!("resources: [{{name: a.b/c, devices: {devices}}}]"));
    assert!(selected("{indices: [0], uuids: [GPU-00000001-0000-0000-0000-000000000000]}").is_empty());
    assert_eq!(
        selected("{uuids: [GPU-00000001-0000-0000-0000-000000000000]}"),
        ["a.b/c 1 x1"]
    );
    assert_eq!(selected("{architectures: [volta]}"), ["a.b/c 2 x1"]);
    assert_eq!(selected("{minMemory: 30Gi}"), ["a.b/c 1 x1"]);
    assert!(selected("{minMemory: 30Gi, architectures: [volta]}").is_empty());
    assert_eq!(selected("{kind: FullGpu, products: ['*T4']}").len(), 3);
}

#[test]
fn replicas_can_differ_from_device_to_device() {
    let config = "
resources:
- name: a.b/c
  sharing:
    strategy: TimeSlicing
    replicas: 2
    renameByDefault: true
    replicasPerDevice: [{devices: {indices: [1]}, replicas: 5}, {devices: {indices: [1, 2]}, replicas: 7}]
";
    assert_eq!(
        offered(&t4s(3), config),
        ["a.b/c.shared 0 x2", "a.b/c.shared 1 x5", "a.b/c.shared 2 x7"]
    );
}

#[test]
fn each_gpu_has_as_many_units_as_its_own_memory_holds() {
    let mut inventory = t4s(3);
    inventory.gpus[1].memory_mib = 80 * 1024 + 1023;
    inventory.gpus[2].memory_mib = 1023;
    let config = "resources: [{name: aliyun.com/gpu-mem, sharing: {strategy: Memory}}]";
    assert_eq!(
        offered(&inventory, config),
        ["aliyun.com/gpu-mem 0 x16", "aliyun.com/gpu-mem 1 x80"]
    );
    let [(kind, message)] = problems(&inventory, config).try_into().unwrap();
    assert_eq!(kind, DeviceProblemKind::MemoryBelowUnit);
    assert!(
        message.contains("GPU 2 has 1023 MiB of memory, less than one unit of 1 GiB"),
        "{message}"
    );
}

#[test]
fn mps_is_not_offered_on_gpus_that_cannot_limit_its_clients() {
    let mut inventory = t4s(3);
    inventory.gpus[0].compute_capability = Some((6, 1));
    inventory.gpus[1].compute_capability = None;
    let config = "resources: [{name: a.b/c, sharing: {strategy: Mps, replicas: 10}}]";
    assert_eq!(offered(&inventory, config), ["a.b/c 2 x10"]);
    let kinds: Vec<DeviceProblemKind> = problems(&inventory, config).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(
        kinds,
        [DeviceProblemKind::MpsUnsupported, DeviceProblemKind::MpsUnsupported]
    );
}

#[test]
fn without_a_mig_strategy_divided_gpus_are_offered_whole_unless_they_are_divided_into_nothing() {
    let inventory = node(vec![divided(0, &["1g.10gb"]), divided(1, &[]), gpu(2, "Tesla T4")]);
    assert_eq!(offered(&inventory, ""), ["nvidia.com/gpu 0 x1", "nvidia.com/gpu 2 x1"]);
    let [(kind, message)] = problems(&inventory, "").try_into().unwrap();
    assert_eq!(kind, DeviceProblemKind::MigWithoutInstances);
    assert!(message.contains("GPU 1"), "{message}");
    assert!(problems(&inventory, "resources: [{name: a.b/c, devices: {indices: [0]}}]").is_empty());
}

#[test]
fn under_single_mig_devices_stand_in_the_place_of_their_gpu() {
    let inventory = node(vec![divided(0, &["1g.10gb", "1g.10gb"]), divided(1, &["1g.10gb"])]);
    let offered = offered(&inventory, "mig: {strategy: Single}");
    assert_eq!(
        offered,
        [
            "nvidia.com/gpu 0:0 x1",
            "nvidia.com/gpu 0:1 x1",
            "nvidia.com/gpu 1:0 x1"
        ]
    );
}

#[test]
fn under_single_a_resource_of_unequal_devices_is_not_offered_and_others_are() {
    let single = "
mig: {strategy: Single}
resources:
- {name: a.b/c, devices: {indices: [0, 1]}}
- {name: a.b/d}
";
    for unequal in [divided(1, &["2g.20gb"]), gpu(1, "NVIDIA A100-SXM4-80GB")] {
        let inventory = node(vec![divided(0, &["1g.10gb"]), unequal, gpu(2, "Tesla T4")]);
        assert_eq!(offered(&inventory, single), ["a.b/d 2 x1"]);
        let [(kind, message)] = problems(&inventory, single).try_into().unwrap();
        assert_eq!(kind, DeviceProblemKind::MigInstancesUnequal);
        assert!(
            message.starts_with("resource a.b/c: mig.strategy Single needs equal devices, but MIG device 0:0 is 1g")
        );
    }
    let hollow = node(vec![divided(0, &["1g.10gb"]), divided(1, &[]), gpu(2, "Tesla T4")]);
    assert_eq!(offered(&hollow, single), ["a.b/d 2 x1"]);
    assert_eq!(problems(&hollow, single)[0].0, DeviceProblemKind::MigWithoutInstances);
}

#[test]
fn under_single_a_kind_or_a_profile_keeps_a_resource_equal() {
    let inventory = node(vec![
        divided(0, &["1g.10gb", "2g.20gb"]),
        gpu(1, "Tesla T4"),
        divided(2, &[]),
    ]);
    let config = "
mig: {strategy: Single}
resources:
- {name: a.b/small, devices: {migProfiles: ['1g.*']}}
- {name: a.b/whole, devices: {kind: FullGpu}}
";
    assert_eq!(offered(&inventory, config), ["a.b/small 0:0 x1", "a.b/whole 1 x1"]);
    assert!(problems(&inventory, config).is_empty());
}

#[test]
fn under_mixed_mig_devices_have_the_names_of_their_profiles_unless_an_entry_selects_them() {
    let inventory = node(vec![
        divided(0, &["1g.10gb+me", "1c.3g.40gb", "1g.10gb"]),
        gpu(1, "Tesla T4"),
        divided(2, &[]),
    ]);
    assert_eq!(
        offered(&inventory, "mig: {strategy: Mixed}"),
        [
            "nvidia.com/gpu 1 x1",
            "nvidia.com/mig-1g.10gb.me 0:0 x1",
            "nvidia.com/mig-1c.3g.40gb 0:1 x1",
            "nvidia.com/mig-1g.10gb 0:2 x1"
        ]
    );
    assert!(problems(&inventory, "mig: {strategy: Mixed}").is_empty());
    let config = "
mig: {strategy: Mixed}
resources:
- {name: a.b/all}
- {name: nvidia.com/mig-1g.10gb, devices: {migProfiles: ['1c.*']}, sharing: {strategy: TimeSlicing, replicas: 2}}
- {name: a.b/me, devices: {kind: MigDevice, migProfiles: ['*+me']}}
";
    assert_eq!(
        offered(&inventory, config),
        [
            "a.b/all 1 x1",
            "nvidia.com/mig-1g.10gb 0:1 x2",
            "nvidia.com/mig-1g.10gb 0:2 x1",
            "a.b/me 0:0 x1"
        ]
    );
}

/// `RESOURCE INDEX` of each device, and the problems, beside the holds of layouts.
fn offered_beside(inventory: &Inventory, config: &str, holds: &LayoutHolds) -> (Vec<String>, Vec<String>) {
    let desired = desired_devices_beside(inventory, &load(config).unwrap(), holds).unwrap();
    let line = |of: &DesiredDevice| format!("{} {}", of.assignment.resource, of.device.index());
    let problems = desired.problems.iter().map(|problem| problem.message.clone());
    (desired.devices.iter().map(line).collect(), problems.collect())
}

#[test]
fn held_devices_are_offered_to_nobody() {
    let inventory = node(vec![
        divided(0, &["1g.10gb", "1g.10gb"]),
        divided(1, &["1g.10gb"]),
        gpu(2, "Tesla T4"),
    ]);
    let device = |at: usize| inventory.gpus[0].mig_devices[at].facts.uuid.clone();
    let mut holds = LayoutHolds::default();
    holds.add(
        &inventory.gpus[0].uuid,
        &DeviceHold {
            gpu: false,
            devices: [device(1)].into(),
        },
    );
    let whole = DeviceHold {
        gpu: true,
        ..DeviceHold::default()
    };
    holds.add(&inventory.gpus[1].uuid, &whole);
    let mixed = "mig: {strategy: Mixed}";
    let (offered, problems) = offered_beside(&inventory, mixed, &holds);
    assert_eq!(offered, ["nvidia.com/gpu 2", "nvidia.com/mig-1g.10gb 0:0"]);
    assert!(problems.is_empty(), "{problems:?}");
    holds.add(&inventory.gpus[2].uuid, &whole);
    assert_eq!(
        offered_beside(&inventory, mixed, &holds).0,
        ["nvidia.com/mig-1g.10gb 0:0"]
    );
}

#[test]
fn gpu_on_the_way_to_its_layout_is_no_problem_unless_a_resource_is_left_without_devices() {
    let inventory = node(vec![divided(0, &[]), divided(1, &["1g.10gb"])]);
    let single = "mig: {strategy: Single}";
    let mut holds = LayoutHolds::default();
    assert_eq!(offered_beside(&inventory, single, &holds).1.len(), 1);
    holds.laid_out.insert(inventory.gpus[0].uuid.clone());
    let others = (vec!["nvidia.com/gpu 1:0".to_owned()], Vec::new());
    assert_eq!(offered_beside(&inventory, single, &holds), others);
    holds.stuck.insert(inventory.gpus[0].uuid.clone());
    assert_eq!(
        offered_beside(&inventory, single, &holds),
        others,
        "the other GPU has a device"
    );
    holds.devices.insert(inventory.gpus[1].uuid.clone());
    let (offered, problems) = offered_beside(&inventory, single, &holds);
    assert!(offered.is_empty());
    assert_eq!(
        problems,
        [
            "resource nvidia.com/gpu: gpunode advertises no device of this resource, because its GPUs (first: GPU 0) do \
             not get the MIG layout of the configuration; condition MigLayout says why"
        ]
    );
}

#[test]
fn indices_and_uuids_of_a_gpu_select_its_mig_devices_too() {
    let inventory = node(vec![divided(0, &["1g.10gb", "1g.10gb"]), divided(1, &["1g.10gb"])]);
    let selected = |devices: &str| {
        let config = format!("mig: {{strategy: Single}}\nresources: [{{name: a.b/c, devices: {devices}}}]");
        offered(&inventory, &config)
    };
    assert_eq!(selected("{indices: [0]}"), ["a.b/c 0:0 x1", "a.b/c 0:1 x1"]);
    assert_eq!(
        selected("{uuids: [GPU-00000001-0000-0000-0000-000000000000]}"),
        ["a.b/c 1:0 x1"]
    );
    assert_eq!(
        selected("{uuids: [MIG-00000000-0001-0000-0000-000000000000]}"),
        ["a.b/c 0:1 x1"]
    );
    assert_eq!(selected("{kind: MigDevice, minMemory: 9Gi}").len(), 3);
    assert!(
        selected("{minMemory: 10Gi}").is_empty(),
        "a MIG device has less memory than its GPU"
    );
}

#[test]
fn a_list_beyond_the_kubelets_limit_is_refused_and_says_what_to_change() {
    let config = load("resources: [{name: a.b/c, sharing: {strategy: TimeSlicing, replicas: 8192}}]").unwrap();
    let error = desired_devices(&t4s(16), &config).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("resource a.b/c: the list of 131072 shares has"),
        "{error}"
    );
    assert!(error.to_string().ends_with("lower sharing.replicas"), "{error}");
    let mut inventory = t4s(16);
    inventory.gpus.iter_mut().for_each(|gpu| gpu.memory_mib = 1024 * 1024);
    let config = load("resources: [{name: a.b/c, sharing: {strategy: Memory, unit: 64Mi}}]").unwrap();
    let error = desired_devices(&inventory, &config).unwrap_err();
    assert!(error.to_string().ends_with("raise sharing.unit"), "{error}");
}

fn any_gpu() -> impl Strategy<Value = Gpu> {
    prop_oneof![
        proptest::sample::select(vec!["Tesla T4", "NVIDIA L4"]).prop_map(|name| gpu(0, name)),
        proptest::collection::vec(proptest::sample::select(vec!["1g.10gb", "2g.20gb", "1g.10gb+me"]), 0..4)
            .prop_map(|profiles| divided(0, &profiles)),
    ]
}

fn any_config() -> impl Strategy<Value = String> {
    let strategy = proptest::sample::select(vec!["Single", "Mixed"]);
    let devices = proptest::sample::select(vec![
        "{indices: [0, 2]}",
        "{products: ['Tesla-*']}",
        "{migProfiles: ['1g*']}",
        "{kind: MigDevice}",
        "{kind: FullGpu}",
        "{minMemory: 12Gi}",
    ]);
    let sharing = proptest::sample::select(vec![
        "{strategy: None}",
        "{strategy: TimeSlicing, replicas: 3, renameByDefault: true}",
        "{strategy: Memory}",
        "{strategy: Mps, replicas: 4}",
    ]);
    (strategy, proptest::collection::vec((devices, sharing), 0..5)).prop_map(|(strategy, entries)| {
        let entry =
            |(at, (devices, sharing))| format!("- {{name: a.b/r{at}, devices: {devices}, sharing: {sharing}}}\n");
        let entries: String = entries.into_iter().enumerate().map(entry).collect();
        let resources = if entries.is_empty() {
            String::new()
        } else {
            format!("resources:\n{entries}")
        };
        format!("mig: {{strategy: {strategy}}}\n{resources}")
    })
}

proptest! {
    #[test]
    fn a_device_is_in_at_most_one_resource_and_never_beside_a_part_of_it(
        mut gpus in proptest::collection::vec(any_gpu(), 0..5),
        config in any_config(),
    ) {
        for (index, gpu) in (0..).zip(&mut gpus) {
            gpu.index = index;
            gpu.uuid = format!("GPU-{index}");
            for mig in &mut gpu.mig_devices {
                mig.facts.uuid = format!("MIG-{index}-{}", mig.index);
            }
        }
        let config = load(&config).unwrap();
        let wanted_now = desired_devices(&node(gpus.clone()), &config).unwrap();
        let devices: Vec<&Device> = wanted_now.devices.iter().map(|wanted| &wanted.device).collect();
        let uuids: BTreeSet<&String> = devices.iter().map(|device| &device.uuid).collect();
        prop_assert_eq!(uuids.len(), devices.len());
        for one in &devices {
            prop_assert!(devices.iter().all(|other| !one.overlaps(other)));
        }
        for of in &wanted_now.devices {
            prop_assert!(wanted_now.rules.contains_key(&of.assignment.resource));
            for number in 0..of.assignment.sharing.shares() {
                let id = of.assignment.sharing.id("GPU-00000001-0000-0000-0000-000000000000", number);
                prop_assert!(id.len() <= 63, "the API allows 63 characters");
            }
        }
        prop_assert_eq!(&wanted_now, &desired_devices(&node(gpus), &config).unwrap());
    }
}
