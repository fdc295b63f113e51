//! GPUs shared by time.

use anyhow::{Context as _, Result};
use gpunode_node_tests::{Admitted, FakeKubelet, Lab, Node, Rejection, node_of};
use std::collections::BTreeSet;
use tonic::Code;

const GPU: &str = "nvidia.com/gpu";

fn sliced(more: &str) -> String {
    format!("resources: [{{name: nvidia.com/gpu, sharing: {{strategy: TimeSlicing, {more}}}}}]")
}

fn gpus(admitted: &Admitted) -> BTreeSet<&str> {
    admitted.ids.iter().filter_map(|id| id.split("::").next()).collect()
}

async fn gpu_of_next(kubelet: &FakeKubelet, pod: &str) -> Result<String> {
    let admitted = kubelet.admit(pod, "main", GPU, 1).await?;
    Ok((*gpus(&admitted).first().context("a GPU")?).to_owned())
}

#[tokio::test]
async fn a_replica_goes_to_the_gpu_with_the_fewest_replicas_held() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, &sliced("replicas: 4"))?;
    lab.kubelet.has(GPU, |_| true).await?;
    let uuids = lab.node.uuids()?;
    for pod in 0..8 {
        assert_eq!(
            gpu_of_next(&lab.kubelet, &format!("pod-{pod}")).await?,
            uuids[pod % 4],
            "pod {pod}"
        );
    }
    // GPU 2 is the least loaded now, whatever is used on it.
    lab.kubelet.release("pod-2");
    lab.node.state()?.update_gpu(2, |gpu| gpu.utilization_percent = 100)?;
    assert_eq!(gpu_of_next(&lab.kubelet, "next").await?, uuids[2]);
    Ok(())
}

#[tokio::test]
async fn of_equally_shared_gpus_the_least_busy_is_taken() -> Result<()> {
    let node = Node::with_t4()?;
    for (gpu, percent) in [(0, 90), (1, 40), (2, 10), (3, 60)] {
        node.state()?.update_gpu(gpu, |gpu| gpu.utilization_percent = percent)?;
    }
    let lab = Lab::start(node, &sliced("replicas: 4"))?;
    lab.kubelet.has(GPU, |_| true).await?;
    let uuids = lab.node.uuids()?;
    for (pod, gpu) in [2, 1, 3, 0].into_iter().enumerate() {
        assert_eq!(
            gpu_of_next(&lab.kubelet, &format!("pod-{pod}")).await?,
            uuids[gpu],
            "pod {pod}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_gpu_that_does_not_tell_its_utilisation_fails_no_pod() -> Result<()> {
    let node = Node::with_t4()?;
    for gpu in 0..4 {
        node.state()?.fail(
            gpu,
            "nvmlDeviceGetUtilizationRates",
            gpunode_scenario::ReturnCode::Unknown,
        )?;
    }
    let lab = Lab::start(node, &sliced("replicas: 2"))?;
    lab.kubelet.has(GPU, |_| true).await?;
    assert_eq!(gpu_of_next(&lab.kubelet, "pod").await?, lab.node.uuids()?[0]);
    Ok(())
}

#[tokio::test]
async fn replicas_of_one_request_are_of_different_gpus_as_far_as_there_are() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, &sliced("replicas: 3"))?;
    lab.kubelet.has(GPU, |_| true).await?;
    let three = lab.kubelet.admit("three", "main", GPU, 3).await?;
    assert_eq!(gpus(&three).len(), 3);
    let visible: BTreeSet<_> = three.response.envs["NVIDIA_VISIBLE_DEVICES"].split(',').collect();
    assert_eq!(visible, gpus(&three));
    // Never a refusal: nine are left on four GPUs.
    let nine = lab.kubelet.admit("nine", "main", GPU, 9).await?;
    assert_eq!(gpus(&nine).len(), 4);
    assert_eq!(
        nine.response.envs["NVIDIA_VISIBLE_DEVICES"],
        lab.node.uuids()?.join(",")
    );
    Ok(())
}

#[tokio::test]
async fn requests_for_more_than_one_replica_fail_where_the_configuration_says_so() -> Result<()> {
    let lab = Lab::start(
        Node::with_t4()?,
        &sliced("replicas: 4, failRequestsGreaterThanOne: true"),
    )?;
    let lists = lab.kubelet.has(GPU, |_| true).await?.lists;
    let refused = lab.kubelet.admit("greedy", "main", GPU, 2).await;
    let Err(Rejection::Plugin(refused)) = refused else {
        anyhow::bail!("{refused:?}")
    };
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused.message().contains("requests 2 replicas"),
        "{}",
        refused.message()
    );
    assert!(lab.kubelet.in_use(GPU).is_empty());
    lab.kubelet.admit("modest", "main", GPU, 1).await?;

    // The rule holds for new containers at once, and no list is sent for it.
    lab.apply(&sliced("replicas: 4"))?;
    gpunode_node_tests::until("the change is in force", || {
        (lab.agent.logged("configuration in force") == 2).then_some(())
    })
    .await?;
    lab.kubelet.admit("greedy", "main", GPU, 2).await?;
    assert_eq!(lab.kubelet.endpoint(GPU).lists, lists);
    Ok(())
}

#[tokio::test]
async fn shared_gpus_can_have_a_name_of_their_own() -> Result<()> {
    let lab = Lab::start(Node::with_t4()?, &sliced("replicas: 2, renameByDefault: true"))?;
    lab.kubelet
        .has("nvidia.com/gpu.shared", |endpoint| endpoint.devices.len() == 8)
        .await?;
    assert_eq!(lab.kubelet.connected(), ["nvidia.com/gpu.shared"]);
    Ok(())
}

#[tokio::test]
async fn some_gpus_can_have_other_numbers_of_replicas() -> Result<()> {
    let config = sliced(
        "replicas: 2, replicasPerDevice: [{devices: {indices: [1]}, replicas: 5}, {devices: {products: ['Tesla-T4']}, replicas: 3}]",
    );
    let lab = Lab::start(node_of(&["Tesla T4", "NVIDIA L4", "NVIDIA L4"])?, &config)?;
    let endpoint = lab.kubelet.has(GPU, |_| true).await?;
    let uuids = lab.node.uuids()?;
    let replicas: Vec<usize> = uuids.iter().map(|uuid| endpoint.healthy_of(uuid)).collect();
    assert_eq!(replicas, [3, 5, 2]);
    Ok(())
}
