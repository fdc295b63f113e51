//! The sample policies as kustomize builds them, judged as `kubectl gpunode validate` does.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use gpunode_gitops_tests::repository;
use kubectl_gpunode::validate::{KnownKinds, SourceText, ValidationResult};
use std::process::Command;

/// The verdicts on what `kubectl kustomize` makes of a folder, with the paths of what is refused.
fn verdicts(folder: &str) -> Vec<(String, ValidationResult, Vec<String>)> {
    let kubectl = repository().join("target/cluster/bin/kubectl");
    let output = Command::new(kubectl)
        .arg("kustomize")
        .arg(repository().join(folder))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "kubectl kustomize {folder}: {errors}"
    );
    let text = SourceText {
        name: folder.to_owned(),
        contents: String::from_utf8(output.stdout).unwrap(),
    };
    let reports = KnownKinds::new().unwrap().validate(&text).into_iter();
    reports
        .map(|it| {
            let paths = it.problems.into_iter().map(|problem| problem.path).collect();
            (it.name.unwrap_or_default(), it.result, paths)
        })
        .collect()
}

#[test]
#[ignore = "needs kubectl: make test"]
fn every_sample_is_built_and_accepted() {
    let all = vec![
        "a100-mig",
        "a100-mig-mixed",
        "autoscaled",
        "big-gpus",
        "gpu-mem",
        "mps",
        "t4-time-slicing",
        "v100-reserved",
    ];
    let folders = [
        ("manifests/samples", all),
        (
            "manifests/samples/pools",
            vec!["inference-gpus", "research-gpus", "training-gpus"],
        ),
        ("manifests/quick-start", vec!["quick-start"]),
        ("manifests/samples/companions", vec!["camera", "cola", "fpga", "rdma"]),
        ("manifests/samples/pools/inference", vec!["inference-gpus"]),
        ("manifests/samples/pools/research", vec!["research-gpus"]),
        ("manifests/samples/pools/training", vec!["training-gpus"]),
    ];
    for (folder, names) in folders {
        let expected: Vec<_> = names
            .into_iter()
            .map(|name| (name.to_owned(), ValidationResult::Valid, vec![]))
            .collect();
        assert_eq!(verdicts(folder), expected, "{folder}");
    }
}

#[test]
#[ignore = "needs kubectl: make test"]
fn base_of_the_pools_selects_no_node_and_is_refused() {
    let refused = (
        String::from("gpus"),
        ValidationResult::Invalid,
        vec!["spec.nodeSelector".to_owned()],
    );
    assert_eq!(verdicts("manifests/samples/pools/base"), [refused]);
}
