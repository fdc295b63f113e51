//! Ways in which a container gets its devices.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A way in which a container gets its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
#[allow(missing_docs, reason = "the field `deviceListStrategy` describes them")]
pub enum DeviceListStrategy {
    CdiCri,
    CdiAnnotations,
    Envvar,
    VolumeMounts,
}

/// The form in which containers are told their devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum DeviceIdStrategy {
    /// By UUID.
    Uuid,
    /// By index, which is refused.
    Index,
}

impl DeviceListStrategy {
    /// Returns true if the container runtime looks the devices up in a CDI file.
    pub fn is_cdi(self) -> bool {
        matches!(self, Self::CdiCri | Self::CdiAnnotations)
    }
}
