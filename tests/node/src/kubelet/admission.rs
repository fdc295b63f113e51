//! Admission of a container: `devicesToAllocate` and `allocateContainerResources` of
//! pkg/kubelet/cm/devicemanager/manager.go (1.36) for Topology Manager's policy `none`, so that no set is NUMA-aligned and
//! a plugin is always asked which devices it prefers.
//!
//! One thing is kinder than a real kubelet: that one forgets what it is just allocating when PodResources is listed at
//! that very moment and a pod has ended.

use super::{ContainerKind, FakeKubelet};
use crate::api::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, ContainerPreferredAllocationRequest,
    PreferredAllocationRequest,
};
use std::collections::BTreeSet;
use thiserror::Error;
use tonic::Status;

/// A container that may start.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Ids that it was given, ordered.
    pub ids: Vec<String>,
    /// Answer of the plugin.
    pub response: ContainerAllocateResponse,
}

/// Reason why a pod fails; it never runs and holds nothing.
#[derive(Debug, Error)]
pub enum Rejection {
    /// The kubelet's own refusal.
    #[error("{0}")]
    Kubelet(String),
    /// A real kubelet crashes.
    #[error("the kubelet crashes: it allocated a device that its list no longer has, {0}")]
    Crash(String),
    /// Answer of the plugin.
    #[error("rpc error: code = {:?} desc = {}", .0.code(), .0.message())]
    Plugin(#[from] Status),
}

impl FakeKubelet {
    /// Admits a container that asks for `n` of a resource. A pod with several containers is admitted by as many calls; a
    /// failure fails the pod.
    pub async fn admit(&self, pod: &str, container: &str, resource: &str, n: usize) -> Result<Admitted, Rejection> {
        self.admit_as(ContainerKind::App, pod, container, resource, n).await
    }

    /// Admits an init container, whose devices the next container of the pod takes first.
    pub async fn admit_init(
        &self,
        pod: &str,
        container: &str,
        resource: &str,
        n: usize,
    ) -> Result<Admitted, Rejection> {
        self.admit_as(ContainerKind::Init, pod, container, resource, n).await
    }

    /// The pod has ended or was deleted.
    pub fn release(&self, pod: &str) {
        self.lock().pods.end(pod);
    }

    async fn admit_as(
        &self,
        kind: ContainerKind,
        pod: &str,
        container: &str,
        resource: &str,
        n: usize,
    ) -> Result<Admitted, Rejection> {
        // A kubelet admits one pod after the other.
        let _turn = self.admitting.lock().await;
        let admitted = self.allocate_for(pod, resource, n).await;
        let mut state = self.lock();
        match &admitted {
            Ok(admitted) => {
                state
                    .pods
                    .insert(pod, container, kind, resource, admitted.ids.iter().cloned().collect());
                state
                    .pods
                    .save(&self.folder)
                    .map_err(|error| Rejection::Kubelet(error.to_string()))?;
            }
            Err(_) => state.pods.end(pod),
        }
        admitted
    }

    async fn allocate_for(&self, pod: &str, resource: &str, n: usize) -> Result<Admitted, Rejection> {
        let (healthy, in_use, reusable) = {
            let mut state = self.lock();
            state.pods.collect();
            let healthy = state.endpoints.get(resource).map(super::Endpoint::healthy);
            (healthy, state.pods.in_use(resource), state.pods.reusable(pod, resource))
        };
        let refuse = |why: String| Err(Rejection::Kubelet(why));
        let Some(healthy) = healthy else {
            return refuse(format!("cannot allocate unregistered device {resource}"));
        };
        if healthy.is_empty() {
            return refuse(format!(
                "no healthy devices present; cannot allocate unhealthy devices {resource}"
            ));
        }
        // What init containers leave is taken whether it is healthy or not.
        let mut ids: BTreeSet<String> = reusable.into_iter().take(n).collect();
        if ids.len() < n {
            let needed = n - ids.len();
            let available: BTreeSet<String> = healthy.difference(&in_use).cloned().collect();
            if available.len() < needed {
                return refuse(format!(
                    "requested number of devices unavailable for {resource}. Requested: {needed}, Available: {}",
                    available.len()
                ));
            }
            let preferred = self
                .request_preferred(resource, available.union(&ids).cloned(), &ids, n)
                .await?;
            let preferred: BTreeSet<String> = preferred.into_iter().collect();
            // More than was asked for, or what is not available, is left out; what is missing is any other.
            let in_order: Vec<String> = preferred
                .intersection(&available)
                .chain(available.difference(&preferred))
                .cloned()
                .collect();
            ids.extend(in_order.into_iter().take(needed));
        }
        let devices_ids = ids.iter().cloned().collect();
        let request = AllocateRequest {
            container_requests: vec![ContainerAllocateRequest { devices_ids }],
        };
        let answer = self.client(resource)?.allocate(request).await?.into_inner();
        let Some(response) = answer.container_responses.into_iter().next() else {
            return refuse("no containers return in allocation response".to_owned());
        };
        // A kubelet dereferences the entry of each id here, and crashes where its list no longer has one.
        let endpoint = self.lock().endpoints.get(resource).cloned();
        let is_listed = |id: &String| {
            endpoint
                .iter()
                .any(|it| it.devices.iter().any(|device| device.id == *id))
        };
        if let Some(id) = ids.iter().find(|id| !is_listed(id)) {
            return Err(Rejection::Crash(format!("{id}: {endpoint:?}")));
        }
        Ok(Admitted {
            ids: ids.into_iter().collect(),
            response,
        })
    }

    /// Asks which devices a container had best get. An error of the plugin fails the pod.
    pub(super) async fn request_preferred(
        &self,
        resource: &str,
        available: impl IntoIterator<Item = String>,
        must_include: &BTreeSet<String>,
        size: usize,
    ) -> Result<Vec<String>, Status> {
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_i_ds: available.into_iter().collect(),
                must_include_device_i_ds: must_include.iter().cloned().collect(),
                allocation_size: i32::try_from(size).map_err(|_| Status::invalid_argument("size"))?,
            }],
        };
        let answer = self
            .client(resource)?
            .get_preferred_allocation(request)
            .await?
            .into_inner();
        Ok(answer
            .container_responses
            .into_iter()
            .flat_map(|response| response.device_i_ds)
            .collect())
    }
}
