//! The progress of a node's GPUs towards their MIG layouts. Pure.

use gpunode_crds::{GpuNodeStatus, MigPhase, MigReason, MigStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;
use std::collections::BTreeSet;

/// Most problems that are described; `-o json` has every GPU.
const MAX_PROBLEMS: usize = 16;

/// The progress of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LayoutStatus {
    /// NVML index.
    pub gpu: u32,
    pub uuid: String,
    pub wanted: String,
    pub observed: String,
    pub phase: MigPhase,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<MigReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Attempts that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// Pods that hold the GPU or one of its MIG devices.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub held_by: BTreeSet<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl LayoutStatus {
    /// Returns the GPUs for which the configuration has a layout, by index.
    pub fn all(status: &GpuNodeStatus) -> Vec<Self> {
        let progress = status.gpus.iter().filter_map(|gpu| {
            let MigStatus {
                wanted,
                observed,
                phase,
                reason,
                since,
                message,
                attempts,
            } = gpu.mig.clone()?;
            let is_part = |device: &str| gpu.uuid == device || gpu.mig_devices.iter().any(|mig| mig.uuid == device);
            let holders = status.holders.iter().filter(|holder| is_part(&holder.device));
            Some(Self {
                gpu: gpu.index,
                uuid: gpu.uuid.clone(),
                wanted,
                observed,
                phase,
                reason,
                since,
                message,
                attempts,
                held_by: holders
                    .map(|holder| format!("{}/{}", holder.namespace, holder.pod))
                    .collect(),
            })
        });
        progress.collect()
    }

    /// Returns true until the GPU has its layout, unless it cannot have one.
    pub fn is_open(&self) -> bool {
        !matches!(self.phase, MigPhase::Applied | MigPhase::Unsupported)
    }

    /// Returns phase and reason, such as `Blocked (InUse)`.
    pub fn state(&self) -> String {
        let phase = self.phase.as_str();
        match self.reason {
            Some(reason) => format!("{phase} ({})", reason.as_str()),
            None => phase.to_owned(),
        }
    }

    fn is_problem(&self) -> bool {
        matches!(
            self.phase,
            MigPhase::Blocked | MigPhase::RebootRequired | MigPhase::Failed
        )
    }

    /// Returns true where two GPUs differ in index, begin and holders at most.
    fn is_like(&self, other: &Self) -> bool {
        (self.phase, self.reason, &self.message) == (other.phase, other.reason, &other.message)
            && (&self.wanted, self.attempts) == (&other.wanted, other.attempts)
    }
}

/// Describes the GPUs that something other than pods keeps from their layout, those that failed first: each sentence once, with
/// all GPUs that it is about, and the next step.
pub fn layout_problems(progress: &[LayoutStatus]) -> Vec<String> {
    let mut groups: Vec<Vec<&LayoutStatus>> = Vec::new();
    for gpu in progress.iter().filter(|gpu| gpu.is_problem()) {
        match groups
            .iter_mut()
            .find(|group| group.first().is_some_and(|first| first.is_like(gpu)))
        {
            Some(group) => group.push(gpu),
            None => groups.push(vec![gpu]),
        }
    }
    // `Failed` is the last of the phases, then `RebootRequired`.
    groups.sort_by_key(|group| std::cmp::Reverse(group.first().map(|first| first.phase)));
    groups
        .iter()
        .take(MAX_PROBLEMS)
        .filter_map(|group| described(group))
        .collect()
}

fn described(group: &[&LayoutStatus]) -> Option<String> {
    let first = group.first()?;
    let gpus: Vec<String> = group.iter().map(|gpu| gpu.gpu.to_string()).collect();
    let (noun, verb) = if gpus.len() == 1 {
        ("GPU", "is")
    } else {
        ("GPUs", "are")
    };
    let begins = group.iter().filter_map(|gpu| gpu.since.as_ref()).map(|since| since.0);
    let since = begins.min().map(|since| format!(" since {since}")).unwrap_or_default();
    let attempts = match first.attempts {
        0 => String::new(),
        1 => ", after 1 attempt".to_owned(),
        attempts => format!(", after {attempts} attempts"),
    };
    let message = first
        .message
        .as_deref()
        .unwrap_or_else(|| next_step(first.phase, first.reason));
    Some(format!(
        "{noun} {} {verb} {}{since}, on the way to MIG layout {}{attempts}: {message}",
        gpus.join(", "),
        first.state(),
        first.wanted
    ))
}

/// Returns the next step where the agent names none.
fn next_step(phase: MigPhase, reason: Option<MigReason>) -> &'static str {
    match (phase, reason) {
        (MigPhase::RebootRequired, _) => "drain the node and reboot it",
        (_, Some(MigReason::DoesNotFit)) => {
            "write a layout that fits; `kubectl gpunode mig --board BOARD LAYOUT` draws it"
        }
        (_, Some(MigReason::NoRoom | MigReason::CannotEvict | MigReason::DrainTimedOut)) => {
            "end the pods that hold instances of the GPU"
        }
        (_, Some(MigReason::Unhealthy)) => "repair the GPU; its fault is among the problems of the node",
        (_, Some(MigReason::InUse)) => "end the processes on the GPU, which `nvidia-smi` on the node lists",
        (_, Some(MigReason::ModePending)) => "reset the GPU or reboot the node",
        (_, Some(MigReason::MigManager)) => "remove mig-manager from the node (docs/from-mig-manager.md)",
        _ => "see the log of the agent on the node",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn progress(gpus: &[Value]) -> Vec<LayoutStatus> {
        let gpu = |(index, mig): (usize, &Value)| json!({"index": index, "uuid": format!("GPU-{index}"), "product": "P", "memoryMiB": 1, "mig": mig});
        let gpus: Vec<Value> = gpus.iter().enumerate().map(gpu).collect();
        let holder =
            json!({"namespace": "ml", "pod": "a", "container": "c", "resource": "r", "device": "GPU-0", "count": 1});
        let status = serde_json::from_value(json!({"gpus": gpus, "holders": [holder]})).expect("a status");
        LayoutStatus::all(&status)
    }

    #[test]
    fn failures_come_first_and_each_sentence_names_every_gpu() {
        let mig = |phase: &str, reason: Option<&str>, message: Option<&str>, attempts: u32| {
            json!({"wanted": "1g.10gb:7", "observed": "off", "phase": phase, "reason": reason, "message": message,
                "attempts": attempts, "since": "2026-01-02T03:04:05Z"})
        };
        let fits = Some("3g.40gb:3 does not fit; write 3g.40gb:2");
        let all = progress(&[
            mig("Blocked", Some("DoesNotFit"), fits, 0),
            mig("Waiting", None, Some("waits for ml/a"), 0),
            mig("Blocked", Some("DoesNotFit"), fits, 0),
            mig("RebootRequired", None, None, 0),
            mig(
                "Failed",
                Some("DriverError"),
                Some("create 1g.10gb at 3: unknown error"),
                2,
            ),
            mig("Unsupported", Some("NoMig"), Some("the board has no MIG"), 0),
            json!(null),
        ]);
        assert_eq!(all.len(), 6);
        assert_eq!(all[0].held_by, BTreeSet::from(["ml/a".to_owned()]));
        assert_eq!(
            layout_problems(&all),
            [
                "GPU 4 is Failed (DriverError) since 2026-01-02T03:04:05Z, on the way to MIG layout 1g.10gb:7, after 2 attempts: create 1g.10gb at 3: unknown error",
                "GPU 3 is RebootRequired since 2026-01-02T03:04:05Z, on the way to MIG layout 1g.10gb:7: drain the node and reboot it",
                "GPUs 0, 2 are Blocked (DoesNotFit) since 2026-01-02T03:04:05Z, on the way to MIG layout 1g.10gb:7: 3g.40gb:3 does not fit; write 3g.40gb:2",
            ]
        );
        let open: Vec<u32> = all.iter().filter(|gpu| gpu.is_open()).map(|gpu| gpu.gpu).collect();
        assert_eq!(open, [0, 1, 2, 3, 4]);
    }
}
