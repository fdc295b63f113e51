//! The driver's own answers. A process of its own asks, since a call may hang and cannot be ended: it says on standard error
//! which call comes next, and prints the answers as JSON at the end. It reads, and sets nothing.

use crate::{
    limited,
    raw::{self, FabricAnswer},
};
use anyhow::{Context as _, Result, bail, ensure};
use nvml_wrapper::{Device, Nvml, enums::device::SampleValue, error::NvmlError, structs::device::FieldId};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write as _},
    mem,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// `NVML_FI_DEV_RETIRED_PENDING`.
pub const RETIREMENT_PENDING: u32 = 31;
/// `NVML_FI_DEV_RETIRED_PENDING_DBE`.
pub const DOUBLE_BIT_PENDING: u32 = 93;
/// `NVML_FI_DEV_REMAPPED_PENDING`.
pub const REMAP_PENDING: u32 = 144;
/// `NVML_FI_DEV_REMAPPED_FAILURE`.
pub const REMAP_FAILED: u32 = 145;
/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
pub const RECOVERY_ACTION: u32 = 230;
/// The fields that the agent's probe asks for in one call.
const FIELDS: [u32; 5] = [
    RECOVERY_ACTION,
    REMAP_PENDING,
    REMAP_FAILED,
    RETIREMENT_PENDING,
    DOUBLE_BIT_PENDING,
];

/// `NVML_ERROR_NOT_SUPPORTED`.
pub const NOT_SUPPORTED: &str = "NOT_SUPPORTED";
/// `NVML_ERROR_GPU_IS_LOST`.
pub const GPU_IS_LOST: &str = "GPU_IS_LOST";
/// `NVML_ERROR_UNKNOWN`; drivers give this answer for a lost GPU too.
pub const UNKNOWN: &str = "UNKNOWN";
/// The library has no such function; `NVML_ERROR_FUNCTION_NOT_FOUND` means the same.
pub const FUNCTION_NOT_FOUND: &str = "FUNCTION_NOT_FOUND";
/// `NVML_ERROR_INVALID_ARGUMENT`.
pub const INVALID_ARGUMENT: &str = "INVALID_ARGUMENT";

/// Sessions that are timed, one after the other. Without persistence mode each initialises the GPUs anew.
const SESSIONS: usize = 3;

/// Answer of a call, or the name of NVML's error.
pub type Answer<T> = Result<T, String>;

/// Times of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionTimes {
    /// Milliseconds of `nvmlInit_v2`.
    pub init_ms: u64,
    /// Milliseconds of the first call about each GPU, by index, whatever the answer.
    pub gpus_ms: Vec<u64>,
}

/// Answers of the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverAnswers {
    /// Times of sessions.
    pub sessions: Vec<SessionTimes>,
    /// Times of a session while the GPUs' device nodes are open, which keeps the GPUs initialised as persistence mode does.
    pub session_with_open_nodes: Answer<SessionTimes>,
    /// Functions of the agent that the library lacks.
    pub missing_functions: Vec<String>,
    /// The GPUs, by index.
    pub gpus: Vec<GpuAnswers>,
}

/// Answers for one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAnswers {
    /// NVML index.
    pub index: u32,
    /// UUID, by index.
    pub uuid: Answer<String>,
    /// UUID of the GPU that the look-up by this GPU's UUID finds.
    pub by_uuid: Answer<String>,
    /// UUID of the GPU that the look-up by this GPU's PCI address finds.
    pub by_bus_id: Answer<String>,
    /// Persistence mode.
    pub persistence: Answer<bool>,
    /// Registration with the NVLink fabric.
    pub fabric: Answer<FabricAnswer>,
    /// Values of the fields, by number.
    pub fields: BTreeMap<u32, Answer<u64>>,
}

/// Asks in a process of its own. `program` is this program.
pub fn ask(program: &Path, library: &Path, limit: Duration) -> Result<DriverAnswers> {
    let finished = limited::run(Command::new(program).arg("driver").arg(library), limit)?;
    ensure!(
        finished.status.success(),
        "{}",
        finished.stderr.lines().last().unwrap_or("no reason given")
    );
    serde_json::from_str(&finished.stdout).context("read the answers of the driver")
}

/// Asks in this process, and prints the answers.
pub fn answer(library: &Path) -> Result<()> {
    let sessions = (0..SESSIONS)
        .map(|_| time_session(library))
        .collect::<Result<Vec<_>>>()?;
    let session_with_open_nodes = time_session_with_open_nodes(library).map_err(|error| format!("{error:#}"));
    let nvml = open(library)?;
    let answers = DriverAnswers {
        sessions,
        session_with_open_nodes,
        missing_functions: missing_functions(&nvml),
        gpus: (0..nvml.device_count()?).map(|index| gpu(&nvml, index)).collect(),
    };
    writeln!(io::stdout(), "{}", serde_json::to_string(&answers)?)?;
    announce("nvmlShutdown");
    Ok(())
}

fn time_session(library: &Path) -> Result<SessionTimes> {
    let start = Instant::now();
    let nvml = open(library)?;
    let init_ms = milliseconds_since(start);
    let mut gpus_ms = Vec::new();
    for index in 0..nvml.device_count()? {
        let start = Instant::now();
        _ = ask_gpu(&nvml, index, "nvmlDeviceGetMemoryInfo_v2", |device| {
            device.memory_info().map(drop)
        });
        gpus_ms.push(milliseconds_since(start));
    }
    announce("nvmlShutdown");
    Ok(SessionTimes { init_ms, gpus_ms })
}

/// The kernel module initialises a GPU when the first process opens its device node, and keeps it so until the last has closed
/// it.
fn time_session_with_open_nodes(library: &Path) -> Result<SessionTimes> {
    let nvml = open(library)?;
    let mut nodes = Vec::new();
    for index in 0..nvml.device_count()? {
        let node = format!("/dev/nvidia{}", nvml.device_by_index(index)?.minor_number()?);
        announce(&format!("open {node}"));
        nodes.push(File::open(&node).with_context(|| format!("open {node}"))?);
    }
    announce("nvmlShutdown");
    drop(nvml);
    let times = time_session(library);
    drop(nodes);
    times
}

fn milliseconds_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn open(library: &Path) -> Result<Nvml> {
    announce("nvmlInit_v2");
    let nvml = Nvml::builder()
        .lib_path(library.as_os_str())
        .init()
        .with_context(|| format!("initialise NVML from {}", library.display()))?;
    if nvml.lib().nvmlShutdown.is_err() {
        // Dropping the session would call nvmlShutdown and panic.
        mem::forget(nvml);
        bail!(
            "{} has no nvmlShutdown: is this the driver's library?",
            library.display()
        );
    }
    Ok(nvml)
}

fn gpu(nvml: &Nvml, index: u32) -> GpuAnswers {
    let fields = ask_gpu(nvml, index, "nvmlDeviceGetFieldValues", |device| {
        device.field_values_for(&FIELDS.map(FieldId))
    });
    GpuAnswers {
        index,
        uuid: ask_gpu(nvml, index, "nvmlDeviceGetUUID", Device::uuid),
        by_uuid: ask_gpu(nvml, index, "nvmlDeviceGetHandleByUUID", |device| {
            nvml.device_by_uuid(device.uuid()?)?.uuid()
        }),
        by_bus_id: ask_gpu(nvml, index, "nvmlDeviceGetHandleByPciBusId_v2", |device| {
            let pci = device.pci_info()?;
            // In the agent's form, which is that of sysfs.
            let address = format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
            nvml.device_by_pci_bus_id(address)?.uuid()
        }),
        persistence: ask_gpu(
            nvml,
            index,
            "nvmlDeviceGetPersistenceMode",
            Device::is_in_persistent_mode,
        ),
        fabric: ask_gpu(nvml, index, "nvmlDeviceGetGpuFabricInfo", raw::fabric),
        fields: match fields {
            Ok(values) => FIELDS
                .into_iter()
                .zip(values)
                .map(|(id, sample)| (id, number(sample.and_then(|sample| sample.value))))
                .collect(),
            Err(error) => FIELDS.into_iter().map(|id| (id, Err(error.clone()))).collect(),
        },
    }
}

fn ask_gpu<'n, T>(
    nvml: &'n Nvml,
    index: u32,
    call: &str,
    question: impl FnOnce(&Device<'n>) -> Result<T, NvmlError>,
) -> Answer<T> {
    announce(&format!("{call} of GPU {index}"));
    nvml.device_by_index(index)
        .and_then(|device| question(&device))
        .map_err(|error| name(&error))
}

fn number(value: Result<SampleValue, NvmlError>) -> Answer<u64> {
    match value.map_err(|error| name(&error))? {
        SampleValue::U32(value) => Ok(value.into()),
        SampleValue::U64(value) => Ok(value),
        SampleValue::I64(value) => u64::try_from(value).map_err(|_| value.to_string()),
        SampleValue::F64(value) => Err(value.to_string()),
    }
}

/// NVML's name of an error that the check or its reader knows; of others nvml-wrapper's.
fn name(error: &NvmlError) -> String {
    match error {
        NvmlError::NotSupported => NOT_SUPPORTED.to_owned(),
        NvmlError::GpuLost => GPU_IS_LOST.to_owned(),
        NvmlError::Unknown => UNKNOWN.to_owned(),
        NvmlError::InvalidArg => INVALID_ARGUMENT.to_owned(),
        NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => FUNCTION_NOT_FOUND.to_owned(),
        other => format!("{other:?}"),
    }
}

/// Returns those functions of the agent that drivers got over time and this library lacks.
fn missing_functions(nvml: &Nvml) -> Vec<String> {
    macro_rules! missing {
        ($($function:ident),* $(,)?) => {
            [$((stringify!($function), nvml.lib().$function.is_err())),*]
        };
    }
    missing![
        nvmlDeviceGetComputeRunningProcesses_v3,
        nvmlDeviceGetFieldValues,
        nvmlDeviceGetGpuFabricInfo,
        nvmlDeviceGetGpuInstanceProfileInfo,
        nvmlDeviceGetGraphicsRunningProcesses_v3,
        nvmlDeviceGetHandleByPciBusId_v2,
        nvmlDeviceGetMemoryInfo_v2,
        nvmlDeviceGetMigMode,
        nvmlDeviceGetNvLinkRemoteDeviceType,
        nvmlDeviceGetPciInfo_v3,
        nvmlEventSetWait_v2,
    ]
    .into_iter()
    .filter(|(_, is_missing)| *is_missing)
    .map(|(function, _)| function.to_owned())
    .collect()
}

/// Says which call comes next, for whoever waits for this process.
fn announce(call: &str) {
    _ = writeln!(io::stderr(), "{call}");
}
