//! The problems of a fleet, each with the nodes that have it.

use super::examination::NodeExamination;
use gpunode_gpu::{Finding, FindingSeverity, is_without_gpus};
use serde::Serialize;
use std::collections::BTreeMap;

/// Maximum number of nodes that a problem names.
const MAX_EXAMPLES: usize = 3;

/// A finding that some nodes share.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetProblem {
    /// Finding of the first node.
    #[serde(flatten)]
    pub finding: Finding,
    /// True if the message is that of the first node alone.
    pub messages_differ: bool,
    /// Number of nodes with it.
    pub nodes: usize,
    /// First nodes by name.
    pub examples: Vec<String>,
}

/// All problems of a fleet, the worst first, then those of most nodes.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetProblems {
    /// Number of examined nodes with GPUs.
    pub examined: usize,
    /// Number of them on which pods would get no GPU.
    pub without_gpus: usize,
    pub problems: Vec<FleetProblem>,
}

impl FleetProblems {
    /// Collects the problems. A node without GPUs has none: a policy may give it other devices.
    pub fn of(nodes: &[NodeExamination]) -> Self {
        let mut examined: Vec<&NodeExamination> = nodes.iter().filter(|node| node.has_gpus).collect();
        examined.sort_by(|a, b| a.node.cmp(&b.node));
        let mut problems: BTreeMap<(FindingSeverity, &str, &str, Option<&str>), FleetProblem> = BTreeMap::new();
        for node in &examined {
            for finding in &node.findings {
                if finding.severity == FindingSeverity::Fine {
                    continue;
                }
                let action = finding.action.as_deref();
                let key = (finding.severity, finding.subject, finding.reason, action);
                let problem = problems.entry(key).or_insert_with(|| FleetProblem {
                    finding: finding.clone(),
                    messages_differ: false,
                    nodes: 0,
                    examples: Vec::new(),
                });
                problem.nodes += 1;
                problem.messages_differ |= problem.finding.message != finding.message;
                if problem.examples.len() < MAX_EXAMPLES && !problem.examples.contains(&node.node) {
                    problem.examples.push(node.node.clone());
                }
            }
        }
        let mut problems: Vec<FleetProblem> = problems.into_values().collect();
        problems.sort_by(|a, b| {
            let severity = a.finding.severity.cmp(&b.finding.severity);
            severity.then_with(|| b.nodes.cmp(&a.nodes))
        });
        Self {
            examined: examined.len(),
            without_gpus: examined.iter().filter(|node| is_without_gpus(&node.findings)).count(),
            problems,
        }
    }

    /// Returns true if nobody can tell something about a node.
    pub fn has_unknown(&self) -> bool {
        let mut severities = self.problems.iter().map(|problem| problem.finding.severity);
        severities.any(|severity| severity == FindingSeverity::Unknown)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn finding(severity: FindingSeverity, subject: &'static str, reason: &'static str) -> Finding {
        Finding {
            severity,
            subject,
            reason,
            message: format!("{reason} here"),
            action: Some(format!("mend {subject}")),
        }
    }

    pub fn node(name: &str, findings: &[Finding]) -> NodeExamination {
        NodeExamination {
            node: name.to_owned(),
            findings: findings.to_vec(),
            has_gpus: true,
        }
    }

    #[test]
    fn another_remedy_is_another_problem_and_another_message_is_said() {
        let broken = finding(FindingSeverity::NoGpu, "GPUs", "GpusUnhealthy");
        let other_message = Finding {
            message: "GPU 3".to_owned(),
            ..broken.clone()
        };
        let other_action = Finding {
            action: Some("reboot".to_owned()),
            ..broken.clone()
        };
        let fleet = FleetProblems::of(&[
            node("a", &[broken]),
            node("b", &[other_message]),
            node("c", &[other_action]),
        ]);
        let lines = fleet.problems.iter();
        let lines: Vec<_> = lines.map(|it| (it.nodes, it.messages_differ)).collect();
        assert_eq!(lines, [(2, true), (1, false)]);
    }

    #[test]
    fn each_problem_is_one_line_with_its_nodes() {
        use FindingSeverity::{Fine, NoGpu, Unknown, Warning};
        let broken = finding(NoGpu, "containers", "CdiDisabled");
        let odd = finding(Warning, "plugins", "ServedByAnother");
        let dark = finding(Unknown, "SELinux", "SelinuxEnforcing");
        let fine = finding(Fine, "driver", "DriverAnswers");
        let names = ["e", "d", "c", "b"];
        let mut nodes: Vec<_> = names
            .iter()
            .map(|name| node(name, &[odd.clone(), dark.clone()]))
            .collect();
        nodes.push(node("a", &[broken, fine.clone()]));
        nodes.push(node("f", &[fine]));
        nodes.push(NodeExamination {
            has_gpus: false,
            ..node("cpu", &[finding(NoGpu, "driver", "NoGpus")])
        });
        let fleet = FleetProblems::of(&nodes);
        assert_eq!((fleet.examined, fleet.without_gpus), (6, 1));
        let lines: Vec<_> = fleet
            .problems
            .iter()
            .map(|problem| (problem.finding.reason, problem.nodes, problem.examples.concat()))
            .collect();
        assert_eq!(
            lines,
            [
                ("CdiDisabled", 1, "a".to_owned()),
                ("ServedByAnother", 4, "bcd".to_owned()),
                ("SelinuxEnforcing", 4, "bcd".to_owned()),
            ]
        );
    }
}
