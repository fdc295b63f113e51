//! Findings and problems as tables for people.

use super::{
    examination::NodeExamination,
    problems::{FleetProblem, FleetProblems},
};
use crate::{
    cluster::{UnreadableObject, unreadable_lines},
    output::{TableCell, TableColumn, TextWidth, plain, plural, style, table, wrapped},
};
use gpunode_crds::named;
use gpunode_gpu::{Finding, FindingSeverity, findings_table};

/// Returns the findings about a node, then the unreadable objects.
pub fn node(node: &NodeExamination, unreadable: &[UnreadableObject], width: TextWidth) -> String {
    let findings: Vec<Finding> = node.findings.iter().map(printable).collect();
    let mut text = findings_table(&findings, width.limit());
    text.push_str(&unreadable_lines(unreadable, width));
    text
}

/// Returns a line for each problem, then a sum, then the unreadable objects.
pub fn fleet(fleet: &FleetProblems, unreadable: &[UnreadableObject], width: TextWidth) -> String {
    let mut text = String::new();
    if !fleet.problems.is_empty() {
        let columns = [
            TableColumn::new("STATE"),
            TableColumn::new("NODES"),
            TableColumn::new("WHAT"),
            TableColumn::new("EXAMPLES"),
            TableColumn::below("FINDING"),
            TableColumn::below_after(1, "ACTION"),
        ];
        let rows: Vec<_> = fleet.problems.iter().map(row).collect();
        text.push_str(&table(width, columns, &rows));
        text.push('\n');
    }
    let nodes = plural(fleet.examined, "node with GPUs", "nodes with GPUs");
    let sum = match (fleet.examined, fleet.without_gpus) {
        (0, _) => "no agent reports a GPU; see `kubectl gpunode status`".to_owned(),
        (_, 0) if fleet.has_unknown() => {
            format!("{nodes} examined: nothing found that keeps all GPUs of a node from pods")
        }
        (_, 0) => format!("{nodes} examined: pods get their GPUs on each of them"),
        (_, without) => {
            format!("{nodes} examined: on {without} of them pods would get no GPU; see `kubectl gpunode doctor NODE`")
        }
    };
    text.push_str(&wrapped(&sum, width, 2));
    text.push('\n');
    text.push_str(&unreadable_lines(unreadable, width));
    text
}

fn row(problem: &FleetProblem) -> [TableCell; 6] {
    let Finding {
        severity,
        subject,
        message,
        action,
        ..
    } = &problem.finding;
    let style = match severity {
        FindingSeverity::NoGpu => style::BAD,
        FindingSeverity::Warning | FindingSeverity::Unknown => style::WAITING,
        FindingSeverity::Fine => style::GOOD,
    };
    let message = match problem.examples.first() {
        Some(first) if problem.messages_differ => format!("{first}: {message}"),
        _ => message.clone(),
    };
    let examples = match problem.nodes - problem.examples.len() {
        0 => named(&problem.examples, problem.examples.len()),
        more => format!("{} and {more} more", problem.examples.join(", ")),
    };
    [
        TableCell::new(severity.word(), style),
        problem.nodes.to_string().into(),
        (*subject).into(),
        examples.into(),
        message.into(),
        action.as_deref().unwrap_or_default().into(),
    ]
}

/// Makes the texts of an agent safe for a terminal.
fn printable(finding: &Finding) -> Finding {
    Finding {
        message: plain(&finding.message),
        action: finding.action.as_deref().map(plain),
        ..finding.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::problems::tests::{finding, node as examined};

    fn problems() -> FleetProblems {
        let broken = finding(FindingSeverity::NoGpu, "containers", "CdiDisabled");
        let nodes: Vec<_> = (0..5)
            .map(|index| examined(&format!("gpu-{index}"), std::slice::from_ref(&broken)))
            .collect();
        FleetProblems::of(&nodes)
    }

    #[test]
    fn a_fleet_shows_a_line_for_each_problem() {
        let text = anstream::adapter::strip_str(&fleet(&problems(), &[], TextWidth::UNLIMITED)).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("STATE") && lines[0].contains("ACTION"), "{text}");
        for part in [
            "no GPU",
            "5",
            "containers",
            "gpu-0, gpu-1, gpu-2 and 2 more",
            "CdiDisabled here",
            "mend containers",
        ] {
            assert!(lines[1].contains(part), "{part}: {text}");
        }
        assert_eq!(
            lines[3],
            "5 nodes with GPUs examined: on 5 of them pods would get no GPU; see `kubectl gpunode doctor NODE`"
        );
        let narrow = anstream::adapter::strip_str(&fleet(&problems(), &[], TextWidth::of(80))).to_string();
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    }

    #[test]
    fn a_fleet_without_problems_says_so() {
        let fine = finding(FindingSeverity::Fine, "driver", "DriverAnswers");
        let text = |nodes: &[NodeExamination]| fleet(&FleetProblems::of(nodes), &[], TextWidth::UNLIMITED);
        assert_eq!(
            text(&[examined("a", &[fine])]),
            "1 node with GPUs examined: pods get their GPUs on each of them\n"
        );
        let unknown = finding(FindingSeverity::Unknown, "containers", "RuntimeUnknown");
        assert!(
            text(&[examined("a", &[unknown])]).ends_with("nothing found that keeps all GPUs of a node from pods\n")
        );
        assert_eq!(text(&[]), "no agent reports a GPU; see `kubectl gpunode status`\n");
    }

    #[test]
    fn words_of_an_agent_cannot_steer_the_terminal() {
        let evil = Finding {
            message: "\u{1b}[2Jgone".to_owned(),
            ..finding(FindingSeverity::Warning, "plugins", "ServedByAnother")
        };
        let text = node(&examined("a", &[evil]), &[], TextWidth::of(80));
        assert!(!text.contains('\u{1b}') && text.contains("gone"), "{text:?}");
    }
}
