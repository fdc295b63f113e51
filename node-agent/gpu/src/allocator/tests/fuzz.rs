//! Fuzz tests of ids that a kubelet may ask for. `cargo test` runs each for a moment, `make soak` for as long as it is told.

use super::*;
use gpunode_fuzz::{Mutation, fuzz};

const RESOURCE: &str = "a.b/c";

/// Each way to share a device; whole GPUs and MIG devices.
const CONFIGS: [&str; 5] = [
    "resources: [{name: a.b/c}]",
    "mig: {strategy: Mixed}\nresources: [{name: a.b/c, devices: {kind: MigDevice}}]",
    "resources: [{name: a.b/c, sharing: {strategy: TimeSlicing, replicas: 3}}]",
    "resources: [{name: a.b/c, sharing: {strategy: Memory}}]",
    "resources: [{name: a.b/c, sharing: {strategy: Mps, replicas: 3}}]",
];

/// Ids of the simulated node, and some that it does not have.
const IDS: [&str; 10] = [
    "GPU-0",
    "GPU-1",
    "GPU-0::0",
    "GPU-0::1",
    "GPU-1::2",
    "GPU-0-_-0",
    "GPU-1-_-3",
    "MIG-2-0",
    "MIG-2-1::0",
    "GPU-9",
];

#[test]
fn ids_without_damage_are_allocated() {
    for (config, id) in CONFIGS
        .into_iter()
        .zip(["GPU-0", "MIG-2-0", "GPU-0::0", "GPU-0-_-0", "GPU-0::0"])
    {
        let mut test = AllocatorTest::new(config, &[]);
        let got = test.allocate(RESOURCE, &[id]);
        assert!(got.is_ok(), "{config}: {got:?}");
    }
}

#[test]
fn whatever_ids_are_asked_for_a_container_gets_free_shares_or_a_refusal_with_a_reason() {
    fuzz(|(config, requests): (u8, Vec<Vec<Mutation>>)| {
        let config = CONFIGS[usize::from(config) % CONFIGS.len()];
        let mut test = AllocatorTest::new(config, &[]);
        let mut given: BTreeSet<String> = BTreeSet::new();
        let mut holders: Vec<ContainerShares> = Vec::new();
        for request in requests {
            let ids: Vec<String> = request.iter().map(|id| id.text(&IDS)).collect();
            let healthy: BTreeSet<String> = test.healthy().into_iter().map(|(_, id)| id).collect();
            let preferred = test
                .allocator
                .preferred(RESOURCE, &ids, &[], ids.len(), &BTreeMap::new());
            assert!(
                preferred.ids.iter().all(|id| ids.contains(id)),
                "{preferred:?} of {ids:?}"
            );
            test.observe(&holders);
            match test.allocator.allocate(RESOURCE, &ids, test.now, test.now, None) {
                Ok(got) => {
                    let asked: BTreeSet<String> = ids.into_iter().collect();
                    assert!(asked.is_subset(&healthy), "{asked:?} of {healthy:?}");
                    assert!(asked.is_disjoint(&given), "{asked:?} beside {given:?}");
                    let devices: BTreeSet<&str> = asked.iter().map(|id| device_of(id)).collect();
                    let got: BTreeSet<&str> = got.devices.iter().map(|(device, _)| device.uuid.as_str()).collect();
                    assert_eq!(got, devices);
                    let ids: Vec<&str> = asked.iter().map(String::as_str).collect();
                    holders.push(holding(&format!("pod-{}", holders.len()), RESOURCE, &ids));
                    given.extend(asked);
                }
                Err(refusal) => assert!(!refusal.to_string().is_empty()),
            }
        }
    });
}
