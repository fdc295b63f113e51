//! The work on one GPU, on a thread of its own.

use super::{
    occupants::{Leaving, Suspects, occupants},
    persistenced,
    record_file::RecordFile,
};
use crate::{
    driver::{
        calls::DriverCall,
        hardware_probe::DriverRoots,
        nvml::{
            Capabilities, ChangeEnd, GpuAddress, MigChangeError, answer_name, change_layout, has_persistence,
            read_mig_state, restore_persistence,
        },
    },
    gpu_processes::small_file,
};
use gpunode_crds::MigReason;
use gpunode_gpu::{
    AttemptResult, ChangeRecord, Gpu, GpuInstance, GpuLayout, GpuMigState, MigFailure, MigWork, MigWorkKind, RunId,
};
use jiff::Timestamp;
use nvml_wrapper::error::NvmlError;
use std::{
    collections::BTreeSet,
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tracing::{debug, info, warn};

/// Longest message in a record, in bytes.
const MAX_MESSAGE: usize = 768;

/// Work on one GPU, with what it needs of the node.
#[derive(Clone)]
pub struct MigJob {
    /// Folders of the driver.
    pub roots: DriverRoots,
    /// The work.
    pub work: MigWork,
    /// The GPU, as it was read last.
    pub gpu: Gpu,
    /// Devices on which an MPS control daemon runs, or may run.
    pub mps: BTreeSet<String>,
    /// Boot and driver load of the node.
    pub run: RunId,
    /// True once the agent ends: the job then stops between two calls.
    pub stop: Arc<AtomicBool>,
}

/// Error of a job, apart from those of a change.
#[derive(Debug, thiserror::Error)]
enum JobError {
    #[error("find the driver: it is not there any more")]
    NoDriver,
    #[error("save the MIG record of {gpu}: {source}; is the state folder on the node full or read-only?")]
    Save { gpu: String, source: io::Error },
    #[error(transparent)]
    Read(#[from] MigChangeError),
    #[error(transparent)]
    Change(MigChangeError),
}

impl MigJob {
    /// Returns true if the work resets the GPU, for which no other session with the driver may be open.
    pub fn resets_the_gpu(&self) -> bool {
        let changes_mode = |state: &GpuMigState| state.mode_needs_reset && state.enabled != self.work.layout.enabled;
        self.gpu.mig_state.as_ref().is_some_and(changes_mode)
            && matches!(
                self.work.kind,
                MigWorkKind::Apply | MigWorkKind::Restore | MigWorkKind::RollBack
            )
    }

    /// Saves that the GPU has the layout. Blocks.
    pub fn remember(&self, file: &mut RecordFile) -> AttemptResult {
        let saved = self.update(file, |record| {
            (record.applied, record.run) = (Some(self.work.layout.clone()), self.run.clone());
            (record.change, record.failure, record.restore_failure) = (None, None, None);
        });
        saved.map_or_else(|error| failed(&error), |()| AttemptResult::Done)
    }

    /// Looks for daemons, processes and handles on what has to go. Blocks.
    pub fn check(&self, call: &DriverCall) -> AttemptResult {
        let result = self.try_check(call).unwrap_or_else(|error| failed(&error));
        call.end_turn();
        result
    }

    fn try_check(&self, call: &DriverCall) -> Result<AttemptResult, JobError> {
        let library = self.library()?;
        call.begin_turn(Some(&self.gpu.uuid));
        let state = self.state(&library)?;
        call.answered();
        let leaving: Vec<&GpuInstance> = leaving_instances(&state, &self.work.layout).collect();
        let changes_mode = state.enabled != self.work.layout.enabled;
        let compute = leaving.iter().flat_map(|instance| &instance.compute);
        let mut devices = compute.filter_map(|compute| compute.uuid.as_ref());
        let with_daemon = devices.find(|uuid| self.mps.contains(*uuid));
        if let Some(device) = with_daemon.or(self.mps.get(&self.gpu.uuid).filter(|_| changes_mode)) {
            return Ok(AttemptResult::Blocked {
                reason: MigReason::MpsDaemon,
                message: format!("an MPS control daemon still runs on {device}; it ends after the pods that use it"),
            });
        }
        if leaving.is_empty() && !changes_mode {
            return Ok(AttemptResult::Clear);
        }
        Ok(match self.occupants(&library, &state, Suspects::default(), call)? {
            None => AttemptResult::Clear,
            Some(names) => AttemptResult::Blocked {
                reason: MigReason::InUse,
                message: format!(
                    "still used by {names}; end it, stop its pod, or name the pod in drain.evict of the policy"
                ),
            },
        })
    }

    /// Gives the GPU the layout. The record says what is under way from before the first call until the GPU has it, or is as before.
    /// Blocks.
    pub fn change(&self, file: &mut RecordFile, call: &DriverCall) -> AttemptResult {
        self.try_change(file, call).unwrap_or_else(|error| {
            let message = error.to_string();
            // What happened before the first call is no attempt.
            match error {
                JobError::Change(_) => self.note_failure(file, message),
                JobError::NoDriver | JobError::Save { .. } | JobError::Read(_) => AttemptResult::Failed { message },
            }
        })
    }

    fn try_change(&self, file: &mut RecordFile, call: &DriverCall) -> Result<AttemptResult, JobError> {
        let (library, layout, address) = (self.library()?, &self.work.layout, GpuAddress::of(&self.gpu));
        call.begin_turn(Some(&self.gpu.uuid));
        let state = self.state(&library)?;
        let is_reset = state.mode_needs_reset && state.enabled != layout.enabled;
        if is_reset && let Some(folder) = file.folder() {
            persistenced::link(&self.roots, folder);
        }
        let is_persistent = is_reset && has_persistence(&library, &address)?;
        call.answered();
        // A slow disk is no slow driver.
        call.end_turn();
        if is_persistent {
            self.saved(file.set_persistent(&self.gpu.uuid, true))?;
        }
        let begun = file.records().get(&self.gpu.uuid);
        let begun = begun.and_then(|record| record.change.as_ref());
        let is_new = begun.is_none_or(|begun| begun.is_overtaken(&state));
        let change = ChangeRecord::begin(&self.work, begun, &state);
        self.update(file, |record| record.change = Some(change))?;
        info!(gpu = self.gpu.uuid, kind = ?self.work.kind, "changing MIG");
        let ended = change_layout(&library, &address, layout, |step| {
            call.begin_turn(Some(&self.gpu.uuid));
            debug!(gpu = self.gpu.uuid, %step, "MIG step");
            if self.stop.load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        call.answered();
        self.restore_persistence(file, &library, &address)?;
        if !matches!(ended, Ok(ChangeEnd::Done))
            && is_new
            && self
                .state(&library)
                .is_ok_and(|now| now.enabled == state.enabled && now.instances == state.instances)
        {
            // Nothing has begun.
            self.update(file, |record| record.change = None)?;
        }
        Ok(match ended {
            Ok(ChangeEnd::Done) => {
                self.note_done(file)?;
                info!(gpu = self.gpu.uuid, "changed MIG");
                AttemptResult::Done
            }
            Ok(ChangeEnd::Stopped) => AttemptResult::Failed {
                message: "the agent ends; the next one goes on".to_owned(),
            },
            Ok(ChangeEnd::ModePending { status }) => AttemptResult::RebootRequired {
                message: format!(
                    "the driver changes the MIG mode with the next reset of the GPU ({}); reboot the node",
                    answer_name(&status)
                ),
            },
            Ok(ChangeEnd::ModeInUse { status }) => {
                let answer = format!(
                    "change the MIG mode: the driver cannot reset or idle the GPU ({})",
                    answer_name(&status)
                );
                let suspects = Suspects {
                    persistenced: !is_persistent,
                    agents: true,
                };
                self.in_use(&library, call, (MigReason::ModePending, suspects), &answer)
            }
            Err(
                error @ MigChangeError::Call {
                    source: NvmlError::InUse,
                    ..
                },
            ) => self.in_use(
                &library,
                call,
                (MigReason::InUse, Suspects::default()),
                &error.to_string(),
            ),
            Err(error) => return Err(JobError::Change(error)),
        })
    }

    /// Returns the result of a change that the driver refused since something uses the GPU.
    fn in_use(
        &self,
        library: &Path,
        call: &DriverCall,
        (reason, suspects): (MigReason, Suspects),
        answer: &str,
    ) -> AttemptResult {
        let state = self.state(library);
        let by = state
            .and_then(|state| self.occupants(library, &state, suspects, call))
            .ok()
            .flatten();
        let by = match by {
            Some(names) => format!("used by {names}; end it"),
            None if reason == MigReason::ModePending && drm_is_used(&self.roots.host_root) => {
                "the kernel module nvidia_drm uses it: unload it (`modprobe -r nvidia_drm`), and end a display first"
                    .to_owned()
            }
            None => {
                "gpunode finds no process of this node on it: a monitor such as DCGM may keep a handle open; stop it until \
                 the GPU has its layout"
                    .to_owned()
            }
        };
        AttemptResult::Blocked {
            reason,
            message: format!("{answer}; {by}"),
        }
    }

    /// Switches persistence mode on if this change, or one that did not come to its end, has switched it off.
    fn restore_persistence(&self, file: &mut RecordFile, library: &Path, address: &GpuAddress) -> Result<(), JobError> {
        if !file.is_persistent(&self.gpu.uuid) {
            return Ok(());
        }
        match restore_persistence(library, address) {
            Ok(()) => self.saved(file.set_persistent(&self.gpu.uuid, false)),
            Err(error) => {
                let index = self.gpu.index;
                warn!(%error, "cannot restore persistence mode; do it with `nvidia-smi -i {index} -pm 1`");
                Ok(())
            }
        }
    }

    fn note_done(&self, file: &mut RecordFile) -> Result<(), JobError> {
        self.update(file, |record| {
            (record.applied, record.run) = (Some(self.work.layout.clone()), self.run.clone());
            let change = record.change.take();
            record.restore_failure = None;
            match self.work.kind {
                MigWorkKind::RollBack => {
                    let (hash, before) = (&self.work.hash, record.failure.take());
                    record.failure = Some(MigFailure::rolled_back(hash, before, change.as_ref(), Timestamp::now()));
                }
                // A layout that is back says nothing about one that was refused.
                MigWorkKind::Restore => {}
                _ => record.failure = None,
            }
        })
    }

    fn note_failure(&self, file: &mut RecordFile, mut message: String) -> AttemptResult {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        let noted = self.update(file, |record| {
            let is_restore = self.work.kind == MigWorkKind::Restore;
            let failure = if is_restore {
                &mut record.restore_failure
            } else {
                &mut record.failure
            };
            let is_same = |before: &MigFailure| is_restore || before.hash == self.work.hash;
            let before = failure.take().filter(is_same);
            *failure = Some(MigFailure {
                hash: self.work.hash.clone(),
                attempts: before.map_or(0, |failure| failure.attempts).saturating_add(1),
                at: Timestamp::now(),
                message: message.clone(),
                rolled_back: false,
            });
        });
        match noted {
            Ok(()) => AttemptResult::Failed { message },
            Err(error) => AttemptResult::Failed {
                message: format!("{message}; {error}"),
            },
        }
    }

    fn update(&self, file: &mut RecordFile, change: impl FnOnce(&mut gpunode_gpu::MigRecord)) -> Result<(), JobError> {
        self.saved(file.update(&self.gpu.uuid, change))
    }

    fn saved(&self, result: io::Result<()>) -> Result<(), JobError> {
        result.map_err(|source| JobError::Save {
            gpu: self.gpu.uuid.clone(),
            source,
        })
    }

    fn library(&self) -> Result<PathBuf, JobError> {
        Ok(self.roots.find().ok_or(JobError::NoDriver)?.library)
    }

    fn state(&self, library: &Path) -> Result<GpuMigState, JobError> {
        let state = read_mig_state(library, &GpuAddress::of(&self.gpu))?;
        let none = || MigChangeError::NoMig {
            gpu: self.gpu.uuid.clone(),
        };
        Ok(state.ok_or_else(none)?)
    }

    /// Returns the names of who is on what goes.
    fn occupants(
        &self,
        library: &Path,
        state: &GpuMigState,
        suspects: Suspects,
        call: &DriverCall,
    ) -> Result<Option<String>, JobError> {
        let (layout, host_root) = (&self.work.layout, &self.roots.host_root);
        let going: BTreeSet<u32> = leaving_instances(state, layout).map(|instance| instance.id).collect();
        let changes_mode = state.enabled != layout.enabled;
        let capabilities = Capabilities::of_host(host_root);
        let minor = self.gpu.minor;
        let of_instances = minor.into_iter().flat_map(|minor| {
            let nodes = |instance: &u32| capabilities.instance_nodes(minor, *instance);
            going.iter().flat_map(nodes).collect::<Vec<String>>()
        });
        let of_gpu = minor.filter(|_| changes_mode && state.mode_needs_reset);
        let leaving = Leaving {
            nodes: of_instances
                .chain(of_gpu.map(|minor| format!("/dev/nvidia{minor}")))
                .collect(),
            instances: (!changes_mode).then_some(going),
            suspects,
        };
        Ok(occupants(
            library,
            host_root,
            &GpuAddress::of(&self.gpu),
            &leaving,
            call,
        )?)
    }
}

fn failed(error: &JobError) -> AttemptResult {
    AttemptResult::Failed {
        message: error.to_string(),
    }
}

/// Returns true if the driver's module for displays uses the GPUs: no GPU can be reset then (mig-parted#181). It shows nodes of its
/// own, or has users.
fn drm_is_used(host_root: &Path) -> bool {
    let module = host_root.join("sys/module/nvidia_drm");
    let text = |file: &str| small_file::text(&module.join(file)).unwrap_or_default();
    text("parameters/modeset").trim() == "Y" || text("refcnt").trim().parse::<u32>().is_ok_and(|users| users > 0)
}

/// Returns the instances that a layout does not have, or of which a part has to go.
fn leaving_instances<'a>(state: &'a GpuMigState, layout: &GpuLayout) -> impl Iterator<Item = &'a GpuInstance> {
    let stays = |instance: &GpuInstance| {
        layout.enabled
            && layout.instances.contains(&instance.placed)
            && (instance.is_whole() || instance.compute.is_empty())
    };
    state.instances.iter().filter(move |instance| !stays(instance))
}

#[cfg(test)]
pub mod tests;
