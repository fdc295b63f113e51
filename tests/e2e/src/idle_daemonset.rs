//! DaemonSets that stand for those of other programs: their pods do nothing.

use serde_json::{Value, json};

/// Image with a shell.
const IMAGE: &str = "gpunode.test/cuda:1";

/// Returns a DaemonSet for the nodes with these labels; its pods have the label `app`, which is its name.
pub fn idle_daemonset(namespace: &str, name: &str, node_selector: &Value) -> Value {
    let container = json!({"name": "main", "image": IMAGE, "command": ["sleep", "100000"]});
    daemonset(namespace, name, node_selector, json!({"containers": [container]}))
}

/// Returns a DaemonSet like that of NVIDIA's device plugin with a ConfigMap of configurations: its containers have the names of
/// NVIDIA's programs and their variables.
pub fn nvidia_plugin_daemonset(namespace: &str, name: &str, node_selector: &Value) -> Value {
    let programs = "printf '#!/bin/sh\\nexec sleep 100000\\n' > /programs/nvidia-device-plugin
                    printf '#!/bin/sh\\n' > /programs/config-manager
                    chmod +x /programs/*";
    let mount = json!([{"name": "programs", "mountPath": "/programs"}]);
    let manager = json!([
        {"name": "NODE_LABEL", "value": "nvidia.com/device-plugin.config"},
        {"name": "DEFAULT_CONFIG", "value": "default"},
        {"name": "CONFIG_FILE_SRCDIR", "value": "/available-configs"},
        {"name": "CONFIG_FILE_DST", "value": "/config/config.yaml"},
    ]);
    let spec = json!({
        "initContainers": [
            {"name": "programs", "image": IMAGE, "command": ["sh", "-c", programs], "volumeMounts": mount},
            {"name": "config-manager-init", "image": IMAGE, "command": ["/programs/config-manager"], "env": manager,
                "volumeMounts": mount},
        ],
        "containers": [{"name": "nvidia-device-plugin", "image": IMAGE, "command": ["/programs/nvidia-device-plugin"],
            "env": [{"name": "CONFIG_FILE", "value": "/config/config.yaml"}], "volumeMounts": mount}],
        "volumes": [{"name": "programs", "emptyDir": {}}],
    });
    daemonset(namespace, name, node_selector, spec)
}

fn daemonset(namespace: &str, name: &str, node_selector: &Value, mut spec: Value) -> Value {
    let app = json!({"app": name});
    spec["nodeSelector"] = node_selector.clone();
    spec["tolerations"] = json!([{"operator": "Exists"}]);
    spec["terminationGracePeriodSeconds"] = json!(0);
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": app}, "template": {"metadata": {"labels": app}, "spec": spec}}})
}
