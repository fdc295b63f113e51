//! The state file: what is happening to the GPUs of a node.
//!
//! A GPU that the file does not name is idle and healthy.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::ReturnCode;

/// The state of every GPU, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct State {
    /// Number of the last event; it only grows, so that a reader knows which ones are new.
    pub last_event: u64,
    /// Time from a change of MIG instances to the files of the kernel module and the device nodes, in milliseconds; 5 when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_ms: Option<u64>,
    /// State by GPU index.
    pub gpus: BTreeMap<u32, GpuState>,
}

/// The state of one GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault by itself")]
pub struct GpuState {
    /// It has fallen off the bus: every call on its handle answers `lost_code`, and so does each look-up by UUID, of any GPU.
    pub lost: bool,
    /// Answer of a lost GPU; `GPU_IS_LOST` when left out. Drivers answer `UNKNOWN` too.
    pub lost_code: Option<ReturnCode>,
    /// The first `nvmlInit` of a process does not find it: it is not counted, and the indices behind it shift. A process that
    /// initialised before keeps it.
    pub unlisted: bool,
    /// It hangs: the first call on its handle holds the resource manager's lock until this is over, and every call of every
    /// process on any GPU waits for that. Handle, UUID and name of a GPU that the process has initialised come from memory.
    pub hangs: bool,
    /// Time that the first call of a process on its handle takes, in milliseconds: the driver initialises the GPU. Persistence
    /// mode keeps it initialised.
    pub init_ms: u64,
    /// Calls that fail, by function name. A name without version (`nvmlDeviceGetMemoryInfo`)
    /// stands for all its versions.
    pub failing: BTreeMap<String, ReturnCode>,
    /// Calls that fail on one MIG device alone, by its NVML index and by function name; looking it
    /// up by that index is one of them.
    pub failing_mig: BTreeMap<u32, BTreeMap<String, ReturnCode>>,
    /// Calls that fail on a GPU with exactly so many GPU instances, by function name: an error in the midst of several
    /// changes.
    pub failing_at: BTreeMap<String, FailureAt>,
    /// Time that calls take before they do anything, in milliseconds, by function name as in `failing`. These calls wait for
    /// one another, on any GPU and in any process, as the driver serialises them; others do not wait for them.
    pub call_ms: BTreeMap<String, u64>,
    /// Activation status with which a change of the MIG mode ends, which leaves the mode pending.
    pub mig_activation: Option<ReturnCode>,
    /// A change of the MIG mode answers success and changes nothing.
    pub mig_mode_stays: bool,
    /// Path of the socket of nvidia-persistenced, which has the GPU open from its start on. Only a caller that finds the socket sees
    /// that, and makes the daemon let the GPU go.
    pub persistenced: Option<PathBuf>,
    /// Minor number that the GPU gets with the next change of its MIG mode, on boards that are reset for it. `nvml.h` says so of
    /// `nvmlDeviceSetMigMode`.
    pub minor_after_mode: Option<u32>,
    /// Handles of programs that are no processes on the GPU: monitors, and what they have leaked.
    pub open_handles: Vec<OpenHandle>,
    /// Codes that every call about one `NVLink` answers, by its number: the numbers of a board may have gaps.
    pub failing_links: BTreeMap<u32, ReturnCode>,
    /// The last XIDs, oldest first.
    pub xids: Vec<Event>,
    /// Processes on the GPU.
    pub processes: Vec<GpuProcess>,
    /// Use of the streaming multiprocessors (SM) by process id, in percent of the time. A process that is not here uses none. One
    /// that is on no list of processes has ended: the driver has samples of it still.
    pub sm_percent: BTreeMap<u32, u32>,
    /// The driver lists processes without the memory that they use (`NVML_VALUE_NOT_AVAILABLE`).
    pub hides_process_memory: bool,
    /// Memory in use beside that of the processes, in MiB.
    pub memory_used_mib: u64,
    /// Busy share of the GPU's time, in percent.
    pub utilization_percent: u32,
    /// Temperature in degrees Celsius; 30 when left out.
    pub temperature_c: Option<u32>,
    /// ECC errors since the driver was loaded.
    pub ecc_volatile: EccCounts,
    /// ECC errors in the life of the board.
    pub ecc_aggregate: EccCounts,
    /// Pages out of use (Volta and Turing).
    pub retired_pages: RetiredPages,
    /// Rows out of use (Ampere and newer).
    pub row_remap: RowRemap,
    /// Ports of `NVLinks` that are connected and down.
    pub links_down: Vec<u32>,
    /// Action that the driver requests to recover the GPU.
    pub recovery_action: RecoveryAction,
    /// Registration of the GPU in its `NVLink` fabric, on boards that have one.
    pub fabric: FabricState,
}

/// A failure that depends on how many GPU instances there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FailureAt {
    /// Number of GPU instances on the GPU before the call.
    pub instances: usize,
    /// The answer.
    pub code: ReturnCode,
}

/// A handle that a program keeps open. Like a process it makes what it is about `IN_USE`, but no list of NVML has it. A leaked one
/// looks the same, and stays until it is taken out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OpenHandle {
    /// Name of the program, for whoever reads the file.
    pub program: String,
    /// GPU instance that it is about; none: the whole GPU, which keeps boards before Hopper from changing the MIG mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    /// Compute instance that it is about; none: the GPU instance alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_instance: Option<u32>,
}

/// An XID that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Event {
    /// Number of the event among those of the node.
    pub id: u64,
    /// The XID.
    pub xid: u64,
    /// MIG GPU instance that it concerns; none: the whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    /// MIG compute instance that it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_instance: Option<u32>,
}

/// A process that uses a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuProcess {
    /// Process id on the host.
    pub pid: u32,
    /// Memory that it uses, in MiB.
    pub memory_mib: u64,
    /// Kind of its work on the GPU.
    #[serde(default)]
    pub kind: ProcessKind,
    /// Ids of GPU instance and compute instance in which it runs; none without MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<(u32, u32)>,
}

/// Kind of work of a process on a GPU; NVML has a list for each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessKind {
    /// A CUDA context.
    #[default]
    Compute,
    /// A graphics context.
    Graphics,
    /// A client of an MPS server.
    Mps,
}

/// Counts of ECC errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EccCounts {
    /// Repaired, single bit errors.
    pub corrected: u64,
    /// Double bit errors.
    pub uncorrected: u64,
}

/// Retired pages of a board.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetiredPages {
    /// Addresses retired after several single bit errors.
    pub single_bit: Vec<u64>,
    /// Addresses retired after a double bit error.
    pub double_bit: Vec<u64>,
    /// A page waits for the next driver load to be retired.
    pub pending: bool,
    /// A page that waits had a double bit error.
    pub pending_double_bit: bool,
}

/// Remapped rows of a board.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RowRemap {
    /// Rows remapped after correctable errors.
    pub correctable: u32,
    /// Rows remapped after uncorrectable errors.
    pub uncorrectable: u32,
    /// A row waits for a reset to be remapped.
    pub pending: bool,
    /// A remap has failed.
    pub failed: bool,
}

/// NVML field 230 (`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum RecoveryAction {
    /// Nothing to do.
    #[default]
    None = 0,
    /// Reset the GPU.
    GpuReset = 1,
    /// Reboot the node.
    NodeReboot = 2,
    /// Stop traffic between GPUs, then ask again.
    DrainP2p = 3,
    /// Let work end, then reset.
    DrainAndReset = 4,
    /// Recover the IMEX domain. Some drivers of r575 mean a bus reset.
    RecoverImexDomain = 5,
    /// Reset the GPU by its bus (NVML 615).
    BusReset = 6,
    /// Reboot the system (NVML 615).
    SystemReboot = 7,
}

/// Registration of a GPU by Fabric Manager. The links to `NVSwitches` are down until it is completed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FabricState {
    /// The GPU has joined the fabric.
    #[default]
    Completed,
    /// Fabric Manager has not found the GPU, as after each boot.
    NotStarted,
    /// Fabric Manager is at work, or the partition of the GPU is not activated.
    InProgress,
    /// The registration is completed, with an error.
    Failed,
    /// The driver reports no state, and says so in the answer instead of the return code.
    NotSupported,
}

impl State {
    /// The state of one GPU; healthy and idle when the file does not name it.
    pub fn gpu(&self, index: u32) -> GpuState {
        self.gpus.get(&index).cloned().unwrap_or_default()
    }
}

impl GpuState {
    /// The code that every call on the GPU answers, if it is lost.
    pub fn lost_answer(&self) -> Option<ReturnCode> {
        self.lost.then(|| self.lost_code.unwrap_or(ReturnCode::GpuIsLost))
    }

    /// The code that `function` answers, if it is made to fail.
    pub fn failure(&self, function: &str) -> Option<ReturnCode> {
        failure(&self.failing, function)
    }

    /// The code that `function` answers on a GPU with so many GPU instances, if it is made to fail then.
    pub fn failure_at(&self, function: &str, instances: usize) -> Option<ReturnCode> {
        let failure = of_function(&self.failing_at, function)?;
        (failure.instances == instances).then_some(failure.code)
    }

    /// Returns true if nvidia-persistenced manages the GPU, and this process finds its socket.
    pub fn reaches_persistenced(&self) -> bool {
        self.persistenced.as_ref().is_some_and(|socket| socket.exists())
    }

    /// Milliseconds that `function` takes.
    pub fn delay_ms(&self, function: &str) -> u64 {
        of_function(&self.call_ms, function).copied().unwrap_or_default()
    }

    /// Returns true if a process or an open handle uses a compute instance, or with none the GPU instance in any way.
    pub fn uses_instance(&self, gpu_instance: u32, compute_instance: Option<u32>) -> bool {
        let by_process = self.processes.iter().filter_map(|process| process.instance);
        let by_process = by_process.map(|(gpu, compute)| (gpu, Some(compute)));
        let handles = self.open_handles.iter();
        let by_handle = handles.filter_map(|handle| Some((handle.gpu_instance?, handle.compute_instance)));
        let mut used = by_process.chain(by_handle);
        used.any(|(gpu, compute)| gpu == gpu_instance && (compute_instance.is_none() || compute == compute_instance))
    }

    /// Returns true if something in a MIG instance, or with an open handle, would end with a reset.
    pub(crate) fn has_mig_users(&self) -> bool {
        !self.open_handles.is_empty() || self.processes.iter().any(|process| process.instance.is_some())
    }

    /// Ends them.
    pub(crate) fn end_mig_users(&mut self) {
        self.open_handles.clear();
        self.processes.retain(|process| process.instance.is_none());
    }

    /// The code that `function` answers on a MIG device, if it is made to fail there or on the GPU.
    pub fn mig_failure(&self, mig_index: u32, function: &str) -> Option<ReturnCode> {
        let of_device = self
            .failing_mig
            .get(&mig_index)
            .and_then(|failing| failure(failing, function));
        of_device.or_else(|| self.failure(function))
    }
}

fn failure(failing: &BTreeMap<String, ReturnCode>, function: &str) -> Option<ReturnCode> {
    of_function(failing, function)
        .copied()
        // A call that succeeds must also answer: success is no failure.
        .filter(|code| *code != ReturnCode::Success)
}

/// The entry of a function, under its own name or that without a version.
fn of_function<'a, V>(entries: &'a BTreeMap<String, V>, function: &str) -> Option<&'a V> {
    entries.get(function).or_else(|| entries.get(without_version(function)))
}

/// `nvmlDeviceGetMemoryInfo` for `nvmlDeviceGetMemoryInfo_v2`.
fn without_version(function: &str) -> &str {
    match function.rsplit_once("_v") {
        Some((name, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => function,
    }
}

#[cfg(test)]
mod tests {
    use super::GpuState;
    use crate::ReturnCode;

    #[test]
    fn a_name_without_version_stands_for_all() {
        let mut gpu = GpuState::default();
        gpu.failing
            .insert("nvmlDeviceGetMemoryInfo".to_owned(), ReturnCode::Unknown);
        gpu.failing
            .insert("nvmlDeviceGetPciInfo_v3".to_owned(), ReturnCode::Timeout);
        assert_eq!(gpu.failure("nvmlDeviceGetMemoryInfo_v2"), Some(ReturnCode::Unknown));
        assert_eq!(gpu.failure("nvmlDeviceGetMemoryInfo"), Some(ReturnCode::Unknown));
        assert_eq!(gpu.failure("nvmlDeviceGetPciInfo_v3"), Some(ReturnCode::Timeout));
        assert_eq!(gpu.failure("nvmlDeviceGetPciInfo_v2"), None);
        assert_eq!(gpu.failure("nvmlDeviceGetPciInfo"), None);
    }
}
