//! Requests of a removal: what is gone already is no error.

use super::{Installed, Left, Removal};
use crate::cluster::{TIMEOUT, explain};
use anyhow::anyhow;
use kube::{
    Api, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, ObjectList, PartialObjectMeta},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use std::{
    future::Future,
    time::{Duration, Instant},
};

/// Time between two looks at something that is awaited.
const PAUSE: Duration = Duration::from_millis(500);

impl Removal {
    /// Names of the objects of a kind, in one namespace or all; none where the kind is gone.
    pub async fn names<K>(&self, namespace: Option<&str>, labels: &str) -> anyhow::Result<Vec<String>>
    where
        K: Resource<DynamicType = ()>,
    {
        let kind = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        };
        let what = format!("list {}", kind.plural);
        let list = request(&what, api.list_metadata(&ListParams::default().labels(labels))).await?;
        Ok(list
            .map(|list| list.items.iter().map(ResourceExt::name_any).collect())
            .unwrap_or_default())
    }

    /// An object, if it is there.
    pub async fn get<K>(&self, namespace: &str, name: &str) -> anyhow::Result<Option<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        request(&format!("read {} {name}", K::kind(&())), api.get(name)).await
    }

    /// The metadata of an object, if it is there.
    pub async fn look_at(&self, object: &Installed) -> anyhow::Result<Option<PartialObjectMeta<DynamicObject>>> {
        request(&format!("read {object}"), self.api(object).get_metadata(&object.name)).await
    }

    /// Asks for the deletion of an object; whether that was to be done. A refusal is noted.
    pub async fn delete(&mut self, object: &Installed) -> bool {
        let (api, params) = (self.api(object), DeleteParams::background());
        match request(&format!("delete {object}"), api.delete(&object.name, &params)).await {
            Ok(deleted) => deleted.is_some(),
            Err(error) => {
                self.leave(&object.to_string(), format!("{error:#}"));
                false
            }
        }
    }

    /// Notes something that stays.
    pub fn leave(&mut self, what: &str, why: impl Into<String>) {
        self.left.push(Left {
            what: what.to_owned(),
            why: why.into(),
        });
    }

    /// Notes something that becomes nobody's concern.
    pub fn note(&mut self, what: impl Into<String>) {
        self.notes.push(what.into());
    }

    /// This much later, or the end of the whole removal if that is sooner.
    pub fn within(&self, limit: Duration) -> Instant {
        self.end.min(Instant::now() + limit)
    }

    /// A moment until the next look.
    pub async fn pause(&self) {
        tokio::time::sleep(PAUSE).await;
    }

    fn api(&self, object: &Installed) -> Api<DynamicObject> {
        match &object.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &object.kind),
            None => Api::all_with(self.client.clone(), &object.kind),
        }
    }
}

/// The answer to one request; none where its object or kind is not there.
pub async fn request<T>(what: &str, answer: impl Future<Output = kube::Result<T>>) -> anyhow::Result<Option<T>> {
    match tokio::time::timeout(TIMEOUT, answer).await {
        Err(_) => Err(anyhow!("{what}: no answer within {} s", TIMEOUT.as_secs())),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(answer) => answer.map(Some).map_err(|error| explain(what, error)),
    }
}

/// The objects of a kind that the cluster said it has; none where it has gone meanwhile, or cannot be listed at all.
pub async fn listed(
    kind: &ApiResource,
    answer: impl Future<Output = kube::Result<ObjectList<PartialObjectMeta<DynamicObject>>>>,
) -> anyhow::Result<Vec<PartialObjectMeta<DynamicObject>>> {
    // 405: some kinds of aggregated API servers have no list, whatever they say.
    let answer = async {
        match answer.await {
            Err(kube::Error::Api(status)) if status.code == 405 => Ok(None),
            answer => answer.map(Some),
        }
    };
    let list = request(&format!("list {}", kind.plural), answer).await?.flatten();
    Ok(list.map(|list| list.items).unwrap_or_default())
}
