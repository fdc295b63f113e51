//! A stand-in for NVIDIA's gpu-operator: its labels and ClusterPolicy, the file of mig-parted, and DaemonSets that follow the labels
//! as mig-manager and the device plugin do. Their pods do nothing.

use crate::{
    Lab, eventually,
    idle_daemonset::{idle_daemonset, nvidia_plugin_daemonset},
    manifest,
};
use anyhow::Result;
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
        let spec = json!({
            "mig": {"strategy": "mixed"},
            "migManager": {"enabled": true, "config": {"name": "default-mig-parted-config"}},
            "devicePlugin": {"enabled": true},
        });
        let operator = Self::found(lab, &spec, "default-mig-parted-config", &json!({"config.yaml": file}))?;
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

    /// Installs it with the device plugin alone, on one node. `configurations` are those of the plugin, by name.
    pub fn install_device_plugin(lab: &'a Lab, node: &str, configurations: &Value) -> Result<Self> {
        let config = json!({"name": "device-plugin-configs", "default": "default"});
        let spec = json!({"migManager": {"enabled": false}, "devicePlugin": {"enabled": true, "config": config}});
        let operator = Self::found(lab, &spec, "device-plugin-configs", configurations)?;
        lab.kubectl(&["label", "node", node, "nvidia.com/gpu.deploy.device-plugin=true"])?;
        operator.start_device_plugin()?;
        operator.await_pods(0, 1)?;
        Ok(operator)
    }

    fn found(lab: &'a Lab, spec: &Value, config_map: &str, data: &Value) -> Result<Self> {
        let operator = Self { lab };
        let objects = [
            crd(),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
                "metadata": {"name": config_map, "namespace": NAMESPACE}}),
        ];
        lab.apply(&manifest(&objects))?;
        let policy = json!({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
            "spec": spec});
        // The API server serves a new kind a moment later.
        eventually("there is a ClusterPolicy", LIMIT, || lab.apply(&policy.to_string()))?;
        Ok(operator)
    }

    /// Starts mig-manager and the device plugin on the nodes whose labels say so, as with `enabled: true` in the ClusterPolicy.
    pub fn start(&self) -> Result<()> {
        let selector = json!({"nvidia.com/gpu.deploy.mig-manager": "true"});
        self.lab
            .apply(&idle_daemonset(NAMESPACE, MIG_MANAGER, &selector).to_string())?;
        self.start_device_plugin()
    }

    /// Starts the device plugin alone.
    pub fn start_device_plugin(&self) -> Result<()> {
        let selector = json!({"nvidia.com/gpu.deploy.device-plugin": "true"});
        self.lab
            .apply(&nvidia_plugin_daemonset(NAMESPACE, DEVICE_PLUGIN, &selector).to_string())
    }

    /// Removes both from the cluster, as with `enabled: false` in the ClusterPolicy.
    pub fn stop(&self) -> Result<()> {
        let delete = ["delete", "daemonsets", "--all", "-n", NAMESPACE, "--timeout=60s"];
        self.lab.kubectl(&delete)?;
        self.await_pods(0, 0)
    }

    /// Waits until there are so many pods of each.
    pub fn await_pods(&self, mig_managers: usize, device_plugins: usize) -> Result<()> {
        self.lab.await_pods(NAMESPACE, MIG_MANAGER, mig_managers)?;
        self.lab.await_pods(NAMESPACE, DEVICE_PLUGIN, device_plugins)
    }
}

impl Drop for GpuOperator<'_> {
    fn drop(&mut self) {
        self.lab.remove_after_test(&["namespace", NAMESPACE]);
        self.lab.remove_after_test(&["crd", CRD]);
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
