//! Repeated work of a GitOps tool changes nothing: a second apply is no change, and a diff is empty.

use anyhow::Result;
use gpunode_e2e::Lab;
use serde_json::Value;

const FOLDERS: [&str; 2] = ["manifests/samples", "manifests/samples/pools"];

/// Applies a folder of samples and waits for its policies; answers the policies.
fn applied(lab: &Lab, folder: &str, how: &[&str]) -> Result<Value> {
    lab.apply_folder(folder, how)?;
    let policies = lab.get(&["gpunodepolicies", "--show-managed-fields"])?;
    for name in gpunode_e2e::names(&policies) {
        lab.await_ready(&name)?;
    }
    lab.get(&["gpunodepolicies", "--show-managed-fields"])
}

fn changes_nothing(how: &[&str]) -> Result<()> {
    let lab = Lab::enter()?;
    for folder in FOLDERS {
        let path = Lab::repository().join(folder);
        let path = path.to_string_lossy();
        let first = applied(&lab, &path, how)?;
        assert_eq!(
            lab.kubectl(&[&["diff", "-k", &path], how].concat())?,
            "",
            "kubectl diff of {folder}"
        );
        let second = applied(&lab, &path, how)?;
        assert_eq!(second, first, "resourceVersion and all of the policies of {folder}");
        lab.clean()?;
    }
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_second_server_side_apply_is_no_change() -> Result<()> {
    changes_nothing(&["--server-side"])
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_second_client_side_apply_is_no_change() -> Result<()> {
    changes_nothing(&[])
}
