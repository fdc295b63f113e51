//! Objects as Helm and kustomize render them.

use crate::{chart, repository};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, Output},
};

/// Objects by kind, namespace and name.
pub type ObjectSet = BTreeMap<String, Value>;

/// Labels that the chart has and the manifests have not.
const CHART_LABELS: [&str; 4] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];
/// Annotation by which Helm keeps an object.
const POLICY: &str = "helm.sh/resource-policy";

/// Returns the program of the local cluster's build.
fn program(name: &str) -> PathBuf {
    repository().join("target/cluster/bin").join(name)
}

/// Returns the command of Helm, whose own files are below `target`.
pub fn helm() -> Command {
    let mut command = Command::new(program("helm"));
    let folder = repository().join("target/helm");
    for (variable, name) in [
        ("HELM_CACHE_HOME", "cache"),
        ("HELM_CONFIG_HOME", "config"),
        ("HELM_DATA_HOME", "data"),
    ] {
        command.env(variable, folder.join(name));
    }
    command
}

/// Runs `helm template` for a namespace, with more arguments, to whatever end.
///
/// # Errors
/// When Helm does not start.
pub fn template(namespace: &str, arguments: &[&str]) -> Result<Output> {
    helm()
        .args(["template", "gpunode"])
        .arg(chart())
        // Of Kubernetes; without it Helm takes the version of its library.
        .args(["--namespace", namespace, "--kube-version", "1.34.0"])
        .args(arguments)
        .output()
        .context("start helm; `make kubernetes` builds it")
}

/// Returns the objects of a kustomization, given by its path in the repository.
///
/// # Errors
/// When kustomize refuses it.
pub fn kustomize(folder: &str) -> Result<ObjectSet> {
    let output = Command::new(program("kubectl"))
        .arg("kustomize")
        .arg(repository().join(folder))
        .output()
        .context("start kubectl; `make kubernetes` builds it")?;
    objects(&output)
}

/// Returns the objects that a program printed, without the chart's own labels.
///
/// # Errors
/// When the program failed, or an object is there twice.
pub fn objects(output: &Output) -> Result<ObjectSet> {
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::str::from_utf8(&output.stdout).context("read the output")?;
    let mut objects = ObjectSet::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let mut object = Value::deserialize(document).context("read an object")?;
        if object.is_null() {
            continue;
        }
        for (map, keys) in [("labels", &CHART_LABELS[..]), ("annotations", &[POLICY])] {
            if let Some(entries) = object["metadata"][map].as_object_mut() {
                entries.retain(|key, _| !keys.contains(&key.as_str()));
                if entries.is_empty() {
                    object["metadata"].as_object_mut().map(|metadata| metadata.remove(map));
                }
            }
        }
        let field = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let name = format!(
            "{} {}/{}",
            field("/kind"),
            field("/metadata/namespace"),
            field("/metadata/name")
        );
        ensure!(objects.insert(name.clone(), object).is_none(), "{name} is there twice");
    }
    Ok(objects)
}

/// Returns a line for each field in which two sets differ.
pub fn differences(expected: &ObjectSet, seen: &ObjectSet) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = expected.keys().chain(seen.keys()).collect();
    let mut lines = Vec::new();
    for name in names {
        let of = |set: &ObjectSet| set.get(name).cloned().unwrap_or_default();
        compare(name, &of(expected), &of(seen), &mut lines);
    }
    lines
}

fn compare(path: &str, expected: &Value, seen: &Value, lines: &mut Vec<String>) {
    match (expected, seen) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                compare(&format!("{path}.{key}"), &expected[key], &seen[key], lines);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (at, (expected, seen)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{at}]"), expected, seen, lines);
            }
        }
        // kustomize writes 1.0 as 1, which is the same in JSON.
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => {}
        (expected, seen) if expected != seen => lines.push(format!("{path}: expected {expected}, seen {seen}")),
        _ => {}
    }
}
