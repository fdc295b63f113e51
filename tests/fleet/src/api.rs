//! Requests to the API server as JSON, without a cache and without retries.

use anyhow::{Context, Result};
use http::{
    HeaderValue, Request,
    header::{CONTENT_TYPE, USER_AGENT},
};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::{path::Path, time::Duration};

/// Collection of Nodes.
pub const NODES: &str = "/api/v1/nodes";
/// Collection of `GpuNode`s.
pub const GPU_NODES: &str = "/apis/gpunode.dev/v1alpha1/gpunodes";
/// Collection of policies.
pub const POLICIES: &str = "/apis/gpunode.dev/v1alpha1/gpunodepolicies";
/// The operator's Lease.
pub const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/gpunode-system/leases/gpunode-operator";

/// Objects of a page: what kubectl asks for.
const PAGE: usize = 500;
/// Longest silence of the API server within a request.
const LIMIT: Duration = Duration::from_mins(2);

/// Forms of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchForm {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Kubernetes' own: lists are merged by their keys.
    Strategic,
    /// Server-side apply.
    Apply,
}

impl PatchForm {
    fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Apply => "application/apply-patch+yaml",
        }
    }
}

/// A client of the API server.
#[derive(Clone)]
pub struct ApiClient {
    client: Client,
}

/// Metadata that callers read of an object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    pub uid: String,
    /// Version of the object.
    pub resource_version: String,
}

/// An object of which only the metadata is read.
#[derive(Clone, Debug, Deserialize)]
pub struct Named {
    /// The metadata.
    pub metadata: Metadata,
}

#[derive(Deserialize)]
struct Page<T> {
    metadata: PageMetadata,
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PageMetadata {
    #[serde(rename = "continue")]
    token: Option<String>,
}

impl ApiClient {
    /// Connects as a kubeconfig says; requests carry this user agent.
    pub async fn connect(kubeconfig: &Path, user_agent: &'static str) -> Result<Self> {
        let read = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
        let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
            .await
            .with_context(|| format!("use {}", kubeconfig.display()))?;
        config.connect_timeout = Some(LIMIT);
        config.read_timeout = Some(LIMIT);
        config.default_retry = false;
        config.headers.push((USER_AGENT, HeaderValue::from_static(user_agent)));
        let client = Client::try_from(config).context("make a client")?;
        Ok(Self { client })
    }

    /// The client itself, for watches.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Reads an object.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let request = Request::get(path).body(Vec::new())?;
        self.client
            .request(request)
            .await
            .with_context(|| format!("get {path}"))
    }

    /// Creates an object in a collection.
    pub async fn create<T: DeserializeOwned>(&self, path: &str, object: &Value) -> Result<T> {
        let request = Request::post(path)
            .header(CONTENT_TYPE, "application/json")
            .body(object.to_string().into_bytes())?;
        self.client
            .request(request)
            .await
            .with_context(|| format!("create in {path}"))
    }

    /// Patches an object.
    pub async fn patch<T: DeserializeOwned>(&self, path: &str, form: PatchForm, change: &Value) -> Result<T> {
        let request = Request::patch(path)
            .header(CONTENT_TYPE, form.content_type())
            .body(change.to_string().into_bytes())?;
        self.client
            .request(request)
            .await
            .with_context(|| format!("patch {path}"))
    }

    /// Deletes an object; one that is gone is fine.
    pub async fn delete(&self, path: &str) -> Result<()> {
        let request = Request::delete(path).body(Vec::new())?;
        match self.client.request::<Value>(request).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error).with_context(|| format!("delete {path}")),
        }
    }

    /// Lists a collection in pages; `query` is what follows the question mark, without `limit`.
    pub async fn list<T: DeserializeOwned>(&self, path: &str, query: &str) -> Result<Vec<T>> {
        let mut objects = Vec::new();
        let mut token = String::new();
        loop {
            let page: Page<T> = self.get(&format!("{path}?limit={PAGE}&{query}{token}")).await?;
            objects.extend(page.items);
            let Some(next) = page.metadata.token.filter(|token| !token.is_empty()) else {
                return Ok(objects);
            };
            // Tokens are base64 for URLs.
            token = format!("&continue={next}");
        }
    }
}

/// Returns the HTTP status of a request that the API server refused.
pub fn refusal(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}
