//! A real API server on the table of policies: `validate` promises its verdicts.
#![allow(clippy::expect_used, clippy::panic, reason = "a test")]

mod table;

use gpunode_fuzz::{Mutation, fuzz};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use kubectl_gpunode::validate::{KnownKinds, SourceText, ValidationResult};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
};

const VERSION: &str = "gpunode.dev/v1alpha1";
/// Words of `validate` about YAML that the API server reads.
const STRICTER_YAML: [&str; 4] = [
    "is not valid YAML: ",
    "a byte order mark may only begin the file",
    "a key must be a string or a number",
    "is not a JSON number",
];
/// Most rounds of damaged policies until one was refused and one accepted.
const MAX_ROUNDS: usize = 10;

#[test]
#[ignore = "needs a cluster with gpunode's CRDs, named by GPUNODE_TEST_KUBECONFIG: make test"]
fn a_real_api_server_gives_every_policy_of_the_table_the_same_verdict() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let client = runtime.block_on(connect());
    table::compare("the API server", &table::cases(), |case| {
        let version = case.yaml.lines().find_map(|line| line.strip_prefix("apiVersion: "));
        runtime.block_on(ask(&client, version.expect("an apiVersion"), &case.yaml))
    });
}

#[test]
#[ignore = "needs a cluster with gpunode's CRDs, named by GPUNODE_TEST_KUBECONFIG: make test"]
fn a_real_api_server_accepts_a_damaged_policy_where_validate_does() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let client = runtime.block_on(connect());
    let kinds = KnownKinds::new().expect("schemas");
    let good: Vec<String> = table::cases()
        .into_iter()
        .filter(|case| case.fields.is_empty())
        .map(|case| case.yaml)
        .collect();
    let good: Vec<&str> = good.iter().map(String::as_str).collect();
    let judged = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let property = |mutation: Mutation| {
        let yaml = mutation.text(&good);
        let file = SourceText {
            name: "policy.yaml".to_owned(),
            contents: yaml.clone(),
        };
        let reports = kinds.validate(&file);
        // A request has one object, and its kind is in the path.
        let [report] = reports.as_slice() else { return };
        let is_policy = report.kind.as_deref() == Some("GpuNodePolicy") && report.object["apiVersion"] == VERSION;
        if !is_policy || yaml.contains("\n---") {
            return;
        }
        let (fields, words) = runtime.block_on(ask(&client, VERSION, &yaml));
        let is_valid = report.result == ValidationResult::Valid;
        let is_accepted = fields.is_empty();
        // gpunode refuses combinations that a schema cannot express, and YAML that not every parser reads.
        let by_gpunode = is_accepted
            && !is_valid
            && report.problems.iter().all(|problem| {
                problem.path.starts_with("spec.devicePlugin")
                    || STRICTER_YAML.iter().any(|words| problem.message.contains(words))
            });
        assert!(
            is_valid == is_accepted || by_gpunode,
            "{report:#?}\nbut the API server: {words}\n{yaml}"
        );
        judged[usize::from(is_valid)].fetch_add(1, Ordering::Relaxed);
    };
    // A seed repeats one input.
    if std::env::var_os("ARBTEST_SEED").is_some() {
        fuzz(property);
        return;
    }
    // On a busy machine few inputs fit into the time, and those of one verdict alone prove little.
    for _ in 0..MAX_ROUNDS {
        fuzz(property);
        if judged.iter().all(|count| count.load(Ordering::Relaxed) > 0) {
            return;
        }
    }
    panic!("refused and accepted in {MAX_ROUNDS} rounds: {judged:?}");
}

async fn connect() -> Client {
    let path = std::env::var("GPUNODE_TEST_KUBECONFIG").expect("GPUNODE_TEST_KUBECONFIG names a kubeconfig");
    let file = Kubeconfig::read_from(path).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .expect("a usable kubeconfig");
    Client::try_from(config).expect("a client")
}

/// The fields that the API server refuses, and its words.
async fn ask(client: &Client, version: &str, yaml: &str) -> (BTreeSet<String>, String) {
    // YAML goes over as it is, so that the server also judges what its own reader makes of it.
    let request = http::Request::post(format!(
        "/apis/{version}/gpunodepolicies?dryRun=All&fieldValidation=Strict"
    ))
    .header("Content-Type", "application/yaml")
    .header("Accept", "application/json")
    .body(yaml.as_bytes().to_vec())
    .expect("a request");
    match client.request::<serde_json::Value>(request).await {
        Ok(_) => (BTreeSet::new(), String::new()),
        Err(kube::Error::Api(status)) if status.code == 404 => (["apiVersion".to_owned()].into(), status.message),
        Err(kube::Error::Api(status)) => {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            let causes: BTreeSet<String> = causes
                // These have no field: that rules were left out, and in other words what another cause says.
                .filter(|cause| !cause.message.contains("some validation rules were not checked"))
                .filter(|cause| !cause.message.contains("Checked value must be of type"))
                .map(|cause| {
                    if cause.field == "<nil>" {
                        String::new()
                    } else {
                        cause.field.clone()
                    }
                })
                .collect();
            let fields = if causes.is_empty() {
                in_words(&status.message)
            } else {
                causes
            };
            (fields, status.message.clone())
        }
        Err(error) => panic!("the API server does not answer: {error}"),
    }
}

/// Returns the fields that a decoding error names: it has no causes, so they are read from its message.
fn in_words(message: &str) -> BTreeSet<String> {
    let quoted = |after: &str| {
        message
            .split(after)
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let mut fields: BTreeSet<String> = quoted("unknown field \"").into_iter().collect();
    // The YAML reader knows the key alone; the table has one such key, in spec.
    fields.extend(quoted("key \"").into_iter().map(|key| format!("spec.{key}")));
    let metadata = message
        .split("ObjectMeta.")
        .skip(1)
        .filter_map(|rest| rest.split(' ').next());
    fields.extend(metadata.map(|field| format!("metadata.{field}")));
    if fields.is_empty() {
        fields.insert(format!("? {message}"));
    }
    fields
}
