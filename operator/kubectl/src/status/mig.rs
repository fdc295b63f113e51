//! The progress of a node's GPUs towards their MIG layouts. Pure.

use gpunode_crds::{GpuNodeStatus, MigPhase, MigStatus};
use serde::Serialize;
use std::{cmp::Reverse, collections::BTreeSet};

/// Most problems that are described; `-o json` has every GPU.
const MAX_PROBLEMS: usize = 16;

/// The progress of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LayoutStatus {
    /// NVML index.
    pub gpu: u32,
    pub uuid: String,
    /// Report of the agent.
    #[serde(flatten)]
    pub mig: MigStatus,
    /// Pods that hold what has to go.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub held_by: BTreeSet<String>,
}

impl LayoutStatus {
    /// Returns the GPUs for which the configuration has a layout, by index.
    pub fn all(status: &GpuNodeStatus) -> Vec<Self> {
        let progress = status.gpus.iter().filter_map(|gpu| {
            let mig = gpu.mig.clone()?;
            let is_held = matches!(mig.phase, MigPhase::Waiting | MigPhase::Blocked);
            let is_part = |device: &str| gpu.uuid == device || gpu.mig_devices.iter().any(|mig| mig.uuid == device);
            // Pods on instances that stay delay nothing, and are not among these.
            let waiting = status.waiting.iter().filter(|it| is_held && is_part(&it.device));
            Some(Self {
                gpu: gpu.index,
                uuid: gpu.uuid.clone(),
                mig,
                held_by: waiting.flat_map(|it| &it.pods).cloned().collect(),
            })
        });
        progress.collect()
    }

    /// Returns true until the GPU has its layout, unless it cannot have one.
    pub fn is_open(&self) -> bool {
        !matches!(self.mig.phase, MigPhase::Applied | MigPhase::Unsupported)
    }

    /// Returns phase and reason, such as `Blocked (InUse)`.
    pub fn state(&self) -> String {
        let phase = self.mig.phase.as_str();
        match self.mig.reason {
            Some(reason) => format!("{phase} ({})", reason.as_str()),
            None => phase.to_owned(),
        }
    }

    fn is_problem(&self) -> bool {
        matches!(
            self.mig.phase,
            MigPhase::Blocked | MigPhase::RebootRequired | MigPhase::Failed
        )
    }

    /// Returns true where two GPUs differ in index, begin and holders at most.
    fn is_like(&self, other: &Self) -> bool {
        let (one, other) = (&self.mig, &other.mig);
        (one.phase, one.reason, &one.message) == (other.phase, other.reason, &other.message)
            && (&one.wanted, one.attempts) == (&other.wanted, other.attempts)
    }
}

/// Describes the GPUs that something other than pods keeps from their layout, those that failed first: each sentence once, with
/// all GPUs that it is about, and the agent's message.
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
    // Of the phases that are problems, the gravest is declared last.
    groups.sort_by_key(|group| Reverse(group.first().map(|first| first.mig.phase)));
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
    let begins = group
        .iter()
        .filter_map(|gpu| gpu.mig.since.as_ref())
        .map(|since| since.0);
    let since = begins.min().map(|since| format!(" since {since}")).unwrap_or_default();
    let attempts = match first.mig.attempts {
        0 => String::new(),
        1 => ", after 1 attempt".to_owned(),
        attempts => format!(", after {attempts} attempts"),
    };
    let message = first.mig.message.as_ref();
    Some(format!(
        "{noun} {} {verb} {}{since}, on the way to MIG layout {}{attempts}{}",
        gpus.join(", "),
        first.state(),
        first.mig.wanted,
        message.map(|message| format!(": {message}")).unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn progress(gpus: &[Value]) -> Vec<LayoutStatus> {
        let gpu = |(index, mig): (usize, &Value)| json!({"index": index, "uuid": format!("GPU-{index}"), "product": "P", "memoryMiB": 1, "mig": mig});
        let gpus: Vec<Value> = gpus.iter().enumerate().map(gpu).collect();
        let status = serde_json::from_value(json!({"gpus": gpus})).expect("a status");
        LayoutStatus::all(&status)
    }

    #[test]
    fn pods_on_instances_that_stay_hold_nothing_up() {
        let held_by = |phase: &str| {
            let device = |uuid: &str, instance: u32| json!({"uuid": uuid, "profile": "1g.10gb", "gpuInstance": instance, "computeInstance": 0, "memoryMiB": 1});
            let gpu = json!({"index": 0, "uuid": "GPU-0", "product": "P", "memoryMiB": 1,
                "migDevices": [device("MIG-stays", 1), device("MIG-goes", 2)],
                "mig": {"wanted": "1g.10gb:1", "observed": "1g.10gb:2", "phase": phase}});
            let holder = |pod: &str, device: &str| json!({"namespace": "ml", "pod": pod, "container": "c", "resource": "r", "device": device, "count": 1});
            let waiting = |device: &str, pod: &str| json!({"device": device, "message": "m", "pods": [pod]});
            let status = json!({"gpus": [gpu], "holders": [holder("a", "MIG-stays"), holder("b", "MIG-goes")],
                "waiting": [waiting("MIG-goes", "ml/b"), waiting("GPU-1", "ml/other")]});
            let [gpu] = LayoutStatus::all(&serde_json::from_value(status).expect("a status"))
                .try_into()
                .expect("one GPU");
            gpu.held_by
        };
        assert_eq!(held_by("Waiting"), BTreeSet::from(["ml/b".to_owned()]));
        assert_eq!(held_by("Applied"), BTreeSet::new());
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
            mig("RebootRequired", None, Some("reboot the node"), 0),
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
        assert_eq!(
            layout_problems(&all),
            [
                "GPU 4 is Failed (DriverError) since 2026-01-02T03:04:05Z, on the way to MIG layout 1g.10gb:7, after 2 attempts: create 1g.10gb at 3: unknown error",
                "GPU 3 is RebootRequired since 2026-01-02T03:04:05Z, on the way to MIG layout 1g.10gb:7: reboot the node",
                "GPUs 0, 2 are Blocked (DoesNotFit) since 2026-01-02T03:04:05Z, on the way to MIG layout 1g.10gb:7: 3g.40gb:3 does not fit; write 3g.40gb:2",
            ]
        );
        let open: Vec<u32> = all.iter().filter(|gpu| gpu.is_open()).map(|gpu| gpu.gpu).collect();
        assert_eq!(open, [0, 1, 2, 3, 4]);
    }
}
