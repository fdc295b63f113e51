//! Every phase of a policy's life, and what GitOps tools make of it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use gpunode_crds::{GpuNode, GpuNodePolicy, Reason};
use gpunode_gitops_tests::{ApplyStep, MergeLibrary, judge, merge};
use gpunode_plan::{AgentUpdate, PolicyNodeStatus, PolicyOutcome, PolicySet, PolicyTally, RolloutStage, policy_status};
use jiff::Timestamp;
use serde_json::{Value, json};

const SPEC: &str = "{nodeSelector: {}, labels: {a: b}, devicePlugin: {}}";

/// A policy as the API server holds it before the operator has seen it.
fn fresh(spec: &str) -> GpuNodePolicy {
    let mut policy = GpuNodePolicy::new("p", serde_yaml::from_str(spec).unwrap());
    policy.metadata.uid = Some("u".to_owned());
    policy.metadata.generation = Some(1);
    policy.status = Some(serde_json::from_value(schema_default("gpunodepolicies.yaml")).unwrap());
    policy
}

/// Returns the status that the schema of the generated CRD gives to a policy without one.
fn schema_default(file: &str) -> Value {
    let path = gpunode_gitops_tests::repository().join("manifests/crds").join(file);
    let crd: Value = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["default"].clone()
}

/// The policy with the status that the planner gives it where its nodes have these outcomes.
fn reported(spec: &str, outcomes: &[PolicyOutcome]) -> GpuNodePolicy {
    standing(spec, outcomes.iter().map(|outcome| outcome.clone().into()))
}

/// The policy where the second of three nodes stopped its rollout.
fn stopped() -> GpuNodePolicy {
    let nodes = [
        (PolicyOutcome::Ready, RolloutStage::Done),
        (
            PolicyOutcome::failed(Reason::MemoryBelowUnit, "m"),
            RolloutStage::Stopped("m".to_owned()),
        ),
        (PolicyOutcome::Updating, RolloutStage::Pending),
    ];
    standing(
        SPEC,
        nodes.map(|(outcome, stage)| PolicyNodeStatus {
            stage: Some(stage),
            ..outcome.into()
        }),
    )
}

fn standing(spec: &str, standings: impl IntoIterator<Item = PolicyNodeStatus>) -> GpuNodePolicy {
    let mut policy = fresh(spec);
    let mut tally = PolicyTally::default();
    for (index, standing) in standings.into_iter().enumerate() {
        tally.add(&format!("node-{index}"), &standing);
    }
    let set = PolicySet::new(&[policy.clone()]);
    policy.status = Some(policy_status(
        set.get("p").unwrap(),
        &tally,
        &AgentUpdate::default(),
        policy.status.as_ref(),
        Timestamp::UNIX_EPOCH,
    ));
    policy
}

/// A policy that was in force when its metadata changed: `generation` or `deletionTimestamp`.
fn then(field: &str, value: Value) -> GpuNodePolicy {
    let mut policy = json!(reported(SPEC, &[PolicyOutcome::Ready]));
    policy["metadata"][field] = value;
    serde_json::from_value(policy).unwrap()
}

#[test]
#[ignore = "needs Go: make test"]
fn every_phase_of_a_policy_reads_as_meant() {
    let broken = || PolicyOutcome::failed(Reason::NodeNotReady, "m");
    let refused = "{nodeSelector: {}, devicePlugin: {resources: [{name: nodomain}]}}";
    let phases = vec![
        ("new", fresh(SPEC), "InProgress", "Progressing"),
        ("no node matches", reported(SPEC, &[]), "Current", "Healthy"),
        (
            "updating",
            reported(SPEC, &[PolicyOutcome::Ready, PolicyOutcome::Updating]),
            "InProgress",
            "Progressing",
        ),
        (
            "in force",
            reported(SPEC, &[PolicyOutcome::Ready]),
            "Current",
            "Healthy",
        ),
        ("changed", then("generation", json!(2)), "InProgress", "Progressing"),
        (
            "a node is broken",
            reported(SPEC, &[PolicyOutcome::Ready, broken()]),
            "Current",
            "Healthy",
        ),
        (
            "a node is broken, one updating",
            reported(SPEC, &[PolicyOutcome::Updating, broken()]),
            "InProgress",
            "Progressing",
        ),
        (
            "a node refused its configuration",
            reported(
                SPEC,
                &[
                    PolicyOutcome::Ready,
                    PolicyOutcome::failed(Reason::ConfigurationRejected, "m"),
                ],
            ),
            "InProgress",
            "Degraded",
        ),
        (
            "conflict",
            reported(
                SPEC,
                &[
                    PolicyOutcome::Ready,
                    PolicyOutcome::conflicted(Reason::KeyOwnedByAnother, "m"),
                ],
            ),
            "InProgress",
            "Degraded",
        ),
        (
            "conflict while others are updating",
            reported(
                SPEC,
                &[
                    PolicyOutcome::Updating,
                    PolicyOutcome::conflicted(Reason::EqualPriority, "m"),
                ],
            ),
            "InProgress",
            "Progressing",
        ),
        (
            "preview",
            reported("{mode: Preview, nodeSelector: {}}", &[PolicyOutcome::Updating]),
            "Current",
            "Healthy",
        ),
        (
            "paused",
            reported("{mode: Paused, nodeSelector: {}}", &[PolicyOutcome::Ready]),
            "Current",
            "Suspended",
        ),
        (
            "another policy pauses",
            reported(
                SPEC,
                &[PolicyOutcome::Ready, PolicyOutcome::conflicted(Reason::Paused, "m")],
            ),
            "InProgress",
            "Degraded",
        ),
        ("rollout stopped", stopped(), "Failed", "Degraded"),
        ("refused spec", reported(refused, &[]), "Failed", "Degraded"),
        (
            "refused spec with nodes",
            reported(refused, &[broken(), PolicyOutcome::Updating]),
            "Failed",
            "Degraded",
        ),
        (
            "being deleted",
            then("deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            "Terminating",
            "Progressing",
        ),
    ];
    let objects: Vec<_> = phases.iter().map(|(_, policy, ..)| json!(policy)).collect();
    let verdicts = judge(&objects).unwrap();
    let seen: Vec<_> = phases
        .iter()
        .zip(&verdicts)
        .map(|((phase, ..), verdict)| (*phase, verdict.kstatus.as_str(), verdict.argocd.status.as_str()))
        .collect();
    let expected: Vec<_> = phases
        .iter()
        .map(|(phase, _, kstatus, argocd)| (*phase, *kstatus, *argocd))
        .collect();
    assert_eq!(seen, expected);
}

#[test]
#[ignore = "needs Go: make test"]
fn argo_cd_shows_why() {
    let degraded = reported(
        SPEC,
        &[
            PolicyOutcome::Ready,
            PolicyOutcome::failed(Reason::NodeNotReady, "see the kubelet"),
        ],
    );
    let conflict = reported(
        SPEC,
        &[PolicyOutcome::conflicted(
            Reason::KeyOwnedByAnother,
            "label a is \"x\", not \"b\"",
        )],
    );
    let messages: Vec<_> = judge(&[json!(degraded), json!(conflict)])
        .unwrap()
        .into_iter()
        .map(|it| it.argocd.message)
        .collect();
    assert_eq!(
        messages,
        [
            "in force on 1 of 2 matched nodes; 1 of 2 matched nodes failed; node-1: NodeNotReady: see the kubelet",
            "in force on 0 of 1 matched nodes; not on node-0: label a is \"x\", not \"b\"",
        ]
    );
}

#[test]
#[ignore = "needs Go: make test"]
fn gpu_node_is_current_when_its_agent_is_ready() {
    let gpu_node = |conditions: Value, deleted: Option<&str>| {
        let object: GpuNode = serde_json::from_value(json!({
            "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "n", "generation": 2, "deletionTimestamp": deleted},
            "spec": {}, "status": {"conditions": conditions},
        }))
        .unwrap();
        json!(object)
    };
    let ready = |status: &str| {
        json!([
            {"type": "Ready", "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "DriverAvailable", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ])
    };
    let objects = [
        gpu_node(ready("False"), None),
        gpu_node(ready("True"), None),
        gpu_node(ready("True"), Some("2026-01-01T00:00:00Z")),
    ];
    let seen: Vec<_> = judge(&objects)
        .unwrap()
        .into_iter()
        .map(|verdict| verdict.kstatus)
        .collect();
    assert_eq!(seen, ["InProgress", "Current", "Terminating"]);
}

fn applying(granular: bool, spec: &Value) -> ApplyStep {
    ApplyStep {
        manager: "kustomize-controller".to_owned(),
        object: json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "p"}, "spec": spec}),
        granular,
    }
}

#[test]
#[ignore = "needs Go: make test"]
fn an_emptied_block_stays_on_with_every_library_and_after_an_upgrade_of_the_crd() {
    let fields = [
        ("nodeSelector", json!({"matchLabels": {"pool": "a"}})),
        ("gpuSelector", json!({"minCount": 1})),
        ("devicePlugin", json!({"failOnInitError": true})),
        ("startupTaint", json!({"key": "gpunode.dev/not-ready"})),
        ("unhealthyTaint", json!({"after": "30s"})),
    ];
    let full: Value = fields
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    let emptied: Value = fields.iter().map(|(name, _)| ((*name).to_owned(), json!({}))).collect();
    for library in [MergeLibrary::V632, MergeLibrary::Current] {
        for was_granular in [true, false] {
            let steps = [
                applying(was_granular, &full),
                applying(false, &emptied),
                applying(false, &emptied),
            ];
            let after = merge(library, &steps).unwrap();
            assert_eq!(after[0]["spec"], full, "{library:?}, granular: {was_granular}");
            assert_eq!(after[1]["spec"], emptied, "{library:?}, granular: {was_granular}");
            assert_eq!(after[2], after[1], "{library:?}, granular: {was_granular}");
        }
    }
}

/// The reason for which blocks are atomic. Once a library keeps `{}` again, they may become granular.
#[test]
#[ignore = "needs Go: make test"]
fn an_emptied_granular_block_becomes_null_in_the_current_library() {
    let steps =
        [json!({"failOnInitError": true}), json!({})].map(|plugin| applying(true, &json!({"devicePlugin": plugin})));
    let devices = |library| merge(library, &steps).unwrap()[1]["spec"]["devicePlugin"].clone();
    assert_eq!(devices(MergeLibrary::V632), json!({}));
    assert_eq!(devices(MergeLibrary::Current), Value::Null);
}
