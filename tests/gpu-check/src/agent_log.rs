//! The agent's log, as far as it says what its probes and its event session find. Pure.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Filter of the log: the end of a round of probes is a debug line.
pub const FILTER: &str = "info,kube_client=off,gpunode_agent::health=debug,gpunode_agent::health::probe_loop=info";

/// Statements of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentLog {
    /// Number of rounds of probes that ended.
    pub rounds: usize,
    /// Number of GPUs whose events it follows.
    pub followed: usize,
    /// Reasons why GPUs report no events, by UUID.
    pub without_events: BTreeMap<String, String>,
    /// Calls of the probes that failed.
    pub failed_calls: BTreeSet<String>,
    /// Faults of devices, each with its reason and meaning.
    pub faults: BTreeSet<String>,
}

impl AgentLog {
    /// Parses a log: one JSON object per line.
    pub fn parse(log: &str) -> Self {
        let mut parsed = Self::default();
        for line in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let text = |field: &str| line.get(field).and_then(Value::as_str).unwrap_or_default();
            match text("message") {
                "all GPUs probed" => parsed.rounds += 1,
                "following driver events" => {
                    let gpus = line.get("gpus").and_then(Value::as_u64).unwrap_or_default();
                    parsed.followed = usize::try_from(gpus).unwrap_or(usize::MAX);
                }
                "the GPU reports no events; only probes watch it" => {
                    parsed
                        .without_events
                        .insert(text("gpu").to_owned(), text("why").to_owned());
                }
                "a call to the driver fails" => {
                    let failed = format!("{} of {}: {}", text("call"), text("device"), text("error"));
                    parsed.failed_calls.insert(failed);
                }
                "device is faulty" => {
                    let fault = format!("{} {}: {}", text("device"), text("reason"), text("meaning"));
                    parsed.faults.insert(fault);
                }
                _ => {}
            }
        }
        parsed
    }
}

/// Returns the reason with which a log ends, or its last line if that is no reason.
pub fn reason(log: &str) -> String {
    let last = log.lines().last().unwrap_or("no reason given");
    let line: Value = serde_json::from_str(last).unwrap_or_default();
    let reason = line.get("reason").and_then(Value::as_str);
    reason.unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_ends_with_a_reason() {
        let log = r#"{"level":"INFO","message":"reading"}
{"level":"ERROR","reason":"read GPU 3","message":"agent stops"}
"#;
        assert_eq!(reason(log), "read GPU 3");
        assert_eq!(reason("libc.so.6: version not found\n"), "libc.so.6: version not found");
        assert_eq!(reason(""), "no reason given");
    }

    #[test]
    fn a_log_says_what_probes_and_events_find() {
        let log = r#"not JSON
{"level":"INFO","message":"following driver events","gpus":1}
{"level":"INFO","message":"the GPU reports no events; only probes watch it","gpu":"GPU-2","why":"not available"}
{"level":"WARN","message":"a call to the driver fails","device":"GPU-1","call":"nvmlDeviceGetMigMode","error":"unknown"}
{"level":"WARN","message":"device is faulty","device":"GPU-1","reason":"NotAnswering","meaning":"calls fail"}
{"level":"DEBUG","message":"all GPUs probed"}
{"level":"DEBUG","message":"all GPUs probed"}
"#;
        let set = |text: &str| [text.to_owned()].into();
        let expected = AgentLog {
            rounds: 2,
            followed: 1,
            without_events: [("GPU-2".to_owned(), "not available".to_owned())].into(),
            failed_calls: set("nvmlDeviceGetMigMode of GPU-1: unknown"),
            faults: set("GPU-1 NotAnswering: calls fail"),
        };
        assert_eq!(AgentLog::parse(log), expected);
    }
}
