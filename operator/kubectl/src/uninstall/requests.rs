//! Requests of a removal. An object that is already gone is no error.

use super::installed::InstalledObject;
use crate::cluster::{TIMEOUT, explain};
use anyhow::anyhow;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, ObjectList, PartialObjectMeta},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use std::future::Future;

/// Requests to the cluster that gpunode is removed from.
pub struct RemovalRequests {
    pub client: Client,
    /// Namespace that gpunode is installed in.
    pub namespace: String,
}

impl RemovalRequests {
    /// Lists the names of a kind's objects, in one namespace or all; none where the kind is gone.
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

    /// Reads an object of gpunode's namespace, if it exists.
    pub async fn get<K>(&self, name: &str) -> anyhow::Result<Option<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        request(&format!("read {} {name}", K::kind(&())), api.get(name)).await
    }

    /// Reads the metadata of an object, if it exists.
    pub async fn metadata(&self, object: &InstalledObject) -> anyhow::Result<Option<PartialObjectMeta<DynamicObject>>> {
        request(&format!("read {object}"), self.api(object).get_metadata(&object.name)).await
    }

    /// Requests the deletion of an object. Returns false where it did not exist.
    pub async fn delete(&self, object: &InstalledObject) -> anyhow::Result<bool> {
        let (api, params) = (self.api(object), DeleteParams::background());
        let deleted = request(&format!("delete {object}"), api.delete(&object.name, &params)).await?;
        Ok(deleted.is_some())
    }

    fn api(&self, object: &InstalledObject) -> Api<DynamicObject> {
        match &object.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &object.kind),
            None => Api::all_with(self.client.clone(), &object.kind),
        }
    }
}

/// Awaits the answer to one request; none where its object or kind does not exist.
pub async fn request<T>(what: &str, answer: impl Future<Output = kube::Result<T>>) -> anyhow::Result<Option<T>> {
    match tokio::time::timeout(TIMEOUT, answer).await {
        Err(_) => Err(anyhow!("{what}: no answer within {} s", TIMEOUT.as_secs())),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(answer) => answer.map(Some).map_err(|error| explain(what, error)),
    }
}

/// Awaits the list of a kind that discovery named; empty where the kind is gone meanwhile or cannot be listed.
pub async fn listed(
    kind: &ApiResource,
    answer: impl Future<Output = kube::Result<ObjectList<PartialObjectMeta<DynamicObject>>>>,
) -> anyhow::Result<Vec<PartialObjectMeta<DynamicObject>>> {
    // 405: some kinds of aggregated API servers cannot be listed, although discovery says so.
    let answer = async {
        match answer.await {
            Err(kube::Error::Api(status)) if status.code == 405 => Ok(None),
            answer => answer.map(Some),
        }
    };
    let list = request(&format!("list {}", kind.plural), answer).await?.flatten();
    Ok(list.map(|list| list.items).unwrap_or_default())
}
