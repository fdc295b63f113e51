//! A stand-in for NVIDIA's gpu-operator and its mig-manager: their labels, the file of mig-parted, and a DaemonSet that follows the
//! label as theirs does.

use crate::{Lab, eventually, names};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::time::Duration;

/// Namespace of gpu-operator.
const NAMESPACE: &str = "gpu-operator";
const MIG_MANAGER: &str = "nvidia-mig-manager";
const LIMIT: Duration = Duration::from_mins(3);

/// gpu-operator on one node; removed when dropped.
pub struct GpuOperator<'a> {
    lab: &'a Lab,
}

impl<'a> GpuOperator<'a> {
    /// Installs it, with a file of mig-parted whose configuration `config` mig-manager has given the node.
    pub fn install(lab: &'a Lab, node: &str, config: &str, file: &str) -> Result<Self> {
        let app = json!({"app": MIG_MANAGER});
        let objects = [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"config.yaml": file},
                "metadata": {"name": "default-mig-parted-config", "namespace": NAMESPACE}}),
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": MIG_MANAGER, "namespace": NAMESPACE},
            "spec": {"selector": {"matchLabels": app}, "template": {"metadata": {"labels": app}, "spec": {
                "nodeSelector": {"nvidia.com/gpu.deploy.mig-manager": "true"},
                "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "gpunode.test/cuda:1", "command": ["sleep", "100000"]}],
            }}}}),
        ];
        let operator = Self { lab };
        lab.apply(&objects.map(|object| object.to_string()).join("\n---\n"))?;
        let config = format!("nvidia.com/mig.config={config}");
        lab.kubectl(&[
            "label",
            "node",
            node,
            &config,
            "nvidia.com/mig.config.state=success",
            "nvidia.com/gpu.deploy.mig-manager=true",
            "nvidia.com/gpu.deploy.device-plugin=true",
        ])?;
        operator.await_mig_managers(1)?;
        Ok(operator)
    }

    /// Waits until so many pods of mig-manager are there.
    pub fn await_mig_managers(&self, count: usize) -> Result<()> {
        eventually(&format!("{count} pods of mig-manager are there"), LIMIT, || {
            let pods = names(
                &self
                    .lab
                    .get(&["pods", "-n", NAMESPACE, "-l", &format!("app={MIG_MANAGER}")])?,
            );
            ensure!(pods.len() == count, "there are {pods:?}");
            Ok(())
        })
    }
}

#[allow(clippy::print_stderr, reason = "a destructor has nobody to return an error to")]
impl Drop for GpuOperator<'_> {
    fn drop(&mut self) {
        let delete = ["delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=90s"];
        if let Err(error) = self.lab.kubectl(&delete).context("remove gpu-operator after a test") {
            eprintln!("{error:#}");
        }
    }
}
