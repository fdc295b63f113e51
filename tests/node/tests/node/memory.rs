//! GPUs shared in units of their memory.

use anyhow::{Context as _, Result};
use gpunode_node_tests::{Admitted, Lab, Node, Rejection, Stopwatch, node_of, until};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};
use tonic::Code;

const MEMORY: &str = "aliyun.com/gpu-mem";
const PACKED: &str = "resources: [{name: aliyun.com/gpu-mem, sharing: {strategy: Memory}}]";
const SPREAD: &str = "resources: [{name: aliyun.com/gpu-mem, sharing: {strategy: Memory, placement: Spread}}]";
/// Interval at which a kubelet reports the node's allocatable. Where there is no API server, a refusal waits for longer than that.
const REPORT: Duration = Duration::from_secs(10);

/// The GPUs that ids are of.
fn gpus(admitted: &Admitted) -> BTreeSet<&str> {
    admitted.ids.iter().filter_map(|id| id.split("-_-").next()).collect()
}

/// A V100 of 16 GiB is GPU 0, an A100 of 80 GiB is GPU 1.
fn unequal() -> Result<Node> {
    node_of(&["Tesla V100-SXM2-16GB", "NVIDIA A100 80GB PCIe"])
}

#[tokio::test]
async fn each_gpu_has_units_of_its_own_memory() -> Result<()> {
    let lab = Lab::start(unequal()?, PACKED)?;
    let endpoint = lab.kubelet.has(MEMORY, |_| true).await?;
    let uuids = lab.node.uuids()?;
    assert_eq!(
        (endpoint.healthy_of(&uuids[0]), endpoint.healthy_of(&uuids[1])),
        (16, 80)
    );
    assert_eq!(endpoint.devices.len(), 96);
    assert!(endpoint.ids().contains(&format!("{}-_-79", uuids[1])));
    Ok(())
}

#[tokio::test]
async fn units_may_be_smaller_than_a_gibibyte() -> Result<()> {
    let lab = Lab::start(
        node_of(&["NVIDIA L4"])?,
        "resources: [{name: a.b/quarter, sharing: {strategy: Memory, unit: 256Mi}}]",
    )?;
    // 23 034 MiB make 89 whole units.
    lab.kubelet
        .has("a.b/quarter", |endpoint| endpoint.devices.len() == 89)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_container_gets_all_its_units_from_one_gpu_and_is_told_as_by_gpushare() -> Result<()> {
    let lab = Lab::start(unequal()?, PACKED)?;
    lab.kubelet.has(MEMORY, |_| true).await?;
    let uuids = lab.node.uuids()?;
    for (pod, units, gpu) in [("a", 10, 0), ("b", 7, 1), ("c", 6, 0), ("d", 73, 1)] {
        let admitted = lab.kubelet.admit(pod, "main", MEMORY, units).await?;
        assert_eq!(gpus(&admitted), BTreeSet::from([uuids[gpu].as_str()]), "{pod}");
        let envs = admitted.response.envs;
        assert_eq!(envs["NVIDIA_VISIBLE_DEVICES"], uuids[gpu]);
        assert_eq!(envs["ALIYUN_COM_GPU_MEM_IDX"], gpu.to_string());
        assert_eq!(envs["ALIYUN_COM_GPU_MEM_DEV"], ["16", "80"][gpu]);
        assert_eq!(envs["ALIYUN_COM_GPU_MEM_CONTAINER"], units.to_string());
        assert_eq!(envs.len(), 4, "{envs:?}");
    }
    // Filled exactly.
    assert_eq!(lab.kubelet.schedulable(MEMORY), 0);
    Ok(())
}

#[tokio::test]
async fn packed_fills_one_gpu_first_and_spread_takes_the_emptiest() -> Result<()> {
    for (config, expected) in [(PACKED, [0, 0, 0, 1]), (SPREAD, [0, 1, 0, 1])] {
        let lab = Lab::start(node_of(&["Tesla T4", "Tesla T4"])?, config)?;
        lab.kubelet.has(MEMORY, |_| true).await?;
        let uuids = lab.node.uuids()?;
        for (pod, gpu) in expected.into_iter().enumerate() {
            let admitted = lab.kubelet.admit(&format!("pod-{pod}"), "main", MEMORY, 5).await?;
            assert_eq!(
                gpus(&admitted),
                BTreeSet::from([uuids[gpu].as_str()]),
                "pod {pod} of {config}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn placement_changes_without_a_new_list() -> Result<()> {
    let lab = Lab::start(node_of(&["Tesla T4", "Tesla T4"])?, PACKED)?;
    let lists = lab.kubelet.has(MEMORY, |_| true).await?.lists;
    let uuids = lab.node.uuids()?;
    lab.kubelet.admit("a", "main", MEMORY, 5).await?;
    lab.apply(SPREAD)?;
    until("the change is in force", || {
        (lab.agent.logged("configuration in force") == 2).then_some(())
    })
    .await?;
    assert_eq!(
        gpus(&lab.kubelet.admit("b", "main", MEMORY, 5).await?),
        BTreeSet::from([uuids[1].as_str()])
    );
    assert_eq!(lab.kubelet.endpoint(MEMORY).lists, lists);
    Ok(())
}

#[tokio::test]
async fn a_container_takes_its_units_from_the_gpu_of_its_init_container() -> Result<()> {
    let lab = Lab::start(unequal()?, SPREAD)?;
    lab.kubelet.has(MEMORY, |_| true).await?;
    let uuids = lab.node.uuids()?;
    // Spread takes the A100 for both, and would take it for what is missing to the third too if it had no choice.
    let init = lab.kubelet.admit_init("pod", "init", MEMORY, 70).await?;
    assert_eq!(gpus(&init), BTreeSet::from([uuids[1].as_str()]));
    let main = lab.kubelet.admit("pod", "main", MEMORY, 75).await?;
    assert_eq!(gpus(&main), gpus(&init));
    assert!(init.ids.iter().all(|id| main.ids.contains(id)));
    assert_eq!(lab.kubelet.in_use(MEMORY).len(), 75);
    Ok(())
}

#[tokio::test]
async fn a_request_that_fits_the_node_but_no_gpu_fails_once_and_the_node_shows_what_fits() -> Result<()> {
    let lab = Lab::start(unequal()?, PACKED)?;
    let kubelet = &lab.kubelet;
    kubelet.has(MEMORY, |_| true).await?;
    kubelet.admit("large", "main", MEMORY, 70).await?;
    kubelet.admit("small", "main", MEMORY, 8).await?;
    assert_eq!(kubelet.schedulable(MEMORY), 18, "16 on one GPU and 2 on the other");

    // As its ReplicaSet does: a new pod for each that failed, wherever the scheduler sees room.
    let mut failures = 0;
    while kubelet.schedulable(MEMORY) >= 17 {
        let (start, stopwatch) = (Instant::now(), Stopwatch::start());
        let refused = kubelet
            .admit(&format!("cannot-fit-{failures}"), "main", MEMORY, 17)
            .await;
        let (took, unhindered) = (start.elapsed(), stopwatch.elapsed());
        let Err(Rejection::Plugin(refused)) = refused else {
            anyhow::bail!("{refused:?}")
        };
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert_eq!(
            refused.message(),
            "allocate aliyun.com/gpu-mem: 17 units do not fit on one GPU: 18 units are free on this node, at most 16 on \
             one GPU (GPU 0); request at most 16, or wait until units are free"
        );
        failures += 1;
        // A pod must not wait without end; the agent gives up after 15 s.
        assert!(unhindered < Duration::from_secs(20), "{unhindered:?}");
        // The kubelet had the smaller list all that time. The agent waits for a second more than it has to, for what lies between
        // its clock and this one.
        let shown = kubelet
            .messages(MEMORY)
            .last()
            .context("a list")?
            .at
            .duration_since(start);
        assert!(
            took >= shown + REPORT,
            "published after {shown:?}, refused after {took:?}"
        );
        assert!(failures <= 2, "a pod that cannot fit fails again and again");
    }
    assert_eq!(failures, 1);
    let uuids = lab.node.uuids()?;
    let withheld = kubelet.endpoint(MEMORY);
    assert_eq!(
        (withheld.healthy_of(&uuids[0]), withheld.healthy_of(&uuids[1])),
        (16, 78),
        "what is held stays healthy"
    );

    // What fits still runs, and what is withheld follows.
    kubelet.admit("fits", "main", MEMORY, 15).await?;
    kubelet
        .has(MEMORY, |endpoint| endpoint.healthy().len() == 70 + 8 + 15 + 2)
        .await?;
    assert_eq!(
        kubelet.schedulable(MEMORY),
        2,
        "one unit of GPU 0 is withheld for the two of GPU 1"
    );

    // Everything is offered again when something is freed.
    kubelet.release("large");
    kubelet.has(MEMORY, |endpoint| endpoint.healthy().len() == 96).await?;
    let admitted = kubelet.admit("fits-now", "main", MEMORY, 17).await?;
    assert_eq!(gpus(&admitted), BTreeSet::from([uuids[1].as_str()]));
    Ok(())
}

#[tokio::test]
async fn a_device_smaller_than_one_unit_is_not_offered_and_said_to_be() -> Result<()> {
    let lab = Lab::start(
        unequal()?,
        "resources: [{name: a.b/c, sharing: {strategy: Memory, unit: 20Gi}}]",
    )?;
    let endpoint = lab.kubelet.has("a.b/c", |_| true).await?;
    assert_eq!(
        (endpoint.devices.len(), endpoint.healthy_of(&lab.node.uuids()?[1])),
        (4, 4)
    );
    lab.agent.logs("MemoryBelowUnit").await?;
    Ok(())
}
