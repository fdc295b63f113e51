//! Layout of MIG instances on a GPU, desired and observed, in the status of a node.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// Maximum length of a layout as text.
pub const MAX_LAYOUT_TEXT: usize = 512;
/// Maximum length of a message about a layout.
pub const MAX_MIG_MESSAGE: usize = 1024;

/// Progress of a GPU towards its layout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigStatus {
    /// Layout that the configuration wants, such as `1g.10gb:3,4g.40gb:1`; `{}` is MIG without instances, `off` is no MIG.
    #[schemars(length(max = MAX_LAYOUT_TEXT))]
    pub wanted: String,
    /// Layout that the GPU has, in the same form.
    #[schemars(length(max = MAX_LAYOUT_TEXT))]
    pub observed: String,
    /// Progress.
    pub phase: MigPhase,
    /// Cause of the phase, as one word for programs; absent where the phase says it all.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::newer_value::known_or_none"
    )]
    pub reason: Option<MigReason>,
    /// Start of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::conditions::optional_time")]
    pub since: Option<Time>,
    /// Description of the phase, and the next step; absent for `Applied`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_MIG_MESSAGE))]
    pub message: Option<String>,
    /// Number of attempts to carry out this change that failed; 0 is left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(with = "i32")]
    pub attempts: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Phases of a GPU on the way to its layout.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, IntoStaticStr,
)]
#[schemars(description = "")]
#[cfg_attr(test, derive(strum::VariantNames))]
pub enum MigPhase {
    /// The GPU has its layout.
    #[default]
    Applied,
    /// Pods hold what has to go.
    Waiting,
    /// Everything that has to go is free; the operator has not approved the change yet.
    AwaitingApproval,
    /// The agent is changing the GPU.
    Applying,
    /// Something other than a pod keeps the GPU from its layout.
    Blocked,
    /// The layout comes into force with a reboot of the node.
    RebootRequired,
    /// The driver refused the change. It is tried again unless the reason is `RolledBack`.
    Failed,
    /// The GPU cannot have a layout.
    Unsupported,
    /// A phase that this version does not know.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Causes of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
#[schemars(description = "")]
#[cfg_attr(test, derive(strum::VariantNames))]
pub enum MigReason {
    /// The board does not have MIG.
    NoMig,
    /// The GPU is virtual, or belongs to virtual machines.
    Virtual,
    /// The layout cannot be on this board, or names a profile that it lacks.
    DoesNotFit,
    /// The GPU has a fault.
    Unhealthy,
    /// A process, or a handle of one, is on an instance that has to go.
    InUse,
    /// An MPS control daemon still runs on what has to go.
    MpsDaemon,
    /// The mode cannot change: something uses the GPU, or another mode is pending.
    ModePending,
    /// A pod that cannot be evicted, or comes straight back, holds what has to go.
    CannotEvict,
    /// The pods did not go within `drain.timeout`.
    DrainTimedOut,
    /// The driver answered with an error.
    DriverError,
    /// The layout from before is back: after errors of the driver, or since something kept the change from its end.
    RolledBack,
}

impl MigPhase {
    /// Returns the name in the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl MigReason {
    /// Returns true if what keeps a GPU from its layout goes by itself, or with pods and processes.
    pub fn may_pass(self) -> bool {
        matches!(
            self,
            Self::Unhealthy | Self::InUse | Self::MpsDaemon | Self::CannotEvict | Self::DrainTimedOut
        )
    }

    /// Returns the name in the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strum::VariantNames;

    /// First column of the table below a heading.
    fn documented(heading: &str) -> Vec<&'static str> {
        let page = include_str!("../../docs/mig.md");
        let section = page.split(&format!("\n## {heading}\n")).nth(1).unwrap_or_default();
        let rows = section.split("\n#").next().unwrap_or_default().lines();
        rows.filter_map(|row| row.strip_prefix("| `")?.split('`').next())
            .collect()
    }

    #[test]
    fn page_has_every_phase_and_every_reason_and_no_other() {
        let known = MigPhase::VARIANTS.iter().copied().filter(|name| *name != "Unknown");
        assert_eq!(documented("Phases"), known.collect::<Vec<_>>());
        assert_eq!(documented("Reasons"), MigReason::VARIANTS);
    }
}
