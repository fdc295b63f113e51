//! The operator's setting for GPU fact labels, which only its Deployment holds. Pure.

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{Container, PodSpec, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// Selects the operator's Deployment of `manifests/default`.
pub const OPERATOR: &str = "app.kubernetes.io/name=gpunode-operator";
/// Argument of the operator, and the variable that stands for it (`gpunode-operator --help`).
const FLAG: &str = "--gpu-labels";
const VARIABLE: &str = "GPU_LABELS";

/// Returns true for the operator's Deployment.
pub fn is_operator(deployment: &Deployment) -> bool {
    let label = OPERATOR.split_once('=');
    let labels = deployment.metadata.labels.iter().flatten();
    labels
        .into_iter()
        .any(|(key, value)| Some((key.as_str(), value.as_str())) == label)
}

/// A reason why the operator's setting for GPU fact labels is unknown.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownGpuLabels {
    #[error("the cluster does not have it")]
    NotInCluster,
    #[error("the file does not contain it")]
    NotInFile,
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    Unlisted(String),
    #[error("its envFrom may set {VARIABLE}")]
    EnvFrom,
    #[error("it sets {FLAG}={0:?}, which is neither true nor false")]
    Value(String),
    #[error("it reads {VARIABLE} from elsewhere")]
    Elsewhere,
}

/// Returns true where the operator of this Deployment writes GPU fact labels.
///
/// # Errors
/// When the Deployment does not tell.
pub fn gpu_labels(deployment: &Deployment) -> Result<bool, UnknownGpuLabels> {
    let containers = deployment
        .spec
        .iter()
        .filter_map(|spec| spec.template.spec.as_ref())
        .flat_map(|pod| &pod.containers);
    let mut settings = containers.filter_map(of_container);
    settings.next().unwrap_or(Ok(true))
}

/// Returns the setting of a container, if it has one.
fn of_container(container: &Container) -> Option<Result<bool, UnknownGpuLabels>> {
    let mut words = container
        .command
        .iter()
        .flatten()
        .chain(container.args.iter().flatten());
    while let Some(word) = words.next() {
        match word.strip_prefix(FLAG) {
            Some("") => return Some(read(words.next().map(String::as_str))),
            Some(value) if value.starts_with('=') => return Some(read(value.strip_prefix('='))),
            _ => {}
        }
    }
    if let Some(variable) = container
        .env
        .iter()
        .flatten()
        .find(|variable| variable.name == VARIABLE)
    {
        return Some(read(variable.value.as_deref()));
    }
    let elsewhere = container.env_from.iter().flatten().next();
    elsewhere.map(|_| Err(UnknownGpuLabels::EnvFrom))
}

fn read(value: Option<&str>) -> Result<bool, UnknownGpuLabels> {
    match value {
        Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(other) => Err(UnknownGpuLabels::Value(other.to_owned())),
        None => Err(UnknownGpuLabels::Elsewhere),
    }
}

/// Returns a Deployment with nothing but this setting.
pub fn trimmed(deployment: &Deployment, gpu_labels: bool) -> Deployment {
    let container = Container {
        name: "operator".to_owned(),
        args: Some(vec![format!("{FLAG}={gpu_labels}")]),
        ..Container::default()
    };
    let template = PodTemplateSpec {
        spec: Some(PodSpec {
            containers: vec![container],
            ..PodSpec::default()
        }),
        ..PodTemplateSpec::default()
    };
    let meta = &deployment.metadata;
    let labels = meta
        .labels
        .iter()
        .flatten()
        .filter(|(key, _)| OPERATOR.starts_with(key.as_str()));
    Deployment {
        metadata: ObjectMeta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            labels: Some(labels.map(|(key, value)| (key.clone(), value.clone())).collect()),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            template,
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    /// The Deployment of the operator, with these fields of its container.
    pub fn operator(container: &serde_json::Value) -> Deployment {
        let mut fields = json!({"name": "operator", "image": "x", "env": [{"name": "AGENT_IMAGE", "value": "y"}]});
        fields
            .as_object_mut()
            .expect("an object")
            .extend(container.as_object().expect("an object").clone());
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "gpunode-operator", "namespace": "gpunode-system", "labels": {"app.kubernetes.io/name": "gpunode-operator"}},
            "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "sidecar"}, fields]}}},
        }))
        .expect("a Deployment")
    }

    #[test]
    fn the_arguments_of_the_operator_say_whether_nodes_get_fact_labels() {
        for (container, expected) in [
            (json!({}), Ok(true)),
            (json!({"args": ["--gpu-labels=false"]}), Ok(false)),
            (json!({"args": ["--namespace=x", "--gpu-labels", "false"]}), Ok(false)),
            (
                json!({"command": ["gpunode-operator", "--gpu-labels=true"], "env": [{"name": "GPU_LABELS", "value": "false"}]}),
                Ok(true),
            ),
            (json!({"env": [{"name": "GPU_LABELS", "value": "false"}]}), Ok(false)),
            (
                json!({"env": [{"name": "GPU_LABELS", "valueFrom": {}}]}),
                Err("it reads GPU_LABELS from elsewhere"),
            ),
            (
                json!({"args": ["--gpu-labels=$(FACTS)"]}),
                Err("it sets --gpu-labels=\"$(FACTS)\", which is neither true nor false"),
            ),
            (
                json!({"args": ["--gpu-labels"]}),
                Err("it reads GPU_LABELS from elsewhere"),
            ),
            (
                json!({"envFrom": [{"configMapRef": {"name": "x"}}]}),
                Err("its envFrom may set GPU_LABELS"),
            ),
        ] {
            let deployment = operator(&container);
            let said = gpu_labels(&deployment);
            assert_eq!(
                said.as_ref().map_err(ToString::to_string),
                expected.as_ref().map_err(ToString::to_string),
                "{container}"
            );
            if let Ok(said) = said {
                let dumped = trimmed(&deployment, said);
                assert_eq!(
                    (gpu_labels(&dumped), is_operator(&dumped)),
                    (Ok(said), true),
                    "{container}"
                );
            }
        }
    }
}
