//! Waits for driver events. The session stays open while waiting, and the driver cannot be unloaded until it ends.

use super::{
    error::DriverError,
    lookup::{GpuAddress, find_gpu},
    raw,
    session::open,
};
use nvml_wrapper::{Device, EventSet, Nvml, error::NvmlError};
use nvml_wrapper_sys::bindings::{
    nvmlEventTypeDoubleBitEccError as DOUBLE_BIT, nvmlEventTypeDramRetirementEvent as RETIREMENT,
    nvmlEventTypeDramRetirementFailure as RETIREMENT_FAILURE, nvmlEventTypeFatalPoisonError as POISON,
    nvmlEventTypeGpuRecoveryAction as RECOVERY_ACTION, nvmlEventTypeGpuUnavailableError as UNAVAILABLE,
    nvmlEventTypeXidCriticalError as XID,
};
use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::Path,
    time::{Duration, Instant},
};
use tracing::info;

/// Event types that cause a probe of the GPU.
const EVENT_TYPES: u64 =
    (XID | DOUBLE_BIT | RETIREMENT | RETIREMENT_FAILURE | POISON | UNAVAILABLE | RECOVERY_ACTION) as u64;
/// Pause before retrying to register a GPU that did not answer.
const REGISTER_EVERY: Duration = Duration::from_secs(30);

/// Event of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverEvent {
    /// UUID of the GPU; none when the driver names an unknown one.
    pub gpu: Option<String>,
    /// The XID; none for events that only cause a probe.
    pub xid: Option<i32>,
    /// Ids of GPU instance and compute instance, when the event concerns only that instance.
    pub instance: Option<(u32, u32)>,
    /// Time of receipt.
    pub at: Instant,
}

/// Receives events, and is asked between two waits.
pub trait EventHandler {
    /// Returns the GPUs to watch when they have changed, or a break to end the session.
    fn gpus(&mut self) -> ControlFlow<(), Option<Vec<GpuAddress>>>;
    /// Returns the longest time of the next wait. Nothing can end it early, so ending the session takes up to this long.
    fn wait_limit(&self) -> Duration;
    /// Takes an event.
    fn handle(&mut self, event: DriverEvent) -> ControlFlow<()>;
    /// Receives the GPU that is about to be registered; none after the last one.
    fn begin_registration(&mut self, gpu: Option<&str>);
    /// Receives the reason why a GPU reports no events.
    fn reports_no_events(&mut self, gpu: &str, why: &NvmlError);
}

/// Passes driver events from the library at `path` to the watcher until it breaks. Blocks.
pub fn watch(path: &Path, watcher: &mut impl EventHandler) -> Result<(), DriverError> {
    let nvml = open(path)?;
    let mut gpus = Vec::new();
    let mut fewer_than = usize::MAX;
    loop {
        let set = nvml.create_event_set().map_err(DriverError::Events)?;
        let mut following = WatchedGpus {
            nvml: &nvml,
            set: &set,
            known: BTreeMap::new(),
            missing: gpus.clone(),
        };
        match following.follow(&mut gpus, watcher) {
            // A lost GPU may end every wait on its event set, and registers with no new set: retry without it.
            Err(NvmlError::GpuLost | NvmlError::Unknown) if following.known.len() < fewer_than => {
                fewer_than = following.known.len();
            }
            ended => return ended.map_err(DriverError::Events),
        }
    }
}

struct WatchedGpus<'a> {
    nvml: &'a Nvml,
    set: &'a EventSet<'a>,
    /// UUIDs of the GPUs that are registered.
    known: BTreeMap<usize, String>,
    /// The GPUs that are not registered yet.
    missing: Vec<GpuAddress>,
}

impl<'a> WatchedGpus<'a> {
    /// Waits for events until the watcher breaks or a wait fails. `gpus` are the GPUs that the watcher named last.
    fn follow(&mut self, gpus: &mut Vec<GpuAddress>, watcher: &mut impl EventHandler) -> Result<(), NvmlError> {
        let mut registered: Option<Instant> = None;
        loop {
            match watcher.gpus() {
                ControlFlow::Break(()) => return Ok(()),
                ControlFlow::Continue(Some(named)) => {
                    self.missing.clone_from(&named);
                    *gpus = named;
                    registered = None;
                }
                ControlFlow::Continue(None) => {}
            }
            if registered.is_none_or(|at| at.elapsed() >= REGISTER_EVERY) {
                self.register(watcher)?;
                registered = Some(Instant::now());
            }
            match raw::wait(self.set, watcher.wait_limit()) {
                Ok(reported) if watcher.handle(self.event(&reported)).is_break() => return Ok(()),
                Ok(_) | Err(NvmlError::Timeout) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Registers the missing GPUs. Retries GPUs that do not answer, and drops those that have no events. Fails if the set can no
    /// longer be used.
    fn register(&mut self, watcher: &mut impl EventHandler) -> Result<(), NvmlError> {
        let before = self.known.len();
        for gpu in std::mem::take(&mut self.missing) {
            if self.known.values().any(|known| *known == gpu.uuid) {
                continue;
            }
            watcher.begin_registration(Some(&gpu.uuid));
            match self.try_registration(&gpu) {
                Ok((device, types)) => {
                    raw::register_events(self.set, &device, types)?;
                    self.known.insert(raw::handle_id(&device), gpu.uuid);
                }
                Err(error) => {
                    watcher.reports_no_events(&gpu.uuid, &error);
                    if !matches!(error, NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) {
                        self.missing.push(gpu);
                    }
                }
            }
        }
        watcher.begin_registration(None);
        if self.known.len() > before {
            info!(gpus = self.known.len(), "following driver events");
        }
        Ok(())
    }

    /// Returns a GPU and the event types to register. Tries them on a set of its own: a registration that answers `UNKNOWN`
    /// leaves its set in an undefined state (nvml.h, `nvmlDeviceRegisterEvents`).
    fn try_registration(&self, gpu: &GpuAddress) -> Result<(Device<'a>, u64), NvmlError> {
        let device = find_gpu(self.nvml, gpu).map_err(|(_, error)| error)?;
        let types = raw::supported_events(&device)? & EVENT_TYPES;
        if types == 0 {
            return Err(NvmlError::NotSupported);
        }
        raw::register_events(&self.nvml.create_event_set()?, &device, types)?;
        Ok((device, types))
    }

    fn event(&self, reported: &raw::Reported) -> DriverEvent {
        let xid = (reported.kind == u64::from(XID)).then(|| i32::try_from(reported.data).unwrap_or(i32::MAX));
        let (gpu, compute) = reported.instance;
        let is_of_one = gpu != raw::NO_INSTANCE && compute != raw::NO_INSTANCE;
        DriverEvent {
            gpu: self.known.get(&reported.device).cloned(),
            xid,
            instance: is_of_one.then_some(reported.instance),
            at: Instant::now(),
        }
    }
}
