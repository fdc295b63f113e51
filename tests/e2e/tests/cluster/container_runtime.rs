//! The container runtime of a node, as its agent reports it and `kubectl gpunode doctor` judges it.

use crate::samples;
use anyhow::{Result, ensure};
use gpunode_e2e::{Lab, T4, eventually};
use serde_json::Value;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(3);

#[test]
#[ignore = "needs the local cluster: make test"]
fn the_real_containerd_is_reported_with_cdi_on_and_doctor_finds_nothing_that_keeps_gpus_from_pods() -> Result<()> {
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "")?;
    let runtime = eventually("the agent reports the container runtime", LIMIT, || {
        let runtime = lab.get(&["gpunode", T4])?["status"]["runtime"].clone();
        ensure!(runtime["cdi"] == "Enabled", "{runtime}");
        Ok(runtime)
    })?;
    ensure!(
        runtime["name"] == "containerd" && runtime["problem"].is_null(),
        "{runtime}"
    );
    let version = runtime["version"].as_str().unwrap_or_default();
    let kubelet = lab.node(T4)?["status"]["nodeInfo"]["containerRuntimeVersion"].clone();
    let kubelet = kubelet.as_str().unwrap_or_default();
    ensure!(
        version.starts_with('2') && kubelet.starts_with("containerd://2"),
        "{version} {kubelet}"
    );
    ensure!(runtime["defaultHandler"] == "runc", "{runtime}");
    let dirs = runtime["cdiSpecDirs"].as_array().cloned().unwrap_or_default();
    ensure!(dirs.contains(&Value::from("/var/run/cdi")), "{runtime}");
    ensure!(
        runtime["driverRoot"].as_str().is_some_and(|root| root.starts_with('/')),
        "{runtime}"
    );

    let table = lab.gpunode(&["doctor", T4])?;
    ensure!(table.contains("with CDI, default handler runc"), "{table}");
    let findings: Value = serde_json::from_str(&lab.gpunode(&["doctor", T4, "-o", "json"])?)?;
    ensure!(
        findings["node"] == T4 && findings["unreadable"] == Value::Array(Vec::new()),
        "{findings}"
    );
    let policy = lab.get(&["gpunodepolicy", "sharing"])?["status"]["conditions"].to_string();
    ensure!(!policy.contains("PodsGetNoGpu"), "{policy}");
    Ok(())
}
