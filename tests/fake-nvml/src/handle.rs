//! Handles that the library gives out.
//!
//! NVML's handles are pointers that only NVML itself follows. Here they are numbers that nobody
//! follows, so that a stale or invented handle is refused and never crashes a process.

/// First GPU handle. The values lie where no program has memory mapped.
const GPU_BASE: usize = 0x7667_7000_0000_0000;
/// Distance of GPU handles; the handles of MIG devices of a GPU have room in between.
const GPU_STEP: usize = 0x1_0000;
/// First event set handle.
const EVENT_SET_BASE: usize = 0x7665_7300_0000_0000;
/// Event set handles look aligned, as pointers would.
const EVENT_SET_STEP: usize = 0x10;

/// `nvmlDevice_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct DeviceHandle(usize);

/// `nvmlEventSet_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct EventSetHandle(usize);

impl DeviceHandle {
    /// The handle of the GPU with this index.
    pub(crate) fn of_gpu(index: usize) -> Self {
        DeviceHandle(GPU_BASE + index * GPU_STEP)
    }

    /// The index of the GPU whose handle this would be; the node may not have that many.
    pub(crate) fn gpu_index(self) -> Option<usize> {
        let offset = self.0.checked_sub(GPU_BASE)?;
        (offset % GPU_STEP == 0).then_some(offset / GPU_STEP)
    }

    /// The value as a C structure holds it.
    pub(crate) fn to_c(self) -> nvml_wrapper_sys::bindings::nvmlDevice_t {
        std::ptr::without_provenance_mut(self.0)
    }
}

impl EventSetHandle {
    /// The handle of the event set with this number.
    pub(crate) fn of_set(number: usize) -> Self {
        EventSetHandle(EVENT_SET_BASE + number * EVENT_SET_STEP)
    }

    /// The number of the event set whose handle this would be.
    pub(crate) fn set_number(self) -> Option<usize> {
        let offset = self.0.checked_sub(EVENT_SET_BASE)?;
        (offset % EVENT_SET_STEP == 0).then_some(offset / EVENT_SET_STEP)
    }
}
