use super::*;
use gpunode_config::{ResourceConfig, Sharing, SharingStrategy, load};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn gpu(index: u32, name: &str) -> Gpu {
    Gpu { index, uuid: format!("GPU-{index:08}-0000-0000-0000-000000000000"), name: name.to_owned(), ..Gpu::default() }
}

fn node(names: &[&str]) -> Inventory {
    let gpus = (0..).zip(names).map(|(index, name)| gpu(index, name)).collect();
    Inventory { gpus, ..Inventory::default() }
}

fn offered(inventory: &Inventory, config: &str) -> Vec<(String, Vec<u32>, u32)> {
    resources(inventory, &load(config).unwrap())
        .unwrap()
        .into_iter()
        .map(|resource| (resource.name, resource.gpus.iter().map(|gpu| gpu.index).collect(), resource.replicas))
        .collect()
}

#[test]
fn without_resources_every_gpu_is_the_default_one() {
    let inventory = node(&["Tesla T4", "Tesla T4"]);
    assert_eq!(offered(&inventory, ""), [("nvidia.com/gpu".to_owned(), vec![0, 1], 1)]);
    let only = resources(&inventory, &AgentConfig::default()).unwrap().remove(0);
    assert_eq!(
        only.devices().map(|device| device.id).collect::<Vec<_>>(),
        [inventory.gpus[0].uuid.clone(), inventory.gpus[1].uuid.clone()]
    );
}

#[test]
fn a_gpu_belongs_to_the_first_entry_that_selects_it() {
    let inventory = node(&["Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB", "Tesla T4"]);
    let config = "
resources:
- {name: a.b/one, devices: {indices: [1], products: ['Tesla-V100*']}}
- {name: a.b/two, devices: {products: ['*']}, sharing: {strategy: TimeSlicing, replicas: 3}}
- {name: a.b/none}
";
    assert_eq!(
        offered(&inventory, config),
        [("a.b/one".to_owned(), vec![1], 1), ("a.b/two".to_owned(), vec![0, 2], 3)]
    );
}

#[test]
fn conditions_of_a_selector_must_all_hold() {
    let inventory = node(&["Tesla T4", "Tesla T4"]);
    let config =
        "resources: [{name: a.b/c, devices: {indices: [0], uuids: [GPU-00000001-0000-0000-0000-000000000000]}}]";
    assert_eq!(offered(&inventory, config), []);
}

#[test]
fn a_gpu_with_mig_enabled_is_in_no_resource() {
    let mut inventory = node(&["NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"]);
    inventory.gpus[0].mig_mode = Some(MigMode::Enabled);
    inventory.gpus[1].mig_mode = Some(MigMode::Disabled);
    assert_eq!(offered(&inventory, ""), [("nvidia.com/gpu".to_owned(), vec![1], 1)]);
}

#[test]
fn a_list_beyond_the_kubelets_limit_is_refused() {
    let inventory = node(&["Tesla T4"; 16]);
    let config = load("resources: [{name: a.b/c, sharing: {strategy: TimeSlicing, replicas: 8192}}]").unwrap();
    let error = resources(&inventory, &config).unwrap_err();
    assert!(matches!(&error, Error::ListTooLong { devices: 131_072, .. }), "{error}");
    assert!(error.to_string().starts_with("offer a.b/c: the list of 131072 devices takes"), "{error}");
}

#[test]
fn ids_that_are_not_in_the_list_have_no_gpu() {
    let config = load("resources: [{name: a.b/c, sharing: {strategy: TimeSlicing, replicas: 4}}]").unwrap();
    let resource = resources(&node(&["Tesla T4"]), &config).unwrap().remove(0);
    let uuid = resource.gpus[0].uuid.clone();
    assert_eq!(resource.gpu(&format!("{uuid}::3")).map(|gpu| gpu.index), Some(0));
    for unknown in [
        uuid.clone(),
        format!("{uuid}::4"),
        format!("{uuid}::03"),
        format!("{uuid}::+3"),
        format!("{uuid}::"),
        format!("{uuid}::1::1"),
        "GPU-1::0".to_owned(),
        String::new(),
    ] {
        assert_eq!(resource.gpu(&unknown), None, "{unknown}");
    }
}

fn any_config() -> impl Strategy<Value = AgentConfig> {
    let devices = proptest::option::of((
        proptest::option::of(proptest::collection::vec(0..8_i32, 1..4)),
        proptest::option::of(proptest::sample::select(vec!["*", "Tesla-*", "*T4", "none"])),
    ));
    let entry = (devices, proptest::option::of(2..6_i32));
    proptest::collection::vec(entry, 0..5).prop_map(|entries| AgentConfig {
        resources: entries
            .into_iter()
            .enumerate()
            .map(|(at, (devices, replicas))| ResourceConfig {
                name: format!("a.b/r{at}"),
                devices: devices.map(|(indices, product)| DeviceSelector {
                    indices,
                    uuids: None,
                    products: product.map(|glob| vec![glob.to_owned()]),
                }),
                sharing: replicas.map(|replicas| Sharing {
                    strategy: SharingStrategy::TimeSlicing,
                    replicas: Some(replicas),
                    fail_requests_greater_than_one: None,
                }),
            })
            .collect(),
        ..AgentConfig::default()
    })
}

proptest! {
    #[test]
    fn no_gpu_is_offered_twice_and_every_id_leads_to_its_gpu(
        names in proptest::collection::vec(proptest::sample::select(vec!["Tesla T4", "NVIDIA L4"]), 0..8),
        config in any_config(),
    ) {
        let offered = resources(&node(&names), &config).unwrap();
        let mut gpus = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for resource in &offered {
            for gpu in &resource.gpus {
                prop_assert!(gpus.insert(gpu.uuid.clone()), "{} is in two resources", gpu.uuid);
            }
            for device in resource.devices() {
                let gpu = resource.gpu(&device.id).expect("every id of the list is known");
                prop_assert!(device.id.starts_with(&gpu.uuid));
                prop_assert!(device.id.len() <= 63, "the API allows 63 characters");
                prop_assert!(ids.insert(device.id));
            }
        }
        prop_assert_eq!(ids.len(), offered.iter().map(Resource::len).sum::<usize>());
    }
}
