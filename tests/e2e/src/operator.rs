//! The operator's pods: who leads, and how to stop them.

use crate::{Lab, NAMESPACE, eventually, names};
use anyhow::{Context, Result, ensure};
use gpunode_cluster::Process;
use std::time::Duration;

/// A variable of the operator, until this is dropped.
pub struct OperatorVariable<'a> {
    lab: &'a Lab,
    name: &'static str,
}

impl<'a> OperatorVariable<'a> {
    /// Sets a variable as `kubectl set env` does, and waits for the operator's pods.
    pub fn set(lab: &'a Lab, name: &'static str, value: &str) -> Result<Self> {
        let set = Self { lab, name };
        set.change(&format!("{name}={value}"))?;
        Ok(set)
    }

    fn change(&self, variable: &str) -> Result<()> {
        let operator = ["-n", NAMESPACE, "deployment/gpunode-operator"];
        let set = [&["set", "env"], &operator[..], &[variable]].concat();
        self.lab.kubectl(&set)?;
        let wait = [&["rollout", "status"], &operator[..], &["--timeout=180s"]].concat();
        self.lab.kubectl(&wait).map(drop)
    }
}

impl Drop for OperatorVariable<'_> {
    fn drop(&mut self) {
        // Where that fails, the next test says so.
        let _ = self.change(&format!("{}-", self.name));
    }
}

impl Lab {
    /// The pod that holds the Lease.
    pub fn leader(&self) -> Result<String> {
        let lease = self.get(&["lease", "gpunode-operator", "-n", NAMESPACE])?;
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        ensure!(!holder.is_empty(), "nobody holds the lease");
        Ok(holder.to_owned())
    }

    /// Waits for a leader other than `earlier`.
    pub fn await_leader_other_than(&self, earlier: &str) -> Result<String> {
        eventually("another operator leads", Duration::from_mins(3), || {
            let leader = self.leader()?;
            ensure!(leader != earlier, "{earlier} still leads");
            Ok(leader)
        })
    }

    /// The main process of an operator pod.
    pub fn operator_process(&self, pod: &str) -> Result<Process> {
        let object = self.get(&["pod", "-n", NAMESPACE, pod])?;
        let node = object["spec"]["nodeName"]
            .as_str()
            .context("find the node of an operator pod")?;
        self.cluster().node(node)?.container_process(NAMESPACE, pod, "operator")
    }

    /// Every pod of the operator.
    pub fn operator_pods(&self) -> Result<Vec<String>> {
        Ok(names(&self.get(&[
            "pods",
            "-n",
            NAMESPACE,
            "-l",
            "app.kubernetes.io/name=gpunode-operator",
        ])?))
    }

    /// Moves the operator's pods to other nodes than this one, which is about to go down.
    pub fn move_operator_off(&self, node: &str) -> Result<()> {
        self.kubectl(&["cordon", node])?;
        let selector = ["-n", NAMESPACE, "-l", "app.kubernetes.io/name=gpunode-operator"];
        let there = format!("--field-selector=spec.nodeName={node}");
        self.kubectl(&[&["delete", "pods", &there], &selector[..]].concat())?;
        self.kubectl(&[
            "rollout",
            "status",
            "-n",
            NAMESPACE,
            "deployment/gpunode-operator",
            "--timeout=180s",
        ])?;
        self.kubectl(&["uncordon", node]).map(drop)
    }

    /// Sets the number of operator pods and waits until it is true.
    pub fn scale_operator(&self, replicas: usize) -> Result<()> {
        self.kubectl(&[
            "scale",
            "-n",
            NAMESPACE,
            "deployment/gpunode-operator",
            &format!("--replicas={replicas}"),
        ])?;
        eventually(&format!("{replicas} operator pods"), Duration::from_mins(3), || {
            let pods = self.operator_pods()?;
            ensure!(pods.len() == replicas, "there are {pods:?}");
            let deployment = self.get(&["deployment", "-n", NAMESPACE, "gpunode-operator"])?;
            let ready = deployment["status"]["readyReplicas"].as_u64().unwrap_or_default();
            ensure!(usize::try_from(ready)? == replicas, "{ready} are ready");
            Ok(())
        })
    }
}
