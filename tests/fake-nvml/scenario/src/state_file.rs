//! Changes to the state file from outside, by tests and by the local cluster.
//!
//! Every change is a read, a change and a rename under a lock: readers see the old state or the
//! new one, and concurrent changes do not lose each other.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use thiserror::Error;

use crate::{Event, GpuProcess, GpuState, RecoveryAction, ReturnCode, Scenario, ScenarioError, State};

/// Name of the state file, in the folder of the library. It may be missing.
pub const STATE_FILE: &str = "gpunode-state.yaml";
const LOCK_FILE: &str = "gpunode-state.lock";
const NEW_STATE_FILE: &str = "gpunode-state.yaml.new";
/// How many XIDs are kept per GPU; a reader further behind than that misses some, as on hardware.
const KEPT_XIDS: usize = 256;

/// Names that the library exports: all that nvml-wrapper-sys 0.10 looks up, which are all of `nvml.h`.
const SYMBOLS: &str = include_str!("../nvml-symbols.txt");

/// The state file of one node.
#[derive(Debug, Clone)]
pub struct StateFile {
    dir: PathBuf,
}

/// Why the state could not be read or changed.
#[derive(Debug, Error)]
pub enum StateError {
    /// A file operation failed.
    #[error("{action} {path}")]
    File {
        /// What was tried.
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
        /// How many there are.
        count: usize,
    },
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
        let lock_path = self.dir.join(LOCK_FILE);
        let lock = File::create(&lock_path).map_err(file_error("create", &lock_path))?;
        lock.lock().map_err(file_error("lock", &lock_path))?;

        let mut state = self.read()?;
        let result = change(&mut state);
        let new_path = self.dir.join(NEW_STATE_FILE);
        let path = self.dir.join(STATE_FILE);
        let text = serde_yaml::to_string(&state).map_err(|source| StateError::Parse { path: path.clone(), source })?;
        fs::write(&new_path, text).map_err(file_error("write", &new_path))?;
        set_newer(&new_path, &path).map_err(file_error("date", &new_path))?;
        fs::rename(&new_path, &path).map_err(file_error("replace", &path))?;
        Ok(result)
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

    /// Lets an XID happen in a MIG instance: `(gpu instance, compute instance)`.
    pub fn inject_mig_xid(&self, gpu: u32, xid: u64, instance: (u32, u32)) -> Result<u64, StateError> {
        self.inject(gpu, xid, Some(instance))
    }

    fn inject(&self, gpu: u32, xid: u64, instance: Option<(u32, u32)>) -> Result<u64, StateError> {
        self.check_gpu(gpu)?;
        self.update(|state| {
            state.last_event += 1;
            let id = state.last_event;
            let xids = &mut state.gpus.entry(gpu).or_default().xids;
            xids.push(Event {
                id,
                xid,
                gpu_instance: instance.map(|(gi, _)| gi),
                compute_instance: instance.map(|(_, ci)| ci),
            });
            let surplus = xids.len().saturating_sub(KEPT_XIDS);
            xids.drain(..surplus);
            id
        })
    }

    /// Makes a function fail on a GPU. A name without version stands for all its versions.
    pub fn fail(&self, gpu: u32, function: &str, code: ReturnCode) -> Result<(), StateError> {
        if !SYMBOLS.lines().any(|name| name == function) {
            return Err(StateError::UnknownFunction(function.to_owned()));
        }
        self.update_gpu(gpu, |state| {
            state.failing.insert(function.to_owned(), code);
        })
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

    /// Sets what the driver asks for to bring a GPU back.
    pub fn set_recovery_action(&self, gpu: u32, action: RecoveryAction) -> Result<(), StateError> {
        self.update_gpu(gpu, |state| state.recovery_action = action)
    }

    /// Sets the processes on a GPU.
    pub fn set_processes(&self, gpu: u32, processes: Vec<GpuProcess>) -> Result<(), StateError> {
        self.update_gpu(gpu, |state| state.processes = processes)
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
        let path = dir.join(STATE_FILE);
        match fs::read_to_string(&path) {
            Ok(text) => serde_yaml::from_str(&text).map_err(|source| StateError::Parse { path, source }),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(State::default()),
            Err(source) => Err(file_error("read", &path)(source)),
        }
    }
}

/// Gives `new` a later time than `old`: readers notice a change by the time, and the clock that
/// dates files stands still for milliseconds.
fn set_newer(new: &Path, old: &Path) -> io::Result<()> {
    let mut modified = SystemTime::now();
    if let Ok(before) = fs::metadata(old).and_then(|old| old.modified())
        && modified <= before
    {
        modified = before + Duration::from_micros(1);
    }
    File::options().write(true).open(new)?.set_modified(modified)
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    move |source| StateError::File { action, path: path.to_owned(), source }
}
