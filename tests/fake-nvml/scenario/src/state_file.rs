//! Changes to the state file from outside, by tests and by the local cluster.

use std::{
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use crate::{
    DriverState, Event, FailureAt, GpuProcess, GpuState, OpenHandle, ProcessKind, RecoveryAction, ReturnCode, Scenario,
    ScenarioError, State, shared_file,
};

/// Name of the state file, in the folder of the library. It may be missing.
pub const STATE_FILE: &str = "gpunode-state.yaml";
/// Number of XIDs kept per GPU; a reader further behind than that misses some, as on hardware.
const KEPT_XIDS: usize = 256;

/// Names that the library exports: all that nvml-wrapper-sys 0.10 looks up, which are all of `nvml.h`.
const SYMBOLS: &str = include_str!("../nvml-symbols.txt");

/// The state file of one node.
#[derive(Debug, Clone)]
pub struct StateFile {
    dir: PathBuf,
}

/// Failure to read or change the state.
#[derive(Debug, Error)]
pub enum StateError {
    /// A file operation failed.
    #[error("{action} {path}")]
    File {
        /// Action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// It is not a state; the parser names the field.
    #[error("parse the state {path}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_yaml::Error,
    },
    /// The node's hardware is not known.
    #[error("load the scenario that the state belongs to")]
    Scenario(#[from] ScenarioError),
    /// The scenario has no such GPU.
    #[error("the scenario has no GPU {index}, only {count} GPUs")]
    UnknownGpu {
        /// The index asked for.
        index: u32,
        /// Number of GPUs.
        count: usize,
    },
    /// The node has no such device now.
    #[error("the node has neither a GPU nor a MIG device {0}")]
    UnknownDevice(String),
    /// A misspelt function would never fail, and the test would show nothing.
    #[error("NVML has no function {0:?}")]
    UnknownFunction(String),
}

impl StateFile {
    /// The state of the node whose library and scenario are in `dir`.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, StateError> {
        let dir = dir.into();
        Scenario::load(&dir)?;
        Ok(StateFile { dir })
    }

    /// The state now.
    pub fn read(&self) -> Result<State, StateError> {
        State::load(&self.dir)
    }

    /// Changes the state as a whole.
    pub fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> Result<T, StateError> {
        shared_file::update(&self.dir.join(STATE_FILE), change)
    }

    /// Returns the settings that programs made through the library.
    pub fn driver(&self) -> Result<DriverState, StateError> {
        DriverState::load(&self.dir)
    }

    /// Forgets what a reboot makes driver and boards forget: call it when the simulated node reboots, and when its driver is
    /// unloaded and loaded, which is the same to them. Open handles and processes in MIG instances end.
    pub fn reboot(&self) -> Result<(), StateError> {
        if self.read()?.gpus.values().any(GpuState::has_mig_users) {
            self.update(|state| state.gpus.values_mut().for_each(GpuState::end_mig_users))?;
        }
        DriverState::reload(&self.dir, &Scenario::load(&self.dir)?)
    }

    /// Resets a GPU: a pending MIG mode comes into force, MIG instances are gone, and with them who used them.
    pub fn reset_gpu(&self, index: u32) -> Result<(), StateError> {
        let gpus = Scenario::load(&self.dir)?.gpus()?;
        let gpu = gpus.iter().find(|gpu| gpu.index == index);
        let gpu = gpu.ok_or(StateError::UnknownGpu {
            index,
            count: gpus.len(),
        })?;
        self.update_gpu(index, GpuState::end_mig_users)?;
        let reset = DriverState::update_mig(&self.dir, gpu, |mig| {
            mig.reset();
            Ok(())
        })?;
        // The change above refuses nothing.
        reset.or(Ok(()))
    }

    /// Changes the state of one GPU.
    pub fn update_gpu<T>(&self, index: u32, change: impl FnOnce(&mut GpuState) -> T) -> Result<T, StateError> {
        self.check_gpu(index)?;
        self.update(|state| change(state.gpus.entry(index).or_default()))
    }

    /// Lets an XID happen on a GPU. Returns the number of the event.
    pub fn inject_xid(&self, gpu: u32, xid: u64) -> Result<u64, StateError> {
        self.inject(gpu, xid, None)
    }

    /// Lets an XID happen on a GPU after which the driver asks for an action, so that no program sees one without the other.
    pub fn inject_xid_with_recovery(&self, gpu: u32, xid: u64, action: RecoveryAction) -> Result<u64, StateError> {
        self.check_gpu(gpu)?;
        self.update(|state| {
            state.gpus.entry(gpu).or_default().recovery_action = action;
            state.add_event(gpu, xid, None)
        })
    }

    /// Lets an XID happen in a MIG instance: `(gpu instance, compute instance)`.
    pub fn inject_mig_xid(&self, gpu: u32, xid: u64, instance: (u32, u32)) -> Result<u64, StateError> {
        self.inject(gpu, xid, Some(instance))
    }

    fn inject(&self, gpu: u32, xid: u64, instance: Option<(u32, u32)>) -> Result<u64, StateError> {
        self.check_gpu(gpu)?;
        self.update(|state| state.add_event(gpu, xid, instance))
    }

    /// Makes a function fail on a GPU. A name without version stands for all its versions.
    pub fn fail(&self, gpu: u32, function: &str, code: ReturnCode) -> Result<(), StateError> {
        check_function(function)?;
        self.update_gpu(gpu, |state| {
            state.failing.insert(function.to_owned(), code);
        })
    }

    /// Makes a function fail on a GPU while it has exactly so many GPU instances: in the midst of several changes.
    pub fn fail_at(&self, gpu: u32, instances: usize, function: &str, code: ReturnCode) -> Result<(), StateError> {
        check_function(function)?;
        self.update_gpu(gpu, |state| {
            state
                .failing_at
                .insert(function.to_owned(), FailureAt { instances, code });
        })
    }

    /// Makes a function take a time on a GPU, in milliseconds; 0 ends that.
    pub fn delay(&self, gpu: u32, function: &str, ms: u64) -> Result<(), StateError> {
        check_function(function)?;
        self.update_gpu(gpu, |state| {
            state.call_ms.insert(function.to_owned(), ms);
        })
    }

    /// Sets the time from a change of MIG instances to the files of the kernel module, in milliseconds.
    pub fn delay_kernel_files(&self, ms: u64) -> Result<(), StateError> {
        self.update(|state| state.kernel_ms = Some(ms))
    }

    /// Sets the handles that programs keep open, or have leaked, on a GPU.
    pub fn set_open_handles(&self, gpu: u32, handles: Vec<OpenHandle>) -> Result<(), StateError> {
        self.update_gpu(gpu, |state| state.open_handles = handles)
    }

    /// Makes a function fail on one MIG device of a GPU, by its NVML index.
    pub fn fail_mig(&self, gpu: u32, index: u32, function: &str, code: ReturnCode) -> Result<(), StateError> {
        check_function(function)?;
        self.update_gpu(gpu, |state| {
            state
                .failing_mig
                .entry(index)
                .or_default()
                .insert(function.to_owned(), code);
        })
    }

    /// Ends all failures made by [`StateFile::fail_mig`] on a GPU.
    pub fn clear_mig_failures(&self, gpu: u32) -> Result<(), StateError> {
        self.update_gpu(gpu, |state| state.failing_mig.clear())
    }

    /// Ends a failure made by [`StateFile::fail`] under the same name.
    pub fn clear_failure(&self, gpu: u32, function: &str) -> Result<(), StateError> {
        self.update_gpu(gpu, |state| {
            state.failing.remove(function);
        })
    }

    /// Lets a GPU fall off the bus.
    pub fn lose(&self, gpu: u32) -> Result<(), StateError> {
        self.update_gpu(gpu, |state| state.lost = true)
    }

    /// Brings a lost GPU back; everything else about it stays.
    pub fn restore(&self, gpu: u32) -> Result<(), StateError> {
        self.update_gpu(gpu, |state| state.lost = false)
    }

    /// Ends everything that is wrong with a GPU, as a new board or a reboot of the node would. Its work and past XIDs stay.
    pub fn repair(&self, gpu: u32) -> Result<(), StateError> {
        self.update_gpu(gpu, |state| {
            let broken = std::mem::take(state);
            *state = GpuState {
                xids: broken.xids,
                processes: broken.processes,
                sm_percent: broken.sm_percent,
                hides_process_memory: broken.hides_process_memory,
                open_handles: broken.open_handles,
                memory_used_mib: broken.memory_used_mib,
                utilization_percent: broken.utilization_percent,
                temperature_c: broken.temperature_c,
                ..GpuState::default()
            };
        })
    }

    /// Sets what the driver asks for to bring a GPU back.
    pub fn set_recovery_action(&self, gpu: u32, action: RecoveryAction) -> Result<(), StateError> {
        self.update_gpu(gpu, |state| state.recovery_action = action)
    }

    /// Sets the processes on a GPU.
    pub fn set_processes(&self, gpu: u32, processes: Vec<GpuProcess>) -> Result<(), StateError> {
        self.update_gpu(gpu, |state| state.processes = processes)
    }

    /// Sets the use of the streaming multiprocessors by a process on a GPU, in percent of the time.
    pub fn set_sm_percent(&self, gpu: u32, pid: u32, percent: u32) -> Result<(), StateError> {
        self.update_gpu(gpu, |state| _ = state.sm_percent.insert(pid, percent))
    }

    /// Lets a process work on a GPU or MIG device, by its UUID.
    pub fn start_process(&self, uuid: &str, pid: u32) -> Result<(), StateError> {
        let gpus = DriverState::gpus(&self.dir)?;
        let found = gpus.iter().find_map(|gpu| {
            let mut devices = gpu.mig_devices();
            let device = devices.find(|(_, compute)| compute.uuid == uuid);
            let instance = device.map(|(instance, compute)| (instance.id, compute.id));
            (gpu.uuid == uuid || instance.is_some()).then_some((gpu.index, instance))
        });
        let (gpu, instance) = found.ok_or_else(|| StateError::UnknownDevice(uuid.to_owned()))?;
        self.update_gpu(gpu, |state| {
            state.processes.push(GpuProcess {
                pid,
                memory_mib: 900,
                kind: ProcessKind::Compute,
                instance,
            });
        })
    }

    /// Ends a process on every GPU.
    pub fn end_process(&self, pid: u32) -> Result<(), StateError> {
        self.update(|state| {
            for gpu in state.gpus.values_mut() {
                gpu.processes.retain(|process| process.pid != pid);
            }
        })
    }

    fn check_gpu(&self, index: u32) -> Result<(), StateError> {
        let count = Scenario::load(&self.dir)?.gpus()?.len();
        match usize::try_from(index) {
            Ok(at) if at < count => Ok(()),
            _ => Err(StateError::UnknownGpu { index, count }),
        }
    }
}

impl State {
    /// Reads the state beside the library in `dir`; every GPU is healthy when there is none.
    pub fn load(dir: &Path) -> Result<Self, StateError> {
        shared_file::load(&dir.join(STATE_FILE))
    }

    fn add_event(&mut self, gpu: u32, xid: u64, instance: Option<(u32, u32)>) -> u64 {
        self.last_event += 1;
        let id = self.last_event;
        let xids = &mut self.gpus.entry(gpu).or_default().xids;
        xids.push(Event {
            id,
            xid,
            gpu_instance: instance.map(|(gi, _)| gi),
            compute_instance: instance.map(|(_, ci)| ci),
        });
        let surplus = xids.len().saturating_sub(KEPT_XIDS);
        xids.drain(..surplus);
        id
    }
}

fn check_function(function: &str) -> Result<(), StateError> {
    if SYMBOLS.lines().any(|name| name == function) {
        Ok(())
    } else {
        Err(StateError::UnknownFunction(function.to_owned()))
    }
}
