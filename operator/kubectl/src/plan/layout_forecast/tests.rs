//! Forecasts of layouts for small nodes.

use super::*;
use serde_json::{Value, json};

fn gpu_node(config: &str, status: &Value) -> GpuNode {
    let config = json!({"policy": "p", "version": 1, "hash": "h", "document": config});
    let object = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"},
        "spec": {"config": config}, "status": status});
    serde_json::from_value(object).expect("a GpuNode")
}

fn gpu(index: u32, product: &str, mode: Option<&str>, profiles: &[&str]) -> Value {
    let devices = profiles.iter().zip(0..).map(|(profile, instance)| {
        json!({"uuid": format!("MIG-{index}-{instance}"), "profile": profile, "gpuInstance": instance,
            "computeInstance": 0, "memoryMiB": 9728})
    });
    json!({"index": index, "uuid": format!("GPU-{index}"), "product": product, "memoryMiB": 81920,
        "computeCapability": "8.0", "migMode": mode, "migDevices": devices.collect::<Vec<_>>()})
}

fn holder(pod: &str, device: &str) -> Value {
    json!({"namespace": "ml", "pod": pod, "container": "c", "resource": "nvidia.com/gpu", "device": device, "count": 1})
}

/// Returns the forecast for a node whose layout `from` becomes `to`.
fn said(gpus: &[Value], holders: &[Value], from: &str, to: &str) -> String {
    let status = json!({"gpus": gpus, "holders": holders});
    let document = |layout: &str| format!("mig: {{strategy: Mixed, layout: [{layout}]}}");
    let (before, after) = (gpu_node(&document(from), &status), gpu_node(&document(to), &status));
    let found = layout_forecasts(&before, &after);
    let changes = found.changes.iter().map(LayoutForecast::words);
    let notes = found.notes.iter().map(|note| format!("! {note}"));
    let obstacles = found.obstacles.iter().map(|obstacle| format!("!! {obstacle}"));
    changes.chain(notes).chain(obstacles).collect::<Vec<_>>().join("\n")
}

const A100: &str = "NVIDIA-A100-SXM4-80GB";

#[test]
fn instances_that_go_and_come_are_named_once_for_equal_gpus() {
    let divided = ["1g.10gb", "1g.10gb", "1g.10gb", "4g.40gb"];
    let gpus = [
        gpu(0, A100, Some("Enabled"), &divided),
        gpu(1, A100, Some("Enabled"), &divided),
        gpu(2, A100, Some("Disabled"), &[]),
    ];
    insta::assert_snapshot!(said(&gpus, &[], "", "{instances: {1g.10gb: 1, 2g.20gb: 1, 4g.40gb: 1}}"), @r"
    GPUs 0, 1: 1g.10gb:3,4g.40gb:1 -> 1g.10gb:1,2g.20gb:1,4g.40gb:1 (goes 2 x 1g.10gb; comes 1 x 2g.20gb)
    GPU 2: off -> 1g.10gb:1,2g.20gb:1,4g.40gb:1 (comes 1 x 1g.10gb, 1 x 2g.20gb, 1 x 4g.40gb)
    ");
    insta::assert_snapshot!(said(&gpus, &[], "", "{disabled: true}"), @r"
    GPUs 0, 1: 1g.10gb:3,4g.40gb:1 -> off (goes 3 x 1g.10gb, 1 x 4g.40gb)
    ");
    assert_eq!(said(&gpus[..2], &[], "", "{instances: {4g.40gb: 1, 1g.10gb: 3}}"), "");
    assert_eq!(said(&gpus, &[], "{disabled: true}", "{disabled: true}"), "");
}

#[test]
fn pods_delay_a_change_only_where_they_hold_what_has_to_go() {
    let gpus = [
        gpu(0, A100, Some("Enabled"), &["1g.10gb", "1g.10gb", "1g.10gb", "4g.40gb"]),
        gpu(1, A100, Some("Disabled"), &[]),
    ];
    let held = [holder("a", "MIG-0-0"), holder("b", "MIG-0-3"), holder("c", "GPU-1")];
    insta::assert_snapshot!(said(&gpus[..1], &held, "", "{instances: {1g.10gb: 1, 2g.20gb: 1, 4g.40gb: 1}}"), @r"
    GPU 0: 1g.10gb:3,4g.40gb:1 -> 1g.10gb:1,2g.20gb:1,4g.40gb:1 (goes 2 x 1g.10gb; comes 1 x 2g.20gb)
    ");
    insta::assert_snapshot!(said(&gpus, &held, "", "{instances: {1g.10gb: 7}}"), @r"
    GPU 0: 1g.10gb:3,4g.40gb:1 -> 1g.10gb:7 (goes 1 x 4g.40gb; comes 4 x 1g.10gb)
    GPU 1: off -> 1g.10gb:7 (comes 7 x 1g.10gb)
    ! GPU 0 waits for pod ml/b, which holds what has to go
    ! GPU 1 waits for pod ml/c, which holds what has to go
    ");
    insta::assert_snapshot!(said(&gpus[..1], &held, "", "{disabled: true}"), @r"
    GPU 0: 1g.10gb:3,4g.40gb:1 -> off (goes 3 x 1g.10gb, 1 x 4g.40gb)
    ! GPU 0 waits for pods ml/a, ml/b, which hold what has to go
    ");
}

#[test]
fn what_cannot_be_on_a_board_is_an_obstacle_and_what_is_unknown_is_said() {
    let gpus = [
        gpu(0, A100, Some("Disabled"), &[]),
        gpu(1, A100, Some("Disabled"), &[]),
        gpu(2, "Tesla-V100-SXM2-32GB", None, &[]),
        gpu(3, "NVIDIA-H20", Some("Enabled"), &[]),
    ];
    insta::assert_snapshot!(said(&gpus, &[], "", "{instances: {3g.40gb: 2, 1g.10gb: 1}}"), @r"
    GPU 3: {} -> 1g.10gb:1,3g.40gb:2 (comes 1 x 1g.10gb, 2 x 3g.40gb)
    ! GPU 2 (Tesla-V100-SXM2-32GB) stays as it is: the board has no MIG
    ! GPU 3 (NVIDIA-H20): this program has no table of the board, so the agent decides if 1g.10gb:1,3g.40gb:2 fits
    !! GPUs 0, 1: 1g.10gb:1,3g.40gb:2 cannot be on A100-80GB: it needs 9 memory slices, and a GPU has 8; the nearest layout that fits is 3g.40gb:2
    ");
    insta::assert_snapshot!(said(&gpus[3..], &[], "", "{preset: all-balanced}"), @r"
    ! GPU 3 (NVIDIA-H20): this program has no table of the board, so it does not know what all-balanced is there
    ");
    insta::assert_snapshot!(said(&gpus[3..], &[], "", "{devices: {deviceIds: ['0x232910DE']}, disabled: true}"), @r"
    ! a group selects by deviceIds, and the status does not have the PCI id of GPU 3 (NVIDIA-H20); the agent decides
    ");
}

#[test]
fn a_layout_that_leaves_the_policy_changes_nothing() {
    let gpus = [
        gpu(0, A100, Some("Enabled"), &["7g.80gb"]),
        gpu(1, A100, Some("Enabled"), &["7g.80gb"]),
    ];
    insta::assert_snapshot!(said(&gpus, &[], "{instances: {7g.80gb: 1}}", ""), @r"
    ! no group of mig.layout selects GPUs 0, 1 any more, so the layout stays 7g.80gb:1
    ");
}
