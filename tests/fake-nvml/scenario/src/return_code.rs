//! NVML's return codes by the names of `nvml.h`, without the prefix `NVML_ERROR_`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

macro_rules! return_codes {
    ($($name:ident $text:literal $number:literal $message:literal;)*) => {
        /// Return code of an NVML call (`nvmlReturn_t`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names are nvml.h's own and say all there is")]
        pub enum ReturnCode {
            $($name,)*
            /// A number that `nvml.h` does not name, for drivers newer than this table.
            Other(u32),
        }

        impl ReturnCode {
            /// The number.
            pub fn code(self) -> u32 {
                match self {
                    $(ReturnCode::$name => $number,)*
                    ReturnCode::Other(number) => number,
                }
            }

            /// The text of `nvmlErrorString`.
            pub fn message(self) -> &'static std::ffi::CStr {
                match self {
                    $(ReturnCode::$name => $message,)*
                    ReturnCode::Other(_) => c"Unknown Error",
                }
            }
        }

        impl From<u32> for ReturnCode {
            fn from(number: u32) -> Self {
                match number {
                    $($number => ReturnCode::$name,)*
                    other => ReturnCode::Other(other),
                }
            }
        }

        impl FromStr for ReturnCode {
            type Err = UnknownReturnCode;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text.strip_prefix("NVML_ERROR_").unwrap_or(text) {
                    $($text => Ok(ReturnCode::$name),)*
                    _ => Err(UnknownReturnCode(text.to_owned())),
                }
            }
        }

        impl fmt::Display for ReturnCode {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(ReturnCode::$name => out.write_str($text),)*
                    ReturnCode::Other(number) => write!(out, "{number}"),
                }
            }
        }
    };
}

return_codes! {
    Success "SUCCESS" 0 c"Success";
    Uninitialized "UNINITIALIZED" 1 c"Uninitialized";
    InvalidArgument "INVALID_ARGUMENT" 2 c"Invalid Argument";
    NotSupported "NOT_SUPPORTED" 3 c"Not Supported";
    NoPermission "NO_PERMISSION" 4 c"Insufficient Permissions";
    AlreadyInitialized "ALREADY_INITIALIZED" 5 c"Already Initialized";
    NotFound "NOT_FOUND" 6 c"Not Found";
    InsufficientSize "INSUFFICIENT_SIZE" 7 c"Insufficient Size";
    InsufficientPower "INSUFFICIENT_POWER" 8 c"Insufficient External Power";
    DriverNotLoaded "DRIVER_NOT_LOADED" 9 c"Driver Not Loaded";
    Timeout "TIMEOUT" 10 c"Timeout";
    IrqIssue "IRQ_ISSUE" 11 c"Interrupt Request Issue";
    LibraryNotFound "LIBRARY_NOT_FOUND" 12 c"NVML Shared Library Not Found";
    FunctionNotFound "FUNCTION_NOT_FOUND" 13 c"Function Not Found";
    CorruptedInforom "CORRUPTED_INFOROM" 14 c"Corrupted infoROM";
    GpuIsLost "GPU_IS_LOST" 15 c"GPU is lost";
    ResetRequired "RESET_REQUIRED" 16 c"GPU requires restart";
    OperatingSystem "OPERATING_SYSTEM" 17 c"The operating system has blocked the request.";
    LibRmVersionMismatch "LIB_RM_VERSION_MISMATCH" 18 c"RM has detected an NVML/RM version mismatch.";
    InUse "IN_USE" 19 c"In use by another client";
    Memory "MEMORY" 20 c"Insufficient Memory";
    NoData "NO_DATA" 21 c"No Data";
    VgpuEccNotSupported "VGPU_ECC_NOT_SUPPORTED" 22 c"ECC mode is not supported with vGPU";
    InsufficientResources "INSUFFICIENT_RESOURCES" 23 c"Insufficient Resources";
    FreqNotSupported "FREQ_NOT_SUPPORTED" 24 c"Requested frequency is not supported";
    ArgumentVersionMismatch "ARGUMENT_VERSION_MISMATCH" 25 c"Argument version mismatch";
    Deprecated "DEPRECATED" 26 c"Deprecated";
    NotReady "NOT_READY" 27 c"Not Ready";
    GpuNotFound "GPU_NOT_FOUND" 28 c"No GPUs found";
    InvalidState "INVALID_STATE" 29 c"Invalid State";
    ResetTypeNotSupported "RESET_TYPE_NOT_SUPPORTED" 30 c"Reset type not supported";
    Unknown "UNKNOWN" 999 c"Unknown Error";
}

/// A name that `nvml.h` does not have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no NVML return code; write a name such as GPU_IS_LOST, or a number")]
pub struct UnknownReturnCode(String);

impl Serialize for ReturnCode {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self {
            ReturnCode::Other(number) => out.serialize_u32(*number),
            known => out.collect_str(known),
        }
    }
}

impl<'de> Deserialize<'de> for ReturnCode {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u32),
            Name(String),
        }
        match Written::deserialize(input)? {
            Written::Number(number) => Ok(number.into()),
            Written::Name(name) => name.parse().map_err(de::Error::custom),
        }
    }
}
