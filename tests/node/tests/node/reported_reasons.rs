//! Reasons for which an agent offers or gives out no GPU, in the words that `docs/troubleshooting.md` quotes.

use crate::mig_layout::{BEFORE, node, offers_before};
use anyhow::{Context as _, Result, ensure};
use gpunode_node_tests::{Agent, ApiServer, Lab, Node, node_of, until};
use gpunode_scenario::{ReturnCode, SCENARIO_FILE};
use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

const GPU: &str = "nvidia.com/gpu";
/// NVML that answers as beside a kernel module of another version.
const MISMATCH: &str = "int nvmlInit_v2(void) { return 18; }\nint nvmlShutdown(void) { return 0; }\n";

/// Waits until a condition has a reason and its message all of the words.
async fn says(api_server: &ApiServer, condition: &str, reason: &str, words: &[&str]) -> Result<()> {
    let find = || {
        let conditions = api_server.status("/conditions")?;
        conditions
            .as_array()?
            .iter()
            .find(|it| it["type"] == condition)
            .cloned()
    };
    let is_said = || {
        let found = find()?;
        let message = found["message"].as_str().unwrap_or_default();
        (found["reason"] == reason && words.iter().all(|word| message.contains(word))).then_some(())
    };
    until(&format!("{condition} has reason {reason}"), is_said)
        .await
        .with_context(|| format!("it is {:?}", find()))
}

/// Compiles a library, and moves it to its place in one step.
fn compile(source: &str, library: &Path) -> Result<()> {
    let new = library.with_file_name("new");
    let mut compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-x", "c", "-", "-o"])
        .arg(&new)
        .stdin(Stdio::piped())
        .spawn()
        .context("start the C compiler")?;
    let mut input = compiler.stdin.take().context("open the compiler's input")?;
    input.write_all(source.as_bytes())?;
    drop(input);
    ensure!(compiler.wait()?.success(), "compile {}", library.display());
    Ok(fs::rename(new, library)?)
}

#[tokio::test]
async fn a_driver_that_does_not_start_is_reported_with_what_it_answers() -> Result<()> {
    for words in [
        "RM detects a driver/library version mismatch; the kernel has modules of another version than this library; reboot the node",
        "NVIDIA driver is not loaded; is the driver loaded",
    ] {
        let node = Node::with_t4()?;
        if words.contains("mismatch") {
            compile(MISMATCH, &node.library())?;
        } else {
            fs::remove_file(node.library().with_file_name(SCENARIO_FILE))?;
        }
        let api_server = ApiServer::start().await?;
        let lab = Lab::start_beside(&api_server, node, "")?;
        says(&api_server, "DriverAvailable", "DriverFailed", &[words]).await?;
        let (_, table) = Agent::inspect(&lab.node).await?;
        let unwrapped = table.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(unwrapped.contains(words), "`inspect` shows the same: {table}");

        lab.node.install_driver()?;
        says(&api_server, "DriverAvailable", "DriverAnswers", &[]).await?;
        lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
    }
    Ok(())
}

#[tokio::test]
async fn units_that_a_kubelet_picked_of_several_gpus_are_refused_although_one_has_room() -> Result<()> {
    const UNITS: &str = "aliyun.com/gpu-mem";
    let config = "resources: [{name: aliyun.com/gpu-mem, sharing: {strategy: Memory}}]";
    let lab = Lab::start(node_of(&["Tesla T4", "Tesla T4"])?, config)?;
    lab.kubelet.has(UNITS, |_| true).await?;
    let ids: Vec<String> = lab.node.uuids()?.iter().map(|uuid| format!("{uuid}-_-0")).collect();
    let refused = lab.kubelet.allocate(UNITS, &[&ids[0], &ids[1]]).await.unwrap_err();
    ensure!(
        refused
            .message()
            .ends_with("GPU 0 has 15 free: its topology manager prefers other NUMA nodes"),
        "{refused}"
    );
    Ok(())
}

/// No board before Volta can be simulated. One that does not tell its compute capability is treated like them.
#[tokio::test]
async fn a_gpu_that_mps_cannot_share_is_reported_and_offered_in_time_slices() -> Result<()> {
    let of = |strategy: &str| format!("resources: [{{name: {GPU}, sharing: {{strategy: {strategy}, replicas: 10}}}}]");
    let node = node_of(&["Tesla T4"])?;
    let capability = "nvmlDeviceGetCudaComputeCapability";
    node.state()?.fail(0, capability, ReturnCode::NotSupported)?;
    let api_server = ApiServer::start().await?;
    let lab = Lab::start_beside(&api_server, node, &of("Mps"))?;
    let words = ["is older than Volta, so MPS cannot limit its clients; share it with TimeSlicing"];
    says(&api_server, "Ready", "MpsUnsupported", &words).await?;
    assert!(lab.kubelet.endpoint(GPU).healthy().is_empty());
    api_server.configure(&of("TimeSlicing"));
    lab.kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 10).await?;
    says(&api_server, "Ready", "ConfigurationInForce", &[]).await
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn a_gpu_that_gets_its_mig_mode_with_a_reboot_alone_says_so_and_has_its_layout_after_it() -> Result<()> {
    let node = node()?;
    let state = node.state()?;
    state.update_gpu(0, |gpu| gpu.mig_activation = Some(ReturnCode::ResetRequired))?;
    let api_server = ApiServer::start().await?;
    let mut lab = Lab::start_beside(&api_server, node, BEFORE)?;
    let words = ["after the next reset of the GPU", "reboot the node"];
    says(&api_server, "MigLayout", "RebootRequired", &words).await?;
    let mig = api_server.status("/gpus/0/mig").context("read the state of its MIG")?;
    ensure!(
        mig["phase"] == "RebootRequired" && mig["message"].to_string().contains(words[0]),
        "{mig}"
    );

    state.update_gpu(0, |gpu| gpu.mig_activation = None)?;
    lab.agent.kill().await?;
    lab.kubelet.stop();
    lab.node.power_cycle("second")?;
    lab.kubelet.restart()?;
    lab.agent = Agent::run_beside(&api_server, &lab.node)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    says(&api_server, "MigLayout", "LayoutApplied", &[]).await
}
