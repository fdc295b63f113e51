//! Reading objects as JSON.

use serde_json::{Value, json};

/// Names of the items of a list.
pub fn names(list: &Value) -> Vec<String> {
    list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .map(str::to_owned)
        .collect()
}

/// The condition of a type, `null` where there is none.
pub fn condition(object: &Value, kind: &str) -> Value {
    object["status"]["conditions"]
        .as_array()
        .and_then(|conditions| conditions.iter().find(|condition| condition["type"] == kind))
        .cloned()
        .unwrap_or_default()
}

/// The taints of a node as `key=value:effect`.
pub fn taints(node: &Value) -> Vec<String> {
    node["spec"]["taints"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|taint| {
            let text = |field: &str| taint[field].as_str().unwrap_or_default().to_owned();
            format!("{}={}:{}", text("key"), text("value"), text("effect"))
        })
        .collect()
}

/// What gpunode must leave as it found it: labels, annotations, taints in their order, and whether the node is cordoned.
pub fn node_snapshot(node: &Value) -> Value {
    json!({
        "labels": node["metadata"]["labels"],
        "annotations": node["metadata"]["annotations"],
        "taints": node["spec"]["taints"],
        "unschedulable": node["spec"]["unschedulable"],
    })
}
