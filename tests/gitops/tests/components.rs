//! The kustomize components, as their files have them and as kustomize builds them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use gpunode_gitops_tests::repository;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeSet, process::Command};

const API_PRIORITY: &str = "manifests/components/api-priority";
/// Levels of Kubernetes itself (`pkg/apis/flowcontrol/bootstrap/default.go` of its API server), with their shares.
const BUILT_IN: [(&str, u64); 7] = [
    ("catch-all", 5),
    ("system", 30),
    ("node-high", 40),
    ("leader-election", 10),
    ("workload-high", 40),
    ("workload-low", 100),
    ("global-default", 20),
];
/// `matchingPrecedence` of Kubernetes' schema for all service accounts.
const SERVICE_ACCOUNTS: u64 = 9000;

fn read(file: &str) -> String {
    std::fs::read_to_string(repository().join(file)).unwrap()
}

fn documents(text: &str) -> Vec<Value> {
    serde_yaml::Deserializer::from_str(text)
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

/// Objects of one kind in the files of the component.
fn of_kind(kind: &str) -> Vec<Value> {
    let kustomization = documents(&read(&format!("{API_PRIORITY}/kustomization.yaml")));
    let files = kustomization[0]["resources"].as_array().unwrap();
    let all = files
        .iter()
        .flat_map(|file| documents(&read(&format!("{API_PRIORITY}/{}", file.as_str().unwrap()))));
    all.filter(|object| object["kind"] == kind).collect()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn shares(level: &Value) -> u64 {
    level["spec"]["limited"]["nominalConcurrencyShares"].as_u64().unwrap()
}

#[test]
fn requests_of_gpunodes_accounts_go_to_levels_that_exist_and_before_those_of_other_accounts() {
    let levels = of_kind("PriorityLevelConfiguration");
    let mut known: BTreeSet<&str> = BUILT_IN.iter().map(|(level, _)| *level).collect();
    known.extend(levels.iter().map(name));
    let accounts: BTreeSet<String> = ["operator-rbac.yaml", "agent-rbac.yaml"]
        .iter()
        .flat_map(|file| documents(&read(&format!("manifests/default/{file}"))))
        .filter(|object| object["kind"] == "ServiceAccount")
        .map(|account| format!("{}/{}", account["metadata"]["namespace"], account["metadata"]["name"]))
        .collect();
    let schemas = of_kind("FlowSchema");
    let (mut served, mut used, mut precedences) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for schema in &schemas {
        let spec = &schema["spec"];
        let level = spec["priorityLevelConfiguration"]["name"].as_str().unwrap();
        assert!(known.contains(level), "{}: no level {level}", name(schema));
        used.insert(level);
        let precedence = spec["matchingPrecedence"].as_u64().unwrap();
        assert!(precedence < SERVICE_ACCOUNTS, "{}", name(schema));
        assert!(precedences.insert(precedence), "{}: {precedence} twice", name(schema));
        let subjects = spec["rules"].as_array().unwrap().iter();
        for subject in subjects.flat_map(|rule| rule["subjects"].as_array().unwrap()) {
            let account = &subject["serviceAccount"];
            served.insert(format!("{}/{}", account["namespace"], account["name"]));
        }
    }
    assert_eq!(served, accounts);
    for level in &levels {
        assert!(used.contains(name(level)), "no schema leads to level {}", name(level));
    }
}

#[test]
fn each_request_for_the_lease_goes_where_those_of_the_control_plane_go() {
    let schemas = of_kind("FlowSchema");
    let of_lease = schemas.iter().find(|schema| name(schema) == "gpunode-lease").unwrap();
    let rules = of_lease["spec"]["rules"].as_array().unwrap().iter();
    let (mut named, mut everywhere) = (BTreeSet::new(), BTreeSet::new());
    for rule in rules.flat_map(|rule| rule["resourceRules"].as_array().unwrap()) {
        assert_eq!(rule["resources"], json!(["leases"]), "{rule}");
        // A list of all namespaces names none.
        let verbs = if rule["clusterScope"] == true {
            &mut everywhere
        } else {
            &mut named
        };
        let of_rule = rule["verbs"].as_array().unwrap().iter();
        verbs.extend(of_rule.map(|verb| verb.as_str().unwrap().to_owned()));
    }
    let granted = |kind: &str| -> BTreeSet<String> {
        let objects = documents(&read("manifests/default/operator-rbac.yaml"));
        let of_kind = objects.into_iter().filter(|role| role["kind"] == kind);
        let rules = of_kind.flat_map(|role| role["rules"].as_array().unwrap().clone());
        let of_leases = rules.filter(|rule| rule["resources"] == json!(["leases"]));
        let verbs = of_leases.flat_map(|rule| rule["verbs"].as_array().unwrap().clone());
        verbs.map(|verb| verb.as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((named, everywhere), (granted("Role"), granted("ClusterRole")));
}

#[test]
fn operator_has_more_requests_than_all_agents_and_both_have_few_of_the_servers() {
    let levels = of_kind("PriorityLevelConfiguration");
    let of = |wanted: &str| shares(levels.iter().find(|level| name(level) == wanted).unwrap());
    let (operator, agents) = (of("gpunode-operator"), of("gpunode-agents"));
    assert!(agents < operator);
    let total = BUILT_IN.iter().map(|(_, shares)| shares).sum::<u64>() + operator + agents;
    // Of the 600 requests that an API server handles at a time by default; its comment has the same numbers.
    let seats = |shares: u64| (600 * shares).div_ceil(total);
    assert_eq!((total, seats(operator), seats(agents)), (260, 24, 12));
}

#[test]
#[ignore = "needs kubectl: make test"]
fn component_is_built_with_gpunodes_label_on_each_object() {
    let output = Command::new(repository().join("target/cluster/bin/kubectl"))
        .arg("kustomize")
        .arg(repository().join(API_PRIORITY))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    let objects = documents(&String::from_utf8(output.stdout).unwrap());
    let names: BTreeSet<String> = objects
        .iter()
        .map(|object| {
            let label = &object["metadata"]["labels"]["app.kubernetes.io/part-of"];
            assert_eq!(label, "gpunode", "{object}");
            format!("{}/{}", object["kind"].as_str().unwrap(), name(object))
        })
        .collect();
    let expected = [
        "FlowSchema/gpunode-agents",
        "FlowSchema/gpunode-lease",
        "FlowSchema/gpunode-operator",
        "PriorityLevelConfiguration/gpunode-agents",
        "PriorityLevelConfiguration/gpunode-operator",
    ];
    assert_eq!(names, BTreeSet::from(expected.map(str::to_owned)));
}
