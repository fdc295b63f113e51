//! Event sets: XIDs of the state file, once per set, from registration on.
//!
//! A lost GPU does not end a wait: its XID is still delivered, and calls on its handle tell the
//! rest. `nvml.h` lets the driver answer `GPU_IS_LOST` to a wait; make `nvmlEventSetWait` fail on
//! the GPU to try that.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use gpunode_scenario::{Event, FolderWatch, ReturnCode, State};
use nvml_wrapper_sys::bindings::{
    nvmlEventData_t, nvmlEventTypeClock, nvmlEventTypeDoubleBitEccError, nvmlEventTypePState,
    nvmlEventTypeSingleBitEccError, nvmlEventTypeXidCriticalError,
};

use crate::{
    handle::{DeviceHandle, EventSetHandle},
    library::Answer,
    node::{GpuCall, Node},
    usage::NO_INSTANCE,
};

/// Types that can be registered on every simulated board; only XIDs ever happen.
pub(crate) const SUPPORTED_TYPES: u64 = nvmlEventTypeSingleBitEccError as u64
    | nvmlEventTypeDoubleBitEccError as u64
    | nvmlEventTypePState as u64
    | nvmlEventTypeXidCriticalError as u64
    | nvmlEventTypeClock as u64;

/// The event sets of a process, by number.
#[derive(Default)]
pub(crate) struct EventSets {
    sets: Mutex<Sets>,
}

#[derive(Default)]
struct Sets {
    last_number: usize,
    open: BTreeMap<usize, Arc<EventSet>>,
}

/// One event set.
pub(crate) struct EventSet {
    watch: FolderWatch,
    registrations: Mutex<BTreeMap<usize, Registration>>,
    /// True after a registration that answered `UNKNOWN`: the set delivers nothing any more.
    is_undefined: AtomicBool,
}

/// Events of one GPU that a set waits for.
struct Registration {
    types: u64,
    /// Events up to this one were delivered, or happened before the registration.
    seen: u64,
}

/// `nvmlEventData_t` as version 1 of the wait had it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EventDataV1 {
    device: nvml_wrapper_sys::bindings::nvmlDevice_t,
    event_type: u64,
    event_data: u64,
}

impl From<nvmlEventData_t> for EventDataV1 {
    fn from(data: nvmlEventData_t) -> Self {
        EventDataV1 {
            device: data.device,
            event_type: data.eventType,
            event_data: data.eventData,
        }
    }
}

impl EventSets {
    /// A new, empty set.
    pub(crate) fn create(&self, node: &Node) -> EventSetHandle {
        let set = Arc::new(EventSet {
            watch: FolderWatch::new(node.dir()),
            registrations: Mutex::default(),
            is_undefined: AtomicBool::new(false),
        });
        let mut sets = lock(&self.sets);
        sets.last_number += 1;
        let number = sets.last_number;
        sets.open.insert(number, set);
        EventSetHandle::of_set(number)
    }

    /// The set behind a handle.
    pub(crate) fn get(&self, handle: EventSetHandle) -> Answer<Arc<EventSet>> {
        handle
            .set_number()
            .and_then(|number| lock(&self.sets).open.get(&number).cloned())
            .ok_or(ReturnCode::InvalidArgument)
    }

    /// Returns true if a set has events of the GPU at a place.
    pub(crate) fn have(&self, place: usize) -> bool {
        let sets = lock(&self.sets);
        let mut open = sets.open.values();
        open.any(|set| lock(&set.registrations).contains_key(&place))
    }

    /// Forgets a set. A wait on it goes on to its end.
    pub(crate) fn free(&self, handle: EventSetHandle) -> Answer {
        handle
            .set_number()
            .and_then(|number| lock(&self.sets).open.remove(&number))
            .map(|_| ())
            .ok_or(ReturnCode::InvalidArgument)
    }
}

impl EventSet {
    /// Adds a GPU, or types to those that the set wants of it.
    pub(crate) fn register(&self, gpu: &GpuCall, types: u64) -> Answer {
        if types & !SUPPORTED_TYPES != 0 {
            return Err(ReturnCode::NotSupported);
        }
        let seen = gpu.node().state()?.last_event;
        lock(&self.registrations)
            .entry(gpu.index())
            .and_modify(|registration| registration.types |= types)
            .or_insert(Registration { types, seen });
        Ok(())
    }

    /// Leaves the set in the undefined state of which `nvml.h` warns.
    pub(crate) fn spoil(&self) {
        self.is_undefined.store(true, Ordering::Relaxed);
    }

    /// The next event, or `TIMEOUT`.
    pub(crate) fn wait(&self, node: &Node, function: &str, timeout: Duration) -> Answer<nvmlEventData_t> {
        let deadline = Instant::now() + timeout;
        loop {
            // The watch has been there since the set was created: a change after this look wakes
            // the wait below.
            if let Some(event) = self.take(node, function)? {
                return Ok(event);
            }
            if Instant::now() >= deadline {
                return Err(ReturnCode::Timeout);
            }
            self.watch.wait_until(deadline);
        }
    }

    /// Takes the oldest event that the set has not had yet.
    fn take(&self, node: &Node, function: &str) -> Answer<Option<nvmlEventData_t>> {
        let state = node.wait_for_driver(None)?;
        if self.is_undefined.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut registrations = lock(&self.registrations);
        if let Some(code) = failure(node, &state, &registrations, function) {
            return Err(code);
        }
        let oldest = registrations
            .iter_mut()
            .filter(|(_, wanted)| wanted.types & u64::from(nvmlEventTypeXidCriticalError) != 0)
            .filter_map(|(place, wanted)| {
                let gpu = node.gpu(*place)?;
                let xids = &state.gpus.get(&gpu.index)?.xids;
                let event = xids.iter().find(|event| event.id > wanted.seen)?;
                Some((*place, wanted, event))
            })
            .min_by_key(|(_, _, event)| event.id);
        Ok(oldest.map(|(place, wanted, event)| {
            wanted.seen = event.id;
            event_data(DeviceHandle::of_gpu(place), event)
        }))
    }
}

/// The code of a wait that was made to fail on one of the set's GPUs.
fn failure(
    node: &Node,
    state: &State,
    registrations: &BTreeMap<usize, Registration>,
    function: &str,
) -> Option<ReturnCode> {
    registrations
        .keys()
        .filter_map(|place| node.gpu(*place))
        .find_map(|gpu| state.gpus.get(&gpu.index)?.failure(function))
}

fn event_data(device: DeviceHandle, event: &Event) -> nvmlEventData_t {
    nvmlEventData_t {
        device: device.to_c(),
        eventType: nvmlEventTypeXidCriticalError.into(),
        eventData: event.xid,
        gpuInstanceId: event.gpu_instance.unwrap_or(NO_INSTANCE),
        computeInstanceId: event.compute_instance.unwrap_or(NO_INSTANCE),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
