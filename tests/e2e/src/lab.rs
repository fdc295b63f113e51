//! The shared cluster, one test at a time.

use crate::{AuditLog, eventually, node_snapshot, reader::Reader};
use anyhow::{Context, Result, bail, ensure};
use gpunode_cluster::Cluster;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::Write,
    path::PathBuf,
    process::{Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The namespace of gpunode.
pub const NAMESPACE: &str = "gpunode-system";
/// Node with 8 V100 in a DGX-1 mesh, label `pool=training`.
pub const V100: &str = "gpu-v100";
/// Node with 4 T4, label `pool=inference`.
pub const T4: &str = "gpu-t4";
/// Node with 8 A100 behind NVSwitch, label `pool=a100`.
pub const A100: &str = "gpu-a100";
/// Node with unequal GPUs, label `pool=mixed`: 0 is a V100 of 16 GiB, 1 an A100 of 80 GiB, 2 and 3 are A100 divided by MIG
/// into equal and unequal instances.
pub const MIXED: &str = "gpu-mixed";
/// Node without GPU.
pub const CPU: &str = "cpu";
/// Nodes with GPUs.
pub const GPU_NODES: [&str; 4] = [A100, MIXED, T4, V100];
/// All nodes.
pub const NODES: [&str; 5] = [CPU, A100, MIXED, T4, V100];

/// Timeout for all consequences of one change.
const SETTLE: Duration = Duration::from_mins(3);

/// Labels and annotations that tests ask something of nodes with.
const LABELS: [&str; 12] = [
    "companions",
    "example.com/gpunode",
    "example.com/nvidia-plugin",
    "gpunode.dev/ignore",
    "gpunode.dev/release",
    "gpushare",
    "nvidia-device-enable",
    "nvidia.com/gpu.deploy.device-plugin",
    "nvidia.com/gpu.deploy.mig-manager",
    "nvidia.com/mig.config",
    "nvidia.com/mig.config.state",
    "sharing",
];
const ANNOTATIONS: [&str; 1] = ["gpunode.dev/recovered"];

/// Kinds of the objects that tests leave behind.
const WORKLOADS: &str = "jobs,deployments,replicasets,statefulsets,poddisruptionbudgets,pods";

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The cluster for one test: without policies and test pods at its start, and again at its end.
pub struct Lab {
    cluster: Cluster,
    reader: Reader,
    _turn: MutexGuard<'static, ()>,
}

impl Lab {
    /// Takes the cluster that `GPUNODE_E2E_CLUSTER` names (default `e2e`) and cleans what an earlier test left.
    pub fn enter() -> Result<Self> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let name = std::env::var("GPUNODE_E2E_CLUSTER").unwrap_or_else(|_| "e2e".to_owned());
        let cluster = Cluster::attach(&name)
            .with_context(|| format!("find the cluster of the tests: run `make cluster-up NAME={name}` first"))?;
        let reader = Reader::new(&cluster.kubeconfig())?;
        let lab = Self {
            cluster,
            reader,
            _turn: turn,
        };
        lab.clean()?;
        Ok(lab)
    }

    /// The cluster's own controls.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The folder of the repository.
    pub fn repository() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// Runs kubectl, which must succeed, and gives what it printed.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.kubectl_output(arguments)
    }

    /// Runs kubectl to whatever end.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<Output> {
        self.cluster.kubectl(arguments)
    }

    /// Runs kubectl with text as its standard input.
    pub fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Result<Output> {
        let mut child = self
            .cluster
            .kubectl_command()
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start kubectl")?;
        child
            .stdin
            .take()
            .context("open standard input of kubectl")?
            .write_all(input.as_bytes())
            .context("write to kubectl")?;
        child.wait_with_output().context("wait for kubectl")
    }

    /// An object or list as JSON, by the arguments of `kubectl get`.
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        self.reader.get(arguments)
    }

    /// A Node.
    pub fn node(&self, name: &str) -> Result<Value> {
        self.get(&["node", name])
    }

    /// Returns the parts of every node that are not gpunode's.
    pub fn snapshot(&self) -> Result<Vec<(String, Value)>> {
        NODES
            .iter()
            .map(|name| Ok(((*name).to_owned(), node_snapshot(&self.node(name)?))))
            .collect()
    }

    /// Returns the allocatable number of a resource on a node; 0 without the resource.
    pub fn allocatable(&self, node: &str, resource: &str) -> Result<u64> {
        Ok(self.node(node)?["status"]["allocatable"][resource]
            .as_str()
            .and_then(|n| n.parse().ok())
            .unwrap_or_default())
    }

    /// Waits until a node offers exactly so many of a resource.
    pub fn await_allocatable(&self, node: &str, resource: &str, count: u64) -> Result<()> {
        eventually(&format!("{node} offers {count} {resource}"), SETTLE, || {
            let seen = self.allocatable(node, resource)?;
            ensure!(seen == count, "it offers {seen}");
            Ok(())
        })
    }

    /// Waits until a policy's `Ready` condition is true for its current generation and nothing is under way.
    pub fn await_ready(&self, policy: &str) -> Result<Value> {
        eventually(&format!("policy {policy} is Ready"), SETTLE, || {
            let object = self.get(&["gpunodepolicy", policy])?;
            let ready = crate::condition(&object, "Ready");
            let current = object["status"]["observedGeneration"] == object["metadata"]["generation"];
            ensure!(current && ready["status"] == "True", "status is {}", object["status"]);
            Ok(object)
        })
    }

    /// Waits until a pod is in a phase.
    pub fn await_pod(&self, name: &str, phase: &str) -> Result<Value> {
        eventually(&format!("pod {name} is {phase}"), SETTLE, || {
            let pod = self.get(&["pod", name])?;
            ensure!(pod["status"]["phase"] == phase, "status is {}", pod["status"]);
            Ok(pod)
        })
    }

    /// Waits until there are so many pods with a label `app` in a namespace.
    pub fn await_pods(&self, namespace: &str, app: &str, count: usize) -> Result<()> {
        eventually(&format!("there are {count} pods of {app}"), SETTLE, || {
            let pods = crate::names(&self.get(&["pods", "-n", namespace, "-l", &format!("app={app}")])?);
            ensure!(pods.len() == count, "there are {pods:?}");
            Ok(())
        })
    }

    /// Waits until so many pods with a label `app` run, and gives their names.
    pub fn await_running(&self, app: &str, count: usize) -> Result<Vec<String>> {
        eventually(&format!("{count} pods of {app} run"), SETTLE, || {
            let pods = self.get(&[
                "pods",
                "-l",
                &format!("app={app}"),
                "--field-selector",
                "status.phase=Running",
            ])?;
            let names = crate::names(&pods);
            ensure!(names.len() == count, "there are {names:?}");
            Ok(names)
        })
    }

    /// The environment of a container of a test's pod.
    pub fn environment(&self, pod: &str) -> Result<BTreeMap<String, String>> {
        let text = self.kubectl(&["exec", pod, "--", "env"])?;
        Ok(text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect())
    }

    /// The environment of the first process of a test's container. A process that `kubectl exec` starts has that of containerd's
    /// specification, without what NVIDIA's runtime changes in it.
    pub fn workload_environment(&self, pod: &str) -> Result<BTreeMap<String, String>> {
        let text = self.kubectl(&["exec", pod, "--", "cat", "/proc/1/environ"])?;
        let entries = text.split('\0').filter_map(|entry| entry.split_once('='));
        Ok(entries.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    /// UUIDs of a node's GPUs by index, as the agent reports them.
    pub fn gpu_uuids(&self, node: &str) -> Result<Vec<String>> {
        let object = self.get(&["gpunode", node])?;
        let gpus = object["status"]["gpus"]
            .as_array()
            .context("find the GPUs of a GpuNode")?;
        Ok(gpus
            .iter()
            .filter_map(|gpu| gpu["uuid"].as_str())
            .map(str::to_owned)
            .collect())
    }

    /// Follows the audit log of the API server from now on.
    pub fn audit(&self) -> Result<AuditLog> {
        AuditLog::from_now(self.cluster.audit_log())
    }

    /// The pod of gpunode on a node: component `device-plugin` or `discovery`.
    pub fn agent_pod(&self, node: &str, component: &str) -> Result<String> {
        let selector = format!("app.kubernetes.io/name=gpunode-agent,app.kubernetes.io/component={component}");
        let pods = self.get(&[
            "pods",
            "-n",
            NAMESPACE,
            "-l",
            &selector,
            "--field-selector",
            &format!("spec.nodeName={node}"),
        ])?;
        match crate::names(&pods).as_slice() {
            [pod] => Ok(pod.clone()),
            pods => bail!("{component} pods on {node}: {pods:?}"),
        }
    }

    /// Waits until there is exactly one running plugin pod on a node, of a DaemonSet that exists, and gives its name.
    pub fn await_plugin(&self, node: &str) -> Result<String> {
        eventually(&format!("one plugin pod runs on {node}"), SETTLE, || {
            let pod = self.agent_pod(node, "device-plugin")?;
            let object = self.get(&["pod", "-n", NAMESPACE, &pod])?;
            // The pod of a deleted DaemonSet is ready until it has ended.
            ensure!(object["metadata"]["deletionTimestamp"].is_null(), "{pod} ends");
            let owner = &object["metadata"]["ownerReferences"][0];
            let daemonset = self.get(&[
                "-n",
                NAMESPACE,
                &format!("daemonset/{}", owner["name"].as_str().unwrap_or_default()),
            ])?;
            ensure!(
                owner["uid"] == daemonset["metadata"]["uid"],
                "{pod} is of a DaemonSet that was deleted; the status of the new one is {}",
                daemonset["status"]
            );
            ensure!(
                object["spec"]["containers"][0]["args"][0] == "run",
                "{pod} is no plugin"
            );
            ensure!(
                object["status"]["containerStatuses"][0]["ready"] == true,
                "its status is {}",
                object["status"]
            );
            Ok(pod)
        })
    }

    /// Removes policies, test pods and what tests ask of nodes, and waits until gpunode has nothing left on any node.
    pub fn clean(&self) -> Result<()> {
        for node in self.get(&["nodes"])?["items"].as_array().into_iter().flatten() {
            let name = node["metadata"]["name"].as_str().context("find the name of a node")?;
            for (verb, map, keys) in [
                ("label", "labels", &LABELS[..]),
                ("annotate", "annotations", &ANNOTATIONS[..]),
            ] {
                for key in keys.iter().filter(|key| !node["metadata"][map][**key].is_null()) {
                    self.kubectl(&[verb, "node", name, &format!("{key}-")])?;
                }
            }
            if node["spec"]["unschedulable"] == true {
                self.kubectl(&["uncordon", name])?;
                self.await_cordon_taint(name, false)?;
            }
        }
        if !crate::names(&self.get(&["resourceslices"])?).is_empty() {
            self.kubectl(&["delete", "resourceslices", "--all", "--timeout=60s"])?;
        }
        if !crate::names(&self.get(&["gpunodepolicies"])?).is_empty() {
            self.kubectl(&["delete", "gpunodepolicies", "--all", "--timeout=60s"])?;
        }
        if !crate::names(&self.get(&[WORKLOADS])?).is_empty() {
            self.kubectl(&[
                "delete",
                WORKLOADS,
                "--all",
                "--grace-period=0",
                "--force",
                "--timeout=60s",
            ])?;
        }
        // A controller that is on its way out may have made another pod.
        eventually("nothing of a test is left", SETTLE, || {
            let left = crate::names(&self.get(&[WORKLOADS])?);
            ensure!(left.is_empty(), "{left:?} are left");
            Ok(())
        })?;
        self.await_nothing_owned()
    }

    /// Removes an object that `clean` does not know, in a destructor, which has nobody to return an error to.
    #[allow(clippy::print_stderr, reason = "a destructor has nobody to return an error to")]
    pub fn remove_after_test(&self, object: &[&str]) {
        let delete = [&["delete"], object, &["--ignore-not-found", "--timeout=90s"]].concat();
        if let Err(error) = self.kubectl(&delete) {
            eprintln!("remove {} after a test: {error:#}", object.join(" "));
        }
    }

    /// Waits until a node that was cordoned or uncordoned has its taint, or no longer. The controller manager follows a moment later.
    pub fn await_cordon_taint(&self, name: &str, wanted: bool) -> Result<()> {
        eventually(&format!("{name} has the taint of its cordon: {wanted}"), SETTLE, || {
            let taints = crate::taints(&self.node(name)?);
            let has_taint = taints
                .iter()
                .any(|taint| taint.starts_with("node.kubernetes.io/unschedulable="));
            ensure!(has_taint == wanted, "its taints are {taints:?}");
            Ok(())
        })
    }

    /// Waits until no node carries a record, no plugin runs, and no GpuNode has a configuration.
    pub fn await_nothing_owned(&self) -> Result<()> {
        eventually("gpunode has cleaned every node", SETTLE, || {
            let nodes = self.get(&["nodes"])?;
            for node in nodes["items"].as_array().into_iter().flatten() {
                let name = node["metadata"]["name"].as_str().unwrap_or_default();
                ensure!(crate::owned(node).is_null(), "still {}", node_snapshot(node));
                let labels = &node["metadata"]["labels"];
                let is_plain = labels["nvidia.com/gpu.replicas"] == "1" && labels["nvidia.com/mig.strategy"].is_null();
                ensure!(
                    is_plain || !GPU_NODES.contains(&name),
                    "the labels of {name} are {labels}"
                );
                // The last MPS daemon of a node ends after its last client.
                ensure!(labels["gpunode.dev/mps"].is_null(), "{name} still has MPS daemons");
            }
            let plugins = self.get(&[
                "daemonsets",
                "-n",
                NAMESPACE,
                "-l",
                "app.kubernetes.io/component=device-plugin",
            ])?;
            ensure!(
                crate::names(&plugins).is_empty(),
                "DaemonSets {:?} are left",
                crate::names(&plugins)
            );
            let pods = self.get(&[
                "pods",
                "-n",
                NAMESPACE,
                "-l",
                "app.kubernetes.io/component=device-plugin",
            ])?;
            ensure!(
                crate::names(&pods).is_empty(),
                "pods {:?} are left",
                crate::names(&pods)
            );
            for node in self.get(&["gpunodes"])?["items"].as_array().into_iter().flatten() {
                ensure!(
                    node["spec"].get("config").is_none(),
                    "{} still has a configuration",
                    node["metadata"]["name"]
                );
            }
            Ok(())
        })
    }
}

#[allow(clippy::print_stderr, reason = "a destructor has nobody to return an error to")]
impl Drop for Lab {
    fn drop(&mut self) {
        // A failing test keeps its objects for a look at them; the next one cleans up first.
        if !std::thread::panicking()
            && let Err(error) = self.clean()
        {
            eprintln!("clean the cluster after a test: {error:#}");
        }
    }
}
