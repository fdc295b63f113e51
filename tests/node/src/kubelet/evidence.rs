//! Events that tests await and check.

use super::{Endpoint, FakeKubelet, ListMessage};
use crate::until;
use anyhow::{Context as _, Result};
use std::collections::{BTreeMap, BTreeSet};
use tonic::Code;

impl FakeKubelet {
    /// Waits until a resource has an open stream with a list, and `condition` holds.
    pub async fn has(&self, resource: &str, condition: impl Fn(&Endpoint) -> bool) -> Result<Endpoint> {
        let ready = || {
            let endpoint = self.endpoint(resource);
            (endpoint.connected && !endpoint.devices.is_empty() && condition(&endpoint)).then_some(endpoint)
        };
        until(&format!("{resource} is as expected"), ready)
            .await
            .with_context(|| format!("it is {:?}", self.endpoint(resource)))
    }

    /// Waits until the stream of a resource has ended.
    pub async fn is_gone(&self, resource: &str) -> Result<()> {
        until(&format!("{resource} is gone"), || {
            (!self.endpoint(resource).connected).then_some(())
        })
        .await
    }

    /// Waits until the pods that hold something now have been listed. A pod that ended since the list before counts as a holder for a while.
    pub async fn is_listed(&self) -> Result<()> {
        let before = self.lock().pod_lists;
        until("the pods are listed", || (self.lock().pod_lists > before).then_some(())).await
    }

    /// Waits until the list of a resource has just these ids, in any order, each with whether it is healthy.
    pub async fn advertises(&self, resource: &str, expected: &[(&str, bool)]) -> Result<()> {
        let expected: BTreeMap<String, bool> = expected
            .iter()
            .map(|(id, healthy)| ((*id).to_owned(), *healthy))
            .collect();
        let advertised = || -> BTreeMap<String, bool> {
            let endpoint = self.endpoint(resource);
            let healthy = endpoint.healthy();
            endpoint
                .ids()
                .into_iter()
                .map(|id| (id.clone(), healthy.contains(&id)))
                .collect()
        };
        until(&format!("{resource} is {expected:?}"), || {
            (advertised() == expected).then_some(())
        })
        .await
        .with_context(|| format!("it is {:?}", advertised()))
    }

    /// Allocates an id, and makes sure that it is refused by name.
    pub async fn is_refused(&self, resource: &str, id: &str) -> Result<()> {
        match self.allocate(resource, &[id]).await {
            Err(status) if status.code() == Code::InvalidArgument && status.message().contains(id) => Ok(()),
            answer => anyhow::bail!("{id} of {resource} is not refused as it should be: {answer:?}"),
        }
    }

    /// Returns the first id that made a device allocatable under two names or in two ways.
    pub fn advertised_twice(&self) -> Option<String> {
        let state = self.lock();
        let by_resource = state.messages.iter();
        let mut messages: Vec<(&String, &ListMessage)> = by_resource
            .flat_map(|(resource, lists)| lists.iter().map(move |list| (resource, list)))
            .collect();
        messages.sort_by_key(|(_, list)| list.at);
        // By device: the resources that have a healthy share of it, with the separator in its id.
        let mut advertised: BTreeMap<&str, BTreeSet<(&String, &str)>> = BTreeMap::new();
        for (resource, list) in messages {
            for ways in advertised.values_mut() {
                ways.retain(|(of, _)| *of != resource);
            }
            for share in list.devices.iter().filter(|share| share.health == "Healthy") {
                let separator = ["::", "-_-"]
                    .into_iter()
                    .find(|separator| share.id.contains(separator))
                    .unwrap_or("\n");
                let device = share.id.split(separator).next().unwrap_or_default();
                let ways = advertised.entry(device).or_default();
                ways.insert((resource, separator));
                if ways.len() > 1 {
                    return Some(format!("{resource} {}: {ways:?}", share.id));
                }
            }
        }
        None
    }
}
