//! The roles of `manifests/default` name exactly what the test suite has seen gpunode do.
//!
//! Runs last: it reads the audit logs of everything before it, those of every cluster in the folder that `GPUNODE_E2E_AUDIT_LOGS`
//! names (default: that of the cluster of the tests).

use anyhow::{Context, Result};
use gpunode_e2e::{AuditLog, Lab};
use serde_json::Value;
use std::collections::BTreeSet;

/// One permission or use of an account: (API group, resource, verb).
type Use = (String, String, String);

fn audit_logs(lab: &Lab) -> Result<Vec<AuditLog>> {
    let Some(folder) = std::env::var_os("GPUNODE_E2E_AUDIT_LOGS") else {
        return Ok(vec![AuditLog::entire(lab.cluster().audit_log())]);
    };
    let logs = std::fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?;
    logs.map(|log| Ok(AuditLog::entire(log?.path()))).collect()
}

fn used(audit: &AuditLog, account: &str) -> Result<BTreeSet<Use>> {
    let account_name = format!("system:serviceaccount:gpunode-system:{account}");
    let mut used = BTreeSet::new();
    for event in audit
        .events()?
        .iter()
        .filter(|event| event.user() == account_name && event.code() != 403 && !event.resource().is_empty())
    {
        used.insert((event.group().to_owned(), event.resource(), event.verb().to_owned()));
        // The API server asks for `create` too where an apply creates, and logs it as a patch answered with 201.
        if event.verb() == "patch" && event.code() == 201 {
            used.insert((event.group().to_owned(), event.resource(), "create".to_owned()));
        }
    }
    Ok(used)
}

fn granted(lab: &Lab, account: &str) -> Result<BTreeSet<Use>> {
    let mut granted = BTreeSet::new();
    for kind in [
        &["clusterrole", account][..],
        &["role", "-n", "gpunode-system", account],
    ] {
        if !lab.try_kubectl(&[&["get"], kind].concat())?.status.success() {
            continue;
        }
        let role = lab.get(kind)?;
        for rule in role["rules"].as_array().context("read the rules of a role")? {
            let texts = |field: &str| -> Vec<String> {
                rule[field]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect()
            };
            for group in texts("apiGroups") {
                for resource in texts("resources") {
                    for verb in texts("verbs") {
                        granted.insert((group.clone(), resource.clone(), verb));
                    }
                }
            }
        }
    }
    Ok(granted)
}

#[test]
#[ignore = "needs the audit log of the whole suite: make test"]
fn roles_grant_exactly_the_verbs_and_resources_that_were_used() -> Result<()> {
    let lab = Lab::enter()?;
    let audits = audit_logs(&lab)?;
    for account in ["gpunode-operator", "gpunode-agent"] {
        let (mut used_anywhere, granted) = (BTreeSet::new(), granted(&lab, account)?);
        for audit in &audits {
            used_anywhere.append(&mut used(audit, account)?);
        }
        // A streaming list is a watch; an API server that refuses it gets the list. A lost race leads to a get, and no test loses one
        // of every kind for certain. Neither reads more than the watch.
        let is_read_of_watched = |(group, resource, verb): &(String, String, String)| {
            let watch = (group.clone(), resource.clone(), "watch".to_owned());
            ["list", "get"].contains(&verb.as_str()) && used_anywhere.contains(&watch)
        };
        let unused = granted.difference(&used_anywhere);
        let unused: Vec<_> = unused.filter(|of| !is_read_of_watched(of)).collect();
        let missing: Vec<_> = used_anywhere.difference(&granted).collect();
        assert!(
            unused.is_empty() && missing.is_empty(),
            "{account}: granted and never used {unused:?}; used and not granted {missing:?}"
        );
    }
    Ok(())
}
