//! Rules, runbooks and dashboards fit together, and name what gpunode's programs expose.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use gpunode_monitoring_tests::{Recording, dashboards, metric_names, repository, rules};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

fn read(file: &str) -> String {
    std::fs::read_to_string(repository().join(file)).unwrap()
}

/// Names of all samples of the recordings.
fn recorded() -> BTreeSet<String> {
    let recordings = Recording::all().unwrap();
    let pods = recordings.iter().flat_map(|recording| recording.pods.values());
    let series = pods.flat_map(|pod| pod.series.keys());
    series
        .map(|series| series.split('{').next().unwrap().to_owned())
        .collect()
}

/// Sections of the runbooks by their heading.
fn runbooks() -> BTreeMap<String, String> {
    let text = read("docs/runbooks.md");
    let sections = text
        .split("\n## ")
        .skip(1)
        .map(|section| section.split_once('\n').unwrap());
    sections
        .map(|(heading, text)| (heading.to_owned(), text.to_owned()))
        .collect()
}

#[test]
fn rules_and_dashboards_name_metrics_that_were_scraped() {
    let recorded = recorded();
    let mut unknown = Vec::new();
    for rule in rules().unwrap() {
        let names = metric_names(&rule.expr);
        assert!(!names.is_empty(), "{} names no metric", rule.alert);
        unknown.extend(
            names
                .difference(&recorded)
                .map(|name| format!("{}: {name}", rule.alert)),
        );
    }
    for dashboard in dashboards().unwrap() {
        let of_panels = dashboard.panels();
        let queries = of_panels.iter().flat_map(|panel| panel.queries.iter().copied());
        for query in queries.chain(dashboard.variable_queries()) {
            let names = metric_names(query);
            assert!(!names.is_empty(), "{}: {query} names no metric", dashboard.name);
            unknown.extend(
                names
                    .difference(&recorded)
                    .map(|name| format!("{}: {name}", dashboard.name)),
            );
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
}

#[test]
fn each_recorded_metric_is_documented() {
    let document = read("docs/reference/metrics.md");
    let recordings = Recording::all().unwrap();
    let families = recordings.iter().flat_map(|recording| &recording.families);
    let names = families.map(|(name, family)| family.text_name(name));
    let missing: Vec<String> = names
        .filter(|name| !document.contains(&format!("\n| `{name}` |")))
        .collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn each_alert_has_a_runbook_that_its_annotation_leads_to() {
    let runbooks = runbooks();
    let table = read("docs/runbooks.md");
    let rules = rules().unwrap();
    for rule in &rules {
        let expected = ["summary", "description", "runbook_url"].map(str::to_owned);
        let names: BTreeSet<&String> = rule.annotations.keys().collect();
        assert_eq!(names, expected.iter().collect(), "{}", rule.alert);
        let anchor = rule.alert.to_lowercase();
        assert_eq!(rule.annotations["runbook_url"], format!("docs/runbooks.md#{anchor}"));
        let text = runbooks.get(&rule.alert).map(String::as_str).unwrap_or_default();
        for part in [
            "**Meaning.**",
            "**Users see**",
            "**Find the cause.**",
            "```\n",
            "**Do** ",
            "**Ignore it** ",
        ] {
            assert!(
                text.contains(part),
                "the runbook of {} does not say {part:?}",
                rule.alert
            );
        }
        let row = format!("| [{}](#{anchor}) | {} | ", rule.alert, rule.labels["severity"]);
        assert!(table.contains(&row), "no row {row}");
    }
    let alerts: BTreeSet<&String> = rules.iter().map(|rule| &rule.alert).collect();
    assert_eq!(alerts, runbooks.keys().collect());
}

#[test]
fn alerts_that_documents_name_exist() {
    let alerts: BTreeSet<String> = rules().unwrap().into_iter().map(|rule| rule.alert).collect();
    let events = ["GpuHealthy", "GpuUnhealthy", "GpuDegraded"];
    for file in ["docs/metrics.md", "docs/monitoring.md", "docs/scale.md"] {
        let text = read(file);
        let names = text.split('`').skip(1).step_by(2).filter(|code| {
            let is_name = code.chars().all(|character| character.is_ascii_alphanumeric());
            is_name && (code.starts_with("Gpu") || code.starts_with("Gpunode")) && code.len() > "GpuNode".len()
        });
        for name in names.filter(|name| !events.contains(name) && !name.starts_with("GpuNode")) {
            assert!(alerts.contains(name), "{file} names {name}");
        }
    }
}

#[test]
fn dashboards_are_what_grafana_imports() {
    let all = dashboards().unwrap();
    let uids: BTreeSet<String> = all
        .iter()
        .map(|dashboard| format!("gpunode-{}", dashboard.name))
        .collect();
    for dashboard in &all {
        let (name, json) = (&dashboard.name, &dashboard.json);
        assert_eq!(
            json["uid"],
            format!("gpunode-{name}"),
            "it stays: links and bookmarks have it"
        );
        assert!(json["schemaVersion"].as_u64() >= Some(39), "{name}");
        assert!(
            json["id"].is_null() && json["__inputs"].is_null(),
            "{name} comes from an export"
        );
        let variables: Vec<&str> = json["templating"]["list"]
            .as_array()
            .unwrap()
            .iter()
            .map(|variable| variable["name"].as_str().unwrap())
            .collect();
        assert_eq!(variables[0], "datasource", "{name}");
        let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
        for panel in json["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            assert!(
                ids.insert(panel["id"].as_u64().unwrap()),
                "{name}: the id of {title} twice"
            );
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
            assert!(w > 0 && h > 0 && x + w <= 24, "{name}: {title} is outside of the grid");
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(cells.insert(cell), "{name}: {title} lies on another panel");
            }
        }
        for panel in dashboard.panels() {
            let title = panel.title;
            let source = serde_json::json!({"type": "prometheus", "uid": "${datasource}"});
            assert_eq!(panel.json["datasource"], source, "{name}: {title}");
            assert!(!panel.queries.is_empty(), "{name}: {title} has no query");
            let described = panel.json["description"]
                .as_str()
                .is_some_and(|text| text.ends_with('.'));
            assert!(described, "{name}: {title} has no description");
            for target in panel.json["targets"].as_array().unwrap() {
                assert_eq!(target["datasource"], source, "{name}: {title}");
            }
            for query in panel.queries {
                let used = query.split('$').skip(1).map(|rest| {
                    let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
                    rest.split(|character| !is_name(character)).next().unwrap()
                });
                for variable in used {
                    let known = variables.contains(&variable) || ["__rate_interval", "__interval"].contains(&variable);
                    assert!(known, "{name}: {title} uses ${variable}");
                }
            }
        }
        for link in json.to_string().split("\"/d/").skip(1) {
            let uid = link.split(['?', '"']).next().unwrap();
            assert!(uids.contains(uid), "{name} leads to {uid}");
        }
    }
}

/// The objects that kustomize makes of a folder.
fn kustomized(folder: &std::path::Path) -> Vec<Value> {
    let output = Command::new(repository().join("target/cluster/bin/kubectl"))
        .args(["kustomize", "--load-restrictor=LoadRestrictionsNone"])
        .arg(folder)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    serde_yaml::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap()
}

#[test]
#[ignore = "needs kubectl: make test"]
fn component_has_monitor_rules_and_the_dashboards_for_grafanas_sidecar() {
    let objects = kustomized(&repository().join("manifests/monitoring"));
    for object in &objects {
        assert_eq!(
            object["metadata"]["labels"]["app.kubernetes.io/part-of"], "gpunode",
            "{object}"
        );
        assert_eq!(object["metadata"]["namespace"], "gpunode-system", "{object}");
    }
    let kinds: BTreeSet<&str> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, BTreeSet::from(["ConfigMap", "PodMonitor", "PrometheusRule"]));
    let map = of_kind(&objects, "ConfigMap");
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    // `kubectl apply` keeps a copy of the object in an annotation, and annotations have 256 KiB.
    assert!(map.to_string().len() < 200 * 1024, "{} bytes", map.to_string().len());
    let content: BTreeMap<&String, Value> = map["data"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(file, text)| (file, serde_json::from_str(text.as_str().unwrap()).unwrap()))
        .collect();
    let files = dashboards().unwrap();
    let expected: Vec<(String, &Value)> = files
        .iter()
        .map(|dashboard| (format!("gpunode-{}.json", dashboard.name), &dashboard.json))
        .collect();
    assert_eq!(
        content,
        expected.iter().map(|(file, json)| (file, (*json).clone())).collect()
    );
}

#[test]
#[ignore = "needs kubectl: make test"]
fn kustomization_of_the_document_puts_an_address_before_the_runbooks_and_labels_on_the_objects() {
    let document = read("docs/monitoring.md");
    let example = document
        .split("```yaml\n")
        .find(|block| block.starts_with("# kustomization.yaml"))
        .and_then(|block| block.split("```").next())
        .unwrap();
    let component = "- ../gpunode/manifests/monitoring";
    assert!(example.contains(component), "{example}");
    let folder = repository().join("target/monitoring/kustomize");
    std::fs::create_dir_all(&folder).unwrap();
    // Not the installation, whose resources the example has too: it is tested with the component above.
    let example = example
        .replace(component, "- ../../../manifests/monitoring")
        .replace("- ../gpunode/manifests/default\n", "");
    std::fs::write(
        folder.join("kustomization.yaml"),
        example.replace("resources:\n", "resources: []\n"),
    )
    .unwrap();
    let objects = kustomized(&folder);
    let mut urls = Vec::new();
    for group in of_kind(&objects, "PrometheusRule")["spec"]["groups"]
        .as_array()
        .unwrap()
    {
        for rule in group["rules"].as_array().unwrap() {
            urls.push(rule["annotations"]["runbook_url"].as_str().unwrap());
        }
    }
    let expected: Vec<String> = rules()
        .unwrap()
        .iter()
        .map(|rule| {
            format!(
                "https://git.example.com/gpunode/docs/runbooks.md#{}",
                rule.alert.to_lowercase()
            )
        })
        .collect();
    assert_eq!(urls, expected);
    for kind in ["PodMonitor", "PrometheusRule"] {
        assert_eq!(
            of_kind(&objects, kind)["metadata"]["labels"]["release"],
            "kube-prometheus-stack"
        );
    }
}
