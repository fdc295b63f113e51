//! The connection to a cluster, and lists of its objects. Errors say what to do next.

use crate::cli::ClusterArgs;
use anyhow::{Context, anyhow};
use kube::{
    Api, Client, Config, Resource,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, time::Duration};

/// Longest wait for one answer; a fleet's list comes in pages.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Objects in one page of a list.
const PAGE: u32 = 500;

/// Most pages of a list: half a million objects are more than any cluster has nodes.
const MAX_PAGES: usize = 1000;

/// Connects to the cluster that the arguments name, or to the current one.
///
/// # Errors
/// When there is no usable kubeconfig.
pub async fn connect(args: &ClusterArgs) -> anyhow::Result<Client> {
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let mut config = match (&args.kubeconfig, &args.context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).with_context(|| format!("read {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &options).await.with_context(|| format!("use {}", path.display()))?
        }
        (None, Some(context)) => {
            Config::from_kubeconfig(&options).await.with_context(|| format!("use context {context}"))?
        }
        (None, None) => Config::infer().await.context("find a cluster; name one with --kubeconfig or $KUBECONFIG")?,
    };
    config.connect_timeout = Some(TIMEOUT);
    config.read_timeout = Some(TIMEOUT);
    // A person waits for the answer and can ask again.
    config.default_retry = false;
    Client::try_from(config).context("prepare the connection to the cluster")
}

/// Every object of a kind.
///
/// # Errors
/// When the cluster cannot be reached, forbids the list, or does not know the kind.
pub async fn list<K>(client: &Client) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api = Api::<K>::all(client.clone());
    let kind = K::plural(&());
    let mut objects = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    for _ in 0..MAX_PAGES {
        let page = tokio::time::timeout(TIMEOUT, api.list(&params))
            .await
            .map_err(|_| anyhow!("list {kind}: no answer within {} s", TIMEOUT.as_secs()))?
            .map_err(|error| explain(&kind, error))?;
        objects.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    Ok(objects)
}

/// What went wrong and what to do, without the library's own words around it.
fn explain(kind: &str, error: kube::Error) -> anyhow::Error {
    let status = match error {
        kube::Error::Api(status) => status,
        error => {
            let error = anyhow::Error::new(error);
            let root = error.root_cause();
            return anyhow!("list {kind}: {root}; check that the cluster runs and that the kubeconfig names it");
        }
    };
    match status.code {
        // Where the whole API group is missing, the answer is no Status object.
        404 => anyhow!(
            "list {kind}: this cluster has no such kind; install gpunode with `kubectl apply -k manifests/default`"
        ),
        403 => anyhow!("list {kind}: {}; ask for a role that may list {kind}", status.message),
        401 => anyhow!("list {kind}: {}; check the credentials in the kubeconfig", status.message),
        _ => anyhow!("list {kind}: {}", status.message),
    }
}
