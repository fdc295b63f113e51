//! Errors of NVML calls.

use super::compute_mode::ComputeMode;
use nvml_wrapper::error::NvmlError;
use std::{io, path::PathBuf};

/// Error of a driver call.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The library's file cannot be opened.
    #[error("open {path}: {source}")]
    Open {
        /// The library.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a library.
    #[error("load NVML from {path}: {source}; is this the driver's library?")]
    NotElf {
        /// The library.
        path: PathBuf,
        /// The parser's error.
        source: object::Error,
    },
    /// The end of the file is missing.
    #[error(
        "load NVML from {path}: the library is incomplete ({length} of {needed} bytes): a driver installation may be under way"
    )]
    Incomplete {
        /// The library.
        path: PathBuf,
        /// Bytes in the file.
        length: u64,
        /// Bytes that its headers require.
        needed: u64,
    },
    /// The library cannot be loaded or started.
    #[error("initialise NVML from {path}: {source}; {}", next_step(source))]
    Initialise {
        /// The library.
        path: PathBuf,
        /// NVML's answer.
        source: NvmlError,
    },
    /// The file is not NVML.
    #[error("load NVML from {path}: nvmlShutdown is missing; is this the driver's library?")]
    NotNvml {
        /// The library.
        path: PathBuf,
    },
    /// Waiting for driver events failed.
    #[error("wait for driver events: {0}")]
    Events(NvmlError),
    /// Counting the GPUs failed.
    #[error("count the GPUs: {0}")]
    Count(NvmlError),
    /// Reading the compute mode failed.
    #[error("read the compute mode of {uuid}: {source}")]
    ReadComputeMode {
        /// The GPU.
        uuid: String,
        /// NVML's answer.
        source: NvmlError,
    },
    /// Changing the compute mode failed.
    #[error("set the compute mode of {uuid} to {mode}: {source}")]
    SetComputeMode {
        /// The GPU.
        uuid: String,
        /// The desired mode.
        mode: ComputeMode,
        /// NVML's answer.
        source: NvmlError,
    },
}

/// C name of a call that failed, and its error.
pub type FailedCall = (&'static str, NvmlError);

/// Returns a function that adds the C name of the call to its error.
pub fn failed_in(call: &'static str) -> impl Fn(NvmlError) -> FailedCall {
    move |error| (call, error)
}

impl DriverError {
    /// Returns the C name of the NVML call that failed, if there was one.
    pub fn call(&self) -> Option<&'static str> {
        match self {
            Self::Initialise { .. } => Some("nvmlInit_v2"),
            Self::Events(_) => Some("nvmlEventSetWait_v2"),
            Self::Count(_) => Some("nvmlDeviceGetCount_v2"),
            Self::ReadComputeMode { .. } => Some("nvmlDeviceGetComputeMode"),
            Self::SetComputeMode { .. } => Some("nvmlDeviceSetComputeMode"),
            Self::Open { .. } | Self::NotElf { .. } | Self::Incomplete { .. } | Self::NotNvml { .. } => None,
        }
    }
}

/// Returns what helps against an NVML that does not start.
fn next_step(error: &NvmlError) -> &'static str {
    match error {
        NvmlError::LibRmVersionMismatch => {
            "the kernel has modules of another version than this library; reboot the node, or load the modules anew"
        }
        _ => "is the driver loaded, and are its device nodes in this container?",
    }
}

/// Failure of a query that decides how a GPU is advertised. Reading it as "the GPU has no such feature" would make
/// another device of it.
#[derive(Debug, thiserror::Error)]
#[error("{question} of GPU {gpu}: {source}")]
pub struct Unanswered {
    pub question: &'static str,
    pub gpu: u32,
    pub source: NvmlError,
}

/// Returns true if the driver is older than the call.
pub fn is_missing(error: &NvmlError) -> bool {
    matches!(error, NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_))
}
