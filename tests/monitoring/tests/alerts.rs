//! Alerts fire when they should and are silent otherwise, by promtool, with series that were recorded on the local cluster.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use anyhow::{Context, Result, ensure};
use gpunode_monitoring_tests::{Recording, Series, Value, promtool, repository, rules, rules_file};
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Seconds between two scrapes, in recordings and in the series of cases.
const INTERVAL: u32 = 15;

/// A moment, and what fires then.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    scenes: Vec<String>,
    #[serde(default)]
    series: Vec<serde_json::Value>,
    at: String,
    fires: Vec<BTreeMap<String, String>>,
}

fn cases() -> BTreeMap<String, Vec<Case>> {
    let path = repository().join("tests/monitoring/cases.yaml");
    serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Seconds of a duration such as `15m`.
fn seconds(duration: &str) -> Result<u32> {
    let (number, unit) = duration.split_at(duration.len() - 1);
    let factor = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => anyhow::bail!("no duration: {duration}"),
    };
    Ok(factor * number.parse::<u32>().with_context(|| duration.to_owned())?)
}

/// Series of the scenes; what the last scrape had stays until the end.
fn played(recordings: &[Recording], scenes: &[String], end: u32) -> Result<Vec<serde_json::Value>> {
    let Some(first) = scenes.first() else {
        return Ok(Vec::new());
    };
    let recording = recordings.iter().find(|recording| recording.scenes.contains_key(first));
    let recording = recording.with_context(|| format!("no recording of {first}"))?;
    ensure!(
        recording.interval == INTERVAL,
        "{} s between scrapes",
        recording.interval
    );
    let last = usize::try_from(end / INTERVAL + 2)?;
    let held = |mut series: Series| {
        let after = match series.values.last() {
            Some(Value::Number(number)) => Value::Number(*number),
            _ => Value::Absent,
        };
        series.values.resize(last.max(series.values.len()), after);
        json!({"series": series.name, "values": series.notation()})
    };
    Ok(recording.scenes(scenes)?.into_iter().map(held).collect())
}

/// One test of promtool.
fn test(recordings: &[Recording], title: &str, case: &Case, expr: &str, fires: &[String]) -> Result<serde_json::Value> {
    let mut series = played(recordings, &case.scenes, seconds(&case.at)?)?;
    series.extend(case.series.iter().cloned());
    ensure!(!series.is_empty(), "{title} has no series");
    let samples: Vec<_> = fires
        .iter()
        .map(|labels| json!({"labels": labels, "value": 1}))
        .collect();
    Ok(json!({
        "name": title,
        "interval": format!("{INTERVAL}s"),
        "input_series": series,
        "promql_expr_test": [{"expr": expr, "eval_time": case.at, "exp_samples": samples}],
    }))
}

fn run(file: &str, tests: &[serde_json::Value]) -> Result<()> {
    let folder = repository().join("target/monitoring");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(format!("{file}.rules.yaml")), rules_file()?)?;
    let all = json!({"rule_files": [format!("{file}.rules.yaml")], "evaluation_interval": "15s", "tests": tests});
    std::fs::write(folder.join(format!("{file}.tests.yaml")), serde_yaml::to_string(&all)?)?;
    promtool(&["test", "rules", &format!("{file}.tests.yaml")], "")?;
    Ok(())
}

#[test]
fn each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent() {
    let cases = cases();
    let complete = cases.iter().filter(|(_, cases)| {
        cases.iter().any(|case| case.fires.is_empty()) && cases.iter().any(|case| !case.fires.is_empty())
    });
    let complete: BTreeSet<String> = complete.map(|(alert, _)| alert.clone()).collect();
    let alerts: Vec<String> = rules().unwrap().into_iter().map(|rule| rule.alert).collect();
    let unique: BTreeSet<String> = alerts.iter().cloned().collect();
    assert_eq!(unique.len(), alerts.len(), "an alert twice in {alerts:?}");
    assert_eq!(complete, unique);
}

#[test]
fn annotations_use_labels_that_the_alert_has() {
    let cases = cases();
    for rule in rules().unwrap() {
        let fires = cases[&rule.alert].iter().find_map(|case| case.fires.first()).unwrap();
        for (name, text) in &rule.annotations {
            for used in text.split("$labels.").skip(1) {
                let label = used
                    .split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
                    .next();
                assert!(
                    label.is_some_and(|label| fires.contains_key(label)),
                    "{name} of {} uses {label:?}, and its labels are {fires:?}",
                    rule.alert
                );
            }
        }
    }
}

#[test]
#[ignore = "needs Go: make test"]
fn rules_are_what_prometheus_reads() -> Result<()> {
    let folder = repository().join("target/monitoring");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("check.rules.yaml"), rules_file()?)?;
    promtool(
        &["check", "rules", "--lint=all", "--lint-fatal", "check.rules.yaml"],
        "",
    )?;
    Ok(())
}

#[test]
#[ignore = "needs Go: make test"]
fn alerts_fire_in_their_cases_with_their_labels_and_not_in_the_others() -> Result<()> {
    let recordings = Recording::all()?;
    let mut tests = Vec::new();
    for (alert, cases) in cases() {
        for case in &cases {
            let fires: Vec<String> = case
                .fires
                .iter()
                .map(|labels| {
                    let labels = labels.iter().map(|(name, value)| format!(",{name}=\"{value}\""));
                    format!(
                        "ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"{}}}",
                        labels.collect::<String>()
                    )
                })
                .collect();
            let expr = format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}");
            tests.push(test(
                &recordings,
                &format!("{alert}: {}", case.name),
                case,
                &expr,
                &fires,
            )?);
        }
    }
    run("alerts", &tests)
}

#[test]
#[ignore = "needs Go: make test"]
fn nothing_fires_on_a_cluster_that_works() -> Result<()> {
    let recordings = Recording::all()?;
    let case = |scenes: &[&str], at: &str| Case {
        name: String::new(),
        scenes: scenes.iter().map(|scene| (*scene).to_owned()).collect(),
        series: Vec::new(),
        at: at.to_owned(),
        fires: Vec::new(),
    };
    let quiet = [
        case(&["discovery"], "2h"),
        case(&["healthy"], "2h"),
        case(&["standby-leads"], "2h"),
    ];
    let expr = "ALERTS{alertstate=\"firing\"}";
    let tests: Result<Vec<_>> = quiet
        .iter()
        .map(|case| test(&recordings, &case.scenes.join(" "), case, expr, &[]))
        .collect();
    run("quiet", &tests?)
}

#[test]
#[ignore = "needs Go: make test"]
fn names_and_help_of_the_recorded_metrics_follow_prometheus_conventions() -> Result<()> {
    for recording in Recording::all()? {
        let text = recording.text()?;
        ensure!(text.lines().count() > 100, "{text}");
        let found = promtool(&["check", "metrics"], &text)?;
        ensure!(found.trim().is_empty(), "{found}");
    }
    Ok(())
}
