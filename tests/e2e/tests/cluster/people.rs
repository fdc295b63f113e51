//! The roles for people, and what `kubectl gpunode` shows to somebody who may not read everything.

use crate::{admission::token_kubeconfig, samples};
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{Lab, T4, eventually};
use std::{
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

const LIMIT: Duration = Duration::from_mins(3);
const NAME: &str = "test-person";

/// Somebody with one ClusterRole, until the value is dropped.
struct Person<'a> {
    lab: &'a Lab,
    kubeconfig: PathBuf,
}

impl<'a> Person<'a> {
    fn with_role(lab: &'a Lab, role: &str) -> Result<Self> {
        lab.kubectl(&["create", "serviceaccount", NAME])?;
        let token = lab.kubectl(&["create", "token", NAME])?;
        let person = Self {
            lab,
            kubeconfig: token_kubeconfig(lab, NAME, token.trim())?,
        };
        let account = format!("--serviceaccount=default:{NAME}");
        let role = format!("--clusterrole={role}");
        lab.kubectl(&["create", "clusterrolebinding", NAME, &role, &account])?;
        // The API server learns of it a moment later. Each of the roles has this permission.
        eventually("the role is in force", LIMIT, || {
            ensure!(person.may("list", "gpunodepolicies.gpunode.dev")?);
            Ok(())
        })?;
        Ok(person)
    }

    fn may(&self, verb: &str, resource: &str) -> Result<bool> {
        let account = format!("--as=system:serviceaccount:default:{NAME}");
        let answer = self.lab.try_kubectl(&["auth", "can-i", verb, resource, &account])?;
        Ok(String::from_utf8_lossy(&answer.stdout).trim() == "yes")
    }

    fn gpunode(&self, arguments: &[&str]) -> Result<Output> {
        Command::new(Lab::repository().join("target/cluster/bin/kubectl-gpunode"))
            .args(arguments)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .output()
            .context("start kubectl-gpunode")
    }
}

impl Drop for Person<'_> {
    fn drop(&mut self) {
        // What is left fails the next creation, which says so.
        let _ = self.lab.try_kubectl(&["delete", "clusterrolebinding", NAME]);
        let _ = self.lab.try_kubectl(&["delete", "serviceaccount", NAME]);
    }
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn who_may_view_the_cluster_sees_gpus_and_is_told_what_is_missing() -> Result<()> {
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "")?;
    let person = Person::with_role(&lab, "view")?;
    eventually("the role view includes GpuNodes", LIMIT, || {
        ensure!(person.may("list", "gpunodes.gpunode.dev")?);
        Ok(())
    })?;
    assert!(!person.may("create", "gpunodepolicies.gpunode.dev")?);

    let status = person.gpunode(&["status"])?;
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    ensure!(status.status.success(), "{status:?}");
    assert!(text.contains("nvidia.com/gpu 4/4"), "{text}");
    assert!(text.contains("you may not list Nodes: "), "{text}");
    assert!(text.contains("ask for the ClusterRole gpunode-viewer"), "{text}");
    assert!(!text.contains("does not exist"), "{text}");
    ensure!(person.gpunode(&["topo", T4])?.status.success());
    for arguments in [&["explain", T4][..], &["dump"], &["plan", "--delete", "sharing"]] {
        let refused = person.gpunode(arguments)?;
        let error = String::from_utf8_lossy(&refused.stderr);
        ensure!(refused.status.code() == Some(1), "{arguments:?}: {refused:?}");
        assert!(error.contains("you may not list Nodes: "), "{arguments:?}: {error}");
    }
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn viewers_read_everything_and_editors_write_policies_alone() -> Result<()> {
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "")?;
    let viewer = Person::with_role(&lab, "gpunode-viewer")?;
    for arguments in [
        &["status"][..],
        &["status", T4],
        &["explain", T4],
        &["topo", T4],
        &["doctor", T4],
        &["dump"],
    ] {
        let output = viewer.gpunode(arguments)?;
        ensure!(output.status.success(), "{arguments:?}: {output:?}");
        let text = [output.stdout, output.stderr].concat();
        assert!(!String::from_utf8_lossy(&text).contains("you may not"), "{arguments:?}");
    }
    assert!(!viewer.may("create", "gpunodepolicies.gpunode.dev")?);
    drop(viewer);

    let editor = Person::with_role(&lab, "gpunode-policy-editor")?;
    assert!(
        editor.may("create", "gpunodepolicies.gpunode.dev")? && editor.may("delete", "gpunodepolicies.gpunode.dev")?
    );
    assert!(!editor.may("list", "nodes")? && !editor.may("update", "gpunodes.gpunode.dev")?);
    // `edit` and `admin` of a namespace or of the cluster do not write policies.
    for role in ["edit", "admin"] {
        let rules = lab.get(&["clusterrole", role])?["rules"].to_string();
        assert!(rules.contains("gpunodes"), "{role} includes view: {rules}");
        let with_policies: Vec<_> = lab.get(&["clusterrole", role])?["rules"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|rule| rule["resources"].to_string().contains("gpunodepolicies"))
            .map(|rule| rule["verbs"].to_string())
            .collect();
        assert!(
            with_policies.iter().all(|verbs| !verbs.contains("create")),
            "{with_policies:?}"
        );
    }
    Ok(())
}
