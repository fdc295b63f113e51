//! The key of a resource leaves the status of a real kubelet's node some minutes after the plugin that served it.
//!
//! `tests/run.sh` runs the first of the two before all other tests on the cluster, and the second after them, so that the
//! minutes between cost no time.

use anyhow::{Result, ensure};
use gpunode_e2e::{A100, Lab, eventually};
use std::time::Duration;

/// No other test has a resource of this name.
const RESOURCE: &str = "retired.test/gpu";
const OTHER: &str = "retired.test/foreign";

#[test]
#[ignore = "needs the local cluster, and begins what the next one ends: make test"]
fn begin_a_resource_is_served_and_then_no_longer() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&format!(
        "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {{name: retired}}
spec: {{nodeSelector: {{matchLabels: {{pool: a100}}}}, devicePlugin: {{resources: [{{name: {RESOURCE}}}]}}}}
"
    ))?;
    lab.await_allocatable(A100, RESOURCE, 8)?;
    let record = lab.node(A100)?["metadata"]["annotations"]["gpunode.dev/owned"].clone();
    ensure!(
        record.as_str().is_some_and(|record| record.contains(RESOURCE)),
        "the record is {record}"
    );
    // Somebody else's dead key, which nobody is to touch.
    let foreign = format!(r#"{{"status":{{"capacity":{{"{OTHER}":"0"}}}}}}"#);
    lab.kubectl(&[
        "patch",
        "node",
        A100,
        "--subresource=status",
        "--type=merge",
        "-p",
        &foreign,
    ])?;
    lab.kubectl(&["delete", "gpunodepolicy", "retired", "--timeout=30s"])?;
    lab.await_allocatable(A100, RESOURCE, 0)
}

#[test]
#[ignore = "needs the local cluster, and ends what the one before began: make test"]
fn end_the_key_of_the_resource_is_gone_and_foreign_ones_are_not() -> Result<()> {
    let lab = Lab::enter()?;
    eventually("the key has left the node's status", Duration::from_mins(7), || {
        let status = lab.node(A100)?["status"].clone();
        let left = ["capacity", "allocatable"].map(|list| status[list].get(RESOURCE).cloned());
        ensure!(left == [None, None], "{left:?}");
        Ok(())
    })?;
    eventually("the record has forgotten it", Duration::from_mins(3), || {
        let record = lab.node(A100)?["metadata"]["annotations"]["gpunode.dev/owned"].clone();
        ensure!(!record.as_str().unwrap_or_default().contains(RESOURCE), "{record}");
        Ok(())
    })?;
    ensure!(
        lab.node(A100)?["status"]["capacity"][OTHER] == "0",
        "the foreign key is gone"
    );
    let removal = format!(
        r#"[{{"op":"remove","path":"/status/capacity/{}"}}]"#,
        OTHER.replace('/', "~1")
    );
    lab.kubectl(&[
        "patch",
        "node",
        A100,
        "--subresource=status",
        "--type=json",
        "-p",
        &removal,
    ])
    .map(drop)
}
