//! Handles that the library gives out.
//!
//! NVML's handles are pointers that only NVML itself follows. Here they are numbers that nobody
//! follows, so that a stale or invented handle is refused and never crashes a process.

/// First GPU handle. The values lie where no program has memory mapped.
const GPU_BASE: usize = 0x7667_7000_0000_0000;
/// Distance of GPU handles; the handles of MIG devices of a GPU have room in between.
const GPU_STEP: usize = 0x1_0000_0000;
/// Distance of the handles of MIG devices, and of compute instances.
const COMPUTE_STEP: usize = 0x10;
/// First GPU instance handle.
const GPU_INSTANCE_BASE: usize = 0x7667_6900_0000_0000;
/// First compute instance handle.
const COMPUTE_INSTANCE_BASE: usize = 0x7667_6300_0000_0000;
/// Distance of the handles of GPU instances of a GPU.
const GPU_INSTANCE_STEP: usize = 0x100;
/// Instances with one id that have handles of their own. A handle of an earlier one names nothing; programs do not keep
/// one for longer than that.
const SERIALS: u64 = 0x1_0000;
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
    /// The MIG device of a GPU with the [`compute_number`].
    Mig(usize, usize),
}

/// Number of a GPU instance with this id and serial number among those that a GPU ever has.
pub(crate) fn instance_number(id: u32, serial: u64) -> usize {
    // A GPU has 15 ids.
    (serial_number(serial) << 4) | (id as usize & 0xf)
}

/// Number of a compute instance among those that a GPU ever has.
pub(crate) fn compute_number(gpu_instance: u32, id: u32, serial: u64) -> usize {
    // A GPU instance has 8 ids.
    (serial_number(serial) << 7) | ((gpu_instance as usize & 0xf) << 3) | (id as usize & 0x7)
}

fn serial_number(serial: u64) -> usize {
    usize::try_from(serial % SERIALS).unwrap_or_default()
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

    /// The handle of the MIG device with that [`compute_number`], of the GPU with that index.
    pub(crate) fn of_mig(gpu: usize, number: usize) -> Self {
        DeviceHandle(GPU_BASE + gpu * GPU_STEP + (1 + number) * COMPUTE_STEP)
    }

    /// Returns the device that it names.
    pub(crate) fn named(self) -> Option<Named> {
        let offset = self.0.checked_sub(GPU_BASE)?;
        let (gpu, rest) = (offset / GPU_STEP, offset % GPU_STEP);
        match (rest / COMPUTE_STEP, rest % COMPUTE_STEP) {
            (0, 0) => Some(Named::Gpu(gpu)),
            (number, 0) => Some(Named::Mig(gpu, number - 1)),
            _ => None,
        }
    }

    /// The value as a C structure holds it.
    pub(crate) fn to_c(self) -> nvml_wrapper_sys::bindings::nvmlDevice_t {
        std::ptr::without_provenance_mut(self.0)
    }
}

impl GpuInstanceHandle {
    /// The handle of the GPU instance with that [`instance_number`].
    pub(crate) fn of(gpu: usize, number: usize) -> Self {
        GpuInstanceHandle(GPU_INSTANCE_BASE + gpu * GPU_STEP + (1 + number) * GPU_INSTANCE_STEP)
    }

    /// The index of the GPU and the number that it stands for.
    pub(crate) fn named(self) -> Option<(usize, usize)> {
        numbered(self.0, GPU_INSTANCE_BASE, GPU_INSTANCE_STEP)
    }

    /// The value as a C structure holds it.
    pub(crate) fn to_c(self) -> nvml_wrapper_sys::bindings::nvmlGpuInstance_t {
        std::ptr::without_provenance_mut(self.0)
    }
}

impl ComputeInstanceHandle {
    /// The handle of the compute instance with that [`compute_number`].
    pub(crate) fn of(gpu: usize, number: usize) -> Self {
        ComputeInstanceHandle(COMPUTE_INSTANCE_BASE + gpu * GPU_STEP + (1 + number) * COMPUTE_STEP)
    }

    /// The index of the GPU and the number that it stands for.
    pub(crate) fn named(self) -> Option<(usize, usize)> {
        numbered(self.0, COMPUTE_INSTANCE_BASE, COMPUTE_STEP)
    }
}

/// The index of a GPU and the number of an instance of it in a handle.
fn numbered(handle: usize, base: usize, step: usize) -> Option<(usize, usize)> {
    let offset = handle.checked_sub(base)?;
    let (gpu, rest) = (offset / GPU_STEP, offset % GPU_STEP);
    let number = (rest / step).checked_sub(1)?;
    rest.is_multiple_of(step).then_some((gpu, number))
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
