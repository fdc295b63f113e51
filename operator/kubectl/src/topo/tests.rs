//! Output of `topo` for a node.

use super::*;
use crate::output::TextWidth;
use gpunode_crds::GpuNode;
use gpunode_scenario::DGX1_VOLTA_LINKS;
use serde_json::{Value, json};

fn holder(pod: &str, resource: &str, device: usize, count: i32) -> Value {
    json!({"namespace": "team", "pod": pod, "container": "main", "resource": resource, "device": format!("GPU-{device}"), "count": count})
}

/// A DGX-1 with such a configuration, of which each GPU has so many shares of the resource.
fn node(document: &str, resource: &str, sharing: Option<&str>, shares: i32, holders: &[Value]) -> GpuNode {
    let gpu = |index: usize| {
        let link = |peer: usize| {
            let level = match (index / 4 == peer / 4, index / 2 == peer / 2) {
                (false, _) => "SYS",
                (true, false) => "PHB",
                (true, true) => "PIX",
            };
            let nvlinks = Some(DGX1_VOLTA_LINKS[index][peer]).filter(|links| *links > 0);
            json!({"peer": peer, "level": level, "nvlinks": nvlinks})
        };
        let links: Vec<Value> = (0..8).filter(|peer| *peer != index).map(link).collect();
        json!({
            "index": index, "uuid": format!("GPU-{index}"), "product": "Tesla-V100-SXM2-32GB", "memoryMiB": 32768,
            "numaNode": index / 4, "links": links,
        })
    };
    let device = |index: usize| json!({"device": format!("GPU-{index}"), "shares": shares, "healthy": shares});
    serde_json::from_value(json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "gpu-v100"},
        "spec": {"config": {"policy": "v100", "version": 1, "hash": "h", "document": document}},
        "status": {
            "gpus": (0..8).map(gpu).collect::<Vec<_>>(),
            "resources": [{
                "name": resource, "capacity": 8 * shares, "allocatable": 8 * shares, "registered": true, "sharing": sharing,
                "devices": (0..8).map(device).collect::<Vec<_>>(),
            }],
            "holders": holders,
        },
    }))
    .expect("a GpuNode")
}

fn shown(gpu_node: &GpuNode, request: Option<u32>) -> String {
    let topology = topology(gpu_node, request, None).expect("an answer");
    anstream::adapter::strip_str(&text::topology(&topology, TextWidth::UNLIMITED)).to_string()
}

#[test]
fn links_holders_and_what_would_be_chosen_are_shown() {
    let held = [
        holder("train-0", "nvidia.com/gpu", 2, 1),
        holder("train-0", "nvidia.com/gpu", 3, 1),
    ];
    insta::assert_snapshot!(shown(&node("{}", "nvidia.com/gpu", None, 1, &held), Some(3)), @r"
    GPU    GPU0   GPU1   GPU2   GPU3   GPU4   GPU5   GPU6   GPU7   NUMA AFFINITY   HELD BY
    GPU0   X      NV1    NV1    NV2    NV2    SYS    SYS    SYS    0               -
    GPU1   NV1    X      NV2    NV1    SYS    NV2    SYS    SYS    0               -
    GPU2   NV1    NV2    X      NV2    SYS    SYS    NV1    SYS    0               team/train-0
    GPU3   NV2    NV1    NV2    X      SYS    SYS    SYS    NV1    0               team/train-0
    GPU4   NV2    SYS    SYS    SYS    X      NV1    NV1    NV2    1               -
    GPU5   SYS    NV2    SYS    SYS    NV1    X      NV2    NV1    1               -
    GPU6   SYS    SYS    NV1    SYS    NV1    NV2    X      NV2    1               -
    GPU7   SYS    SYS    SYS    NV1    NV2    NV1    NV2    X      1               -

    NV#  = # NVLinks, directly or through NVSwitches
    SYS  = the interconnect between NUMA nodes

    REQUEST 3 of nvidia.com/gpu, allocation Topology; 6 free
    RANK   GPUS      PAIR SCORES   NUMA NODES   LEFT FREE   FREE PAIR SCORES   LOAD
    1      4, 6, 7   610           1            3           370                0
    2      5, 6, 7   610           1            3           370                0
    3      4, 5, 6   510           1            3           170                0
    4      4, 5, 7   510           1            3           170                0
    GPUs 4, 6, 7 would be chosen: tied with rank 2; the lower index wins
    ");
}

#[test]
fn mig_devices_are_shown_with_their_holders_and_the_phase_of_their_gpu() {
    let mut gpu_node = node("{}", "nvidia.com/mig-1g.10gb", None, 1, &[]);
    let status = gpu_node.status.as_mut().expect("a status");
    status.gpus.truncate(3);
    let device = |instance: u32, profile: &str| {
        let uuid = format!("MIG-6c1d3b2e-0000-0000-0000-00000000000{instance}");
        json!({"uuid": uuid, "profile": profile, "gpuInstance": instance, "computeInstance": 0, "memoryMiB": 1})
    };
    let waiting = json!({"wanted": "off", "observed": "1g.10gb:1,4g.40gb:1", "phase": "Waiting"});
    let applied = json!({"wanted": "{}", "observed": "{}", "phase": "Applied"});
    let devices = json!([device(1, "1g.10gb"), device(2, "4g.40gb")]);
    status.gpus[0].mig_devices = serde_json::from_value(devices).expect("MIG devices");
    status.gpus[0].mig = serde_json::from_value(waiting).expect("a layout");
    status.gpus[1].mig = serde_json::from_value(applied).expect("a layout");
    let mut held = holder("train-0", "nvidia.com/mig-4g.40gb", 0, 1);
    held["device"] = json!("MIG-6c1d3b2e-0000-0000-0000-000000000002");
    status.holders = vec![serde_json::from_value(held).expect("a holder")];
    let text = shown(&gpu_node, None);
    let (_, table) = text.rsplit_once("\n\n").expect("a second table");
    insta::assert_snapshot!(table, @r"
    GPU    MIG DEVICE      UUID                                       HELD BY        LAYOUT
    GPU0   1g.10gb (1/0)   MIG-6c1d3b2e-0000-0000-0000-000000000001   -              Waiting: off
    GPU0   4g.40gb (2/0)   MIG-6c1d3b2e-0000-0000-0000-000000000002   team/train-0   Waiting: off
    GPU1   -               -                                          -              Applied
    ");
    let topology = topology(&gpu_node, None, None).expect("an answer");
    let narrow = anstream::adapter::strip_str(&text::topology(&topology, TextWidth::of(80))).to_string();
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
}

#[test]
fn shares_are_answered_as_the_agent_does() {
    let answer = |document: &str, sharing, held: &[Value], size| {
        let gpu_node = node(document, "a.b/c", Some(sharing), 4, held);
        let answer = topology(&gpu_node, Some(size), None)
            .expect("an answer")
            .request
            .expect("a request");
        let gpus: Vec<(u32, u32)> = match answer.choices.first() {
            Some(set) => set.devices.iter().map(|picked| (picked.gpu, picked.shares)).collect(),
            None => Vec::new(),
        };
        (gpus, answer.why)
    };
    let sliced = "resources: [{name: a.b/c, sharing: {strategy: TimeSlicing, replicas: 4}}]";
    let held = [holder("a", "a.b/c", 0, 1), holder("b", "a.b/c", 2, 2)];
    let (gpus, why) = answer(sliced, "TimeSlicing", &held, 1);
    assert_eq!(gpus, [(1, 1)]);
    assert!(why.starts_with("tied with rank 2; utilisation at that moment"), "{why}");
    assert_eq!(answer(sliced, "TimeSlicing", &held, 2).0, [(6, 1), (7, 1)]);
    let packed = sliced.replace("a.b/c,", "a.b/c, allocation: Packed,");
    assert_eq!(answer(&packed, "TimeSlicing", &held, 2).0, [(2, 2)]);
    let refuses = sliced.replace("replicas: 4", "replicas: 4, failRequestsGreaterThanOne: true");
    let (gpus, why) = answer(&refuses, "TimeSlicing", &held, 2);
    assert!(gpus.is_empty() && why.ends_with("failRequestsGreaterThanOne"), "{why}");
    let memory = "resources: [{name: a.b/c, sharing: {strategy: Memory}}]";
    let (gpus, why) = answer(memory, "Memory", &held, 2);
    assert_eq!(
        (gpus.as_slice(), why.as_str()),
        (
            [(2, 2)].as_slice(),
            "it has the fewest free shares of the devices that fit"
        )
    );
    assert_eq!(
        answer(
            &memory.replace("Memory", "Memory, placement: Spread"),
            "Memory",
            &held,
            2
        )
        .0,
        [(1, 2)]
    );
    assert!(answer(memory, "Memory", &held, 5).1.starts_with("no device has 5 free"));
    assert_eq!(
        answer(memory, "Memory", &held, 30).1,
        "29 are free, so a pod that requests 30 cannot start here"
    );
}

#[test]
fn a_resource_is_named_where_it_is_not_plain_which() {
    let mut gpu_node = node("{}", "a.b/c", None, 1, &[]);
    let error = topology(&gpu_node, Some(1), Some("x.y/z"))
        .expect_err("there is none")
        .to_string();
    assert_eq!(
        error,
        "answer the request: the node does not advertise x.y/z; it advertises a.b/c"
    );
    let status = gpu_node.status.as_mut().expect("a status");
    let more = gpunode_crds::ResourceStatus {
        name: "d.e/f".to_owned(),
        ..status.resources[0].clone()
    };
    status.resources.push(more);
    let error = topology(&gpu_node, Some(1), None).expect_err("two of them").to_string();
    assert_eq!(
        error,
        "answer the request: choose a resource with --resource; the node advertises a.b/c, d.e/f"
    );
    assert!(topology(&gpu_node, Some(1), Some("d.e/f")).is_ok());
    gpu_node.status = None;
    assert_eq!(shown(&gpu_node, None), "node gpu-v100 has no GPU\n");
    assert!(topology(&gpu_node, Some(1), None).is_err());
}

#[test]
fn programs_get_links_with_their_scores() {
    let topology = topology(&node("{}", "nvidia.com/gpu", None, 1, &[]), Some(2), None).expect("an answer");
    let value = serde_json::to_value(&topology).expect("JSON");
    assert_eq!(
        value["gpus"][0]["links"][2],
        json!({"peer": 3, "level": "PHB", "nvlinks": 2, "score": 230})
    );
    assert_eq!(
        value["request"]["choices"][0]["devices"][1],
        json!({"gpu": 3, "device": "GPU-3", "shares": 1})
    );
    assert_eq!(value["request"]["choices"][0]["pairScores"], 250);
    assert_eq!(value["request"]["choices"][0]["leftFree"]["gpus"], 6);
    assert!(value.get("missing").is_none() && value.get("holdersTruncated").is_none());
}

#[test]
fn companions_of_a_node_without_gpu_are_shown_and_their_free_shares_counted() {
    let device = |id: &str, name: &str, healthy: i32| json!({"device": id, "name": name, "numaNode": 1, "shares": 2, "healthy": healthy});
    let held = |pod: &str, id: &str| json!({"namespace": "team", "pod": pod, "container": "main", "resource": "example.com/fpga", "device": id, "count": 1});
    let node: GpuNode = serde_json::from_value(json!({
        "apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"}, "spec": {},
        "status": {
            "resources": [{
                "name": "example.com/fpga", "companion": true, "capacity": 4, "allocatable": 2, "registered": true,
                "devices": [device("path-1", "/dev/fpga0 and 1 more file", 2), device("path-2", "/dev/fpga1", 0)],
            }],
            // The second is gone, and its pod still has it.
            "holders": [held("a", "path-1"), held("b", "path-2")],
        },
    }))
    .expect("a GpuNode");
    insta::assert_snapshot!(shown(&node, Some(1)), @r"
    node n has no GPU

    RESOURCE           FILES                        NUMA AFFINITY   HELD BY
    example.com/fpga   /dev/fpga0 and 1 more file   1               team/a
    example.com/fpga   /dev/fpga1                   1               team/b

    REQUEST 1 of example.com/fpga, least held; 1 free
    companions have no links: each share comes from the device of which containers hold least
    ");
    let two = topology(&node, Some(2), Some("example.com/fpga")).expect("an answer");
    let request = two.request.expect("a request");
    assert_eq!(
        (request.free, request.why.as_str()),
        (1, "1 is free, so a pod that requests 2 cannot start here")
    );
}
