//! The operator's settings for GPU fact labels, agent images and companions, which only its Deployment holds. Pure.

use gpunode_config::CompanionRootList;
use gpunode_plan::{AgentImages, PolicySet};
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
const IMAGE_FLAG: &str = "--agent-image";
const IMAGE_VARIABLE: &str = "AGENT_IMAGE";
const IMAGES_FLAG: &str = "--agent-images";
const IMAGES_VARIABLE: &str = "AGENT_IMAGES";
const ROOTS_FLAG: &str = "--companion-roots";
const ROOTS_VARIABLE: &str = "COMPANION_ROOTS";

/// Images and folders that the operator allows to policies, as far as its Deployment tells.
#[derive(Clone, Debug, Default)]
pub struct OperatorRules {
    images: Option<AgentImages>,
    companion_roots: Option<CompanionRootList>,
}

impl OperatorRules {
    /// Returns the rules of a Deployment.
    pub fn of(deployment: &Deployment) -> Self {
        Self {
            images: agent_images(deployment),
            companion_roots: companion_roots(deployment),
        }
    }

    /// Returns the rules of an operator with this image of the agent alone.
    #[cfg(test)]
    pub fn of_image(image: &str) -> Self {
        Self {
            images: Some(AgentImages::of_agent(image)),
            companion_roots: None,
        }
    }

    /// Returns the policies, of which those are refused that the operator refuses.
    pub fn apply(self, policies: PolicySet) -> PolicySet {
        policies
            .with_agent_images(self.images)
            .with_companion_roots(self.companion_roots)
    }
}

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

/// Source of a setting.
enum SettingSource<'a> {
    Text(&'a str),
    /// A ConfigMap, a field of the pod, or another argument.
    Elsewhere,
    /// It may be in one of the container's sources.
    EnvFrom,
}

/// Returns true where the operator of this Deployment writes GPU fact labels.
///
/// # Errors
/// When the Deployment does not tell.
pub fn gpu_labels(deployment: &Deployment) -> Result<bool, UnknownGpuLabels> {
    match find(deployment, FLAG, VARIABLE) {
        None | Some(SettingSource::Text("true")) => Ok(true),
        Some(SettingSource::Text("false")) => Ok(false),
        Some(SettingSource::Text(other)) => Err(UnknownGpuLabels::Value(other.to_owned())),
        Some(SettingSource::Elsewhere) => Err(UnknownGpuLabels::Elsewhere),
        Some(SettingSource::EnvFrom) => Err(UnknownGpuLabels::EnvFrom),
    }
}

/// Returns the images that policies may use, where the Deployment tells.
pub fn agent_images(deployment: &Deployment) -> Option<AgentImages> {
    let (image, images) = image_settings(deployment)?;
    AgentImages::of_operator(image, images.split(',')).ok()
}

/// Returns the folders whose files companions may hand out, where the Deployment tells.
pub fn companion_roots(deployment: &Deployment) -> Option<CompanionRootList> {
    text(deployment, ROOTS_FLAG, ROOTS_VARIABLE)?.parse().ok()
}

/// Returns the image of the agent, and the list of images that policies may use, which may be empty.
fn image_settings(deployment: &Deployment) -> Option<(&str, &str)> {
    let image = text(deployment, IMAGE_FLAG, IMAGE_VARIABLE).filter(|image| !image.is_empty())?;
    Some((image, text(deployment, IMAGES_FLAG, IMAGES_VARIABLE)?))
}

/// Returns the text of a setting, empty where it is not set; none where it is elsewhere.
fn text<'a>(deployment: &'a Deployment, flag: &str, variable: &str) -> Option<&'a str> {
    match find(deployment, flag, variable) {
        None => Some(""),
        Some(SettingSource::Text(text)) if !text.contains("$(") => Some(text),
        Some(_) => None,
    }
}

/// Returns a setting of the operator, if it has one.
fn find<'a>(deployment: &'a Deployment, flag: &str, variable: &str) -> Option<SettingSource<'a>> {
    let mut containers = deployment
        .spec
        .iter()
        .filter_map(|spec| spec.template.spec.as_ref())
        .flat_map(|pod| &pod.containers);
    containers.find_map(|container| of_container(container, flag, variable))
}

/// Returns the setting of a container, if it has one.
fn of_container<'a>(container: &'a Container, flag: &str, variable: &str) -> Option<SettingSource<'a>> {
    let read = |value: Option<&'a str>| Some(value.map_or(SettingSource::Elsewhere, SettingSource::Text));
    let mut words = container
        .command
        .iter()
        .flatten()
        .chain(container.args.iter().flatten());
    while let Some(word) = words.next() {
        match word.strip_prefix(flag) {
            Some("") => return read(words.next().map(String::as_str)),
            Some(value) if value.starts_with('=') => return read(value.strip_prefix('=')),
            _ => {}
        }
    }
    let mut variables = container.env.iter().flatten();
    if let Some(variable) = variables.find(|it| it.name == variable) {
        return read(variable.value.as_deref());
    }
    let elsewhere = container.env_from.iter().flatten().next();
    elsewhere.map(|_| SettingSource::EnvFrom)
}

/// Returns a Deployment with nothing but this setting and those for images and companions.
pub fn trimmed(deployment: &Deployment, gpu_labels: bool) -> Deployment {
    let mut args = vec![format!("{FLAG}={gpu_labels}")];
    if let Some((image, images)) = image_settings(deployment) {
        args.extend([format!("{IMAGE_FLAG}={image}"), format!("{IMAGES_FLAG}={images}")]);
    }
    args.extend(companion_roots(deployment).map(|roots| format!("{ROOTS_FLAG}={roots}")));
    let container = Container {
        name: "operator".to_owned(),
        args: Some(args),
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

    #[test]
    fn images_that_policies_may_use_are_those_of_the_operator() {
        let env = |variables: &serde_json::Value| json!({"env": variables});
        let image = json!({"name": "AGENT_IMAGE", "value": "example.com/agent:1"});
        for (container, expected) in [
            (env(&json!([image])), Some("example.com/agent")),
            (
                env(&json!([image, {"name": "AGENT_IMAGES", "value": ""}])),
                Some("example.com/agent"),
            ),
            (
                env(&json!([image, {"name": "AGENT_IMAGES", "value": "a.example/x, b.example"}])),
                Some("a.example/x, b.example"),
            ),
            (
                json!({"args": ["--agent-images", "a.example", "--agent-image=x"]}),
                Some("a.example"),
            ),
            (env(&json!([image, {"name": "AGENT_IMAGES", "valueFrom": {}}])), None),
            (json!({"args": ["--agent-image=$(IMAGE)"]}), None),
            (env(&json!([])), None),
        ] {
            let deployment = operator(&container);
            let names = |deployment: &Deployment| agent_images(deployment).map(|images| images.names());
            assert_eq!(names(&deployment).as_deref(), expected, "{container}");
            assert_eq!(names(&trimmed(&deployment, true)).as_deref(), expected, "{container}");
        }
    }

    #[test]
    fn folders_of_companions_are_those_of_the_flag_or_unknown() {
        for (container, expected) in [
            (json!({}), Some("")),
            (
                json!({"args": ["--companion-roots=/dev/infiniband"]}),
                Some("/dev/infiniband"),
            ),
            (
                json!({"env": [{"name": "COMPANION_ROOTS", "value": "/dev/infiniband,/dev/xclmgmt*"}]}),
                Some("/dev/infiniband,/dev/xclmgmt*"),
            ),
            (json!({"env": [{"name": "COMPANION_ROOTS", "valueFrom": {}}]}), None),
            (json!({"args": ["--companion-roots=/dev"]}), None),
        ] {
            let deployment = operator(&container);
            let roots = |deployment: &Deployment| companion_roots(deployment).map(|roots| roots.to_string());
            assert_eq!(roots(&deployment).as_deref(), expected, "{container}");
            if expected.is_some() {
                assert_eq!(roots(&trimmed(&deployment, true)).as_deref(), expected, "{container}");
            }
        }
    }
}
