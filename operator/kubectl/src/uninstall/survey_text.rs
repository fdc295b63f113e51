//! The survey for people: nodes with the same changes, objects of one kind and GPU labels are one line each.

use super::survey::RemovalSurvey;
use crate::output::{TextWidth, plain, plural, style, wrapped};
use gpunode_crds::named;
use gpunode_plan::is_fact_label;
use std::fmt::Write as _;

/// Most nodes named in one line.
const MAX_NODES: usize = 8;

/// Describes what a removal does, in groups or, with `all`, each thing in a line.
pub fn survey_text(survey: &RemovalSurvey, all: bool, width: TextWidth) -> String {
    let mut text = String::new();
    let mut section = |name: &str, lines: Vec<String>| {
        if lines.is_empty() {
            return;
        }
        let heading = style::HEADING;
        let _ = writeln!(text, "{heading}{name}{heading:#}");
        for line in lines {
            let _ = writeln!(text, "{}", wrapped(&format!("  {}", plain(&line)), width, 4));
        }
    };
    let policies = &survey.policies;
    section(&plural(policies.len(), "policy", "policies"), joined(policies, all));
    section(
        &format!("on {}", plural(survey.nodes.len(), "node", "nodes")),
        nodes(survey, all),
    );
    let objects: Vec<String> = survey.objects.iter().map(ToString::to_string).collect();
    section(&plural(objects.len(), "object", "objects"), by_kind(&objects, all));
    let held = survey.held.iter().chain(&survey.kept);
    section("not removed", held.map(ToString::to_string).collect());
    section(
        "pods that lose their MPS daemon",
        survey.clients.iter().cloned().collect(),
    );
    section(
        "not checked, because you are not allowed to",
        by_kind(&survey.forbidden.iter().cloned().collect::<Vec<_>>(), all),
    );
    text
}

fn joined(names: &[String], all: bool) -> Vec<String> {
    if all || names.is_empty() {
        names.to_vec()
    } else {
        vec![names.join(", ")]
    }
}

/// Returns the changes of the nodes; those with the same changes are one line.
fn nodes(survey: &RemovalSurvey, all: bool) -> Vec<String> {
    let mut groups: Vec<(String, Vec<&String>)> = Vec::new();
    for (node, words) in &survey.nodes {
        let words = if all { words.join(", ") } else { counted(words) };
        match groups.iter_mut().find(|(known, _)| !all && *known == words) {
            Some((_, nodes)) => nodes.push(node),
            None => groups.push((words, vec![node])),
        }
    }
    let line = |(words, nodes): (String, Vec<&String>)| format!("{}: {words}", named(nodes, MAX_NODES));
    groups.into_iter().map(line).collect()
}

/// Joins the changes of a node, with the number of GPU labels instead of their names.
fn counted(words: &[String]) -> String {
    let is_fact = |word: &&String| {
        word.strip_prefix("label ")
            .is_some_and(|key| is_fact_label(key) && !key.contains(' '))
    };
    let facts = words.iter().filter(is_fact).count();
    let others = words.iter().filter(|word| facts < 2 || !is_fact(word)).cloned();
    let facts = (facts > 1).then(|| format!("{facts} GPU labels (list them with --all)"));
    others.chain(facts).collect::<Vec<_>>().join(", ")
}

/// Returns texts such as `ClusterRole a` or `read ClusterRole a`; unless `all`, those that differ in the name alone are one.
pub fn by_kind(texts: &[String], all: bool) -> Vec<String> {
    let mut groups: Vec<(&str, String)> = Vec::new();
    for text in texts {
        let (kind, name) = text.rsplit_once(' ').unwrap_or((text.as_str(), ""));
        match groups.iter_mut().find(|(known, _)| !all && *known == kind) {
            Some((_, names)) => {
                let _ = write!(names, ", {name}");
            }
            None => groups.push((kind, name.to_owned())),
        }
    }
    let line = |(kind, names): (&str, String)| format!("{kind} {names}");
    groups.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uninstall::survey::tests::survey;

    fn shown(survey: &RemovalSurvey, all: bool, width: TextWidth) -> String {
        anstream::adapter::strip_str(&survey_text(survey, all, width)).to_string()
    }

    #[test]
    fn a_survey_names_what_goes_and_what_stays() {
        insta::assert_snapshot!(shown(&survey(), false, TextWidth::UNLIMITED), @r"
        1 policy
          pool
        on 1 node
          n1: label a
        2 objects
          CustomResourceDefinition gpunodepolicies.gpunode.dev, gpunodes.gpunode.dev
        not removed
          node n2: the node has the label gpunode.dev/ignore and is left as it is
        pods that lose their MPS daemon
          team/llm on node n1
        ");
    }

    #[test]
    fn what_was_not_checked_is_named() {
        let forbidden = [
            "list nodes",
            "read ClusterRole a",
            "read ClusterRole b",
            "list daemonsets",
        ];
        let survey = RemovalSurvey {
            forbidden: forbidden.map(str::to_owned).into(),
            ..RemovalSurvey::default()
        };
        insta::assert_snapshot!(shown(&survey, false, TextWidth::UNLIMITED), @r"
        not checked, because you are not allowed to
          list daemonsets, nodes
          read ClusterRole a, b
        ");
        let all = shown(&survey, true, TextWidth::UNLIMITED);
        assert!(all.ends_with("\n  read ClusterRole a\n  read ClusterRole b\n"), "{all}");
    }

    #[test]
    fn what_is_alike_is_one_line_unless_all_is_wanted() {
        let mut survey = survey();
        let words = [
            "label nvidia.com/gpu.count",
            "label nvidia.com/gpu.product",
            "label tier",
        ];
        let words = words.map(str::to_owned).to_vec();
        for node in ["n2", "n3", "n4"] {
            survey.nodes.insert(node.to_owned(), words.clone());
        }
        survey.policies.push("t4".to_owned());
        insta::assert_snapshot!(shown(&survey, false, TextWidth::of(80)), @r"
        2 policies
          pool, t4
        on 4 nodes
          n1: label a
          n2, n3, n4: label tier, 2 GPU labels (list them with --all)
        2 objects
          CustomResourceDefinition gpunodepolicies.gpunode.dev, gpunodes.gpunode.dev
        not removed
          node n2: the node has the label gpunode.dev/ignore and is left as it is
        pods that lose their MPS daemon
          team/llm on node n1
        ");
        let all = shown(&survey, true, TextWidth::of(80));
        for line in [
            "  t4",
            "  n3: label nvidia.com/gpu.count, label nvidia.com/gpu.product, label tier",
            "  CustomResourceDefinition gpunodes.gpunode.dev",
        ] {
            assert!(all.lines().any(|shown| shown == line), "{line}: {all}");
        }
    }
}
