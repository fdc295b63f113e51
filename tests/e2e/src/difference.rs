//! Differences between two looks at the nodes, and what `kubectl gpunode plan -o json` foretells of them.

use crate::is_fact;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{collections::BTreeSet, fmt};

/// One difference, in the terms of a plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The node.
    pub node: String,
    action: String,
    what: String,
    key: String,
    from: Option<String>,
    to: Option<String>,
}

/// All of them.
pub type Differences = BTreeSet<Difference>;

impl Difference {
    /// Compares two values.
    pub fn new(node: &str, what: &str, key: &str, from: Option<String>, to: Option<String>) -> Self {
        let action = match (&from, &to) {
            (None, _) => "add",
            (_, None) => "remove",
            _ => "change",
        };
        let (node, action, key) = (node.to_owned(), action.to_owned(), key.to_owned());
        Self {
            node,
            action,
            what: what.to_owned(),
            key,
            from,
            to,
        }
        .comparable()
    }

    /// A plan tells resources in words, objects as they are configured: that they differ is what can be compared.
    fn comparable(mut self) -> Self {
        if self.what == "resource" {
            (self.from, self.to) = (None, None);
        }
        self
    }

    /// Returns the part that a preview in a policy's status shows: new values, not old ones.
    fn previewed(self) -> Option<Self> {
        let (action, is_removal) = ("preview".to_owned(), self.action == "remove");
        let is_shown = matches!(self.what.as_str(), "label" | "taint") || (self.what == "configuration" && !is_removal);
        is_shown.then(|| Self {
            action,
            from: None,
            to: self.to.filter(|_| !is_removal),
            ..self
        })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            node,
            action,
            what,
            key,
            from,
            to,
        } = self;
        write!(f, "{node}: {action} {what} {key}: {from:?} -> {to:?}")
    }
}

/// The differences that a plan foretells.
pub fn predicted(plan: &Value) -> Result<Differences> {
    let mut differences = Differences::new();
    for node in plan["nodes"].as_array().context("find the nodes of a plan")? {
        for change in node["changes"].as_array().context("find the changes of a node")? {
            let value = |field: &str| change[field].as_str().map(str::to_owned);
            let text = |field: &str| value(field).unwrap_or_default();
            let difference = Difference {
                node: node["name"].as_str().unwrap_or_default().to_owned(),
                action: text("action"),
                what: text("what"),
                key: text("key"),
                from: value("from"),
                to: value("to"),
            };
            if difference.what != "label" || !is_fact(&difference.key) {
                ensure!(
                    differences.insert(difference.clone().comparable()),
                    "the plan says twice {difference}"
                );
            }
        }
    }
    Ok(differences)
}

/// Fails where the plan for a policy in mode Preview is not what the policy's status says.
pub fn ensure_previewed(plan: &Value, status: &Value) -> Result<()> {
    let planned: Differences = predicted(plan)?.into_iter().filter_map(Difference::previewed).collect();
    let mut shown = Differences::new();
    for node in status.as_array().into_iter().flatten() {
        let name = node["node"].as_str().unwrap_or_default();
        let mut add = |what: &str, key: &str, to: Option<&Value>| {
            let to = to.map(|to| to.as_str().unwrap_or_default().to_owned());
            if what != "label" || !is_fact(key) {
                shown.extend(Difference::new(name, what, key, None, to).previewed());
            }
        };
        let list = |field: &str| node[field].as_array().cloned().unwrap_or_default();
        for (key, value) in node["setLabels"].as_object().into_iter().flatten() {
            add("label", key, Some(value));
        }
        for key in list("removeLabels") {
            add("label", key.as_str().unwrap_or_default(), None);
        }
        let id = |taint: &Value| {
            [&taint["key"], &taint["effect"]]
                .map(|part| part.as_str().unwrap_or_default())
                .join(":")
        };
        for taint in list("setTaints") {
            add("taint", &id(&taint), Some(&taint["value"]));
        }
        for taint in list("removeTaints") {
            add("taint", &id(&taint), None);
        }
        if let Some(hash) = node.get("configHash") {
            add("configuration", "", Some(hash));
        }
    }
    ensure_equal(&planned, &shown).context("compare the preview in the status of a policy")
}

/// Fails where something else happened than was planned, and shows both.
pub fn ensure_equal(planned: &Differences, happened: &Differences) -> Result<()> {
    let lines = |differences: &mut dyn Iterator<Item = &Difference>| {
        differences.map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
    };
    ensure!(
        planned == happened,
        "planned and did not happen:\n  {}\nhappened and was not planned:\n  {}\nall of the plan:\n  {}\nall that happened:\n  {}",
        lines(&mut planned.difference(happened)),
        lines(&mut happened.difference(planned)),
        lines(&mut planned.iter()),
        lines(&mut happened.iter())
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan(changes: &Value) -> Value {
        json!({"nodes": [{"name": "n", "changes": changes}]})
    }

    #[test]
    fn a_plan_equals_the_difference_that_it_foretells() {
        let plan = plan(&json!([
            {"action": "add", "what": "label", "key": "a", "to": "b"},
            {"action": "remove", "what": "taint", "key": "t:NoSchedule", "from": ""},
            {"action": "change", "what": "resource", "key": "x/y", "from": "in words", "to": "in other words"},
            {"action": "change", "what": "configuration", "from": "1", "to": "2"},
            {"action": "remove", "what": "label", "key": "nvidia.com/gpu.count", "from": "4"},
        ]));
        let value = |value: &str| Some(value.to_owned());
        let happened = Differences::from([
            Difference::new("n", "label", "a", None, value("b")),
            Difference::new("n", "taint", "t:NoSchedule", value(""), None),
            Difference::new("n", "resource", "x/y", value("{}"), value("{\"sharing\"}")),
            Difference::new("n", "configuration", "", value("1"), value("2")),
        ]);
        let planned = predicted(&plan).expect("a plan");
        ensure_equal(&planned, &happened).expect("equal");
        for missing in &happened {
            let mut less = happened.clone();
            less.remove(missing);
            let error = ensure_equal(&planned, &less)
                .expect_err("something is missing")
                .to_string();
            assert!(error.contains(&missing.to_string()), "{error}");
            ensure_equal(&less, &happened).expect_err("something is too much");
        }
        let other = Differences::from([Difference::new("n", "label", "a", None, value("c"))]);
        ensure_equal(
            &Differences::from([Difference::new("n", "label", "a", None, value("b"))]),
            &other,
        )
        .expect_err("another value");
    }

    #[test]
    fn a_preview_is_compared_by_what_it_says() {
        let plan = plan(&json!([
            {"action": "change", "what": "label", "key": "a", "from": "x", "to": "b"},
            {"action": "remove", "what": "label", "key": "c", "from": "d"},
            {"action": "add", "what": "taint", "key": "t:NoSchedule", "to": ""},
            {"action": "remove", "what": "taint", "key": "u:NoExecute", "from": "v"},
            {"action": "add", "what": "governing", "to": "p"},
            {"action": "add", "what": "configuration", "to": "1"},
            {"action": "add", "what": "image", "to": "default"},
        ]));
        let mut preview = json!([{
            "node": "n", "setLabels": {"a": "b"}, "removeLabels": ["c"], "configHash": "1",
            "setTaints": [{"key": "t", "effect": "NoSchedule"}],
            "removeTaints": [{"key": "u", "value": "v", "effect": "NoExecute"}],
        }]);
        ensure_previewed(&plan, &preview).expect("equal");
        preview[0]["setLabels"]["a"] = "c".into();
        ensure_previewed(&plan, &preview).expect_err("another value");
    }
}
