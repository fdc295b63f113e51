//! The state of the cluster for people.

mod devices;
mod rollout;
mod usage;

use super::{
    fleet::Fleet,
    node::{Configuration, NodeState},
    policy::PolicyState,
};
use crate::output::{Cell, nearest_in_words, plain, style, table};
use devices::{device_table, waiting, withheld};
use rollout::rollouts;
use std::fmt::Write as _;
use usage::usage;

/// Devices that wait which are shown of a fleet; `-o json` has all of them.
const MAX_WAITING: usize = 20;

/// Tables of nodes and policies, then what waits for running pods and what stands in the way.
pub fn fleet(fleet: &Fleet) -> String {
    let mut text = if fleet.nodes.is_empty() {
        "no GpuNode yet: they appear when gpunode-discovery finds a GPU, or when a policy with a devicePlugin matches a node\n"
            .to_owned()
    } else {
        node_table(fleet) + &usage(fleet)
    };
    text.push('\n');
    if fleet.policies.is_empty() {
        text.push_str("no GpuNodePolicy yet: write one and see what it would do with `kubectl gpunode plan -f FILE`\n");
    } else {
        let rows: Vec<_> = fleet.policies.iter().map(policy_row).collect();
        let heading = [
            "POLICY",
            "MODE",
            "PRIORITY",
            "MATCHED",
            "NODES READY",
            "UPDATING",
            "FAILED",
            "CONFLICTED",
            "READY",
            "REASON",
        ];
        text.push_str(&table(heading, &rows));
        for (name, nearest) in fleet.policies.iter().filter_map(|policy| Some((&policy.name, policy.nearest.as_ref()?)))
        {
            let _ = writeln!(text, "policy {name} matches no node; {}", plain(&nearest_in_words(nearest)));
        }
    }
    text.push_str(&rollouts(fleet));
    text.push_str(&waiting(fleet, MAX_WAITING));
    text.push_str(&problems(fleet));
    text
}

/// The nodes, who holds which of their devices, and what stands in the way.
pub fn nodes(fleet: &Fleet) -> String {
    let mut text = node_table(fleet) + &usage(fleet);
    text.push_str(&device_table(fleet));
    text.extend(fleet.nodes.iter().map(withheld));
    for node in fleet.nodes.iter().filter(|node| node.holders_truncated) {
        let _ = writeln!(text, "{}: the agent lists no more holders than these; there are more", node.name);
    }
    text.push_str(&waiting(fleet, usize::MAX));
    text.push_str(&problems(fleet));
    text
}

fn node_table(fleet: &Fleet) -> String {
    let rows: Vec<_> = fleet.nodes.iter().map(node_row).collect();
    table(["NODE", "HARDWARE", "POLICY", "RESOURCES", "CONFIG", "READY", "REASON"], &rows)
}

fn node_row(node: &NodeState) -> [Cell; 7] {
    let resources: Vec<String> = node
        .resources
        .iter()
        .map(|resource| {
            let held = resource.held.filter(|held| *held > 0).map(|held| format!("{held} held"));
            let withheld = resource.withheld.map(|count| format!("{count} withheld"));
            let unregistered = (!resource.registered).then(|| "not registered".to_owned());
            let more: Vec<String> = held.into_iter().chain(withheld).chain(unregistered).collect();
            let more = if more.is_empty() { String::new() } else { format!(" ({})", more.join(", ")) };
            format!("{} {}/{}{more}", resource.name, resource.allocatable, resource.capacity)
        })
        .collect();
    let less = node
        .resources
        .iter()
        .any(|resource| !resource.registered || resource.allocatable < i64::from(resource.capacity));
    let configuration = match node.configuration {
        Configuration::None => Cell::new("none", style::PLAIN),
        Configuration::InForce => Cell::new("in force", style::GOOD),
        Configuration::Pending => Cell::new("pending", style::WAITING),
        Configuration::Unknown => Cell::new("unknown", style::WAITING),
        Configuration::Rejected => Cell::new("rejected", style::BAD),
    };
    [
        node.name.as_str().into(),
        node.hardware.as_deref().unwrap_or_default().into(),
        node.policy.as_deref().unwrap_or_default().into(),
        Cell::new(resources.join(", "), if less { style::WAITING } else { style::PLAIN }),
        configuration,
        ready(&node.ready),
        node.reason.as_deref().unwrap_or_default().into(),
    ]
}

fn policy_row(policy: &PolicyState) -> [Cell; 10] {
    let count = |count: i32, paint| Cell::new(count.to_string(), if count > 0 { paint } else { style::PLAIN });
    [
        policy.name.as_str().into(),
        policy.mode.as_str().into(),
        policy.priority.to_string().into(),
        policy.matched.to_string().into(),
        policy.ready_nodes.to_string().into(),
        count(policy.updating, style::WAITING),
        count(policy.failed, style::BAD),
        count(policy.conflicted, style::BAD),
        ready(&policy.ready),
        policy.reason.as_deref().unwrap_or_default().into(),
    ]
}

fn ready(status: &str) -> Cell {
    let paint = match status {
        "True" => style::GOOD,
        "False" => style::BAD,
        _ => style::WAITING,
    };
    Cell::new(status, paint)
}

/// What somebody has to look at. The words are other people's.
fn problems(fleet: &Fleet) -> String {
    let unreadable = fleet.unreadable.iter().map(|it| format!("{} {}: {}", it.kind, it.name, it.message));
    let policies = fleet.policies.iter().flat_map(policy_problems);
    let is_named =
        |name: &str| fleet.policies.iter().flat_map(|policy| &policy.failures).any(|failure| failure.node == name);
    let unnamed = fleet.nodes.iter().filter(|node| !is_named(&node.name));
    let unready = unnamed.filter_map(|node| {
        let reason = node.reason.as_deref().unwrap_or("NotReady");
        Some(format!("node {}: {reason}: {}", node.name, node.message.as_ref()?))
    });
    let differences = fleet
        .nodes
        .iter()
        .flat_map(|node| node.problems.iter().map(move |problem| format!("node {}: {problem}", node.name)));
    let lines: Vec<String> = unreadable.chain(policies).chain(unready).chain(differences).collect();
    if lines.is_empty() {
        return String::new();
    }
    let heading = style::HEADING;
    let lines: String = lines.iter().map(|line| plain(line) + "\n").collect();
    format!("\n{heading}PROBLEMS{heading:#}\n{lines}")
}

fn policy_problems(policy: &PolicyState) -> Vec<String> {
    let name = &policy.name;
    let messages = policy.messages.iter().map(|message| format!("policy {name}: {message}"));
    let failures = policy.failures.iter();
    let failures = failures.map(|it| format!("policy {name}: node {}: {}: {}", it.node, it.reason, it.message));
    let (named, broken) = (policy.failures.len(), policy.failed + policy.conflicted);
    let more = usize::try_from(broken).unwrap_or_default().saturating_sub(named);
    let more = (named > 0 && more > 0).then(|| format!("policy {name}: and {more} more nodes"));
    messages.chain(failures).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::Listed,
        status::sample::{rolling, sample, shared},
    };
    use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};

    fn no_nodes() -> Listed<Node> {
        Listed { objects: Vec::new(), unreadable: Vec::new() }
    }

    fn shown(fleet: &Fleet) -> String {
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
        policy new matches no node; nearest is node a, and 5 other nodes are as near: spec.nodeSelector.matchLabels[pool]: it is to be "x", the node has no such label

        PROBLEMS
        GpuNode d: its status cannot be read: bad time
        policy new: the operator has not seen the present spec; is it running?
        policy v100: Degraded (NodesFailed): 1 node failed
        policy v100: node b: ConfigurationRejected: resources[0].name: bad
        node c: NodeNotReady: the node's kubelet is not ready
        node c: nvidia.com/gpu: the agent says 7, the Node offers 0; look at the agent with `kubectl -n gpunode-system get pods -o wide --field-selector spec.nodeName=c`
        node g: nvidia.com/gpu: the agent says 7, the Node offers 0; look at the agent with `kubectl -n gpunode-system get pods -o wide --field-selector spec.nodeName=g`
        node g: its configuration comes from policy gone, which does not exist; the operator takes it away, so see whether it runs: `kubectl -n gpunode-system get pods`
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
        NODE   GPU   DEVICE           HELD BY                                 WHAT WAITS
        n      0     A100-SXM4-80GB   team/llm, team/ocr, team/x and 2 more   stays aliyun.com/gpu-mem until its holders are gone, then becomes nvidia.com/gpu

        PROBLEMS
        node n: MpsDaemonNotAnswering: the MPS control daemon of GPU 1 does not answer
        node n: GPU 10 not seen since 2026-01-02T03:04:05Z, by the agent or by the driver; after 15 minutes it counts as removed. See `nvidia-smi` and the kernel's log on the node
        ");
    }

    #[test]
    fn a_node_by_name_says_who_holds_which_device() {
        let node = shared().only(&["n".to_owned()], &no_nodes()).expect("there is such a node");
        let text = nodes(&node);
        assert!(!text.contains("\u{1b}[2J"), "{text:?}");
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @r"
        NODE   HARDWARE              POLICY   RESOURCES                                                                                                                                                                          CONFIG     READY   REASON
        n      10 x A100-SXM4-80GB   p        aliyun.com/gpu-mem 111/250 (31 held, 89 withheld), nvidia.com/gpu.mps 0/10, nvidia.com/mig-1g.10gb 2/2 (1 held), nvidia.com/gpu 1/2 (1 held), nvidia.com/gpu.shared 4/4 (3 held)   in force   False   MpsDaemonNotAnswering

        IN USE   MEMORY              GPU CORES   SHARES
        n        40.5/499 GiB (8%)   0/2 (0%)    0: 30/80, 1: 0/10, 2: 1/2, 3: 0/80, 4: 1/80, 5: 0/10, 6: 0/1, 8: 3/4

        NODE   GPU   DEVICE           STATE           RESOURCE                 HELD    POD          CONTAINER
        n      0     A100-SXM4-80GB   waits           aliyun.com/gpu-mem       20/80   team/llm     main
        n      0     A100-SXM4-80GB   waits           aliyun.com/gpu-mem       10/80   team/ocr     main
        n      1     A100-SXM4-80GB   no MPS daemon   nvidia.com/gpu.mps       0/10    -            -
        n      2     1g.10gb (7/0)    free            nvidia.com/mig-1g.10gb   0/1     -            -
        n      2     1g.10gb (8/0)    held            nvidia.com/mig-1g.10gb   1/1     team/train   main
        n      3     A100-SXM4-80GB   free            aliyun.com/gpu-mem       0/80    -            -
        n      4     A100-SXM4-80GB   held            aliyun.com/gpu-mem       1/80    team/asr     main
        n      5     A100-SXM4-80GB   withheld        aliyun.com/gpu-mem       0/10    -            -
        n      6     A100-SXM4-80GB   free            nvidia.com/gpu           0/1     -            -
        n      7     A100-SXM4-80GB   not offered     -                        -       -            -
        n      8     A100-SXM4-80GB   held            nvidia.com/gpu.shared    3/4     team/nb      main
        n      10    A100-SXM4-80GB   missing         -                        -       -            -
        n      -     GPU-9            gone            nvidia.com/gpu           1/1     team/old     main
        n: aliyun.com/gpu-mem: 89 withheld until something is freed: at most 80 are free on one device (GPU 3)

        WAITING FOR RUNNING PODS
        NODE   GPU   DEVICE           HELD BY                                 WHAT WAITS
        n      0     A100-SXM4-80GB   team/llm, team/ocr, team/x and 2 more   stays aliyun.com/gpu-mem until its holders are gone, then becomes nvidia.com/gpu

        PROBLEMS
        node n: MpsDaemonNotAnswering: the MPS control daemon of GPU 1 does not answer
        node n: GPU 10 not seen since 2026-01-02T03:04:05Z, by the agent or by the driver; after 15 minutes it counts as removed. See `nvidia-smi` and the kernel's log on the node
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

        ROLLOUT   IN FORCE   CHANGING   AT ONCE   TO COME   NOT AWAITED   STOPPED AT
        p         2 of 7     n3         2         2         1             n4
        p: stopped at n4: ConfigurationRejected: offer nvidia.com/gpu: no GPU is left; no other node changes until the spec does

        PROBLEMS
        node n4: ConfigurationRejected: offer nvidia.com/gpu: no GPU is left
        node n7: NodeNotReady: the node's kubelet is not ready
        ");
    }

    #[test]
    fn a_name_that_is_no_gpu_node_is_told_apart_from_one_that_is_no_node() {
        let cpu =
            Node { metadata: ObjectMeta { name: Some("cpu".to_owned()), ..ObjectMeta::default() }, ..Node::default() };
        let nodes = Listed { objects: vec![cpu], unreadable: Vec::new() };
        let refusal = |name: &str| shared().only(&[name.to_owned()], &nodes).expect_err("no GPU node").to_string();
        assert!(refusal("cpu").starts_with("show node cpu: it has no GpuNode, since"), "{}", refusal("cpu"));
        assert!(
            refusal("nope").starts_with("show node nope: the cluster has no node of that name"),
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
        assert_eq!(text.matches("team/llm, team/ocr, team/x and 2 more").count(), MAX_WAITING, "{text}");
        assert!(text.contains("and 5 more; `kubectl gpunode status NODE` shows those of a node"), "{text}");
    }

    #[test]
    fn an_empty_cluster_says_what_comes_next() {
        insta::assert_snapshot!(shown(&Fleet::default()), @r"
        no GpuNode yet: they appear when gpunode-discovery finds a GPU, or when a policy with a devicePlugin matches a node

        no GpuNodePolicy yet: write one and see what it would do with `kubectl gpunode plan -f FILE`
        ");
    }
}
