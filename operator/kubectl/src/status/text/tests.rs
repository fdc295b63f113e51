//! Texts of the sample fleets.

use super::*;
use crate::{
    cluster::ListedObjects,
    status::sample::{rolling, sample, shared},
};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};

fn no_nodes() -> ListedObjects<Node> {
    ListedObjects {
        objects: Vec::new(),
        unreadable: Vec::new(),
    }
}

fn shown(fleet: &FleetSummary) -> String {
    anstream::adapter::strip_str(&super::fleet(fleet)).to_string()
}

#[test]
fn a_fleet_is_one_table_with_its_problems_below() {
    insta::assert_snapshot!(shown(&sample()), @r#"
    NODE   HARDWARE                   POLICY   RESOURCES            CONFIG     READY     REASON
    a      8 x Tesla-V100-SXM2-32GB   v100     nvidia.com/gpu 7/8   in force   True      ConfigurationInForce
    b      8 x Tesla-V100-SXM2-32GB   v100     -                    rejected   False     ConfigurationRejected
    c      8 x Tesla-V100-SXM2-32GB   v100     nvidia.com/gpu 0/8   pending    Unknown   NodeNotReady
    d      -                          -        -                    unknown    Unknown   StatusUnreadable
    f      4 x Tesla-T4               -        -                    none       Unknown   AgentNotReporting
    g      8 x Tesla-V100-SXM2-32GB   gone     nvidia.com/gpu 0/8   in force   True      ConfigurationInForce

    POLICY   MODE      PRIORITY   MATCHED   NODES READY   UPDATING   FAILED   CONFLICTED   READY     REASON
    new      Preview   0          0         0             0          0        0            Unknown   -
    v100     Enforce   100        3         1             1          1        0            False     NodesUpdating
    policy new matches no node; nearest node: a (and 5 others as near): spec.nodeSelector.matchLabels[pool]: wants "x", node has no such label

    PROBLEMS
    GpuNode d: its status cannot be read: bad time
    policy new: the operator has not processed the current spec; check that it is running: `kubectl -n gpunode-system get pods`
    policy v100: Degraded (NodesFailed): 1 node failed
    policy v100: node b: ConfigurationRejected: resources[0].name: bad
    node c: NodeNotReady: the node's kubelet is not ready
    node c: nvidia.com/gpu: the agent advertises 7, the Node has 0 allocatable; check the agent with `kubectl -n gpunode-system get pods -o wide --field-selector spec.nodeName=c`
    node g: nvidia.com/gpu: the agent advertises 7, the Node has 0 allocatable; check the agent with `kubectl -n gpunode-system get pods -o wide --field-selector spec.nodeName=g`
    node g: its configuration comes from policy gone, which no longer exists; the operator should remove it, check that it is running: `kubectl -n gpunode-system get pods`
    "#);
}

#[test]
fn a_fleet_names_the_devices_that_wait_and_the_pods_that_they_wait_for() {
    insta::assert_snapshot!(shown(&shared()), @r"
    NODE   HARDWARE              POLICY   RESOURCES                                                                                                                                                                          CONFIG     READY   REASON
    n      10 x A100-SXM4-80GB   p        aliyun.com/gpu-mem 111/250 (31 held, 89 withheld), nvidia.com/gpu.mps 0/10, nvidia.com/mig-1g.10gb 2/2 (1 held), nvidia.com/gpu 1/2 (1 held), nvidia.com/gpu.shared 4/4 (3 held)   in force   False   MpsDaemonNotAnswering

    IN USE   MEMORY              GPU CORES   SHARES
    n        40.5/499 GiB (8%)   0/2 (0%)    0: 30/80, 1: 0/10, 2: 1/2, 3: 0/80, 4: 1/80, 5: 0/10, 6: 0/1, 8: 3/4

    POLICY   MODE      PRIORITY   MATCHED   NODES READY   UPDATING   FAILED   CONFLICTED   READY     REASON
    p        Enforce   0          0         0             0          0        0            Unknown   -

    WAITING FOR RUNNING PODS
    NODE   GPU   DEVICE           HELD BY                                 PENDING CHANGE
    n      0     A100-SXM4-80GB   team/llm, team/ocr, team/x and 2 more   stays aliyun.com/gpu-mem until its holders are gone, then becomes nvidia.com/gpu

    PROBLEMS
    node n: MpsDaemonNotAnswering: the MPS control daemon of GPU 1 does not answer
    node n: GPU 10 not seen by the agent or the driver since 2026-01-02T03:04:05Z; counts as removed after 15 minutes. Check `nvidia-smi` and the kernel log on the node
    ");
}

#[test]
fn a_node_by_name_says_who_holds_which_device() {
    let node = shared()
        .only(&["n".to_owned()], &no_nodes())
        .expect("there is such a node");
    let text = nodes(&node);
    assert!(!text.contains("\u{1b}[2J"), "{text:?}");
    insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
    NODE   HARDWARE              POLICY   RESOURCES                                                                                                                                                                          CONFIG     READY   REASON
    n      10 x A100-SXM4-80GB   p        aliyun.com/gpu-mem 111/250 (31 held, 89 withheld), nvidia.com/gpu.mps 0/10, nvidia.com/mig-1g.10gb 2/2 (1 held), nvidia.com/gpu 1/2 (1 held), nvidia.com/gpu.shared 4/4 (3 held)   in force   False   MpsDaemonNotAnswering

    IN USE   MEMORY              GPU CORES   SHARES
    n        40.5/499 GiB (8%)   0/2 (0%)    0: 30/80, 1: 0/10, 2: 1/2, 3: 0/80, 4: 1/80, 5: 0/10, 6: 0/1, 8: 3/4

    NODE   GPU   DEVICE           STATE            RESOURCE                 HELD    POD          CONTAINER
    n      0     A100-SXM4-80GB   waiting          aliyun.com/gpu-mem       20/80   team/llm     main
    n      0     A100-SXM4-80GB   waiting          aliyun.com/gpu-mem       10/80   team/ocr     main
    n      1     A100-SXM4-80GB   no MPS daemon    nvidia.com/gpu.mps       0/10    -            -
    n      2     1g.10gb (7/0)    free             nvidia.com/mig-1g.10gb   0/1     -            -
    n      2     1g.10gb (8/0)    held             nvidia.com/mig-1g.10gb   1/1     team/train   main
    n      3     A100-SXM4-80GB   free             aliyun.com/gpu-mem       0/80    -            -
    n      4     A100-SXM4-80GB   held             aliyun.com/gpu-mem       1/80    team/asr     main
    n      5     A100-SXM4-80GB   withheld         aliyun.com/gpu-mem       0/10    -            -
    n      6     A100-SXM4-80GB   free             nvidia.com/gpu           0/1     -            -
    n      7     A100-SXM4-80GB   not advertised   -                        -       -            -
    n      8     A100-SXM4-80GB   held             nvidia.com/gpu.shared    3/4     team/nb      main
    n      10    A100-SXM4-80GB   missing          -                        -       -            -
    n      -     GPU-9            gone             nvidia.com/gpu           1/1     team/old     main
    n: aliyun.com/gpu-mem: 89 withheld until a share is freed; at most 80 are free on one device (GPU 3)

    WAITING FOR RUNNING PODS
    NODE   GPU   DEVICE           HELD BY                                 PENDING CHANGE
    n      0     A100-SXM4-80GB   team/llm, team/ocr, team/x and 2 more   stays aliyun.com/gpu-mem until its holders are gone, then becomes nvidia.com/gpu

    PROBLEMS
    node n: MpsDaemonNotAnswering: the MPS control daemon of GPU 1 does not answer
    node n: GPU 10 not seen by the agent or the driver since 2026-01-02T03:04:05Z; counts as removed after 15 minutes. Check `nvidia-smi` and the kernel log on the node
    ");
}

#[test]
fn a_rollout_says_how_far_it_is_and_where_it_stopped() {
    insta::assert_snapshot!(shown(&rolling()), @r"
    NODE   HARDWARE   POLICY   RESOURCES   CONFIG     READY     REASON
    n1     -          p        -           in force   True      ConfigurationInForce
    n2     -          p        -           in force   True      ConfigurationInForce
    n3     -          p        -           pending    True      ConfigurationInForce
    n4     -          p        -           rejected   False     ConfigurationRejected
    n5     -          p        -           in force   True      ConfigurationInForce
    n6     -          p        -           in force   True      ConfigurationInForce
    n7     -          p        -           in force   Unknown   NodeNotReady

    POLICY   MODE      PRIORITY   MATCHED   NODES READY   UPDATING   FAILED   CONFLICTED   READY     REASON
    p        Enforce   0          7         2             3          2        0            Unknown   -

    ROLLOUT   IN FORCE   CHANGING   AT ONCE   PENDING   NOT WAITED FOR   STOPPED AT
    p         2 of 7     n3         2         2         1                n4
    p: stopped: node n4 failed: ConfigurationRejected: resource nvidia.com/gpu: no GPU is left; no other node changes until the policy's spec changes

    PROBLEMS
    node n4: ConfigurationRejected: resource nvidia.com/gpu: no GPU is left
    node n7: NodeNotReady: the node's kubelet is not ready
    ");
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
fn a_long_list_of_what_waits_is_cut() {
    let mut fleet = shared();
    let devices = &mut fleet.nodes[0].devices;
    let waits = devices[0].clone();
    devices.extend(std::iter::repeat_n(waits, 24));
    let text = shown(&fleet);
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
    insta::assert_snapshot!(shown(&FleetSummary::default()), @r"
    no GpuNode exists yet; one appears when gpunode-discovery finds a GPU, or a policy with a devicePlugin matches a node

    no GpuNodePolicy exists yet; write one and preview it with `kubectl gpunode plan -f FILE`
    ");
}
