//! The plan for people: a diff per node, then a summary.

use super::{
    change::{ChangeAction, ChangeSubject, PlannedChange},
    difference::{ClusterPlan, PlannedNode},
    simulation::OPERATORS_IMAGE,
};
use crate::{
    cluster::unreadable_lines,
    configuration::short_hash,
    output::{TextWidth, nearest_node_text, plain, plural, style, wrapped},
};
use gpunode_crds::{GOVERNED_LABEL, MPS_LABEL, POLICY_LABEL_PREFIX};
use std::fmt::Write as _;

/// Returns a diff per node, then the policies and a summary.
pub fn plan(plan: &ClusterPlan, width: TextWidth) -> String {
    let mut text = String::new();
    let line = |paint: anstyle::Style, words: &str| {
        let words = wrapped(&plain(words), width, 6);
        format!("{paint}{words}{paint:#}\n")
    };
    for node in &plan.nodes {
        let heading = style::HEADING;
        let _ = writeln!(text, "{heading}node {}{heading:#}", node.name);
        for change in node
            .changes
            .iter()
            .filter(|change| !is_said_better(change, &node.changes))
        {
            let (sign, paint) = match change.action {
                ChangeAction::Add => ('+', style::GOOD),
                ChangeAction::Remove => ('-', style::BAD),
                ChangeAction::Change | ChangeAction::None => ('~', style::WAITING),
            };
            text.push_str(&line(paint, &format!("  {sign} {}", describe(change))));
        }
        for layout in &node.mig {
            text.push_str(&line(style::PLAIN, &format!("    {}", layout.words())));
        }
        for offer in &node.offers {
            let paint = if offer.would_not_fit > 0 {
                style::BAD
            } else {
                style::PLAIN
            };
            let words = format!(
                "    {} would have {} ({})",
                offer.resource,
                offer.words,
                offer.comparison()
            );
            text.push_str(&line(paint, &words));
        }
        for note in &node.notes {
            text.push_str(&line(style::WAITING, &format!("  ! {note}")));
        }
        for obstacle in &node.obstacles {
            text.push_str(&line(style::BAD, &format!("  ! {obstacle}")));
        }
        for disruption in &node.disruptions {
            text.push_str(&line(style::BAD, &format!("  ! disruptive: {disruption}")));
        }
        text.push('\n');
    }
    text.push_str(&unreadable_lines(&plan.unreadable, width));
    for policy in &plan.policies {
        let action = match policy.action {
            ChangeAction::Add => "new",
            ChangeAction::None => "unchanged",
            ChangeAction::Change => "changed",
            ChangeAction::Remove => "deleted",
        };
        let preview = if policy.preview {
            " in mode Preview, planned as if enforced"
        } else {
            ""
        };
        let matches = if policy.action == ChangeAction::Remove {
            "matched"
        } else {
            "matches"
        };
        let nodes = plural(policy.matched, "node", "nodes");
        let words = format!("policy {}: {action}{preview}; {matches} {nodes}", policy.name);
        text.push_str(&line(style::PLAIN, &words));
        if let Some(nearest) = &policy.nearest {
            text.push_str(&line(style::PLAIN, &format!("  {}", nearest_node_text(nearest))));
        }
        if let Some(refusal) = &policy.refusal {
            let paint = style::BAD;
            let _ = writeln!(text, "  {paint}! refused by the operator: {}{paint:#}", plain(refusal));
        }
    }
    let is_changing = |node: &&PlannedNode| !node.changes.is_empty() || !node.disruptions.is_empty();
    let changing = plan.nodes.iter().filter(is_changing).count();
    let blocked = plan.nodes.iter().filter(|node| !node.obstacles.is_empty()).count();
    let mut summary = format!(
        "{} would change, {} would not",
        plural(changing, "node", "nodes"),
        plan.unchanged + plan.nodes.len() - changing
    );
    if blocked > 0 {
        let _ = write!(summary, "; obstacles on {}", plural(blocked, "node", "nodes"));
    }
    let disruptive = plan.nodes.iter().filter(|node| !node.disruptions.is_empty()).count();
    if disruptive > 0 {
        let nodes = plural(disruptive, "node", "nodes");
        let _ = write!(summary, "; running pods disrupted on {nodes}");
    }
    text.push_str(&line(style::PLAIN, &summary));
    text
}

/// Returns true where another change says the same in words.
fn is_said_better(change: &PlannedChange, all: &[PlannedChange]) -> bool {
    let any = |kinds: &[ChangeSubject]| all.iter().any(|change| kinds.contains(&change.what));
    match (change.what, change.key.as_deref()) {
        (ChangeSubject::Configuration, _) => any(&[ChangeSubject::Resource, ChangeSubject::Setting]),
        (ChangeSubject::Label, Some(key)) if key == GOVERNED_LABEL || key.starts_with(POLICY_LABEL_PREFIX) => {
            any(&[ChangeSubject::Governing])
        }
        // The label comes with a resource. It goes by itself when its last daemon ends.
        (ChangeSubject::Label, Some(MPS_LABEL)) => any(&[ChangeSubject::Resource]),
        _ => false,
    }
}

fn describe(change: &PlannedChange) -> String {
    let key = change.key.as_deref().unwrap_or_default();
    match change.what {
        ChangeSubject::Label => pair(&format!("label {key}"), change, "=", ToOwned::to_owned),
        ChangeSubject::Taint => {
            let (key, effect) = key.rsplit_once(':').unwrap_or((key, ""));
            let taint = |value: &str| {
                if value.is_empty() {
                    key.to_owned()
                } else {
                    format!("{key}={value}")
                }
            };
            pair("taint", change, " ", |value| format!("{}:{effect}", taint(value)))
        }
        ChangeSubject::Governing => pair("governed by", change, " ", ToOwned::to_owned),
        ChangeSubject::Resource => pair(&format!("resource {key}"), change, ": ", ToOwned::to_owned),
        ChangeSubject::Setting => pair(key, change, ": ", ToOwned::to_owned),
        ChangeSubject::Configuration => pair("configuration", change, " ", short_hash),
        ChangeSubject::Image => pair("agent image", change, ": ", |image| {
            if image == OPERATORS_IMAGE {
                "the operator's default".to_owned()
            } else {
                image.to_owned()
            }
        }),
    }
}

fn pair(name: &str, change: &PlannedChange, between: &str, show: impl Fn(&str) -> String) -> String {
    match (&change.from, &change.to) {
        (Some(from), Some(to)) => format!("{name}: {} -> {}", show(from), show(to)),
        (from, to) => format!(
            "{name}{between}{}",
            from.iter().chain(to).map(|value| show(value)).collect::<String>()
        ),
    }
}

#[cfg(test)]
mod tests {
    use crate::{output::TextWidth, plan::difference::tests::sample};

    fn shown(width: TextWidth) -> String {
        anstream::adapter::strip_str(&super::plan(&sample(), width)).to_string()
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let text = shown(TextWidth::of(60));
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(60), "{text}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&text), words(&shown(TextWidth::UNLIMITED)));
    }

    #[test]
    fn a_plan_is_a_diff_per_node() {
        insta::assert_snapshot!(shown(TextWidth::UNLIMITED), @r#"
        node n1
          + label accelerator=v100
          - label old=1
          ~ label team: x -> y
          + taint dedicated=v100:NoExecute
          - taint dedicated:NoSchedule
          ~ resource nvidia.com/gpu: whole GPUs -> 4 replicas per GPU (TimeSlicing)
          + resource example.com/rest: whole GPUs
          + passDeviceSpecs: true
          ~ agent image: the operator's default -> agent:2
            nvidia.com/gpu would have 2 GPUs x 4 replicas = 8 (now 2; 1 held)
            example.com/rest would have nothing: no remaining device matches its selector (unchanged)
          ! disruptive: taint dedicated:NoExecute evicts pods that do not tolerate it
          ! disruptive: GPU 1 stays unchanged until pod ml/train ends

        node n2
          - label old=1
          ~ label team: x -> y
          + taint dedicated=v100:NoExecute
          - taint dedicated:NoSchedule
          ~ resource nvidia.com/gpu: whole GPUs -> 4 replicas per GPU (TimeSlicing)
          + resource example.com/rest: whole GPUs
          + passDeviceSpecs: true
          ~ agent image: the operator's default -> agent:2
          ! the GPUs of this node are not known yet, so its resources are not counted
          ! label accelerator is "theirs", not "v100"
          ! disruptive: taint dedicated:NoExecute evicts pods that do not tolerate it

        node n4
          + governed by more
          + resource nvidia.com/gpu: whole GPUs
          + agent image: the operator's default
          ! the GPUs of this node are not known yet, so its resources are not counted

        ! GpuNode n3: its status cannot be read: bad time
        policy more: new; matches 1 node
        policy other: new in mode Preview, planned as if enforced; matches 0 nodes
          nearest node: n1 (and 3 others as near): spec.nodeSelector.matchLabels[pool]: wants "c", node has "a"
        policy pool: changed; matches 2 nodes
        3 nodes would change, 1 would not; obstacles on 1 node; running pods disrupted on 2 nodes
        "#);
    }
}
