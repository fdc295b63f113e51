//! One change that a plan makes on a node.

use serde::Serialize;

/// One difference between a node as it is and as it would be.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedChange {
    pub action: ChangeAction,
    pub what: ChangeSubject,
    /// Key of the label, key and effect of the taint, or name of the resource or setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ChangeAction {
    Add,
    Change,
    Remove,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ChangeSubject {
    Label,
    Taint,
    /// Name of the policy whose device plugin runs on the node.
    Governing,
    /// Description of a resource.
    Resource,
    /// A setting of the agent configuration that is not its default.
    Setting,
    /// Hash of the agent configuration.
    Configuration,
    /// Image of the agent; `default` stands for the image that the operator was installed with.
    Image,
}
