//! Texts of the sample fleets.

use super::*;
use crate::{
    cluster::{ListedObjects, UnreadableObject},
    status::{
        policy::summarise_policy,
        sample::{dividing, rolling, sample, shared},
    },
};
use gpunode_crds::NodeFailure;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde_json::json;

fn no_nodes() -> ListedObjects<Node> {
    ListedObjects {
        objects: Vec::new(),
        unreadable: Vec::new(),
    }
}

fn stripped(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

fn shown(fleet: &FleetSummary, width: TextWidth) -> String {
    stripped(&super::fleet(fleet, width))
}

fn shown_node() -> FleetSummary {
    shared()
        .only(&["n".to_owned()], &no_nodes())
        .expect("there is such a node")
}

#[test]
fn a_fleet_begins_with_its_problems() {
    insta::assert_snapshot!(shown(&sample(), TextWidth::UNLIMITED), @r#"
    PROBLEMS
    GpuNode d: its status cannot be read: bad time
    policy new: the operator has not processed the current spec; check that it is running: `kubectl -n gpunode-system get pods`
    policy v100: Degraded (NodesFailed): 1 node failed
    policy v100: node b: ConfigurationRejected: resources[0].name: bad
    node c: NodeNotReady: the node's kubelet is not ready
    nodes c, g: nvidia.com/gpu: the agent advertises 7, the Node has 0 allocatable; check the agent with `kubectl -n gpunode-system get pods -o wide --field-selector spec.nodeName=NODE`
    node g: its configuration comes from policy gone, which no longer exists; the operator should remove it, check that it is running: `kubectl -n gpunode-system get pods`

    NODE   HARDWARE                   POLICY   RESOURCES            CONFIG     READY     REASON                  FAULT
    a      8 x Tesla-V100-SXM2-32GB   v100     nvidia.com/gpu 7/8   in force   True      ConfigurationInForce    -
    b      8 x Tesla-V100-SXM2-32GB   v100     -                    rejected   False     ConfigurationRejected   -
    c      8 x Tesla-V100-SXM2-32GB   v100     nvidia.com/gpu 0/8   pending    Unknown   NodeNotReady            -
    d      -                          -        -                    unknown    Unknown   StatusUnreadable        -
    f      4 x Tesla-T4               -        -                    none       Unknown   AgentNotReporting       -
    g      8 x Tesla-V100-SXM2-32GB   gone     nvidia.com/gpu 0/8   in force   True      ConfigurationInForce    -

    POLICY   MODE      PRIORITY   MATCHED   NODES READY   UPDATING   FAILED   CONFLICTED   READY     REASON
    new      Preview   0          0         0             0          0        0            Unknown   -
    v100     Enforce   100        3         1             1          1        0            False     NodesUpdating
    policy new matches no node; nearest node: a (and 5 others as near): spec.nodeSelector.matchLabels[pool]: wants "x", node has no such label
    "#);
}

#[test]
fn layouts_on_the_way_are_shown_with_what_keeps_them() {
    insta::assert_snapshot!(shown(&dividing(), TextWidth::of(120)), @r"
    PROBLEMS
    node a: GPUs 2, 3 are Blocked (InUse) since 2026-01-02T03:04:05Z, on the way to MIG layout 1g.10gb:3,4g.40gb:1: process
      4711 (dcgm) is on 1g.10gb@3; end it
    node b: GPU 0 is RebootRequired (ModePending) since 2026-01-02T03:04:05Z, on the way to MIG layout 1g.10gb:3,4g.40gb:1:
      the mode changes with the next boot; reboot the node

    NODE   HARDWARE                    POLICY   RESOURCES   CONFIG     READY   REASON                 FAULT
    a      4 x NVIDIA-A100-SXM4-80GB   p        -           in force   True    ConfigurationInForce   -
    b      4 x NVIDIA-A100-SXM4-80GB   p        -           in force   True    ConfigurationInForce   -

    POLICY   MODE      PRIORITY   MATCHED   NODES READY   UPDATING   FAILED   CONFLICTED   READY     REASON
    p        Enforce   0          0         0             0          0        0            Unknown   -

    MIG LAYOUTS
    NODE   GPUS   PHASE                          WANTED                HAS         HELD BY
    a      1      Waiting                        1g.10gb:3,4g.40gb:1   1g.10gb:7   team/train
    a      2, 3   Blocked (InUse)                1g.10gb:3,4g.40gb:1   1g.10gb:7   -
    b      0      RebootRequired (ModePending)   1g.10gb:3,4g.40gb:1   1g.10gb:7   -
    b      1      AwaitingApproval               1g.10gb:3,4g.40gb:1   1g.10gb:7   -

    WAITING FOR RUNNING PODS
    NODE   GPUS   HELD BY      PENDING CHANGE
    a      1      team/train   GPU 1 stays r until the last pod that holds it ends, then no resource has it
    ");
    let node = dividing()
        .only(&["a".to_owned()], &no_nodes())
        .expect("there is such a node");
    insta::assert_snapshot!(stripped(&super::nodes(&node, TextWidth::of(80))), @r"
    PROBLEMS
    node a: GPUs 2, 3 are Blocked (InUse) since 2026-01-02T03:04:05Z, on the way to
      MIG layout 1g.10gb:3,4g.40gb:1: process 4711 (dcgm) is on 1g.10gb@3; end it

    NODE   POLICY   RESOURCES   CONFIG     READY   REASON                 FAULT
    a      p        -           in force   True    ConfigurationInForce   -
      HARDWARE 4 x NVIDIA-A100-SXM4-80GB

    NODE   GPU   STATE            FAULT   RESOURCE   HELD   POD          CONTAINER
    a      0     not advertised   -       -          -      -            -
      DEVICE NVIDIA-A100-SXM4-80GB
    a      1     waiting          -       r          1      team/train   c
      DEVICE NVIDIA-A100-SXM4-80GB
    a      2     not advertised   -       -          -      -            -
      DEVICE NVIDIA-A100-SXM4-80GB
    a      3     not advertised   -       -          -      -            -
      DEVICE NVIDIA-A100-SXM4-80GB

    MIG LAYOUTS
    NODE   GPUS   PHASE             WANTED                HAS
    a      0      Applied           1g.10gb:3,4g.40gb:1   1g.10gb:3,4g.40gb:1
    a      1      Waiting           1g.10gb:3,4g.40gb:1   1g.10gb:7
      HELD BY team/train
    a      2, 3   Blocked (InUse)   1g.10gb:3,4g.40gb:1   1g.10gb:7

    WAITING FOR RUNNING PODS
    NODE   GPUS   HELD BY
    a      1      team/train
      PENDING CHANGE GPU 1 stays r until the last pod that holds it ends, then no
        resource has it
    ");
}

#[test]
fn a_fleet_fits_a_terminal_of_80_columns() {
    insta::assert_snapshot!(shown(&sample(), TextWidth::of(80)), @r#"
    PROBLEMS
    GpuNode d: its status cannot be read: bad time
    policy new: the operator has not processed the current spec; check that it is
      running: `kubectl -n gpunode-system get pods`
    policy v100: Degraded (NodesFailed): 1 node failed
    policy v100: node b: ConfigurationRejected: resources[0].name: bad
    node c: NodeNotReady: the node's kubelet is not ready
    nodes c, g: nvidia.com/gpu: the agent advertises 7, the Node has 0 allocatable;
      check the agent with
      `kubectl -n gpunode-system get pods -o wide --field-selector spec.nodeName=NODE`
    node g: its configuration comes from policy gone, which no longer exists; the
      operator should remove it, check that it is running:
      `kubectl -n gpunode-system get pods`

    NODE   POLICY   CONFIG     READY     REASON                  FAULT
    a      v100     in force   True      ConfigurationInForce    -
      HARDWARE 8 x Tesla-V100-SXM2-32GB; RESOURCES nvidia.com/gpu 7/8
    b      v100     rejected   False     ConfigurationRejected   -
      HARDWARE 8 x Tesla-V100-SXM2-32GB
    c      v100     pending    Unknown   NodeNotReady            -
      HARDWARE 8 x Tesla-V100-SXM2-32GB; RESOURCES nvidia.com/gpu 0/8
    d      -        unknown    Unknown   StatusUnreadable        -
    f      -        none       Unknown   AgentNotReporting       -
      HARDWARE 4 x Tesla-T4
    g      gone     in force   True      ConfigurationInForce    -
      HARDWARE 8 x Tesla-V100-SXM2-32GB; RESOURCES nvidia.com/gpu 0/8

    POLICY   MODE      MATCHED   NODES READY   FAILED   READY     REASON
    new      Preview   0         0             0        Unknown   -
      PRIORITY 0
    v100     Enforce   3         1             1        False     NodesUpdating
      PRIORITY 100; UPDATING 1
    policy new matches no node; nearest node: a (and 5 others as near):
      spec.nodeSelector.matchLabels[pool]: wants "x", node has no such label
    "#);
}

#[test]
fn a_fleet_names_the_changes_that_wait_and_the_pods_that_they_wait_for() {
    insta::assert_snapshot!(shown(&shared(), TextWidth::UNLIMITED), @r"
    PROBLEMS
    node n: MpsDaemonNotAnswering: the MPS control daemon of GPU 1 does not answer
    node n: GPU 10 has not been seen by the agent or the driver since 2026-01-02T03:04:05Z; a missing GPU counts as removed after 15 minutes. Check `nvidia-smi` and the kernel log on the node

    NODE   HARDWARE              POLICY   RESOURCES                                                                                                                                                                          CONFIG     READY   REASON                  FAULT
    n      10 x A100-SXM4-80GB   p        aliyun.com/gpu-mem 111/250 (31 held, 89 withheld), nvidia.com/gpu.mps 0/10, nvidia.com/mig-1g.10gb 2/2 (1 held), nvidia.com/gpu 1/2 (1 held), nvidia.com/gpu.shared 4/4 (3 held)   in force   False   MpsDaemonNotAnswering   missing (GPU 10), no MPS daemon (GPU 1)

    IN USE   MEMORY              GPU CORES   SHARES
    n        40.5/499 GiB (8%)   0/2 (0%)    0: 30/80, 1: 0/10, 2: 1/2, 3: 0/80, 4: 1/80, 5: 0/10, 6: 0/1, 8: 3/4

    POLICY   MODE      PRIORITY   MATCHED   NODES READY   UPDATING   FAILED   CONFLICTED   READY     REASON
    p        Enforce   0          0         0             0          0        0            Unknown   -

    WAITING FOR RUNNING PODS
    NODE   GPUS   HELD BY                                 PENDING CHANGE
    n      0      team/llm, team/ocr, team/x and 2 more   stays aliyun.com/gpu-mem until its holders are gone, then becomes nvidia.com/gpu
    ");
    insta::assert_snapshot!(shown(&shared(), TextWidth::of(120)), @r"
    PROBLEMS
    node n: MpsDaemonNotAnswering: the MPS control daemon of GPU 1 does not answer
    node n: GPU 10 has not been seen by the agent or the driver since 2026-01-02T03:04:05Z; a missing GPU counts as removed
      after 15 minutes. Check `nvidia-smi` and the kernel log on the node

    NODE   HARDWARE              POLICY   CONFIG     READY   REASON                  FAULT
    n      10 x A100-SXM4-80GB   p        in force   False   MpsDaemonNotAnswering   missing (GPU 10), no MPS daemon (GPU 1)
      RESOURCES aliyun.com/gpu-mem 111/250 (31 held, 89 withheld), nvidia.com/gpu.mps 0/10, nvidia.com/mig-1g.10gb 2/2 (1
        held), nvidia.com/gpu 1/2 (1 held), nvidia.com/gpu.shared 4/4 (3 held)

    IN USE   MEMORY              GPU CORES   SHARES
    n        40.5/499 GiB (8%)   0/2 (0%)    0: 30/80, 1: 0/10, 2: 1/2, 3: 0/80, 4: 1/80, 5: 0/10, 6: 0/1, 8: 3/4

    POLICY   MODE      PRIORITY   MATCHED   NODES READY   UPDATING   FAILED   CONFLICTED   READY     REASON
    p        Enforce   0          0         0             0          0        0            Unknown   -

    WAITING FOR RUNNING PODS
    NODE   GPUS   HELD BY
    n      0      team/llm, team/ocr, team/x and 2 more
      PENDING CHANGE stays aliyun.com/gpu-mem until its holders are gone, then becomes nvidia.com/gpu
    ");
}

#[test]
fn a_node_by_name_says_who_holds_which_device() {
    let text = nodes(&shown_node(), TextWidth::UNLIMITED);
    assert!(!text.contains("\u{1b}[2J"), "{text:?}");
    insta::assert_snapshot!(stripped(&text), @r"
    PROBLEMS
    node n: MpsDaemonNotAnswering: the MPS control daemon of GPU 1 does not answer
    node n: GPU 10 has not been seen by the agent or the driver since 2026-01-02T03:04:05Z; a missing GPU counts as removed after 15 minutes. Check `nvidia-smi` and the kernel log on the node

    NODE   HARDWARE              POLICY   RESOURCES                                                                                                                                                                          CONFIG     READY   REASON                  FAULT
    n      10 x A100-SXM4-80GB   p        aliyun.com/gpu-mem 111/250 (31 held, 89 withheld), nvidia.com/gpu.mps 0/10, nvidia.com/mig-1g.10gb 2/2 (1 held), nvidia.com/gpu 1/2 (1 held), nvidia.com/gpu.shared 4/4 (3 held)   in force   False   MpsDaemonNotAnswering   missing (GPU 10), no MPS daemon (GPU 1)

    IN USE   MEMORY              GPU CORES   SHARES
    n        40.5/499 GiB (8%)   0/2 (0%)    0: 30/80, 1: 0/10, 2: 1/2, 3: 0/80, 4: 1/80, 5: 0/10, 6: 0/1, 8: 3/4

    NODE   GPU   DEVICE           STATE            FAULT   RESOURCE                 HELD    POD          CONTAINER
    n      0     A100-SXM4-80GB   waiting          -       aliyun.com/gpu-mem       20/80   team/llm     main
    n      0     A100-SXM4-80GB   waiting          -       aliyun.com/gpu-mem       10/80   team/ocr     main
    n      1     A100-SXM4-80GB   no MPS daemon    -       nvidia.com/gpu.mps       0/10    -            -
    n      2     1g.10gb (7/0)    free             -       nvidia.com/mig-1g.10gb   0/1     -            -
    n      2     1g.10gb (8/0)    held             -       nvidia.com/mig-1g.10gb   1/1     team/train   main
    n      3     A100-SXM4-80GB   free             -       aliyun.com/gpu-mem       0/80    -            -
    n      4     A100-SXM4-80GB   held             -       aliyun.com/gpu-mem       1/80    team/asr     main
    n      5     A100-SXM4-80GB   withheld         -       aliyun.com/gpu-mem       0/10    -            -
    n      6     A100-SXM4-80GB   free             -       nvidia.com/gpu           0/1     -            -
    n      7     A100-SXM4-80GB   not advertised   -       -                        -       -            -
    n      8     A100-SXM4-80GB   held             -       nvidia.com/gpu.shared    3/4     team/nb      main
    n      10    A100-SXM4-80GB   missing          -       -                        -       -            -
    n      -     GPU-9            gone             -       nvidia.com/gpu           1/1     team/old     main
    n: aliyun.com/gpu-mem: 89 withheld until a share is freed; at most 80 are free on one device (GPU 3)

    WAITING FOR RUNNING PODS
    NODE   GPUS   HELD BY                                 PENDING CHANGE
    n      0      team/llm, team/ocr, team/x and 2 more   stays aliyun.com/gpu-mem until its holders are gone, then becomes nvidia.com/gpu
    ");
}

#[test]
fn a_node_by_name_fits_a_terminal_of_80_columns() {
    insta::assert_snapshot!(stripped(&nodes(&shown_node(), TextWidth::of(80))), @r"
    PROBLEMS
    node n: MpsDaemonNotAnswering: the MPS control daemon of GPU 1 does not answer
    node n: GPU 10 has not been seen by the agent or the driver since
      2026-01-02T03:04:05Z; a missing GPU counts as removed after 15 minutes. Check
      `nvidia-smi` and the kernel log on the node

    NODE   CONFIG     READY   FAULT
    n      in force   False   missing (GPU 10), no MPS daemon (GPU 1)
      HARDWARE 10 x A100-SXM4-80GB; POLICY p; RESOURCES aliyun.com/gpu-mem 111/250
        (31 held, 89 withheld), nvidia.com/gpu.mps 0/10, nvidia.com/mig-1g.10gb 2/2
        (1 held), nvidia.com/gpu 1/2 (1 held), nvidia.com/gpu.shared 4/4 (3 held);
        REASON MpsDaemonNotAnswering

    IN USE   MEMORY              GPU CORES
    n        40.5/499 GiB (8%)   0/2 (0%)
      SHARES 0: 30/80, 1: 0/10, 2: 1/2, 3: 0/80, 4: 1/80, 5: 0/10, 6: 0/1, 8: 3/4

    NODE   GPU   STATE            FAULT   HELD    POD          CONTAINER
    n      0     waiting          -       20/80   team/llm     main
      DEVICE A100-SXM4-80GB; RESOURCE aliyun.com/gpu-mem
    n      0     waiting          -       10/80   team/ocr     main
      DEVICE A100-SXM4-80GB; RESOURCE aliyun.com/gpu-mem
    n      1     no MPS daemon    -       0/10    -            -
      DEVICE A100-SXM4-80GB; RESOURCE nvidia.com/gpu.mps
    n      2     free             -       0/1     -            -
      DEVICE 1g.10gb (7/0); RESOURCE nvidia.com/mig-1g.10gb
    n      2     held             -       1/1     team/train   main
      DEVICE 1g.10gb (8/0); RESOURCE nvidia.com/mig-1g.10gb
    n      3     free             -       0/80    -            -
      DEVICE A100-SXM4-80GB; RESOURCE aliyun.com/gpu-mem
    n      4     held             -       1/80    team/asr     main
      DEVICE A100-SXM4-80GB; RESOURCE aliyun.com/gpu-mem
    n      5     withheld         -       0/10    -            -
      DEVICE A100-SXM4-80GB; RESOURCE aliyun.com/gpu-mem
    n      6     free             -       0/1     -            -
      DEVICE A100-SXM4-80GB; RESOURCE nvidia.com/gpu
    n      7     not advertised   -       -       -            -
      DEVICE A100-SXM4-80GB
    n      8     held             -       3/4     team/nb      main
      DEVICE A100-SXM4-80GB; RESOURCE nvidia.com/gpu.shared
    n      10    missing          -       -       -            -
      DEVICE A100-SXM4-80GB
    n      -     gone             -       1/1     team/old     main
      DEVICE GPU-9; RESOURCE nvidia.com/gpu
    n: aliyun.com/gpu-mem: 89 withheld until a share is freed; at most 80 are free
      on one device (GPU 3)

    WAITING FOR RUNNING PODS
    NODE   GPUS   HELD BY
    n      0      team/llm, team/ocr, team/x and 2 more
      PENDING CHANGE stays aliyun.com/gpu-mem until its holders are gone, then
        becomes nvidia.com/gpu
    ");
}

#[test]
fn no_row_is_wider_than_the_terminal() {
    for columns in [80, 120] {
        let width = TextWidth::of(columns);
        let texts = [sample(), shared(), rolling()].map(|fleet| shown(&fleet, width));
        let node = stripped(&nodes(&shown_node(), width));
        for line in texts.iter().chain([&node]).flat_map(|text| text.lines()) {
            // A command in backticks stays in one piece.
            assert!(
                line.chars().count() <= columns || line.trim_start().starts_with('`'),
                "{columns}: {line}"
            );
        }
    }
}

#[test]
fn a_rollout_says_how_far_it_is_and_once_where_it_stopped() {
    insta::assert_snapshot!(shown(&rolling(), TextWidth::UNLIMITED), @r"
    PROBLEMS
    policy p: stopped: node n4 failed: ConfigurationRejected: resource nvidia.com/gpu: no GPU is left; no other node changes until the policy's spec changes
    node n7: NodeNotReady: the node's kubelet is not ready

    NODE   HARDWARE   POLICY   RESOURCES   CONFIG     READY     REASON                  FAULT
    n1     -          p        -           in force   True      ConfigurationInForce    -
    n2     -          p        -           in force   True      ConfigurationInForce    -
    n3     -          p        -           pending    True      ConfigurationInForce    -
    n4     -          p        -           rejected   False     ConfigurationRejected   -
    n5     -          p        -           in force   True      ConfigurationInForce    -
    n6     -          p        -           in force   True      ConfigurationInForce    -
    n7     -          p        -           in force   Unknown   NodeNotReady            -

    POLICY   MODE      PRIORITY   MATCHED   NODES READY   UPDATING   FAILED   CONFLICTED   READY     REASON
    p        Enforce   0          7         2             3          2        0            Unknown   -

    ROLLOUT   IN FORCE   CHANGING   AT ONCE   PENDING   NOT WAITED FOR   STOPPED AT
    p         2 of 7     n3         2         2         1                n4
    ");
}

#[test]
fn a_sentence_is_said_once_with_all_its_nodes() {
    let mut fleet = sample();
    let node = |fleet: &mut FleetSummary, index: usize, message: &str| {
        fleet.nodes[index].message = Some(message.to_owned());
        fleet.nodes[index].problems = vec!["its disk is full".to_owned()];
    };
    node(&mut fleet, 0, "its disk is full");
    node(&mut fleet, 4, "its fan is loud");
    fleet.policies[1].messages = vec![
        "Degraded (NodesFailed): 1 node failed".to_owned(),
        "Stalled (NodesFailed): 1 node failed".to_owned(),
    ];
    let text = shown(&fleet, TextWidth::UNLIMITED);
    assert_eq!(text.matches("its disk is full").count(), 1, "{text}");
    assert!(text.contains("\nnodes a, f: its disk is full\n"), "{text}");
    assert!(text.contains("node f: AgentNotReporting: its fan is loud\n"), "{text}");
    assert_eq!(text.matches("1 node failed").count(), 1, "{text}");
}

#[test]
fn a_node_that_serves_nothing_is_told_beside_a_policy_in_conflict_there() {
    let mut fleet = shared();
    fleet.policies[0].failures = vec![NodeFailure {
        node: "n".to_owned(),
        reason: "KeyOwnedByAnother".to_owned(),
        message: "label accelerator is \"theirs\", not \"a100\"".to_owned(),
    }];
    let text = shown(&fleet, TextWidth::UNLIMITED);
    assert!(
        text.contains("policy p: node n: KeyOwnedByAnother: label accelerator"),
        "{text}"
    );
    assert!(
        text.contains("\nnode n: MpsDaemonNotAnswering: the MPS control daemon"),
        "{text}"
    );
    let message = "the MPS control daemon of GPU 1 does not answer".to_owned();
    fleet.policies[0].failures[0] = NodeFailure {
        node: "n".to_owned(),
        reason: "MpsDaemonNotAnswering".to_owned(),
        message,
    };
    let text = shown(&fleet, TextWidth::UNLIMITED);
    assert_eq!(text.matches("the MPS control daemon of GPU 1").count(), 1, "{text}");
}

#[test]
fn a_policy_that_another_one_overrides_is_no_problem() {
    let summary = |status: &str, reason: &str, message: &str| {
        let ready = json!({"type": "Ready", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-02T03:04:05Z"});
        let policy = json!({"apiVersion": "gpunode.dev/v1alpha1", "kind": "GpuNodePolicy", "metadata": {"name": "all"},
            "spec": {"nodeSelector": {}},
            "status": {"observedGeneration": 1, "conditions": [ready],
                "nodes": {"matched": 40, "ready": 40, "updating": 0, "failed": 0, "conflicted": 0, "overridden": 3}}});
        summarise_policy(&serde_json::from_value(policy).expect("a policy"))
    };
    let in_force =
        "in force on 40 of 40 matched nodes; overridden on 3 nodes, first on n1: label tier by policy x (priority 1)";
    let mut fleet = FleetSummary {
        policies: vec![summary("True", "InForce", in_force)],
        ..FleetSummary::default()
    };
    let text = shown(&fleet, TextWidth::UNLIMITED);
    assert!(!text.contains("PROBLEMS"), "{text}");
    assert!(text.contains(&format!("\npolicy all: {in_force}\n")), "{text}");
    for (status, reason) in [("False", "NodesUpdating"), ("True", "Paused")] {
        fleet.policies = vec![summary(status, reason, "39 of 40 matched nodes")];
        let text = shown(&fleet, TextWidth::UNLIMITED);
        assert!(!text.contains("39 of 40 matched nodes"), "{text}");
    }
}

#[test]
fn what_the_caller_may_not_list_is_the_last_problem() {
    let mut fleet = sample();
    fleet
        .unreadable
        .insert(0, UnreadableObject::forbidden("Node", "nodes is forbidden", ""));
    let text = shown(&fleet, TextWidth::UNLIMITED);
    assert!(text.starts_with("PROBLEMS\nGpuNode d: "), "{text}");
    let (problems, _) = text.split_once("\n\n").expect("a table below");
    assert!(
        problems.ends_with("you may not list Nodes: nodes is forbidden; ask for the ClusterRole gpunode-viewer"),
        "{text}"
    );
}

#[test]
fn a_name_that_is_no_gpu_node_is_told_apart_from_one_that_is_no_node() {
    let cpu = Node {
        metadata: ObjectMeta {
            name: Some("cpu".to_owned()),
            ..ObjectMeta::default()
        },
        ..Node::default()
    };
    let nodes = ListedObjects {
        objects: vec![cpu],
        unreadable: Vec::new(),
    };
    let refusal = |name: &str| {
        shared()
            .only(&[name.to_owned()], &nodes)
            .expect_err("no GPU node")
            .to_string()
    };
    assert!(
        refusal("cpu").starts_with("show node cpu: it has no GpuNode, because"),
        "{}",
        refusal("cpu")
    );
    assert!(
        refusal("nope").starts_with("show node nope: the node does not exist"),
        "{}",
        refusal("nope")
    );
}

#[test]
fn what_waits_for_one_reason_is_one_row_of_its_node() {
    let mut fleet = shared();
    let devices = &mut fleet.nodes[0].devices;
    let mut waits = devices[0].clone();
    let mut pods = waits.waiting.clone().expect("a change");
    pods.pods = vec!["team/a".to_owned()];
    (waits.gpu, waits.waiting) = (Some(11), Some(pods));
    devices.push(waits);
    let text = shown(&fleet, TextWidth::UNLIMITED);
    assert_eq!(text.matches("stays aliyun.com/gpu-mem").count(), 1, "{text}");
    assert!(
        text.contains("\nn      0, 11   team/a, team/llm, team/ocr and 3 more   stays"),
        "{text}"
    );
}

#[test]
fn a_long_list_of_what_waits_is_cut() {
    let mut fleet = shared();
    let devices = &mut fleet.nodes[0].devices;
    for change in 1..25 {
        let mut waits = devices[0].clone();
        if let Some(waiting) = &mut waits.waiting {
            waiting.message = format!("change {change}");
        }
        devices.push(waits);
    }
    let text = shown(&fleet, TextWidth::UNLIMITED);
    assert_eq!(
        text.matches("team/llm, team/ocr, team/x and 2 more").count(),
        MAX_WAITING,
        "{text}"
    );
    assert!(
        text.contains("and 5 more; list a node's with `kubectl gpunode status NODE`"),
        "{text}"
    );
}

#[test]
fn an_empty_cluster_says_what_comes_next() {
    insta::assert_snapshot!(shown(&FleetSummary::default(), TextWidth::UNLIMITED), @r"
    no GpuNode exists yet; one appears when gpunode-discovery finds a GPU, or a policy with a devicePlugin matches a node

    no GpuNodePolicy exists yet; write one and preview it with `kubectl gpunode plan -f FILE`
    ");
}
