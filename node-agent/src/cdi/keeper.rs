//! Keeps the CDI file up to date, and publishes its state.
//!
//! The file is on disk before the state says that it describes a device, and the state says that it no longer does before the file
//! changes. So an allocation never names a device that the file does not have. While the disk fails, the file on disk counts.

use super::{
    demand::{CdiDemand, CdiOptions},
    earlier::{keep_named, options_to_keep},
    file::CdiFile,
    state::{CdiInputs, CdiState},
    survey::CdiSurvey,
};
use crate::{
    driver::{hardware::Hardware, hardware_probe::DriverRoots},
    runtime::{blocking_thread::BlockingThread, channel::send_if_new},
};
use gpunode_cdi::{CdiDescription, CdiSpec, KIND};
use gpunode_gpu::Device;
use gpunode_process::OnChange;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    task::{JoinError, JoinSet},
    time::{Instant, sleep, timeout},
};
use tracing::{error, info, warn};

/// Interval for reading the driver's files again: daemons make their sockets after the driver is loaded, and somebody may remove
/// the file.
const RECHECK: Duration = Duration::from_secs(30);
/// First pause after a failure; doubles up to [`RECHECK`].
const MIN_RETRY: Duration = Duration::from_secs(1);
/// Time limit for each of reading the file, describing the devices and writing the file. Once the container runtime has been read,
/// lists wait for the file no longer than these take.
const DISK_TIMEOUT: Duration = Duration::from_secs(5);

/// Task that keeps the file up to date.
#[derive(Clone)]
pub struct CdiKeeper {
    /// Folders of the driver and of device nodes.
    pub roots: DriverRoots,
    /// Folder of the agent's state, which has gpunode's own hook program.
    pub state_dir: PathBuf,
    /// The file.
    pub file: CdiFile,
    /// The last hardware probe; none before the first.
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    /// Use of the file; none before it is known.
    pub demand: watch::Receiver<Option<CdiDemand>>,
    /// State of the file.
    pub state: watch::Sender<CdiState>,
    /// Thread that reads the driver's files and writes the file, one after the other.
    pub disk: BlockingThread,
}

/// Last survey, and its inputs.
struct LastSurvey {
    at: Instant,
    hardware: Arc<Hardware>,
    options: Option<CdiOptions>,
    /// Task of a survey that runs. A slow one goes on while callers give up, and the next of them gets its result.
    running: JoinSet<Result<CdiSurvey, JoinError>>,
    /// Result; none while it runs.
    survey: Option<Arc<CdiSurvey>>,
}

impl LastSurvey {
    /// Returns true if nothing suggests another result.
    fn is_current(&self, hardware: &Arc<Hardware>, options: Option<&CdiOptions>) -> bool {
        let is_whole = |survey: &CdiSurvey| survey.problem.is_none() && survey.description.left_out.is_empty();
        let is_young = |survey: &Arc<CdiSurvey>| is_whole(survey) && self.at.elapsed() < RECHECK;
        Arc::ptr_eq(&self.hardware, hardware)
            && self.options.as_ref() == options
            && self.survey.as_ref().is_none_or(is_young)
    }
}

/// Reason why the file is not as it should be.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("{what} the CDI file: no answer from the disk within {DISK_TIMEOUT:?}")]
    NoAnswer { what: &'static str },
    #[error("{what} the CDI file: {source}")]
    Disk { what: &'static str, source: std::io::Error },
}

impl CdiKeeper {
    /// Keeps the file up to date. Returns only if somebody removed the folder of the file: the agent has to start again, which gives
    /// it the folder that takes its place. Only the agent that holds the lock of the node runs this.
    pub async fn run(mut self) {
        let (mut last, mut problems, mut retry) = (None, OnChange::default(), MIN_RETRY);
        let mut lacked = (None, BTreeMap::new());
        let mut on_file = self.adopt().await;
        loop {
            let hardware = self.hardware.borrow_and_update().clone();
            let demand = self.demand.borrow_and_update().clone();
            let mut pause = RECHECK;
            if let (Some(hardware), Some(demand)) = (hardware, demand) {
                let updated = self.update(&hardware, &demand, &mut last, &mut on_file).await;
                let failure = updated.as_ref().err().map(ToString::to_string);
                if failure.is_some() && self.folder_is_removed().await {
                    error!("somebody removed the folder of the CDI file; ending, as a new container sees the next one");
                    return;
                }
                let mut state = updated.unwrap_or_else(|error| self.unchanged(&demand, &error.to_string()));
                state.inputs = Some(CdiInputs::new(hardware, &demand));
                let is_wanted = demand.options.is_some();
                let problem = failure.or_else(|| state.problem.clone()).filter(|_| is_wanted);
                // What a device lacks may come at any time, such as the device nodes of a MIG device.
                let lacks = (problem.clone(), state.left_out.clone());
                if lacks != lacked {
                    (retry, lacked) = (MIN_RETRY, lacks);
                }
                if problem.is_some() || !state.left_out.is_empty() {
                    pause = retry;
                }
                self.log(&state, problem, &mut problems);
                send_if_new(&self.state, state);
            }
            tokio::select! {
                Ok(()) = self.hardware.changed() => {}
                Ok(()) = self.demand.changed() => {}
                () = sleep(pause) => retry = RECHECK.min(retry * 2),
            }
        }
    }

    /// Takes in what the file of an earlier agent describes, and returns that file.
    async fn adopt(&self) -> Option<CdiSpec> {
        let file = self.file.clone();
        let read = self.on_disk("read", move || file.read()).await;
        let spec = read.ok().flatten().filter(|spec| spec.kind == KIND)?;
        let described = spec.devices.iter().map(|device| device.name.clone()).collect();
        self.state.send_modify(|state| state.described = described);
        Some(spec)
    }

    /// Brings the file up to date, and returns its state. `on_file` is the file that was last read or written.
    async fn update(
        &self,
        hardware: &Arc<Hardware>,
        demand: &CdiDemand,
        last: &mut Option<LastSurvey>,
        on_file: &mut Option<CdiSpec>,
    ) -> Result<CdiState, KeepError> {
        if demand.options.is_some() && !hardware.is_known() {
            // The file of the agent before stays.
            let reason = hardware.driver.problem().unwrap_or("the driver has not answered yet");
            return Ok(CdiState {
                problem: demand.unread.clone(),
                ..self.unchanged(demand, reason)
            });
        }
        self.narrow_to_own_nodes(hardware, on_file.as_ref());
        let file = self.file.clone();
        let before = self.on_disk("read", move || file.read()).await?;
        on_file.clone_from(&before);
        // A file that no strategy uses any more keeps what containers were given.
        let options = demand.options.clone();
        let options = options.or_else(|| options_to_keep(before.as_ref(), &demand.in_use));
        let survey = self.survey(hardware, options, last).await?;
        let description = if demand.options.is_some() {
            let description = survey.description.clone();
            description.keep(before.clone(), &survey.gpus, &demand.in_use)
        } else {
            let mut in_use = demand.in_use.clone();
            // No allocation names a device by CDI any more.
            let held = &in_use.held;
            in_use.assigned.retain(|uuid| held.contains(uuid));
            keep_named(&survey, before.clone(), &in_use)
        };
        let CdiDescription {
            spec,
            described,
            left_out,
        } = description;
        self.narrow(|uuid| described.contains(uuid));
        let (file, content) = (self.file.clone(), spec.clone());
        let written = self.on_disk("write", move || file.put(content.as_ref())).await;
        // The file before stays; containers may get the devices that it describes as the new one does.
        written.inspect_err(|_| self.narrow(|uuid| is_same(uuid, before.as_ref(), spec.as_ref())))?;
        *on_file = spec;
        Ok(CdiState::unused(demand).unwrap_or_else(|| CdiState {
            inputs: None,
            described,
            left_out,
            problem: survey.problem.clone(),
        }))
    }

    /// Takes devices out of the state before the file changes.
    fn narrow(&self, is_kept: impl Fn(&str) -> bool) {
        self.state.send_if_modified(|state| {
            let count = state.described.len();
            state.described.retain(|uuid| is_kept(uuid));
            state.described.len() != count
        });
    }

    /// Takes devices out of the state that have other device nodes on this hardware than on the file: until it is written again, their
    /// names may lead to other devices.
    fn narrow_to_own_nodes(&self, hardware: &Hardware, on_file: Option<&CdiSpec>) {
        let Some(inventory) = hardware.inventory() else { return };
        let devices = Device::all(inventory);
        self.narrow(|uuid| {
            let device = devices.iter().find(|device| device.uuid == uuid);
            let mut entries = on_file.into_iter().flat_map(|spec| &spec.devices);
            let entry = entries.find(|entry| entry.name == uuid);
            device.zip(entry).is_some_and(|(device, entry)| {
                let nodes = &entry.container_edits.device_nodes;
                let is_on_file = |path: &String| nodes.iter().any(|node| node.path == *path);
                device.device_nodes.iter().all(is_on_file)
            })
        });
    }

    /// Returns the state while the file cannot be brought up to date: the one on disk stays.
    fn unchanged(&self, demand: &CdiDemand, error: &str) -> CdiState {
        if let Some(unused) = CdiState::unused(demand) {
            return unused;
        }
        let described = self.state.borrow().described.clone();
        let others = demand.in_use.assigned.difference(&described);
        CdiState {
            inputs: None,
            left_out: others.map(|uuid| (uuid.clone(), error.to_owned())).collect(),
            problem: described.is_empty().then(|| error.to_owned()),
            described,
        }
    }

    async fn folder_is_removed(&self) -> bool {
        let file = self.file.clone();
        let removed = self.on_disk("look for", move || Ok(file.folder_is_removed())).await;
        removed.unwrap_or_default()
    }

    /// Describes the devices, or returns the last description where nothing suggests another one.
    async fn survey(
        &self,
        hardware: &Arc<Hardware>,
        options: Option<CdiOptions>,
        last: &mut Option<LastSurvey>,
    ) -> Result<Arc<CdiSurvey>, KeepError> {
        let current = last.take().filter(|last| last.is_current(hardware, options.as_ref()));
        let current = last.insert(current.unwrap_or_else(|| self.begin_survey(hardware.clone(), options)));
        if let Some(survey) = &current.survey {
            return Ok(survey.clone());
        }
        let what = "make";
        let Ok(ended) = timeout(DISK_TIMEOUT, current.running.join_next()).await else {
            return Err(KeepError::NoAnswer { what });
        };
        if let Some(Ok(Ok(survey))) = ended {
            let survey = Arc::new(survey);
            current.survey = Some(survey.clone());
            return Ok(survey);
        }
        *last = None;
        let source = std::io::Error::other("its task ended");
        Err(KeepError::Disk { what, source })
    }

    fn begin_survey(&self, hardware: Arc<Hardware>, options: Option<CdiOptions>) -> LastSurvey {
        let (roots, read) = (self.roots.clone(), hardware.clone());
        let (state_dir, of, disk) = (self.state_dir.clone(), options.clone(), self.disk.clone());
        let survey = move || CdiSurvey::of(&roots, &state_dir, &read, of.as_ref());
        let mut running = JoinSet::new();
        running.spawn(async move { disk.run(survey).await });
        LastSurvey {
            at: Instant::now(),
            hardware,
            options,
            running,
            survey: None,
        }
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, KeepError> {
        match timeout(DISK_TIMEOUT, self.disk.run(work)).await {
            Err(_) => Err(KeepError::NoAnswer { what }),
            Ok(Err(ended)) => Err(KeepError::Disk {
                what,
                source: std::io::Error::other(ended),
            }),
            Ok(Ok(result)) => result.map_err(|source| KeepError::Disk { what, source }),
        }
    }

    /// Logs what differs from the state before.
    fn log(&self, state: &CdiState, problem: Option<String>, problems: &mut OnChange) {
        match problem {
            None if problems.clear() => {
                info!("the CDI file describes the devices again, or no strategy uses it any more");
            }
            None => {}
            Some(problem) => match problems.changed(problem) {
                Some(problem) if state.described.is_empty() => warn!(
                    problem,
                    "the CDI file describes no device; containers get theirs by the other strategies"
                ),
                Some(problem) => warn!(problem, "the CDI file stays as it is; retrying"),
                None => {}
            },
        }
        let before = self.state.borrow();
        let new = |(uuid, reason): &(&String, &String)| before.left_out.get(*uuid) != Some(*reason);
        for (uuid, reason) in state.left_out.iter().filter(new) {
            warn!(uuid, reason, "the CDI file does not describe a device");
        }
    }
}

/// Returns true if both files describe a device in the same way.
fn is_same(uuid: &str, one: Option<&CdiSpec>, other: Option<&CdiSpec>) -> bool {
    let [one, other] = [one, other].map(|spec| {
        let mut devices = spec.into_iter().flat_map(|spec| &spec.devices);
        devices.find(|device| device.name == uuid)
    });
    one.is_some() && one == other
}

#[cfg(test)]
mod tests;
