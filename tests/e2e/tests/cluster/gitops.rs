//! Repeated work of a GitOps tool changes nothing: a second apply is no change, and a diff is empty.

use anyhow::{Context, Result, ensure};
use gpunode_e2e::Lab;
use serde_json::{Value, json};

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

/// Ways in which people and tools apply a file.
const WAYS: [&[&str]; 4] = [
    // kubectl, and Argo CD without further options.
    &[],
    &["--server-side"],
    // Flux.
    &[
        "--server-side",
        "--force-conflicts",
        "--field-manager=kustomize-controller",
    ],
    // Argo CD with `ServerSideApply=true`.
    &[
        "--server-side",
        "--force-conflicts",
        "--field-manager=argocd-controller",
    ],
];

/// Applies a policy that only previews, so that its selectors may match everything; answers it.
fn previewed(lab: &Lab, how: &[&str], spec: &Value) -> Result<Value> {
    let manifest = json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "emptied"}, "spec": spec,
    });
    // The next apply comes before a plan could be compared: the spec that is stored is judged, not what comes of it.
    let output = lab.unplanned("emptied", || {
        lab.kubectl_with_input(&[&["apply", "-f", "-"], how].concat(), &manifest.to_string())
    })?;
    ensure!(
        output.status.success(),
        "apply {how:?} {spec}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    lab.get(&["gpunodepolicy", "emptied", "--show-managed-fields"])
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn an_emptied_block_stays_on_and_applying_it_again_is_no_change() -> Result<()> {
    let lab = Lab::enter()?;
    let full = json!({
        "mode": "Preview",
        "nodeSelector": {"matchLabels": {"pool": "none"}},
        "devicePlugin": {"failOnInitError": false},
        "startupTaint": {"key": "gpunode.dev/not-ready"},
        "unhealthyTaint": {"after": "30s"},
    });
    let emptied = json!({
        "mode": "Preview", "nodeSelector": {}, "devicePlugin": {}, "startupTaint": {}, "unhealthyTaint": {},
    });
    for how in WAYS {
        previewed(&lab, how, &full)?;
        let first = previewed(&lab, how, &emptied)?;
        assert_eq!(first["spec"], emptied, "{how:?}");
        let generation = &first["metadata"]["generation"];
        // The operator writes the status in between.
        let second = previewed(&lab, how, &emptied)?;
        assert_eq!(second["spec"], emptied, "{how:?}");
        assert_eq!(&second["metadata"]["generation"], generation, "{how:?}");
        assert_eq!(fields_of_appliers(&second)?, fields_of_appliers(&first)?, "{how:?}");
        lab.kubectl(&["delete", "gpunodepolicy", "emptied", "--timeout=30s"])?;
    }
    Ok(())
}

/// Returns the entries of managed fields but those of the status, with their times.
fn fields_of_appliers(policy: &Value) -> Result<Vec<Value>> {
    let fields = policy["metadata"]["managedFields"]
        .as_array()
        .context("read managed fields")?;
    let of_spec = fields.iter().filter(|entry| entry["subresource"] != "status");
    Ok(of_spec.cloned().collect())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_blank_selector_never_selects_every_node() -> Result<()> {
    let lab = Lab::enter()?;
    for how in WAYS {
        let refused = previewed(&lab, how, &json!({"mode": "Preview", "nodeSelector": null})).err();
        let refused = refused
            .context("a policy without any selector was accepted")?
            .to_string();
        assert!(
            refused.contains("nodeSelector or gpuSelector is required"),
            "{how:?}: {refused}"
        );
    }
    Ok(())
}
