//! Rules and dashboards of `manifests/monitoring`, and the metrics that their queries name.

use crate::repository;
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// An alerting rule.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name.
    pub alert: String,
    /// Its query.
    pub expr: String,
    /// Time for which the expression has to hold.
    #[serde(default, rename = "for")]
    pub hold: Option<String>,
    /// Labels beside those of the query.
    pub labels: BTreeMap<String, String>,
    /// Texts for people.
    pub annotations: BTreeMap<String, String>,
}

/// A dashboard of Grafana.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// Name of its file without `.json`.
    pub name: String,
    /// All of it.
    pub json: Value,
}

/// A panel of a dashboard that has queries.
#[derive(Clone, Debug)]
pub struct Panel<'a> {
    /// Its title.
    pub title: &'a str,
    /// All of it.
    pub json: &'a Value,
    /// Its queries, with variables such as `$node`.
    pub queries: Vec<&'a str>,
}

fn folder() -> PathBuf {
    repository().join("manifests/monitoring")
}

fn rule_object() -> Result<Value> {
    let path = folder().join("prometheus-rule.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    serde_yaml::from_str(&text).with_context(|| format!("read {}", path.display()))
}

/// The rules as Prometheus reads them: the `spec` of the object.
pub fn rules_file() -> Result<String> {
    serde_yaml::to_string(&rule_object()?["spec"]).context("write the rules")
}

/// All rules in their order.
pub fn rules() -> Result<Vec<Rule>> {
    let object = rule_object()?;
    let groups = object["spec"]["groups"].as_array().context("no groups")?;
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().into_iter().flatten());
    rules
        .map(|rule| serde_json::from_value(rule.clone()).with_context(|| format!("read the rule {rule}")))
        .collect()
}

/// All dashboards.
pub fn dashboards() -> Result<Vec<Dashboard>> {
    let mut all = Vec::new();
    for file in std::fs::read_dir(folder().join("dashboards")).context("list the dashboards")? {
        let path = file?.path();
        let text = std::fs::read_to_string(&path)?;
        let json = serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        all.push(Dashboard { name, json });
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

impl Dashboard {
    /// All panels, also those in rows that are closed.
    pub fn panels(&self) -> Vec<Panel<'_>> {
        let outer = self.json["panels"].as_array().into_iter().flatten();
        let all =
            outer.flat_map(|panel| std::iter::once(panel).chain(panel["panels"].as_array().into_iter().flatten()));
        let all = all.filter(|panel| panel["type"] != "row");
        all.map(|panel| Panel {
            title: panel["title"].as_str().unwrap_or_default(),
            json: panel,
            queries: panel["targets"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|target| target["expr"].as_str())
                .collect(),
        })
        .collect()
    }

    /// Queries of its variables: those of `label_values(QUERY, LABEL)`.
    pub fn variable_queries(&self) -> Vec<&str> {
        let list = self.json["templating"]["list"].as_array().into_iter().flatten();
        let queries = list.filter(|variable| variable["type"] == "query");
        queries
            .filter_map(|variable| variable["query"]["query"].as_str())
            .filter_map(|query| {
                query
                    .strip_prefix("label_values(")?
                    .rsplit_once(',')
                    .map(|(query, _)| query)
            })
            .collect()
    }
}

/// Names of the metrics in a query. Reads what rules and dashboards use: no subqueries by name, no `__name__`.
pub fn metric_names(query: &str) -> BTreeSet<String> {
    const WORDS: [&str; 9] = ["and", "or", "unless", "bool", "offset", "inf", "Inf", "NaN", "nan"];
    const WITH_LABELS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
    let mut names = BTreeSet::new();
    let mut rest = query;
    while let Some(first) = rest.chars().next() {
        let is_word = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | ':');
        let skipped = match first {
            '"' | '\'' => rest[1..].find(first).map_or(rest.len(), |at| at + 2),
            // A variable of Grafana.
            '$' => {
                1 + rest[1..]
                    .find(|character| !is_word(character))
                    .unwrap_or(rest.len() - 1)
            }
            '{' => closing(rest, '}'),
            '[' => closing(rest, ']'),
            '#' => rest.find('\n').unwrap_or(rest.len()),
            _ if is_word(first) => {
                let end = rest.find(|character| !is_word(character)).unwrap_or(rest.len());
                let (word, after) = (&rest[..end], rest[end..].trim_start());
                if WITH_LABELS.contains(&word) && after.starts_with('(') {
                    rest.len() - after.len() + closing(after, ')')
                } else {
                    let is_number = first.is_ascii_digit();
                    let is_function = after.starts_with('(')
                        || WITH_LABELS
                            .iter()
                            .any(|with| after.starts_with(with) && after[with.len()..].trim_start().starts_with('('));
                    if !is_number && !is_function && !WORDS.contains(&word) {
                        names.insert(word.to_owned());
                    }
                    end
                }
            }
            _ => first.len_utf8(),
        };
        rest = &rest[skipped..];
    }
    names
}

/// Length of the text up to a character outside of strings, with it.
fn closing(text: &str, wanted: char) -> usize {
    let mut quoted = false;
    for (at, character) in text.char_indices() {
        match character {
            '"' => quoted = !quoted,
            _ if character == wanted && !quoted => return at + character.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_beside_functions_labels_strings_and_durations() {
        let query = r#"histogram_quantile(0.99, sum by (le, kind) (rate(a_bucket{x=~"b}|c"}[5m]))) > 2
            or (topk(3, sum(d) without (e)) unless on (f) g offset $h) / ignoring(h) group_left(i) count by (j) (k == bool 1)"#;
        let expected = ["a_bucket", "d", "g", "k"].map(str::to_owned);
        assert_eq!(metric_names(query), BTreeSet::from(expected));
    }
}
