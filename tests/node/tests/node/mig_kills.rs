//! Whoever kills the agent in the midst of a change of MIG, in a call of the driver or before a save, finds the layout made all the
//! same, and the device of a pod as it was.

use crate::mig_layout::{
    AFTER, BEFORE, GPU, LARGE, MEDIUM, PROFILE_2G, PROFILE_4G, SMALL, devices, mig, node, offers_after, offers_before,
    reaches,
};
use anyhow::{Context as _, Result, ensure};
use gpunode_node_tests::{Agent, ApiServer, Lab, ListMessage, Node, until};
use gpunode_scenario::{DriverState, MigState, ReturnCode};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::sleep;

/// Calls of the driver on the way from one layout to another.
pub const CHANGES: [&str; 4] = [
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
];
/// Calls of the driver for another mode.
const MODE_CHANGES: [&str; 2] = ["nvmlDeviceSetPersistenceMode", "nvmlDeviceSetMigMode"];
/// Time of each of these calls, in milliseconds: a kill falls into it.
const CALL_MS: u64 = 400;
/// Time in which an agent gets to a save that it is kept from.
const SOON: Duration = Duration::from_millis(300);
/// More kills than any change has steps.
const MOST_KILLS: usize = 60;

fn slow_down(node: &Node, calls: &[&str]) -> Result<()> {
    let state = node.state()?;
    calls.iter().try_for_each(|call| Ok(state.delay(0, call, CALL_MS)?))
}

fn record_file(node: &Node) -> PathBuf {
    node.state_dir().join("mig.json")
}

fn records(node: &Node) -> Option<Value> {
    serde_json::from_slice(&fs::read(record_file(node)).ok()?).ok()
}

/// Returns a field of the GPU's record.
fn record(node: &Node, field: &str) -> Option<Value> {
    let uuid = node.uuids().ok()?.remove(0);
    records(node)?.pointer(&format!("/gpus/{uuid}/{field}")).cloned()
}

fn is_persistent(node: &Node) -> Option<bool> {
    Some(node.state().ok()?.driver().ok()?.gpu(0).persistence)
}

fn set_persistent(node: &Node) -> Result<()> {
    let library = node.library();
    let folder = library.parent().context("the folder of the library")?;
    Ok(DriverState::update_gpu(folder, 0, |modes| modes.persistence = true)?)
}

/// Returns true once persistence mode is on again, and nobody has to restore it.
fn is_restored(node: &Node) -> bool {
    let saved = records(node).map(|records| records["persistent"].clone());
    is_persistent(node) == Some(true) && saved.is_some_and(|saved| saved.is_null())
}

/// Returns true once the CDI file has every device of the GPU.
fn are_described(node: &Node) -> bool {
    let file = node.cdi_file().ok().flatten().unwrap_or_default().to_string();
    devices(node).values().all(|uuid| file.contains(uuid))
}

/// Everything of a change that outlives the agent.
#[derive(PartialEq)]
struct Lasting {
    mig: Option<MigState>,
    is_persistent: Option<bool>,
    records: Option<Value>,
    cdi: Option<Value>,
}

impl Lasting {
    fn of(node: &Node) -> Self {
        Self {
            mig: mig(node),
            is_persistent: is_persistent(node),
            records: records(node),
            cdi: node.cdi_file().ok().flatten(),
        }
    }
}

/// Kills the agent after each call of the driver and after each save, in the midst of the next one. Returns the number of kills.
async fn kill_until(lab: &mut Lab, before: Lasting, is_there: impl Fn(&Node) -> bool) -> Result<usize> {
    kill_and_run_until(lab, Agent::run, before, is_there).await
}

/// The same with agents that are run in another way.
async fn kill_and_run_until(
    lab: &mut Lab,
    run: impl Fn(&Node) -> Result<Agent>,
    mut before: Lasting,
    is_there: impl Fn(&Node) -> bool,
) -> Result<usize> {
    for kills in 0..MOST_KILLS {
        let is_next = || (Lasting::of(&lab.node) != before || is_there(&lab.node)).then_some(());
        until("the agent makes another step", is_next).await?;
        if is_there(&lab.node) {
            return Ok(kills);
        }
        lab.agent.kill().await?;
        before = Lasting::of(&lab.node);
        lab.agent = run(&lab.node)?;
    }
    anyhow::bail!("it makes no progress: {MOST_KILLS} kills")
}

/// Returns true once a change to the second layout is over in every way.
fn has_after(node: &Node) -> bool {
    let has_devices = || devices(node).keys().any(|(profile, _)| *profile == PROFILE_2G) && devices(node).len() == 3;
    record(node, "change").is_none() && has_devices() && are_described(node)
}

/// Returns true once a change to the first layout is over in every way.
fn has_before(node: &Node) -> bool {
    record(node, "change").is_none() && devices(node).len() == 4 && are_described(node)
}

/// A node with the first layout, and a pod on its largest instance. Returns the device of the pod.
async fn divided() -> Result<(Lab, Vec<String>)> {
    let lab = Lab::start(node()?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    let large = lab.kubelet.admit("large", "main", LARGE, 1).await?.ids;
    lab.kubelet.is_listed().await?;
    Ok((lab, large))
}

/// Checks that the pod has its device, and that nobody could have got one of two names.
fn is_undisturbed(lab: &Lab, large: &[String]) {
    assert_eq!(*large, [devices(&lab.node)[&(PROFILE_4G, 0)].clone()]);
    assert_eq!(lab.kubelet.in_use(LARGE), large.iter().cloned().collect());
    assert_eq!(lab.kubelet.advertised_twice(), None);
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn agent_killed_at_every_step_ends_in_the_layout() -> Result<()> {
    let (mut lab, large) = divided().await?;
    slow_down(&lab.node, &CHANGES)?;
    let before = Lasting::of(&lab.node);
    lab.apply(AFTER)?;
    let kills = kill_until(&mut lab, before, has_after).await?;
    assert!(kills >= 7, "six calls and the save before them: {kills}");
    offers_after(&lab.kubelet, &lab.node).await?;
    is_undisturbed(&lab, &large);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn agent_killed_in_the_handshake_with_the_operator_needs_one_approval() -> Result<()> {
    let api_server = ApiServer::start().await?;
    let run = |node: &Node| Agent::run_beside(&api_server, node);
    let mut lab = Lab::start_beside(&api_server, node()?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    let large = lab.kubelet.admit("large", "main", LARGE, 1).await?.ids;
    lab.kubelet.is_listed().await?;
    let withdrawn = async |lab: &Lab| {
        lab.kubelet.has(SMALL, |endpoint| endpoint.healthy().len() == 1).await?;
        reaches(&lab.agent, "AwaitingApproval").await
    };

    api_server.request("Prepare", AFTER);
    withdrawn(&lab).await?;
    lab.agent.kill().await?;
    lab.agent = run(&lab.node)?;
    withdrawn(&lab).await?;
    lab.agent.kill().await?;
    slow_down(&lab.node, &CHANGES)?;
    let before = Lasting::of(&lab.node);
    api_server.request("Approved", AFTER);
    let approval = api_server.spec("/change").context("the approval")?;
    lab.agent = run(&lab.node)?;
    let kills = kill_and_run_until(&mut lab, run, before, has_after).await?;
    assert!(kills >= 7, "six calls and the save before them: {kills}");
    offers_after(&lab.kubelet, &lab.node).await?;
    until("the agent says that it is done", || {
        (api_server.status("/finishedChange")? == approval["since"]).then_some(())
    })
    .await?;
    assert_eq!(api_server.spec("/change"), Some(approval));
    is_undisturbed(&lab, &large);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn agent_killed_while_it_turns_mig_on_ends_in_the_layout_and_restores_persistence_mode() -> Result<()> {
    let node = node()?;
    set_persistent(&node)?;
    slow_down(&node, &[&MODE_CHANGES[..], &CHANGES[2..]].concat())?;
    let before = Lasting::of(&node);
    let mut lab = Lab::start(node, BEFORE)?;
    let kills = kill_until(&mut lab, before, |node| has_before(node) && is_restored(node)).await?;
    assert!(
        kills >= 12,
        "the save, persistence mode off and on, the mode, and two calls for each of four instances: {kills}"
    );
    offers_before(&lab.kubelet, &lab.node).await
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn agent_killed_while_it_turns_mig_off_offers_the_whole_gpu_and_restores_persistence_mode() -> Result<()> {
    let mut lab = Lab::start(node()?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    set_persistent(&lab.node)?;
    slow_down(&lab.node, &[&MODE_CHANGES[..], &CHANGES[..2]].concat())?;
    let before = Lasting::of(&lab.node);
    lab.apply("mig: {strategy: Mixed, layout: [{disabled: true}]}")?;
    let is_off = |node: &Node| mig(node).is_some_and(|mig| !mig.enabled) && record(node, "change").is_none();
    let kills = kill_until(&mut lab, before, |node| is_off(node) && is_restored(node)).await?;
    assert!(
        kills >= 12,
        "the save, two calls for each of four instances, persistence mode off and on, and the mode: {kills}"
    );
    let gpu = lab.node.uuids()?.remove(0);
    lab.kubelet.advertises(GPU, &[(&gpu, true)]).await?;
    assert_eq!(lab.kubelet.advertised_twice(), None);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn agent_killed_while_it_goes_back_ends_in_the_layout_from_before() -> Result<()> {
    let (mut lab, large) = divided().await?;
    let before = devices(&lab.node);
    lab.node.state()?.fail(0, CHANGES[2], ReturnCode::Unknown)?;
    lab.apply(AFTER)?;
    reaches(&lab.agent, "Failed").await?;
    lab.agent.kill().await?;
    // After its third attempt, a minute later.
    let (uuid, mut file) = (lab.node.uuids()?.remove(0), records(&lab.node).context("the records")?);
    ensure!(file["gpus"][&uuid]["failure"]["attempts"] == 1, "{file}");
    file["gpus"][&uuid]["failure"]["attempts"] = json!(3);
    file["gpus"][&uuid]["failure"]["at"] = json!("2026-01-01T00:00:00Z");
    fs::write(record_file(&lab.node), file.to_string())?;
    lab.node.state()?.clear_failure(0, CHANGES[2])?;
    slow_down(&lab.node, &CHANGES)?;
    let half = Lasting::of(&lab.node);
    lab.agent = Agent::run(&lab.node)?;
    let kills = kill_until(&mut lab, half, has_before).await?;
    assert!(
        kills >= 5,
        "two calls for each of two instances, and the save before them: {kills}"
    );
    offers_before(&lab.kubelet, &lab.node).await?;
    assert_eq!(devices(&lab.node), before);
    let failure = record(&lab.node, "failure").context("the failure")?;
    assert_eq!(failure["rolledBack"], true, "{failure}");
    is_undisturbed(&lab, &large);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn agent_killed_while_it_makes_instances_again_offers_nothing_before_all_are_back() -> Result<()> {
    let mut lab = Lab::start(node()?, BEFORE)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    let before = devices(&lab.node);
    lab.agent.kill().await?;
    lab.kubelet.stop();
    lab.node.power_cycle("second")?;
    slow_down(&lab.node, &CHANGES)?;
    let lists = || [SMALL, LARGE].map(|resource| lab.kubelet.messages(resource).len());
    let lists_before = lists();
    lab.kubelet.restart()?;
    let after_boot = Lasting::of(&lab.node);
    lab.agent = Agent::run(&lab.node)?;
    let kills = kill_until(&mut lab, after_boot, |node| devices(node).len() == 4).await?;
    assert!(
        kills >= 8,
        "two calls for each of four instances, and the save before them: {kills}"
    );
    offers_before(&lab.kubelet, &lab.node).await?;
    assert_eq!(devices(&lab.node), before);
    for ((resource, count), seen) in [(SMALL, 3), (LARGE, 1)].into_iter().zip(lists_before) {
        // An agent that finds the one before still on the GPU may say that it offers nothing.
        let lists = lab.kubelet.messages(resource).into_iter().skip(seen);
        let healthy = |list: ListMessage| list.devices.iter().filter(|device| device.health == "Healthy").count();
        let first = lists.map(healthy).find(|healthy| *healthy > 0);
        ensure!(first == Some(count), "the first offer of {resource} is {first:?}");
    }
    Ok(())
}

/// Keeps an agent at the beginning of each save of a file, until it is killed there: its temporary file is a pipe that nobody reads.
struct Hold {
    file: PathBuf,
    pipe: PathBuf,
    content: Option<Vec<u8>>,
}

impl Hold {
    fn saves_of(file: &Path) -> Result<Self> {
        let mut pipe = file.as_os_str().to_owned();
        pipe.push(".new");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).context("make a pipe")?;
        Ok(Self {
            file: file.to_owned(),
            pipe: pipe.into(),
            content: fs::read(file).ok(),
        })
    }

    /// Lets the next agent save, after a check that this one has not.
    fn end(self) -> Result<()> {
        let is_same = fs::read(&self.file).ok() == self.content;
        ensure!(is_same, "{} has changed", self.file.display());
        Ok(fs::remove_file(self.pipe)?)
    }
}

/// Saves of a change, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Save {
    /// The change that is about to begin.
    Begin,
    /// Its end.
    End,
    /// The CDI file.
    Devices,
    /// The devices that the kubelet is about to get.
    Assignments,
}

impl Save {
    const ALL: [Self; 4] = [Self::Begin, Self::End, Self::Devices, Self::Assignments];

    fn file(self, node: &Node) -> PathBuf {
        match self {
            Self::Begin | Self::End => record_file(node),
            Self::Devices => node.cdi_dir().join("gpunode.dev-gpu.json"),
            Self::Assignments => node.state_dir().join("assignments.json"),
        }
    }

    /// Waits for what comes before it, and checks that nothing after it has happened.
    async fn is_due(self, lab: &Lab, before: &MigState) -> Result<()> {
        let node = &lab.node;
        if self == Self::Begin {
            reaches(&lab.agent, "Applying").await?;
        } else {
            let is_so = || {
                let has_layout = devices(node).len() == 3 && devices(node).keys().any(|(of, _)| *of == PROFILE_2G);
                let is_over = || record(node, "change").is_none();
                let is_due = match self {
                    Self::Begin | Self::End => has_layout,
                    Self::Devices => has_layout && is_over(),
                    Self::Assignments => has_layout && is_over() && are_described(node),
                };
                is_due.then_some(())
            };
            until(&format!("{self:?} is due"), is_so).await?;
        }
        sleep(SOON).await;
        if self == Self::Begin {
            ensure!(mig(node).as_ref() == Some(before), "the driver was called");
        }
        ensure!(
            (self == Self::Begin) != (devices(node).len() == 3) && lab.kubelet.endpoint(MEDIUM).healthy().is_empty(),
            "{:?}",
            mig(node)
        );
        Ok(())
    }
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn agent_killed_before_each_save_of_a_change_ends_in_the_layout() -> Result<()> {
    for save in Save::ALL {
        let (mut lab, large) = divided().await?;
        slow_down(&lab.node, &CHANGES)?;
        let before = mig(&lab.node).context("MIG")?;
        let first = (save == Save::Begin).then(|| Hold::saves_of(&save.file(&lab.node)));
        lab.apply(AFTER)?;
        let hold = if let Some(hold) = first {
            hold?
        } else {
            until("the change is on disk", || record(&lab.node, "change")).await?;
            // Fails while the agent is saving it.
            until("the file is held", || Hold::saves_of(&save.file(&lab.node)).ok()).await?
        };
        save.is_due(&lab, &before).await.with_context(|| format!("{save:?}"))?;
        lab.agent.kill().await?;
        hold.end().with_context(|| format!("{save:?}"))?;
        lab.agent = Agent::run(&lab.node)?;
        offers_after(&lab.kubelet, &lab.node)
            .await
            .with_context(|| format!("{save:?}"))?;
        let is_over = || has_after(&lab.node).then_some(());
        until("record and CDI file are as they should be", is_over).await?;
        is_undisturbed(&lab, &large);
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn agent_killed_before_it_saves_a_failure_tries_again() -> Result<()> {
    let (mut lab, large) = divided().await?;
    slow_down(&lab.node, &CHANGES)?;
    lab.node.state()?.fail(0, CHANGES[2], ReturnCode::Unknown)?;
    lab.apply(AFTER)?;
    until("the change is on disk", || record(&lab.node, "change")).await?;
    let hold = Hold::saves_of(&record_file(&lab.node))?;
    until("what has to go is gone", || {
        (devices(&lab.node).len() == 2).then_some(())
    })
    .await?;
    sleep(SOON + Duration::from_millis(CALL_MS)).await;
    lab.agent.kill().await?;
    hold.end()?;
    assert_eq!(record(&lab.node, "failure"), None);
    lab.node.state()?.clear_failure(0, CHANGES[2])?;
    lab.agent = Agent::run(&lab.node)?;
    offers_after(&lab.kubelet, &lab.node).await?;
    is_undisturbed(&lab, &large);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn agent_killed_before_it_remembers_a_layout_that_it_found_offers_it_all_the_same() -> Result<()> {
    let (mut lab, large) = divided().await?;
    lab.agent.kill().await?;
    fs::remove_file(record_file(&lab.node))?;
    let hold = Hold::saves_of(&record_file(&lab.node))?;
    lab.agent = Agent::run(&lab.node)?;
    offers_before(&lab.kubelet, &lab.node).await?;
    lab.agent.kill().await?;
    hold.end()?;
    lab.agent = Agent::run(&lab.node)?;
    until("it is remembered", || record(&lab.node, "applied")).await?;
    is_undisturbed(&lab, &large);
    Ok(())
}
