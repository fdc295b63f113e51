//! Fuzz test of the objects of a cluster that an import reads. `cargo test` runs it for a moment, `make soak` for as long as it is
//! told.

use super::{configurations::PluginConfigurations, daemonset::PluginDaemonSet};
use gpunode_config::{DiscardedParts, nvidia_plugin_config};
use gpunode_fuzz::{Mutation, fuzz};

const DAEMON_SETS: [&str; 2] = [
    "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: nvidia-device-plugin, namespace: kube-system}\nspec:\n  template:\n    spec:\n      nodeSelector: {pool: gpu}\n      containers:\n      - name: nvidia-device-plugin-ctr\n        image: nvcr.io/nvidia/k8s-device-plugin:v0.20.0\n        args: [--fail-on-init-error=false]\n        env: [{name: MIG_STRATEGY, value: mixed}, {name: CONFIG_FILE, value: /config/config.yaml}, {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]\n",
    r#"{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "a"}, "spec": {"template": {"spec": {"initContainers": [{"name": "config-manager-init", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", "command": ["config-manager"], "env": [{"name": "DEFAULT_CONFIG", "value": "default"}]}], "containers": [{"name": "b", "image": "nvcr.io/nvidia/k8s-device-plugin", "command": ["nvidia-device-plugin"]}]}}}}"#,
];

const FILES: [&str; 2] = [
    "version: v1\nflags: {migStrategy: single}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plugin}\ndata:\n  default: |\n    version: v1\n    flags: {migStrategy: none}\n  shared: |\n    version: v1\n    sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
];

#[test]
fn any_daemonset_and_any_file_are_imported_or_refused_with_a_reason() {
    for daemonset in DAEMON_SETS {
        let read = PluginDaemonSet::read(daemonset);
        assert!(read.is_ok(), "{:#}", read.unwrap_err());
    }
    fuzz(|(daemonset, file): (Mutation, Mutation)| {
        let daemonset = match PluginDaemonSet::read(&daemonset.text(&DAEMON_SETS)) {
            Ok(daemonset) => daemonset,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                PluginDaemonSet::default()
            }
        };
        match PluginConfigurations::read(&file.text(&FILES), &daemonset.default) {
            Ok(configurations) => {
                for configuration in configurations.list {
                    _ = nvidia_plugin_config(&configuration.text, &daemonset.container, DiscardedParts::Honour);
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}
