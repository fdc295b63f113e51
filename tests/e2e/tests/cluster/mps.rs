//! MPS: shares of a GPU, and daemons that outlive agents and policies.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_cluster::Signal;
use gpunode_e2e::{Lab, NAMESPACE, T4, eventually};
use gpunode_scenario::ComputeMode;
use std::{fs, path::PathBuf, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);
const RESOURCE: &str = "nvidia.com/gpu.mps";
/// Ten shares of the first T4.
const TEN_SHARES: &str =
    "{resources: [{name: nvidia.com/gpu.mps, devices: {indices: [0]}, sharing: {strategy: Mps, replicas: 10}}]}";

/// The policy in force, with its daemon; gives the UUID of the GPU.
fn in_force(lab: &Lab) -> Result<String> {
    lab.apply(&samples::sharing("inference", TEN_SHARES))?;
    lab.await_allocatable(T4, RESOURCE, 10)?;
    lab.await_ready("sharing")?;
    lab.gpu_uuids(T4)?.into_iter().next().context("find a GPU")
}

fn mps_label(lab: &Lab) -> Result<String> {
    Ok(lab.node(T4)?["metadata"]["labels"]["gpunode.dev/mps"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn containers_get_as_many_tenths_as_they_ask_for() -> Result<()> {
    let lab = Lab::enter()?;
    let uuid = in_force(&lab)?;
    assert_eq!(mps_label(&lab)?, "true");
    // A tenth of the T4's 15360 MiB.
    for (app, shares, threads, memory) in [
        ("one", 1, "10", "0=1536M"),
        ("two", 2, "20", "0=3072M"),
        ("five", 5, "50", "0=7680M"),
    ] {
        lab.apply(&samples::holding(app, "inference", 1, RESOURCE, shares))?;
        let pod = lab.await_running(app, 1)?.pop().context("find the pod")?;
        let environment = lab.environment(&pod)?;
        let value = |name: &str| environment.get(name).map(String::as_str).unwrap_or_default();
        assert_eq!(lab.visible(&pod)?.first(), Some(&uuid));
        assert_eq!(
            value("CUDA_MPS_PIPE_DIRECTORY"),
            format!("/run/gpunode/mps/{uuid}/pipe")
        );
        assert_eq!(value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), threads);
        assert_eq!(value("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), memory);
        let applied = lab.kubectl(&["exec", &pod, "--", "/opt/driver/mps-client", "--once"])?;
        for part in [
            format!("active_thread_percentage={threads} "),
            format!("pinned_device_mem_limit={memory} "),
            "shared_memory=true".to_owned(),
        ] {
            ensure!(
                format!("{} ", applied.trim()).contains(&part),
                "the daemon gave {app} {applied:?}, not {part:?}"
            );
        }
    }
    let daemons = lab.get(&["gpunode", T4])?["status"]["mpsDaemons"].clone();
    assert_eq!(daemons[0]["device"], uuid);
    assert_eq!(daemons[0]["state"], "Answering");
    assert_eq!(lab.compute_mode(T4, 0)?, ComputeMode::ExclusiveProcess);
    assert_eq!(
        lab.compute_mode(T4, 1)?,
        ComputeMode::Default,
        "GPU 1 is in no resource"
    );
    Ok(())
}

/// The driver's MPS program of a node, unusable until this value is dropped.
struct Unusable(PathBuf, PathBuf);

impl Unusable {
    fn make(lab: &Lab, node: &str) -> Result<Self> {
        let library = lab.cluster().node(node)?.driver_dir()?;
        let driver = library.ancestors().nth(3).context("find the driver's root")?;
        let program = driver.join("usr/bin/nvidia-cuda-mps-control");
        let aside = program.with_extension("aside");
        fs::rename(&program, &aside).with_context(|| format!("move {} aside", program.display()))?;
        Ok(Self(program, aside))
    }
}

impl Drop for Unusable {
    fn drop(&mut self) {
        let _ = fs::rename(&self.1, &self.0);
    }
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn shares_are_unhealthy_from_the_death_of_their_daemon_until_one_answers() -> Result<()> {
    let lab = Lab::enter()?;
    let uuid = in_force(&lab)?;
    let first = lab.await_mps_daemon(T4, &uuid)?;
    let unusable = Unusable::make(&lab, T4)?;
    first.signal(Signal::KILL)?;
    lab.await_allocatable(T4, RESOURCE, 0)?;
    eventually("the GpuNode says that the daemon does not answer", LIMIT, || {
        let node = lab.get(&["gpunode", T4])?;
        let offered = gpunode_e2e::condition(&node, "DevicesOffered");
        ensure!(
            offered["status"] == "False" && offered["reason"] == "MpsDaemonNotAnswering",
            "its status is {}",
            node["status"]
        );
        Ok(())
    })?;
    drop(unusable);
    lab.await_allocatable(T4, RESOURCE, 10)?;
    let second = lab.await_mps_daemon(T4, &uuid)?;
    assert_ne!(first.pid(), second.pid());
    lab.await_ready("sharing")?;
    lab.apply(&samples::holding("after", "inference", 1, RESOURCE, 1))?;
    lab.await_running("after", 1)?;
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_daemon_with_a_client_outlives_agents_images_and_policies() -> Result<()> {
    let lab = Lab::enter()?;
    let uuid = in_force(&lab)?;
    // A client ends when its daemon does.
    let manifest = samples::holding("client", "inference", 1, RESOURCE, 3);
    lab.apply(&manifest.replace("exec sleep 100000", "exec /opt/driver/mps-client"))?;
    let client = lab.await_running("client", 1)?;
    let daemon = lab.await_mps_daemon(T4, &uuid)?.pid();
    let still = |after: &str| -> Result<()> {
        let now = lab.await_mps_daemon(T4, &uuid)?.pid();
        ensure!(
            now == daemon,
            "after {after} process {now} serves, and before it {daemon} did"
        );
        ensure!(
            lab.await_running("client", 1)? == client,
            "after {after} the client is another"
        );
        let pods = lab.get(&["pods", "-l", "app=client"])?;
        let restarts = &pods["items"][0]["status"]["containerStatuses"][0]["restartCount"];
        ensure!(
            restarts == 0,
            "after {after} the client was started again {restarts} times"
        );
        Ok(())
    };

    let agent = lab.await_plugin(T4)?;
    lab.cluster()
        .node(T4)?
        .container_process(NAMESPACE, &agent, "agent")?
        .kill()?;
    lab.await_plugin(T4)?;
    lab.await_allocatable(T4, RESOURCE, 10)?;
    still("the agent was killed")?;

    roll_out_another_image(&lab, &agent)?;
    lab.await_allocatable(T4, RESOURCE, 10)?;
    still("the agent's image was changed")?;
    lab.apply(&samples::holding("another", "inference", 1, RESOURCE, 7))?;
    lab.await_running("another", 1)?;
    lab.kubectl(&["delete", "deployment", "another", "--timeout=90s"])?;

    lab.kubectl(&["delete", "gpunodepolicy", "sharing", "--timeout=30s"])?;
    eventually("the policy's agent is gone and discovery reports", LIMIT, || {
        let node = lab.get(&["gpunode", T4])?;
        ensure!(
            node["status"]["agent"]["mode"] == "Discovery",
            "its agent is {}",
            node["status"]["agent"]
        );
        ensure!(
            node["status"]["mpsDaemons"][0]["device"] == uuid,
            "its status is {}",
            node["status"]
        );
        Ok(())
    })?;
    still("the policy was deleted")?;
    assert_eq!(mps_label(&lab)?, "true");

    lab.kubectl(&["delete", "deployment", "client", "--timeout=90s"])?;
    lab.await_no_mps(T4)?;
    assert_eq!(lab.compute_mode(T4, 0)?, ComputeMode::Default, "as it was before");
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_daemon_that_ends_for_a_release_has_not_died() -> Result<()> {
    let lab = Lab::enter()?;
    let uuid = in_force(&lab)?;
    // A fault would stay after the release.
    let config = TEN_SHARES.replace("}}]}", "}}], health: {recovery: Manual}}");
    lab.apply(&samples::sharing("inference", &config))?;
    lab.await_ready("sharing")?;
    lab.await_mps_daemon(T4, &uuid)?;
    lab.kubectl(&["label", "node", T4, "gpunode.dev/release=true"])?;
    eventually("the GPUs are released", LIMIT, || {
        let ready = gpunode_e2e::condition(&lab.get(&["gpunode", T4])?, "Ready");
        ensure!(ready["reason"] == "Released", "the GpuNode is {ready}");
        Ok(())
    })?;
    // The kubelet's checkpoint may name a pod of the test before for half a minute.
    eventually("the daemon has ended", LIMIT, || {
        ensure!(lab.mps_daemon(T4, &uuid)?.is_none(), "it still runs");
        Ok(())
    })?;
    lab.kubectl(&["label", "node", T4, "gpunode.dev/release-"])?;
    lab.await_allocatable(T4, RESOURCE, 10)?;
    lab.await_ready("sharing")?;
    Ok(())
}

/// Gives the policy the same image under another name, and waits until an agent of it has followed `agent`.
fn roll_out_another_image(lab: &Lab, agent: &str) -> Result<()> {
    let pod = lab.get(&["pod", "-n", NAMESPACE, agent])?;
    let image = pod["spec"]["containers"][0]["image"]
        .as_str()
        .context("find the agent's image")?
        .to_owned();
    let other = format!("{image}-rolled-out");
    lab.cluster()
        .node(T4)?
        .ctr(["images", "tag", "--force", &image, &other])?;
    let patch = format!(r#"{{"spec":{{"image":"{other}"}}}}"#);
    lab.patch_policy("sharing", &patch)?.check()?;
    eventually("an agent of the other image runs", LIMIT, || {
        let follower = lab.agent_pod(T4, "device-plugin")?;
        let pod = lab.get(&["pod", "-n", NAMESPACE, &follower])?;
        ensure!(
            follower != agent && pod["spec"]["containers"][0]["image"] == other,
            "{follower} is there"
        );
        ensure!(
            pod["status"]["containerStatuses"][0]["ready"] == true,
            "its status is {}",
            pod["status"]
        );
        Ok(())
    })
}
