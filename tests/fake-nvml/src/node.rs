//! The simulated node: its hardware and its state now.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use gpunode_scenario::{
    ComputeInstance, DRIVER_FILE, DriverState, Gpu, GpuInstance, GpuState, ReturnCode, SCENARIO_FILE, STATE_FILE,
    Scenario, ScenarioError, State,
};

use crate::{
    events::EventSets,
    ffi::GpuMarks,
    handle::{DeviceHandle, compute_number},
    library::Answer,
    resource_manager,
};

/// Calls that the library answers from memory for a GPU that it has initialised. `nvml.h` does not say that they reach the
/// driver; here they do not, so that nobody takes one for an answer of the driver.
const FROM_MEMORY: [&str; 6] = [
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByPciBusId",
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
];

/// A node as one process sees it.
pub(crate) struct Node {
    dir: PathBuf,
    scenario: Scenario,
    /// The GPUs as the scenario has them.
    gpus: Vec<Gpu>,
    /// Places of the GPUs that the first `nvmlInit` found, by NVML index.
    listed: Vec<usize>,
    driver_major: u32,
    cuda_driver_version: i32,
    state: Cached<State>,
    driver: Cached<Driver>,
    event_sets: EventSets,
    /// None where the file cannot be opened a second time; nobody knows then which GPUs this process has open.
    marks: Option<GpuMarks>,
    /// GPUs that this process has initialised, by their place.
    initialised: Mutex<BTreeSet<usize>>,
}

/// Time, inode and size of the state file: it is replaced as a whole, so one of them changes.
type Version = Option<(i64, i64, u64, u64)>;

/// Content of a file as it was read last.
struct Cached<T>(Mutex<Option<(Version, Answer<Arc<T>>)>>);

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Cached(Mutex::default())
    }
}

impl<T> Cached<T> {
    /// The content now: read again when the file has changed.
    fn get(&self, path: &Path, read: impl FnOnce() -> Answer<T>) -> Answer<Arc<T>> {
        let version = fs::metadata(path)
            .ok()
            .map(|file| (file.mtime(), file.mtime_nsec(), file.ino(), file.size()));
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((cached, answer)) = cache.as_ref()
            && *cached == version
        {
            return answer.clone();
        }
        let answer = read().map(Arc::new);
        *cache = Some((version, answer.clone()));
        answer
    }
}

/// State into which the driver has brought the GPUs.
pub(crate) struct Driver {
    /// The GPUs with the MIG instances that they have now, by their place.
    pub(crate) gpus: Vec<Gpu>,
    /// Settings that programs have made.
    pub(crate) settings: DriverState,
}

impl Node {
    /// Reads the scenario in `dir`; without one there is no driver.
    pub(crate) fn load(dir: &Path) -> Answer<Self> {
        let scenario = Scenario::load(dir).map_err(|error| match &error {
            ScenarioError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                ReturnCode::DriverNotLoaded
            }
            _ => refuse(SCENARIO_FILE, &error),
        })?;
        let refuse = |error: ScenarioError| refuse(SCENARIO_FILE, &error);
        let gpus = scenario.gpus().map_err(refuse)?;
        // Without a readable state every call fails, whatever is listed.
        let state = State::load(dir).unwrap_or_default();
        let listed = (0..).zip(&gpus).filter(|(_, gpu)| !state.gpu(gpu.index).unlisted);
        Ok(Node {
            dir: dir.to_owned(),
            listed: listed.map(|(place, _)| place).collect(),
            gpus,
            cuda_driver_version: scenario.cuda_driver_version().map_err(refuse)?,
            driver_major: scenario.driver_major(),
            scenario,
            state: Cached::default(),
            driver: Cached::default(),
            marks: GpuMarks::open(dir).ok(),
            event_sets: EventSets::default(),
            initialised: Mutex::default(),
        })
    }

    /// The folder of the library and of its files.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The scenario.
    pub(crate) fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// The GPU at a place in the scenario, as that has it.
    pub(crate) fn gpu(&self, place: usize) -> Option<&Gpu> {
        self.gpus.get(place)
    }

    /// The GPUs that the first `nvmlInit` found as the scenario has them, by NVML index, each with its place there.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (usize, &Gpu)> {
        self.listed
            .iter()
            .filter_map(|place| Some((*place, self.gpus.get(*place)?)))
    }

    /// The NVML index of the GPU at a place in the scenario.
    pub(crate) fn nvml_index(&self, place: usize) -> Option<usize> {
        self.listed.iter().position(|listed| *listed == place)
    }

    /// Version of the driver.
    pub(crate) fn driver_version(&self) -> &str {
        &self.scenario.driver_version
    }

    /// NVML's own version: the CUDA major version and that of the driver.
    pub(crate) fn nvml_version(&self) -> String {
        format!("{}.{}", self.cuda_driver_version / 1000, self.driver_version())
    }

    /// 13000 for CUDA 13.0.
    pub(crate) fn cuda_driver_version(&self) -> i32 {
        self.cuda_driver_version
    }

    /// The driver's major version, 580 for `580.95.05`.
    pub(crate) fn driver_major(&self) -> u32 {
        self.driver_major
    }

    /// Answers an error for a function that came with a newer driver.
    pub(crate) fn require_driver(&self, major: u32) -> Answer {
        if self.driver_major() < major {
            return Err(ReturnCode::FunctionNotFound);
        }
        Ok(())
    }

    /// Event sets of this process.
    pub(crate) fn event_sets(&self) -> &EventSets {
        &self.event_sets
    }

    /// The state now: read again when the file has changed.
    pub(crate) fn state(&self) -> Answer<Arc<State>> {
        self.state.get(&self.dir.join(STATE_FILE), || {
            State::load(&self.dir).map_err(|error| refuse(STATE_FILE, &error))
        })
    }

    /// The GPUs and settings now: read again when the file has changed.
    pub(crate) fn driver(&self) -> Answer<Arc<Driver>> {
        self.driver.get(&self.dir.join(DRIVER_FILE), || {
            let settings = DriverState::load(&self.dir).map_err(|error| refuse(DRIVER_FILE, &error))?;
            let gpus = self.gpus.iter().map(|gpu| settings.divided(gpu)).collect();
            Ok(Driver { gpus, settings })
        })
    }

    /// Returns true if another process has a GPU open.
    pub(crate) fn is_open_elsewhere(&self, gpu: u32) -> bool {
        let marks = self.marks.as_ref();
        marks.is_some_and(|marks| marks.is_open_elsewhere(gpu).unwrap_or_default())
    }

    /// Waits until no call hangs in the driver, and returns the state then. `gpu` is the index of the GPU that the call is about.
    pub(crate) fn wait_for_driver(&self, gpu: Option<u32>) -> Answer<Arc<State>> {
        resource_manager::wait(&self.dir, gpu, || self.state())
    }

    fn initialised(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.initialised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Initialises a GPU for the first call of this process, which takes its time.
    fn initialise(&self, place: usize, gpu: u32, state: &GpuState) {
        let is_first = self.initialised().insert(place);
        if is_first && let Some(marks) = &self.marks {
            // Without its mark a GPU seems not to be open here.
            let _ = marks.mark(gpu);
        }
        let keeps = || DriverState::load(&self.dir).is_ok_and(|driver| driver.gpu(gpu).keeps(state));
        if is_first && state.init_ms > 0 && !keeps() {
            thread::sleep(Duration::from_millis(state.init_ms));
        }
    }
}

/// Says on standard error what is wrong with a file: a return code alone would leave whoever wrote
/// the file by hand without a clue.
pub(crate) fn refuse(file: &str, error: &dyn std::error::Error) -> ReturnCode {
    let mut text = format!("simulated NVML: {file}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    // If nobody reads standard error, nothing is lost.
    let _ = writeln!(io::stderr(), "{text}");
    ReturnCode::Unknown
}

/// One GPU during one call, which the state lets through.
pub(crate) struct GpuCall {
    node: Arc<Node>,
    index: usize,
    state: GpuState,
    driver: Arc<Driver>,
}

impl GpuCall {
    /// Begins a call of `function`, once no call hangs in the driver, unless the library answers it itself; an error when the GPU
    /// is lost or the function made to fail.
    pub(crate) fn begin(node: Arc<Node>, index: usize, function: &str) -> Answer<Self> {
        node.nvml_index(index).ok_or(ReturnCode::InvalidArgument)?;
        let gpu = node.gpus.get(index).ok_or(ReturnCode::InvalidArgument)?;
        let is_from_memory = FROM_MEMORY.contains(&function) && node.initialised().contains(&index);
        let state = if is_from_memory {
            node.state()?
        } else {
            node.wait_for_driver(Some(gpu.index))?
        };
        let state = state.gpu(gpu.index);
        if let Some(code) = state.lost_answer() {
            return Err(code);
        }
        node.initialise(index, gpu.index, &state);
        let time = Duration::from_millis(state.delay_ms(function));
        if !time.is_zero() {
            resource_manager::spend(&node.dir, time)?;
        }
        if let Some(code) = state.failure(function) {
            return Err(code);
        }
        let driver = node.driver()?;
        Ok(GpuCall {
            node,
            index,
            state,
            driver,
        })
    }

    /// The node of the GPU.
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Its place among the GPUs of the scenario.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Its handle.
    pub(crate) fn handle(&self) -> DeviceHandle {
        DeviceHandle::of_gpu(self.index)
    }

    /// Returns its hardware, of which only the MIG instances change.
    pub(crate) fn hardware(&self) -> Answer<&Gpu> {
        self.driver.gpus.get(self.index).ok_or(ReturnCode::Unknown)
    }

    /// Returns its hardware as the scenario has it.
    pub(crate) fn described(&self) -> Answer<&Gpu> {
        self.node.gpu(self.index).ok_or(ReturnCode::Unknown)
    }

    /// Returns the settings that programs have made.
    pub(crate) fn settings(&self) -> &DriverState {
        &self.driver.settings
    }

    /// Returns its current state.
    pub(crate) fn state(&self) -> &GpuState {
        &self.state
    }
}

/// One MIG device during one call, which the state lets through.
pub(crate) struct MigCall {
    gpu: GpuCall,
    place: usize,
}

impl MigCall {
    /// Begins a call of `function` on the MIG device with a [`compute_number`]; an error when it is gone, the GPU lost or
    /// the function made to fail.
    pub(crate) fn begin(node: Arc<Node>, index: usize, number: usize, function: &str) -> Answer<Self> {
        let gpu = GpuCall::begin(node, index, function)?;
        let place = gpu
            .hardware()?
            .mig_devices()
            .position(|(instance, compute)| compute_number(instance.id, compute.id, compute.serial) == number)
            .ok_or(ReturnCode::InvalidArgument)?;
        let call = MigCall { gpu, place };
        match u32::try_from(place)
            .ok()
            .and_then(|place| call.gpu.state.mig_failure(place, function))
        {
            Some(code) => Err(code),
            None => Ok(call),
        }
    }

    /// The GPU that it is part of.
    pub(crate) fn parent(&self) -> &GpuCall {
        &self.gpu
    }

    /// Its place among the MIG devices of the GPU, which is its NVML index.
    pub(crate) fn place(&self) -> usize {
        self.place
    }

    /// The instances that it is made of.
    pub(crate) fn instances(&self) -> Answer<(&GpuInstance, &ComputeInstance)> {
        self.gpu
            .hardware()?
            .mig_devices()
            .nth(self.place)
            .ok_or(ReturnCode::InvalidArgument)
    }
}
