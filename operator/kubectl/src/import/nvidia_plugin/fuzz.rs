//! Fuzz test of the objects of a cluster that an import reads. `cargo test` runs it for a moment, `make soak` for as long as it is
//! told.

use super::{daemonset::PluginDaemonSet, import_texts};
use crate::{
    cli::{ImportNvidiaPluginArgs, ImportedPluginOutput},
    validate::{KnownKinds, SourceText},
};
use gpunode_fuzz::{Mutation, fuzz};

const DAEMON_SETS: [&str; 2] = [
    "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: nvidia-device-plugin, namespace: kube-system}\nspec:\n  template:\n    spec:\n      nodeSelector: {pool: gpu}\n      containers:\n      - name: nvidia-device-plugin-ctr\n        image: nvcr.io/nvidia/k8s-device-plugin:v0.20.0\n        args: [--fail-on-init-error=false]\n        env: [{name: MIG_STRATEGY, value: mixed}, {name: CONFIG_FILE, value: /config/config.yaml}, {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]\n",
    r#"{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "a"}, "spec": {"template": {"spec": {"initContainers": [{"name": "config-manager-init", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", "command": ["config-manager"], "env": [{"name": "DEFAULT_CONFIG", "value": "default"}]}], "containers": [{"name": "b", "image": "nvcr.io/nvidia/k8s-device-plugin", "command": ["nvidia-device-plugin"]}]}}}}"#,
];

const FILES: [&str; 2] = [
    "version: v1\nflags: {migStrategy: single}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plugin}\ndata:\n  default: |\n    version: v1\n    flags: {migStrategy: none}\n  shared: |\n    version: v1\n    sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
];

/// Daemonset, file, flags, `--config`, `--default-config` and `--node-selector`.
type Input = (
    Mutation,
    Mutation,
    [bool; 3],
    Option<String>,
    Option<String>,
    Vec<(String, String)>,
);

#[test]
fn any_daemonset_and_any_file_become_policies_that_are_accepted_or_an_error_with_a_reason() {
    for daemonset in DAEMON_SETS {
        let read = PluginDaemonSet::read(daemonset);
        assert!(read.is_ok(), "{:#}", read.unwrap_err());
    }
    let kinds = KnownKinds::new().expect("schemas");
    fuzz(
        |(daemonset, file, flags, config, default_config, node_selector): Input| {
            let [has_daemonset, is_agent_config, as_written] = flags;
            let args = ImportNvidiaPluginArgs {
                file: None,
                from_daemonset: has_daemonset.then(|| "daemonset.yaml".into()),
                config,
                default_config,
                node_selector,
                as_written,
                strict: false,
                output: if is_agent_config {
                    ImportedPluginOutput::AgentConfig
                } else {
                    ImportedPluginOutput::Policy
                },
            };
            let text = |name: &str, contents: String| SourceText {
                name: name.to_owned(),
                contents,
            };
            let daemonset = text("daemonset.yaml", daemonset.text(&DAEMON_SETS));
            let file = text("file.yaml", file.text(&FILES));
            match import_texts(&args, Some(file), has_daemonset.then_some(&daemonset), &kinds) {
                Ok(imported) => assert!(!imported.text.is_empty()),
                Err(error) => {
                    let error = format!("{error:#}");
                    assert!(!error.is_empty());
                    // Labels are taken as they are. All else has to be a name or a value that the API server takes.
                    let refused = error.lines().filter_map(|line| line.strip_prefix("  policy "));
                    let mut others = refused.filter(|line| !line.contains(": spec.nodeSelector"));
                    assert_eq!(others.next(), None, "{error}");
                }
            }
        },
    );
}
