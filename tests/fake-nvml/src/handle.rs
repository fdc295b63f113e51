//! Handles that the library gives out.
//!
//! NVML's handles are pointers that only NVML itself follows. Here they are numbers that nobody
//! follows, so that a stale or invented handle is refused and never crashes a process.

/// First GPU handle. The values lie where no program has memory mapped.
const GPU_BASE: usize = 0x7667_7000_0000_0000;
/// Distance of GPU handles; the handles of MIG devices of a GPU have room in between.
const GPU_STEP: usize = 0x1_0000;
/// Distance of the handles of MIG devices, and of compute instances.
const PLACE_STEP: usize = 0x10;
/// First GPU instance handle.
const GPU_INSTANCE_BASE: usize = 0x7667_6900_0000_0000;
/// First compute instance handle.
const COMPUTE_INSTANCE_BASE: usize = 0x7667_6300_0000_0000;
/// Distance of the handles of GPU instances of a GPU.
const GPU_INSTANCE_STEP: usize = 0x100;
/// First event set handle.
const EVENT_SET_BASE: usize = 0x7665_7300_0000_0000;
/// Event set handles look aligned, as pointers would.
const EVENT_SET_STEP: usize = 0x10;

/// `nvmlDevice_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct DeviceHandle(usize);

/// Device that a handle names; the node may not have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// The GPU at an index.
    Gpu(usize),
    /// The MIG device of a GPU at an index of its own.
    Mig(usize, usize),
}

/// `nvmlGpuInstance_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct GpuInstanceHandle(usize);

/// `nvmlComputeInstance_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct ComputeInstanceHandle(usize);

/// `nvmlEventSet_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct EventSetHandle(usize);

impl DeviceHandle {
    /// The handle of the GPU with this index.
    pub(crate) fn of_gpu(index: usize) -> Self {
        DeviceHandle(GPU_BASE + index * GPU_STEP)
    }

    /// The handle of a MIG device of the GPU with that index.
    pub(crate) fn of_mig(gpu: usize, place: usize) -> Self {
        DeviceHandle(GPU_BASE + gpu * GPU_STEP + (1 + place) * PLACE_STEP)
    }

    /// Returns the device that it names.
    pub(crate) fn named(self) -> Option<Named> {
        let offset = self.0.checked_sub(GPU_BASE)?;
        let (gpu, rest) = (offset / GPU_STEP, offset % GPU_STEP);
        match (rest / PLACE_STEP, rest % PLACE_STEP) {
            (0, 0) => Some(Named::Gpu(gpu)),
            (place, 0) => Some(Named::Mig(gpu, place - 1)),
            _ => None,
        }
    }

    /// The value as a C structure holds it.
    pub(crate) fn to_c(self) -> nvml_wrapper_sys::bindings::nvmlDevice_t {
        std::ptr::without_provenance_mut(self.0)
    }
}

impl GpuInstanceHandle {
    /// The handle of the GPU instance with that id.
    pub(crate) fn of(gpu: usize, id: u32) -> Self {
        GpuInstanceHandle(GPU_INSTANCE_BASE + gpu * GPU_STEP + (1 + id as usize) * GPU_INSTANCE_STEP)
    }

    /// The index of the GPU and the id that it stands for.
    pub(crate) fn named(self) -> Option<(usize, u32)> {
        let offset = self.0.checked_sub(GPU_INSTANCE_BASE)?;
        let (gpu, rest) = (offset / GPU_STEP, offset % GPU_STEP);
        let id = (rest / GPU_INSTANCE_STEP).checked_sub(1)?;
        rest.is_multiple_of(GPU_INSTANCE_STEP)
            .then_some((gpu, u32::try_from(id).ok()?))
    }

    /// The value as a C structure holds it.
    pub(crate) fn to_c(self) -> nvml_wrapper_sys::bindings::nvmlGpuInstance_t {
        std::ptr::without_provenance_mut(self.0)
    }
}

impl ComputeInstanceHandle {
    /// The handle of a compute instance of the GPU instance with that id.
    pub(crate) fn of(gpu: usize, gpu_instance: u32, id: u32) -> Self {
        let instance = (1 + gpu_instance as usize) * GPU_INSTANCE_STEP + (1 + id as usize) * PLACE_STEP;
        ComputeInstanceHandle(COMPUTE_INSTANCE_BASE + gpu * GPU_STEP + instance)
    }

    /// The index of the GPU and the ids of GPU and compute instance that it stands for.
    pub(crate) fn named(self) -> Option<(usize, u32, u32)> {
        let offset = self.0.checked_sub(COMPUTE_INSTANCE_BASE)?;
        let (gpu, rest) = (offset / GPU_STEP, offset % GPU_STEP);
        let gpu_instance = (rest / GPU_INSTANCE_STEP).checked_sub(1)?;
        let rest = rest % GPU_INSTANCE_STEP;
        let id = (rest / PLACE_STEP).checked_sub(1)?;
        let ids = (u32::try_from(gpu_instance).ok()?, u32::try_from(id).ok()?);
        rest.is_multiple_of(PLACE_STEP).then_some((gpu, ids.0, ids.1))
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
