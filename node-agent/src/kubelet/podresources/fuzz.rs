//! Fuzz test of the kubelet's answers. `cargo test` runs it for a moment, `make soak` for as long as it is told.

use super::*;
use crate::{
    devices::state::tests::state,
    kubelet::pod_resources_api::{
        AllocatableResourcesResponse, ClaimResource, ContainerResources, ListPodResourcesResponse,
    },
};
use gpunode_fuzz::{Mutation, fuzz};
use prost::Message as _;

const RESOURCE: &str = "a.b/c";

fn devices(ids: &[&str]) -> ContainerDevices {
    ContainerDevices {
        resource_name: RESOURCE.to_owned(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    }
}

fn held(ids: &[&str]) -> Vec<u8> {
    let claim = ClaimResource {
        driver_name: DRA_DRIVER.to_owned(),
        device_name: "gpu-1".to_owned(),
    };
    let container = ContainerResources {
        name: "main".to_owned(),
        devices: vec![devices(ids)],
        dynamic_resources: vec![DynamicResource {
            claim_resources: vec![claim],
        }],
    };
    let pod = Pod {
        name: "train-0".to_owned(),
        namespace: "team".to_owned(),
        containers: vec![container],
    };
    let response = ListPodResourcesResponse {
        pod_resources: vec![pod],
    };
    response.encode_to_vec()
}

fn allocatable(ids: &[&str]) -> Vec<u8> {
    let response = AllocatableResourcesResponse {
        devices: vec![devices(ids)],
    };
    response.encode_to_vec()
}

#[test]
fn whatever_the_kubelet_answers_the_node_keeps_its_devices() {
    let (lists, healthy) = (
        [held(&["GPU-0::1"]), held(&["GPU-0", "GPU-9", "gpu-0::7"]), held(&[])],
        [allocatable(&["GPU-0::0", "GPU-1::1"]), allocatable(&[])],
    );
    fuzz(|(list, allocatable): (Mutation, Mutation)| {
        let pods = ListPodResourcesResponse::decode(list.bytes(&lists).as_slice());
        let devices = AllocatableResourcesResponse::decode(allocatable.bytes(&healthy).as_slice());
        let (Ok(pods), Ok(devices)) = (pods, devices) else {
            // The client returns an error then.
            return;
        };
        let mut state = state("resources: [{name: a.b/c, sharing: {strategy: TimeSlicing, replicas: 2}}]");
        let observation = KubeletObservation {
            started: Instant::now(),
            holders: pods.pod_resources.into_iter().flat_map(holdings).collect(),
            allocatable: devices.devices.into_iter().flat_map(pairs).collect(),
            checkpoint: BTreeSet::new(),
        };
        let ids = observation.holders.iter().map(|holder| holder.ids.len()).sum::<usize>();
        state.observe(observation);
        let snapshot = state.snapshot();
        let assigned: Vec<&str> = snapshot.assignments.keys().map(String::as_str).collect();
        assert_eq!(assigned, ["GPU-0", "GPU-1"]);
        let [list] = snapshot.advertised.as_slice() else {
            panic!("{:?}", snapshot.advertised);
        };
        let shares = list.resource.shares.iter().filter(|share| !share.surplus).count();
        assert_eq!(shares, 4);
        // A claim whose device is not known counts for both GPUs.
        assert!(snapshot.holders.len() <= 2 * ids, "{:?}", snapshot.holders);
    });
}
