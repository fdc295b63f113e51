//! Manifests that articles and other projects publish, with images of the tests, the commands that these need, names of their own and
//! no grace period where several are in one test. gpu-manager's pods have the requests of `docs/sharing.md`.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{Lab, T4, V100, eventually};
use std::{collections::BTreeSet, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);

/// One GPU for a pod that sleeps.
const GPU_POD: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: gpu-pod
spec:
  containers:
  - name: cuda-container
    image: gpunode.test/cuda:1
    command: ["sleep", "infinity"]
    resources:
      limits:
        nvidia.com/gpu: 1
"#;

/// A Job that prints its GPU.
const GPU_JOB: &str = r#"apiVersion: batch/v1
kind: Job
metadata:
  name: gpu-job
spec:
  template:
    spec:
      containers:
      - name: cuda-container
        image: gpunode.test/cuda:1
        command: ["nvidia-smi"]
        resources:
          limits:
            nvidia.com/gpu: 1
      restartPolicy: Never
"#;

/// A pod that selects its GPU by the label of the node.
const CUDA_VECTOR_ADD: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: cuda-vector-add
spec:
  restartPolicy: OnFailure
  containers:
    - name: cuda-vector-add
      image: "gpunode.test/cuda:1"
      resources:
        limits:
          nvidia.com/gpu: 1
  nodeSelector:
    accelerator: nvidia-tesla-p100 # or nvidia-tesla-k80 etc.
"#;

/// A pod with this number of GPUs; a shell's sleep stands for its image, pause.
fn demo_pod(gpus: u32) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: demo-pod-{gpus}
spec:
  containers:
  - name: demo-container-1
    image: gpunode.test/busybox:1
    command: [sleep, infinity]
    resources:
      limits:
        nvidia.com/gpu: {gpus}
"
    )
}

/// gpu-manager's pod with 0.5 of a GPU and 7680 MiB, and the one with two GPUs, with the requests that the table of `docs/sharing.md`
/// gives them.
const VCUDA: &str = r"apiVersion: v1
kind: Pod
metadata:
  name: vcuda
spec:
  restartPolicy: Never
  hostNetwork: true
  containers:
  - image: gpunode.test/cuda:1
    name: nvidia
    command: ['sh', '-c', 'nvidia-smi; exec sleep infinity']
    resources:
      requests:
        example.com/gpu-tenth: 5
      limits:
        example.com/gpu-tenth: 5
---
apiVersion: v1
kind: Pod
metadata:
  name: vcuda-2
spec:
  restartPolicy: Never
  hostNetwork: true
  containers:
  - image: gpunode.test/cuda:1
    name: nvidia
    command: ['sh', '-c', 'nvidia-smi; exec sleep infinity']
    resources:
      requests:
        nvidia.com/gpu: 2
      limits:
        nvidia.com/gpu: 2
";

#[test]
#[ignore = "needs the local cluster: make test"]
fn gpu_pod_gets_one_gpu() -> Result<()> {
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "")?;
    lab.apply(GPU_POD)?;
    let pod = lab.await_pod("gpu-pod", "Running")?;
    assert_eq!(pod["spec"]["nodeName"], T4);
    let seen = lab.visible("gpu-pod")?;
    ensure!(
        seen.len() == 1 && lab.gpu_uuids(T4)?.iter().any(|gpu| seen.contains(gpu)),
        "it sees {seen:?}"
    );
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn gpu_job_prints_its_gpu_and_completes() -> Result<()> {
    let lab = Lab::enter()?;
    samples::advertise_four_t4(&lab, "")?;
    lab.apply(GPU_JOB)?;
    lab.kubectl(&["wait", "job/gpu-job", "--for=condition=Complete", "--timeout=180s"])?;
    let printed = lab.kubectl(&["logs", "job/gpu-job"])?;
    ensure!(
        printed.contains("/dev/nvidia"),
        "it printed {printed:?}, and no device node"
    );
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn cuda_vector_add_runs_on_the_node_whose_accelerator_a_policy_names() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(CUDA_VECTOR_ADD)?;
    let label = "  labels: {accelerator: nvidia-tesla-p100}\n";
    lab.apply(&(samples::sharing("training", "{}") + label))?;
    let pod = lab.await_pod("cuda-vector-add", "Succeeded")?;
    assert_eq!(pod["spec"]["nodeName"], V100);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn pods_with_2_and_4_gpus_get_as_many_different_ones() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::sharing("training", "{}"))?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)?;
    let mut seen = BTreeSet::new();
    for gpus in [2, 4] {
        lab.apply(&demo_pod(gpus))?;
        let pod = format!("demo-pod-{gpus}");
        lab.await_pod(&pod, "Running")?;
        seen.extend(lab.visible(&pod)?);
    }
    let of_node: BTreeSet<String> = lab.gpu_uuids(V100)?.into_iter().collect();
    ensure!(
        seen.len() == 6 && seen.is_subset(&of_node),
        "they see {seen:?} of {of_node:?}"
    );
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn binpack_pods_of_gpushare_fill_one_gpu_and_status_shows_what_its_inspect_shows() -> Result<()> {
    let lab = Lab::enter()?;
    let policy = "{resources: [{name: aliyun.com/gpu-mem, sharing: {strategy: Memory}}]}";
    lab.apply(&samples::sharing("inference", policy))?;
    // 15360 MiB each.
    lab.await_allocatable(T4, "aliyun.com/gpu-mem", 4 * 15)?;
    let gpus = lab.gpu_uuids(T4)?;
    lab.apply(samples::BINPACK)?;
    let pods = lab.await_running("binpack-1", 3)?;
    for pod in &pods {
        let environment = lab.environment(pod)?;
        let value = |name: &str| environment.get(name).map(String::as_str).unwrap_or_default();
        assert_eq!(value("ALIYUN_COM_GPU_MEM_IDX"), "0", "all are packed on one GPU");
        assert_eq!(value("ALIYUN_COM_GPU_MEM_DEV"), "15");
        assert_eq!(value("ALIYUN_COM_GPU_MEM_CONTAINER"), "3");
        assert_eq!(lab.visible(pod)?.first(), gpus.first());
    }
    // `kubectl inspect gpushare` has each GPU's memory as ALLOCATED/TOTAL, and that of the node; with -d each pod's.
    let folder = tempfile::tempdir().context("create a folder")?;
    eventually("the status has what is allocated and what there is", LIMIT, || {
        let table = lab.shell(folder.path(), "kubectl gpunode status")?;
        let node = table.lines().find(|line| line.starts_with(T4)).unwrap_or_default();
        ensure!(node.contains("aliyun.com/gpu-mem 60/60 (9 held"), "{table}");
        let details = lab.shell(folder.path(), &format!("kubectl gpunode status {T4}"))?;
        let has_row = |pod: &String| details.lines().any(|line| line.contains(pod) && line.contains("3/15"));
        ensure!(pods.iter().all(has_row), "{details}");
        let in_use = details.split("IN USE").nth(1).unwrap_or_default();
        ensure!(
            in_use.contains("9/60 GiB") && in_use.contains("0: 9/15, 1: 0/15"),
            "{details}"
        );
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn vcuda_pods_of_gpu_manager_get_their_part_of_a_gpu_and_whole_gpus() -> Result<()> {
    let lab = Lab::enter()?;
    let resources = "{resources: [
    {name: example.com/gpu-tenth, devices: {indices: [0, 1]}, sharing: {strategy: Mps, replicas: 10}},
    {name: nvidia.com/gpu}]}";
    lab.apply(&samples::sharing("inference", resources))?;
    lab.await_allocatable(T4, "example.com/gpu-tenth", 20)?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 2)?;
    lab.apply(VCUDA)?;
    lab.await_pod("vcuda", "Running")?;
    lab.await_pod("vcuda-2", "Running")?;
    let environment = lab.environment("vcuda")?;
    let value = |name: &str| environment.get(name).map(String::as_str).unwrap_or_default();
    assert_eq!(value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "50");
    assert_eq!(value("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), "0=7680M");
    assert_eq!(lab.visible("vcuda-2")?.len(), 2);
    Ok(())
}
