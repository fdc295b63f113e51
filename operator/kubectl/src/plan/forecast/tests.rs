//! Forecasts of configurations for small nodes.

use super::*;
use serde_json::{Value, json};

fn gpu_node(config: &str, status: &Value) -> GpuNode {
    let config = json!({"policy": "p", "version": 1, "hash": "h", "document": config});
    let object = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"},
        "spec": {"config": config}, "status": status});
    serde_json::from_value(object).expect("a GpuNode")
}

fn gpu(index: u32, product: &str, memory: u32, capability: &str) -> Value {
    json!({"index": index, "uuid": format!("GPU-{index}"), "product": product, "memoryMiB": memory,
        "computeCapability": capability})
}

/// Three GPUs: 16 and 80 GiB, and one that is too old for MPS.
fn unequal() -> Value {
    json!([
        gpu(0, "Tesla-T4", 16384, "7.5"),
        gpu(1, "NVIDIA-A100-80GB", 81920, "8.0"),
        gpu(2, "Tesla-P4", 8192, "6.1")
    ])
}

fn divided(profiles: &[&str], known: bool) -> Value {
    let mut gpu = gpu(0, "NVIDIA-A100-80GB", 81920, "8.0");
    let mig = profiles.iter().zip(0..).map(|(profile, instance)| {
        let mut mig = json!({"uuid": format!("MIG-{instance}"), "profile": profile, "gpuInstance": instance,
            "computeInstance": 0, "memoryMiB": 9728});
        if known {
            let slices = if profile.starts_with('1') { 1 } else { 2 };
            mig["multiprocessors"] = json!(14 * slices);
            mig["slices"] = json!({"gpuInstance": slices, "computeInstance": slices});
            mig["engines"] = json!({"copy": slices, "decoder": 0, "encoder": 0, "jpeg": 0, "ofa": 0});
        }
        mig
    });
    gpu["migDevices"] = mig.collect();
    gpu["migMode"] = json!("Enabled");
    json!([gpu])
}

/// Returns the forecast for a node whose GPUs are in `status` when `from` becomes `to`.
fn said(status: &Value, from: &str, to: &str) -> String {
    let (before, after) = (gpu_node(from, status), gpu_node(to, status));
    let DeviceForecast {
        offers,
        notes,
        waiting,
        obstacles,
        ..
    } = forecast(Some(&before), Some(&after));
    let offers = offers.into_iter().map(
        |ResourceForecast {
             resource,
             now,
             then,
             words,
             ..
         }| format!("{resource}: {words} ({now} -> {then})"),
    );
    let others = notes
        .into_iter()
        .chain(waiting)
        .chain(obstacles)
        .map(|note| format!("! {note}"));
    offers.chain(others).collect::<Vec<_>>().join("\n")
}

#[test]
fn each_resource_is_counted_in_the_order_of_the_policy() {
    let to = "
resources:
- {name: z.b/large, devices: {minMemory: 60Gi}, sharing: {strategy: TimeSlicing, replicas: 4}}
- {name: a.b/none, devices: {products: ['*H100*']}}
- {name: nvidia.com/gpu}
";
    insta::assert_snapshot!(said(&json!({"gpus": unequal()}), "{}", to), @r"
    z.b/large: 1 GPU x 4 replicas = 4 (0 -> 4)
    a.b/none: nothing: no remaining device matches its selector (0 -> 0)
    nvidia.com/gpu: 2 GPUs (3 -> 2)
    ");
    let all = "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 4, replicasPerDevice: [{devices: {indices: [2]}, replicas: 2}]}}]";
    insta::assert_snapshot!(said(&json!({"gpus": unequal()}), to, all), @r"
    nvidia.com/gpu: 2 GPUs x 4 replicas + 1 GPU x 2 replicas = 10 (2 -> 10)
    ");
    let memory = "resources: [{name: a.b/mem, sharing: {strategy: Memory, unit: 10Gi}}]";
    insta::assert_snapshot!(said(&json!({"gpus": unequal()}), "{}", memory), @r"
    a.b/mem: 1 GPU x 1 unit of 10 GiB + 1 GPU x 8 units of 10 GiB = 9 (0 -> 9)
    ! resource a.b/mem: GPU 2 has 8 GiB of memory, less than one unit of 10 GiB; lower sharing.unit
    ! the node would fail and stop the rollout
    ");
    let mps = "resources: [{name: a.b/mps, devices: {indices: [0, 2]}, sharing: {strategy: Mps, replicas: 10}}]";
    insta::assert_snapshot!(said(&json!({"gpus": unequal()}), "{}", mps), @r"
    a.b/mps: 1 GPU x 10 shares = 10 (0 -> 10)
    ! resource a.b/mps: GPU 2 (Tesla-P4) is older than Volta, so MPS cannot limit its clients; share it with TimeSlicing
    ! the node would fail and stop the rollout
    ");
}

#[test]
fn mig_devices_are_counted_and_what_they_cannot_give_is_said() {
    let (single, mixed) = ("mig: {strategy: Single}", "mig: {strategy: Mixed}");
    insta::assert_snapshot!(said(&json!({"gpus": divided(&["1g.10gb", "1g.10gb", "2g.20gb"], true)}), "{}", mixed), @r"
    nvidia.com/gpu: nothing: no remaining device matches its selector (1 -> 0)
    nvidia.com/mig-1g.10gb: 2 MIG devices (0 -> 2)
    nvidia.com/mig-2g.20gb: 1 MIG device (0 -> 1)
    ");
    insta::assert_snapshot!(said(&json!({"gpus": divided(&["1g.10gb", "2g.20gb"], true)}), "{}", single), @r"
    nvidia.com/gpu: nothing (1 -> 0)
    ! resource nvidia.com/gpu: mig.strategy Single needs equal devices, but MIG device 0:0 is 1g.10gb and MIG device 0:1 is 2g.20gb, so gpunode advertises no device of this resource; divide the GPUs alike, select them into several resources, or use Mixed
    ! the node would fail and stop the rollout
    ! the node would no longer advertise any device (now 1 device)
    ");
    insta::assert_snapshot!(said(&json!({"gpus": divided(&[], true)}), mixed, single), @r"
    nvidia.com/gpu: nothing (0 -> 0)
    ! resource nvidia.com/gpu: 1 of its GPUs (first: GPU 0) have MIG enabled and no MIG device, so gpunode advertises no device of this resource; create MIG instances or disable MIG on these GPUs
    ! the node would fail and stop the rollout
    ");
}

#[test]
fn resources_are_counted_with_the_new_layout_and_pods_on_what_goes_only_delay_it() {
    let holder = json!({"namespace": "ml", "pod": "a", "container": "c", "resource": "nvidia.com/mig-1g.10gb",
        "device": "MIG-0", "count": 1});
    let status = json!({"gpus": divided(&["1g.10gb", "1g.10gb"], true), "holders": [holder]});
    let (before, after) = (
        gpu_node("mig: {strategy: Mixed}", &status),
        gpu_node("mig: {strategy: Mixed, layout: [{instances: {2g.20gb: 2}}]}", &status),
    );
    let found = forecast(Some(&before), Some(&after));
    let offers: Vec<String> = found
        .offers
        .iter()
        .map(|of| format!("{}: {} ({})", of.resource, of.words, of.comparison()))
        .collect();
    assert_eq!(
        offers,
        [
            "nvidia.com/gpu: nothing: no remaining device matches its selector (unchanged)",
            "nvidia.com/mig-2g.20gb: 2 MIG devices (now 0)",
            "nvidia.com/mig-1g.10gb: nothing: the configuration does not name it (now 2; 1 held: 1 would not fit)",
        ]
    );
    assert_eq!(found.waiting, Vec::<String>::new());
    assert_eq!(found.obstacles, Vec::<String>::new());
}

#[test]
fn mig_devices_of_which_too_little_is_known_are_not_called_unequal() {
    let said = said(
        &json!({"gpus": divided(&["1g.10gb", "2g.20gb"], false)}),
        "{}",
        "mig: {strategy: Single}",
    );
    assert!(!said.contains('!'), "{said}");
}

#[test]
fn devices_that_somebody_holds_wait_for_their_pods() {
    let holder = |pod: &str, device: &str| json!({"namespace": "ml", "pod": pod, "container": "c", "resource": "nvidia.com/gpu", "device": device, "count": 1});
    let status = |truncated: bool| {
        let holders: Value = [
            holder("train", "GPU-0"),
            holder("train", "GPU-1"),
            holder("b", "GPU-2"),
            holder("a", "GPU-2"),
            holder("c", "GPU-2"),
            holder("d", "GPU-2"),
        ]
        .into_iter()
        .collect();
        json!({"gpus": unequal(), "holders": holders, "holdersTruncated": truncated})
    };
    let shared = "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 2}}]";
    insta::assert_snapshot!(said(&status(false), "{}", shared), @r"
    nvidia.com/gpu: 3 GPUs x 2 replicas = 6 (3 -> 6)
    ! GPUs 0, 1 stay unchanged until pod ml/train ends
    ! GPU 2 stays unchanged until pods ml/a, ml/b, ml/c and 1 more end
    ");
    let part = "resources: [{name: nvidia.com/gpu, devices: {indices: [0, 1]}}]";
    insta::assert_snapshot!(said(&status(true), "{}", part), @r"
    nvidia.com/gpu: 2 GPUs (3 -> 2)
    ! GPU 2 stays unchanged until pods ml/a, ml/b, ml/c and 1 more end
    ! the agent's list of holders is incomplete, so more devices may have to wait
    ");
    for to in [
        "passDeviceSpecs: true",
        "resources: [{name: nvidia.com/gpu, allocation: Packed}]",
    ] {
        assert!(
            !said(&status(true), "{}", to).contains('!'),
            "nothing of a device changes by {to}"
        );
    }
}

#[test]
fn what_is_held_is_compared_with_the_room_that_is_left() {
    let shared = |replicas: u32| {
        format!("resources: [{{name: nvidia.com/gpu, sharing: {{strategy: TimeSlicing, replicas: {replicas}}}}}]")
    };
    let holder = |device: usize, count: i32| {
        json!({"namespace": "ml", "pod": format!("p{device}"), "container": "c", "resource": "nvidia.com/gpu",
            "device": format!("GPU-{device}"), "count": count})
    };
    let gpus: Value = (0..4).map(|index| gpu(index, "Tesla-T4", 16384, "7.5")).collect();
    let holders = [holder(0, 4), holder(1, 4), holder(2, 4), holder(3, 2)];
    let comparisons = |to: &str, truncated: bool| -> Vec<String> {
        let status = json!({"gpus": gpus, "holders": holders, "holdersTruncated": truncated});
        let (before, after) = (gpu_node(&shared(4), &status), gpu_node(to, &status));
        let offers = forecast(Some(&before), Some(&after)).offers;
        offers
            .iter()
            .map(|of| format!("{}: {}", of.resource, of.comparison()))
            .collect()
    };
    assert_eq!(
        comparisons(&shared(2), false),
        ["nvidia.com/gpu: now 16; 14 held: 6 would not fit"]
    );
    assert_eq!(comparisons(&shared(8), false), ["nvidia.com/gpu: now 16; 14 held"]);
    assert_eq!(
        comparisons("resources: [{name: a.b/c}]", true),
        [
            "a.b/c: now 0",
            "nvidia.com/gpu: now 16; at least 14 held: 14 would not fit"
        ]
    );
}

#[test]
fn what_cannot_be_counted_is_said() {
    let mut gpus = unequal();
    gpus[1]["missingSince"] = json!("2026-01-01T00:00:00Z");
    insta::assert_snapshot!(said(&json!({"gpus": gpus}), "{}", "passDeviceSpecs: true"), @r"
    nvidia.com/gpu: 2 GPUs (2 -> 2)
    ! 1 GPU of this node is missing and not counted
    ");
    insta::assert_snapshot!(said(&json!({}), "{}", "passDeviceSpecs: true"), @r"
    ! the GPUs of this node are not known yet, so its resources are not counted
    ");
    let much = "resources: [{name: a.b/c, sharing: {strategy: TimeSlicing, replicas: 8192}}]";
    let gpus: Value = (0..16).map(|index| gpu(index, "Tesla-T4", 16384, "7.5")).collect();
    insta::assert_snapshot!(said(&json!({"gpus": gpus}), "{}", much), @r"
    ! the agent would reject this configuration: resource a.b/c: the list of 131072 shares has 6602752 bytes, but a kubelet accepts at most 4194304; lower sharing.replicas
    ! the node would fail and stop the rollout
    ");
}
