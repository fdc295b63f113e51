//! Objects as JSON: reading them, and writing several as one manifest.

use jiff::Timestamp;
use serde_json::{Value, json};

/// Returns objects as documents of one manifest.
pub fn manifest(objects: &[Value]) -> String {
    let documents: Vec<String> = objects.iter().map(Value::to_string).collect();
    documents.join("\n---\n")
}

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

/// Returns true for an event from this moment on: those of earlier runs stay for an hour.
pub fn is_event_since(event: &Value, start: Timestamp) -> bool {
    let time = event["eventTime"].as_str().and_then(|time| time.parse().ok());
    time.is_some_and(|time: Timestamp| time >= start)
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

/// Returns true for a label with a fact about GPUs: nodes have these with and without policies.
pub fn is_fact(key: &str) -> bool {
    ["nvidia.com/", "gpunode.dev/gpus.", "gpunode.dev/companions."]
        .iter()
        .any(|start| key.starts_with(start))
}

/// Returns what gpunode wrote on a node because of policies; `null` without any.
pub fn owned(node: &Value) -> Value {
    let Some(text) = node["metadata"]["annotations"]["gpunode.dev/owned"].as_str() else {
        return Value::Null;
    };
    let Ok(Value::Object(mut record)) = serde_json::from_str::<Value>(text) else {
        return text.into();
    };
    // Facts are labels of their own, and the times of restores are remembered for a while.
    record.remove("restored");
    if let Some(Value::Object(labels)) = record.get_mut("labels") {
        labels.retain(|key, _| !is_fact(key));
    }
    record.retain(|field, entries| {
        let is_empty = entries.as_object().is_some_and(serde_json::Map::is_empty);
        // Names of resources stay until the kubelet lets their keys go.
        !["version", "resources"].contains(&field.as_str()) && !is_empty
    });
    if record.is_empty() {
        Value::Null
    } else {
        Value::Object(record)
    }
}

/// Returns the parts that policies must restore: labels, annotations, taints in their order, and the cordon.
pub fn node_snapshot(node: &Value) -> Value {
    let (mut labels, mut annotations) = (
        node["metadata"]["labels"].clone(),
        node["metadata"]["annotations"].clone(),
    );
    if let Value::Object(labels) = &mut labels {
        labels.retain(|key, _| !is_fact(key));
    }
    if let Value::Object(annotations) = &mut annotations {
        annotations.remove("gpunode.dev/owned");
    }
    json!({
        "labels": labels,
        "annotations": annotations,
        "owned": owned(node),
        "taints": node["spec"]["taints"],
        "unschedulable": node["spec"]["unschedulable"],
    })
}
