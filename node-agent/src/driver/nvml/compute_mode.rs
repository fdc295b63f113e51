//! The compute mode of a GPU: the number of processes that may use it.

use nvml_wrapper::enum_wrappers::device::ComputeMode as Nvmls;
use std::{fmt, str::FromStr};

/// Number of processes that may use a GPU. Its text form is NVML's name, such as `ExclusiveProcess`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number.
    Default,
    /// One thread; deprecated.
    ExclusiveThread,
    /// None.
    Prohibited,
    /// One, such as the server of MPS.
    ExclusiveProcess,
}

/// Error of parsing a compute mode.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("read the compute mode {0:?}: must be Default, ExclusiveThread, Prohibited or ExclusiveProcess")]
pub struct NoComputeMode(String);

const ALL: [ComputeMode; 4] = [
    ComputeMode::Default,
    ComputeMode::ExclusiveThread,
    ComputeMode::Prohibited,
    ComputeMode::ExclusiveProcess,
];

impl fmt::Display for ComputeMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, out)
    }
}

impl FromStr for ComputeMode {
    type Err = NoComputeMode;

    fn from_str(text: &str) -> Result<Self, NoComputeMode> {
        ALL.into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| NoComputeMode(text.to_owned()))
    }
}

impl From<Nvmls> for ComputeMode {
    fn from(mode: Nvmls) -> Self {
        match mode {
            Nvmls::Default => Self::Default,
            Nvmls::ExclusiveThread => Self::ExclusiveThread,
            Nvmls::Prohibited => Self::Prohibited,
            Nvmls::ExclusiveProcess => Self::ExclusiveProcess,
        }
    }
}

impl From<ComputeMode> for Nvmls {
    fn from(mode: ComputeMode) -> Self {
        match mode {
            ComputeMode::Default => Self::Default,
            ComputeMode::ExclusiveThread => Self::ExclusiveThread,
            ComputeMode::Prohibited => Self::Prohibited,
            ComputeMode::ExclusiveProcess => Self::ExclusiveProcess,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_as_it_was_written() {
        for mode in ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(ComputeMode::from(Nvmls::from(mode)), mode);
        }
        let error = "Shared".parse::<ComputeMode>().unwrap_err();
        assert!(error.to_string().starts_with("read the compute mode \"Shared\""));
    }
}
