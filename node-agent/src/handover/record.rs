//! Record of hand-overs on disk: the failed attempts of a successor, so that a restart does not end its pause, the pods that
//! have handed over for good, and the policy of the last holder.

use crate::store::atomic_file;
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

const FILE: &str = "handover.json";
/// Version of the file format.
const FORMAT: u32 = 1;
/// Pause after the first failure; it doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_secs(10);
const MAX_PAUSE: Duration = Duration::from_mins(5);
/// Most pods in the record: policies and images may change several times while old pods still terminate.
const MAX_HANDED_OVER: usize = 8;

/// Identity of an agent. A pod keeps its UID when its container restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentId {
    /// Version of the agent.
    pub version: String,
    /// UID of its pod; empty without a pod.
    pub pod: String,
}

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandoverRecord {
    format: u32,
    /// Attempts of the last successor that has not taken over yet.
    #[serde(rename = "asked")]
    attempts: Option<TakeoverAttempts>,
    /// UIDs of the pods that have handed over for good, oldest first.
    #[serde(rename = "letGo")]
    handed_over: Vec<String>,
    /// Policy of the agent that took over last; empty without a policy.
    #[serde(default)]
    policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TakeoverAttempts {
    #[serde(rename = "who")]
    agent: AgentId,
    times: u32,
    /// Time of the last attempt, in milliseconds since boot, which no clock change affects.
    at_ms: u64,
}

impl Default for HandoverRecord {
    fn default() -> Self {
        Self {
            format: FORMAT,
            attempts: None,
            handed_over: Vec::new(),
            policy: String::new(),
        }
    }
}

impl HandoverRecord {
    /// Reads the record; blocks. Sets a damaged file aside and starts with an empty record.
    pub fn load(state_dir: &Path) -> Self {
        atomic_file::load(&path(state_dir), FORMAT).unwrap_or_default()
    }

    /// Writes the record to disk; blocks.
    pub fn save(&self, state_dir: &Path) -> io::Result<()> {
        atomic_file::replace(&path(state_dir), &serde_json::to_vec(self)?)
    }

    /// Returns the time that `agent` still waits before its next attempt, at `now` since boot.
    pub fn pause(&self, agent: &AgentId, now: Duration) -> Duration {
        let Some(attempts) = self.attempts.as_ref().filter(|attempts| attempts.agent == *agent) else {
            return Duration::ZERO;
        };
        let doublings = attempts.times.saturating_sub(1).min(10);
        let pause = (MIN_PAUSE * 2_u32.pow(doublings)).min(MAX_PAUSE);
        // After a reboot no pause remains.
        let since = now.checked_sub(Duration::from_millis(attempts.at_ms)).unwrap_or(pause);
        pause.saturating_sub(since)
    }

    /// Counts an attempt of `agent` at `now`; it counts as failed until [`Self::took_over`].
    pub fn count_attempt(&mut self, agent: &AgentId, now: Duration) {
        let before = self
            .attempts
            .take()
            .filter(|attempts| attempts.agent == *agent)
            .map_or(0, |attempts| attempts.times);
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.attempts = Some(TakeoverAttempts {
            agent: agent.clone(),
            times: before.saturating_add(1),
            at_ms,
        });
    }

    /// Notes that `agent`, of this policy, has taken over from the pod `predecessor`.
    pub fn took_over(&mut self, agent: &AgentId, policy: &str, predecessor: &str) {
        self.attempts = None;
        policy.clone_into(&mut self.policy);
        self.handed_over.retain(|pod| pod != predecessor && *pod != agent.pod);
        if !predecessor.is_empty() {
            self.handed_over.push(predecessor.to_owned());
        }
        let surplus = self.handed_over.len().saturating_sub(MAX_HANDED_OVER);
        self.handed_over.drain(..surplus);
    }

    /// Returns true if an agent of another policy took over last.
    pub fn is_served_by_another(&self, policy: &str) -> bool {
        !self.policy.is_empty() && self.policy != policy
    }

    /// Returns true if the pod has handed over for good. Such a pod takes a free lock but sends no request.
    pub fn has_handed_over(&self, pod: &str) -> bool {
        self.handed_over.iter().any(|other| other == pod)
    }
}

fn path(state_dir: &Path) -> PathBuf {
    state_dir.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn agent(pod: &str) -> AgentId {
        AgentId {
            version: "1".to_owned(),
            pod: pod.to_owned(),
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn pauses_grow_with_each_failure_up_to_five_minutes_and_end_with_success() {
        let mut record = HandoverRecord::default();
        assert_eq!(record.pause(&agent("b"), seconds(100)), Duration::ZERO);
        for pause in [10, 20, 40, 80, 160, 300, 300] {
            record.count_attempt(&agent("b"), seconds(100));
            assert_eq!(record.pause(&agent("b"), seconds(100)), seconds(pause));
            assert_eq!(record.pause(&agent("b"), seconds(103)), seconds(pause - 3));
        }
        assert_eq!(record.pause(&agent("b"), seconds(1000)), Duration::ZERO);
        assert_eq!(
            record.pause(&agent("c"), seconds(100)),
            Duration::ZERO,
            "another pod has not failed"
        );
        assert_eq!(
            record.pause(&agent("b"), seconds(5)),
            Duration::ZERO,
            "the node has booted since"
        );
        record.took_over(&agent("b"), "p", "a");
        assert_eq!(record.pause(&agent("b"), seconds(100)), Duration::ZERO);
    }

    #[test]
    fn a_pod_that_has_handed_over_is_remembered_until_it_takes_over_again() {
        let mut record = HandoverRecord::default();
        record.took_over(&agent("b"), "p", "a");
        assert!(record.has_handed_over("a") && !record.has_handed_over("b"));
        assert!(record.is_served_by_another("q") && !record.is_served_by_another("p"));
        record.took_over(&agent("a"), "q", "b");
        assert!(!record.has_handed_over("a") && record.has_handed_over("b"));
        record.took_over(&agent(""), "", "");
        assert!(!record.has_handed_over(""), "agents without pod are not told apart");
        for pod in 0..20 {
            record.took_over(&agent("b"), "p", &pod.to_string());
        }
        assert_eq!(record.handed_over.len(), MAX_HANDED_OVER);
    }

    #[test]
    fn a_saved_record_is_read_again_and_an_unreadable_one_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(HandoverRecord::load(folder.path()), HandoverRecord::default());
        let mut record = HandoverRecord::default();
        record.count_attempt(&agent("b"), seconds(1));
        record.save(folder.path()).unwrap();
        assert_eq!(HandoverRecord::load(folder.path()), record);
        for text in ["{", r#"{"format":2,"asked":null,"letGo":[],"policy":""}"#] {
            fs::write(path(folder.path()), text).unwrap();
            assert_eq!(HandoverRecord::load(folder.path()), HandoverRecord::default());
            assert_eq!(
                fs::read_to_string(folder.path().join("handover.json.corrupt")).unwrap(),
                text
            );
        }
    }
}
