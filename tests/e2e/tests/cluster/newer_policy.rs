//! A policy with a value that only a newer version of gpunode knows.

use anyhow::{Result, ensure};
use gpunode_e2e::{Lab, NAMESPACE, T4, condition, eventually};
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(3);

/// The CRD with one more value of `mode`; that of this version comes back when the value is dropped.
struct NewerCrd<'a>(&'a Lab);

impl<'a> NewerCrd<'a> {
    fn install(lab: &'a Lab) -> Result<Self> {
        let patch = r#"[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/mode/enum/-","value":"Later"}]"#;
        let crd = Self(lab);
        lab.kubectl(&[
            "patch",
            "crd",
            "gpunodepolicies.gpunode.dev",
            "--type=json",
            "-p",
            patch,
        ])?;
        Ok(crd)
    }
}

impl Drop for NewerCrd<'_> {
    fn drop(&mut self) {
        let manifest = Lab::repository().join("manifests/crds/gpunodepolicies.yaml");
        let _ = self
            .0
            .try_kubectl(&["delete", "gpunodepolicies", "--all", "--timeout=60s"]);
        let _ = self.0.try_kubectl(&["replace", "-f", &manifest.to_string_lossy()]);
    }
}

fn policy(name: &str, label: &str) -> String {
    format!(
        "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {{name: {name}}}
spec:
  nodeSelector: {{matchLabels: {{pool: inference}}}}
  labels: {{{label}: works}}
"
    )
}

fn await_label(lab: &Lab, key: &str, value: Option<&str>) -> Result<()> {
    eventually(&format!("{T4} has {key}={value:?}"), LIMIT, || {
        let labels = &lab.node(T4)?["metadata"]["labels"];
        ensure!(labels[key].as_str() == value, "the labels are {labels}");
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_policy_of_a_newer_version_keeps_what_it_wrote_and_holds_up_no_other() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&policy("newer", "newer"))?;
    await_label(&lab, "newer", Some("works"))?;
    let _crd = NewerCrd::install(&lab)?;
    let patch = r#"{"spec":{"mode":"Later"}}"#;
    // `plan` cannot read the newer value either, neither here nor beside another policy.
    lab.unplanned("newer", || {
        eventually("the API server takes the newer value", LIMIT, || {
            lab.kubectl(&["patch", "gpunodepolicy", "newer", "--type=merge", "-p", patch])
        })
    })?;
    eventually("the policy says that it cannot be read", LIMIT, || {
        let policy = lab.get(&["gpunodepolicy", "newer"])?;
        let stalled = condition(&policy, "Stalled");
        ensure!(stalled["reason"] == "Unreadable", "status is {}", policy["status"]);
        Ok(())
    })?;

    let selector = ["-n", NAMESPACE, "-l", "app.kubernetes.io/name=gpunode-operator"];
    lab.kubectl(&[&["delete", "pods", "--timeout=60s"], &selector[..]].concat())?;
    let rollout = [
        "rollout",
        "status",
        "-n",
        NAMESPACE,
        "deployment/gpunode-operator",
        "--timeout=120s",
    ];
    lab.kubectl(&rollout)?;

    let applied = lab.unplanned("other", || {
        lab.kubectl_with_input(&["apply", "-f", "-"], &policy("other", "other"))
    })?;
    ensure!(applied.status.success(), "{applied:?}");
    await_label(&lab, "other", Some("works"))?;
    await_label(&lab, "newer", Some("works"))?;
    lab.kubectl(&["delete", "gpunodepolicy", "other", "newer", "--timeout=60s"])?;
    await_label(&lab, "newer", None)?;
    await_label(&lab, "other", None)
}
