//! Use of devices by the containers on a node, as an agent reports it.

use gpunode_crds::UsageReport;
use serde::Serialize;

/// Use of devices by the containers on a node, or why it cannot be told.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum NodeUsage {
    Report(UsageReport),
    #[serde(rename_all = "camelCase")]
    Unreadable {
        unreadable: String,
    },
}
