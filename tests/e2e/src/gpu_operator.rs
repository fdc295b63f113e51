//! A stand-in for NVIDIA's gpu-operator: its labels and ClusterPolicy, the file of mig-parted, and DaemonSets that follow the labels
//! as mig-manager and the device plugin do. Their pods do nothing.

use crate::{Lab, eventually, manifest, names};
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

const NAMESPACE: &str = "gpu-operator";
const CRD: &str = "clusterpolicies.nvidia.com";
const MIG_MANAGER: &str = "nvidia-mig-manager";
const DEVICE_PLUGIN: &str = "nvidia-device-plugin-daemonset";
const LIMIT: Duration = Duration::from_mins(3);

/// gpu-operator, which is removed when this is dropped. Its labels go with the test's others.
pub struct GpuOperator<'a> {
    lab: &'a Lab,
}

impl<'a> GpuOperator<'a> {
    /// Installs it, with a file of mig-parted. `nodes` are names with the configuration that mig-manager has given them.
    pub fn install(lab: &'a Lab, nodes: &[(&str, &str)], file: &str) -> Result<Self> {
        let operator = Self { lab };
        let objects = [
            crd(),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"config.yaml": file},
                "metadata": {"name": "default-mig-parted-config", "namespace": NAMESPACE}}),
        ];
        lab.apply(&manifest(&objects))?;
        let policy = json!({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
        "spec": {
            "mig": {"strategy": "mixed"},
            "migManager": {"enabled": true, "config": {"name": "default-mig-parted-config"}},
            "devicePlugin": {"enabled": true},
        }});
        // The API server serves a new kind a moment later.
        eventually("there is a ClusterPolicy", LIMIT, || lab.apply(&policy.to_string()))?;
        for (node, config) in nodes {
            lab.kubectl(&[
                "label",
                "node",
                node,
                &format!("nvidia.com/mig.config={config}"),
                "nvidia.com/mig.config.state=success",
                "nvidia.com/gpu.deploy.mig-manager=true",
                "nvidia.com/gpu.deploy.device-plugin=true",
            ])?;
        }
        operator.start()?;
        operator.await_pods(nodes.len(), nodes.len())?;
        Ok(operator)
    }

    /// Starts mig-manager and the device plugin on the nodes whose labels say so, as with `enabled: true` in the ClusterPolicy.
    pub fn start(&self) -> Result<()> {
        let daemonsets = [
            daemonset(MIG_MANAGER, "nvidia.com/gpu.deploy.mig-manager"),
            daemonset(DEVICE_PLUGIN, "nvidia.com/gpu.deploy.device-plugin"),
        ];
        self.lab.apply(&manifest(&daemonsets))
    }

    /// Removes both from the cluster, as with `enabled: false` in the ClusterPolicy.
    pub fn stop(&self) -> Result<()> {
        let delete = ["delete", "daemonsets", "--all", "-n", NAMESPACE, "--timeout=60s"];
        self.lab.kubectl(&delete)?;
        self.await_pods(0, 0)
    }

    /// Waits until there are so many pods of each.
    pub fn await_pods(&self, mig_managers: usize, device_plugins: usize) -> Result<()> {
        eventually("gpu-operator's pods are where their labels say", LIMIT, || {
            for (app, count) in [(MIG_MANAGER, mig_managers), (DEVICE_PLUGIN, device_plugins)] {
                let selector = format!("app={app}");
                let pods = names(&self.lab.get(&["pods", "-n", NAMESPACE, "-l", &selector])?);
                ensure!(pods.len() == count, "there are {pods:?}, not {count} of {app}");
            }
            Ok(())
        })
    }
}

impl Drop for GpuOperator<'_> {
    fn drop(&mut self) {
        self.lab.remove_after_test("namespace", NAMESPACE);
        self.lab.remove_after_test("crd", CRD);
    }
}

fn crd() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": CRD},
    "spec": {
        "group": "nvidia.com",
        "scope": "Cluster",
        "names": {"kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
    }})
}

/// A DaemonSet on the nodes that have a label.
fn daemonset(name: &str, label: &str) -> Value {
    let app = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": NAMESPACE},
    "spec": {"selector": {"matchLabels": app}, "template": {"metadata": {"labels": app}, "spec": {
        "nodeSelector": {label: "true"},
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "gpunode.test/cuda:1", "command": ["sleep", "100000"]}],
    }}}})
}
