//! The PodResources API v1: `List` and `GetAllocatableResources` of pkg/kubelet/apis/podresources/server_v1.go (1.36).
//!
//! Every device has an entry of its own (`containerDevicesFromResourceDeviceInstances` of
//! pkg/kubelet/cm/container_manager.go), and init containers are left out, also where they hold something.

use super::{ContainerKind, State, lock};
use crate::api::{
    Device,
    pod_resources::{
        AllocatableResourcesRequest, AllocatableResourcesResponse, CdiDevice, ClaimResource, ContainerDevices,
        ContainerResources, DynamicResource, ListPodResourcesRequest, ListPodResourcesResponse, NumaNode, PodResources,
        TopologyInfo, pod_resources_lister_server::PodResourcesLister,
    },
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::sleep;
use tonic::{Request, Response, Status};

/// Behaviour of the kubelet on its PodResources socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodResourcesAnswer {
    /// With what there is.
    #[default]
    Truth,
    /// With the error of its rate limit (pkg/kubelet/apis/grpc/ratelimit.go).
    RateLimited,
    /// With what there is, after this time.
    Late(Duration),
    /// With an error.
    Unavailable,
    /// Not at all.
    Never,
}

/// Namespace of every pod.
const NAMESPACE: &str = "default";

pub(super) struct Lister(pub Arc<Mutex<State>>);

impl Lister {
    async fn may_answer(&self) -> Result<(), Status> {
        let answer = {
            let mut state = lock(&self.0);
            state.pod_resources_calls += 1;
            state.pod_resources
        };
        match answer {
            PodResourcesAnswer::Truth => Ok(()),
            PodResourcesAnswer::Late(pause) => {
                sleep(pause).await;
                Ok(())
            }
            PodResourcesAnswer::RateLimited => Err(Status::resource_exhausted("rejected by rate limit")),
            PodResourcesAnswer::Unavailable => Err(Status::unavailable("unavailable by the test")),
            PodResourcesAnswer::Never => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.may_answer().await?;
        let mut state = lock(&self.0);
        state.pods.collect();
        state.pod_lists += 1;
        let state = &*state;
        let pods = state.pods.active().map(|(name, pod)| {
            let listed = pod
                .containers
                .iter()
                .filter(|container| container.kind == ContainerKind::App);
            let containers = listed.map(|container| {
                let held = container
                    .devices
                    .iter()
                    .flat_map(|(resource, ids)| ids.iter().map(move |id| (resource, id)));
                let devices = held.map(|(resource, id)| {
                    let known = state.endpoints.get(resource).and_then(|endpoint| endpoint.device(id));
                    entry(resource, id, known)
                });
                ContainerResources {
                    name: container.name.clone(),
                    devices: devices.collect(),
                    dynamic_resources: container.claimed.iter().map(claim).collect(),
                }
            });
            PodResources {
                name: name.clone(),
                namespace: NAMESPACE.to_owned(),
                containers: containers.collect(),
            }
        });
        Ok(Response::new(ListPodResourcesResponse {
            pod_resources: pods.collect(),
        }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        self.may_answer().await?;
        let state = lock(&self.0);
        let healthy = state.endpoints.iter().flat_map(|(resource, endpoint)| {
            endpoint
                .healthy_devices()
                .map(move |device| entry(resource, &device.id, Some(device)))
        });
        Ok(Response::new(AllocatableResourcesResponse {
            devices: healthy.collect(),
        }))
    }
}

fn entry(resource: &str, id: &str, device: Option<&Device>) -> ContainerDevices {
    let nodes = device
        .and_then(|device| device.topology.as_ref())
        .map(|topology| &topology.nodes);
    let nodes: Option<Vec<NumaNode>> = nodes.map(|nodes| nodes.iter().map(|node| NumaNode { id: node.id }).collect());
    ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![id.to_owned()],
        topology: nodes
            .filter(|nodes| !nodes.is_empty())
            .map(|nodes| TopologyInfo { nodes }),
    }
}

/// A claim with one device, as `getClaimInfo` of pkg/kubelet/cm/dra/manager.go and `containerDynamicResources` show it. The CDI
/// name has the claim's UID, and nothing of the GPU.
fn claim((driver, device): &(String, String)) -> DynamicResource {
    DynamicResource {
        claim_name: format!("claim-{device}"),
        claim_namespace: NAMESPACE.to_owned(),
        claim_resources: vec![ClaimResource {
            cdi_devices: vec![CdiDevice {
                name: format!("k8s.{driver}/claim=00000000-0000-0000-0000-000000000000-{device}"),
            }],
            driver_name: driver.clone(),
            pool_name: "node".to_owned(),
            device_name: device.clone(),
            share_id: None,
        }],
    }
}
