//! Reads objects from the API server. A kubectl for each look would take most of the processor's time, since tests look
//! ten times a second.

use anyhow::{Context, Result, bail};
use http::Request;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use std::{path::Path, time::Duration};
use tokio::runtime::{Builder, Runtime};

/// Longest time that one request may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Kinds that tests read: names in singular and plural, group and version, and whether they are in a namespace.
const KINDS: [(&str, &str, &str, bool); 17] = [
    ("node", "nodes", "api/v1", false),
    ("pod", "pods", "api/v1", true),
    ("event", "events", "api/v1", true),
    ("resourcequota", "resourcequotas", "api/v1", true),
    ("job", "jobs", "apis/batch/v1", true),
    ("deployment", "deployments", "apis/apps/v1", true),
    ("replicaset", "replicasets", "apis/apps/v1", true),
    ("statefulset", "statefulsets", "apis/apps/v1", true),
    ("daemonset", "daemonsets", "apis/apps/v1", true),
    ("lease", "leases", "apis/coordination.k8s.io/v1", true),
    ("poddisruptionbudget", "poddisruptionbudgets", "apis/policy/v1", true),
    ("role", "roles", "apis/rbac.authorization.k8s.io/v1", true),
    (
        "clusterrole",
        "clusterroles",
        "apis/rbac.authorization.k8s.io/v1",
        false,
    ),
    ("resourceslice", "resourceslices", "apis/resource.k8s.io/v1", false),
    (
        "flowschema",
        "flowschemas",
        "apis/flowcontrol.apiserver.k8s.io/v1",
        false,
    ),
    ("gpunode", "gpunodes", "apis/gpunode.dev/v1alpha1", false),
    ("gpunodepolicy", "gpunodepolicies", "apis/gpunode.dev/v1alpha1", false),
];

/// A connection to the API server as the administrator.
pub struct Reader {
    client: Client,
    runtime: Runtime,
}

impl Reader {
    /// Connects as a kubeconfig says.
    pub fn new(kubeconfig: &Path) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("start a runtime")?;
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let client = runtime.block_on(async {
            let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
            config.connect_timeout = Some(LIMIT);
            config.read_timeout = Some(LIMIT);
            // A connection that was idle for almost as long would end in the middle of a request.
            config.reset_reader_on_write = true;
            anyhow::Ok(Client::try_from(config)?)
        })?;
        Ok(Self { client, runtime })
    }

    /// Returns what `kubectl get -o json` prints for these arguments.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        let query = Query::parse(arguments)?;
        let mut objects = Vec::new();
        for path in query.paths()? {
            let request = Request::get(&path).body(Vec::new())?;
            let answer = self
                .runtime
                .block_on(self.client.request::<Value>(request))
                .with_context(|| format!("get {path}"))?;
            objects.extend(items(answer));
        }
        if !query.managed_fields {
            for object in &mut objects {
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove("managedFields");
                }
            }
        }
        match (query.name, objects.pop()) {
            (Some(_), Some(object)) => Ok(object),
            (_, last) => {
                objects.extend(last);
                Ok(json!({ "apiVersion": "v1", "kind": "List", "items": objects }))
            }
        }
    }
}

/// Returns the items of a list, each with the kind that the list leaves out, or the object itself.
fn items(mut answer: Value) -> Vec<Value> {
    let kind = answer["kind"].as_str().and_then(|kind| kind.strip_suffix("List"));
    let Some(kind) = kind.map(str::to_owned) else {
        return vec![answer];
    };
    let version = answer["apiVersion"].take();
    let items = answer["items"].as_array_mut().map(std::mem::take);
    items
        .into_iter()
        .flatten()
        .map(|mut item| {
            item["kind"] = kind.clone().into();
            item["apiVersion"] = version.clone();
            item
        })
        .collect()
}

/// The arguments of `kubectl get` that tests use.
#[derive(Default)]
struct Query<'a> {
    kinds: &'a str,
    name: Option<&'a str>,
    namespace: Option<&'a str>,
    everywhere: bool,
    selectors: Vec<String>,
    managed_fields: bool,
}

impl<'a> Query<'a> {
    fn parse(arguments: &[&'a str]) -> Result<Self> {
        let mut query = Self::default();
        let mut words = arguments.iter().copied();
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .with_context(|| format!("{word} has no value in {arguments:?}"))
            };
            match word {
                "-n" => query.namespace = Some(value()?),
                "-l" => query.selectors.push(format!("labelSelector={}", value()?)),
                "--field-selector" => query.selectors.push(format!("fieldSelector={}", value()?)),
                "--all-namespaces" => query.everywhere = true,
                "--show-managed-fields" => query.managed_fields = true,
                _ if word.starts_with('-') => bail!("{word} of {arguments:?} is not known here"),
                _ if query.kinds.is_empty() => match word.split_once('/') {
                    Some((kind, name)) => (query.kinds, query.name) = (kind, Some(name)),
                    None => query.kinds = word,
                },
                _ if query.name.is_none() => query.name = Some(word),
                _ => bail!("{arguments:?} name more than one object"),
            }
        }
        Ok(query)
    }

    fn paths(&self) -> Result<Vec<String>> {
        self.kinds
            .split(',')
            .map(|kind| {
                let Some((_, plural, group, namespaced)) =
                    KINDS.iter().find(|(one, many, ..)| [*one, *many].contains(&kind))
                else {
                    bail!("add the kind {kind} to KINDS");
                };
                let namespace = match (namespaced, self.everywhere) {
                    (true, false) => format!("namespaces/{}/", self.namespace.unwrap_or("default")),
                    _ => String::new(),
                };
                let name = self.name.map(|name| format!("/{name}")).unwrap_or_default();
                let selectors = self.selectors.join("&");
                Ok(format!("/{group}/{namespace}{plural}{name}?{selectors}"))
            })
            .collect()
    }
}
