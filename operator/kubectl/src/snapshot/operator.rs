//! Whether the operator writes labels with facts about GPUs, which only its Deployment says. Pure.

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{Container, PodSpec, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// Selects the Deployment of the operator, as `manifests/default` has it.
pub const OPERATOR: &str = "app.kubernetes.io/name=gpunode-operator";
/// Its argument, and the variable that stands for it (`gpunode-operator --help`).
const FLAG: &str = "--gpu-labels";
const VARIABLE: &str = "GPU_LABELS";

/// Whether a Deployment is that of the operator.
pub fn is_operator(deployment: &Deployment) -> bool {
    let label = OPERATOR.split_once('=');
    let labels = deployment.metadata.labels.iter().flatten();
    labels
        .into_iter()
        .any(|(key, value)| Some((key.as_str(), value.as_str())) == label)
}

/// Whether nodes get such labels from the operator of this Deployment.
///
/// # Errors
/// When that cannot be said, in words.
pub fn gpu_labels(deployment: &Deployment) -> Result<bool, String> {
    let containers = deployment
        .spec
        .iter()
        .filter_map(|spec| spec.template.spec.as_ref())
        .flat_map(|pod| &pod.containers);
    let mut said = containers.filter_map(of_container);
    said.next().unwrap_or(Ok(true))
}

/// What a container says of it, if anything.
fn of_container(container: &Container) -> Option<Result<bool, String>> {
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
    elsewhere.map(|_| Err(format!("its envFrom may set {VARIABLE}")))
}

fn read(value: Option<&str>) -> Result<bool, String> {
    match value {
        Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(other) => Err(format!("it has {FLAG}={other:?}")),
        None => Err(format!("it takes {VARIABLE} from somewhere else")),
    }
}

/// As much of the Deployment as says the same.
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
                Err("it takes GPU_LABELS from somewhere else"),
            ),
            (
                json!({"args": ["--gpu-labels=$(FACTS)"]}),
                Err("it has --gpu-labels=\"$(FACTS)\""),
            ),
            (
                json!({"args": ["--gpu-labels"]}),
                Err("it takes GPU_LABELS from somewhere else"),
            ),
            (
                json!({"envFrom": [{"configMapRef": {"name": "x"}}]}),
                Err("its envFrom may set GPU_LABELS"),
            ),
        ] {
            let deployment = operator(&container);
            let said = gpu_labels(&deployment);
            assert_eq!(said, expected.map_err(str::to_owned), "{container}");
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
