//! Shares of a device: their number, their ids, the lists that the kubelet gets.

use gpunode_config::MemoryMiB;
use serde::{Deserialize, Serialize};

/// Separator of a UUID and the number of a replica, as in NVIDIA's device plugin.
const REPLICA: &str = "::";

/// Separator of a UUID and the number of a memory unit, as in gpushare.
const UNIT: &str = "-_-";

/// Sharing of a device. The agent saves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "strategy")]
pub enum DeviceSharing {
    /// One container holds it alone.
    Whole,
    /// Containers take turns on it.
    TimeSlicing {
        /// Number of replicas.
        replicas: u32,
    },
    /// Each container holds units of its memory.
    Memory {
        /// Size of one unit in MiB.
        #[serde(rename = "unitMiB")]
        unit: MemoryMiB,
        /// Number of units.
        units: u32,
    },
    /// Containers hold shares of it under an MPS control daemon.
    Mps {
        /// Number of replicas.
        replicas: u32,
    },
}

/// Resource and sharing of a device. The agent saves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Name of the extended resource.
    pub resource: String,
    /// Sharing of the device.
    pub sharing: DeviceSharing,
    /// UUID of the GPU of a MIG device, kept for devices that have left the node. None for a full GPU.
    #[serde(rename = "gpuUuid", default, skip_serializing_if = "Option::is_none")]
    pub gpu_uuid: Option<String>,
}

/// One entry of a device list of the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertisedShare {
    /// UUID of the device, followed by the number of the replica or unit if the device is shared.
    pub id: String,
    /// True if the kubelet may allocate it.
    pub healthy: bool,
    /// NUMA node of the GPU.
    pub numa_node: Option<u32>,
    /// True for an unhealthy time slice that is no share of the resource: the device has it no longer, or a container holds
    /// another slice in its place. It is in the list because the kubelet may be allocating it.
    pub surplus: bool,
}

/// The device list of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdvertisedResource {
    /// Name of the extended resource.
    pub name: String,
    /// True for companions.
    pub is_companion: bool,
    /// Share 0 of each device, then share 1 and so on, so that the first shares are of different devices.
    pub shares: Vec<AdvertisedShare>,
}

impl DeviceSharing {
    /// Returns the number of shares of a device.
    pub fn shares(&self) -> u32 {
        match *self {
            Self::Whole => 1,
            Self::TimeSlicing { replicas } | Self::Mps { replicas } => replicas,
            Self::Memory { units, .. } => units,
        }
    }

    /// Returns the id of share `number` of the device `uuid`.
    pub fn id(&self, uuid: &str, number: u32) -> String {
        match self {
            Self::Whole => uuid.to_owned(),
            Self::TimeSlicing { .. } | Self::Mps { .. } => format!("{uuid}{REPLICA}{number}"),
            Self::Memory { .. } => format!("{uuid}{UNIT}{number}"),
        }
    }

    /// Returns the number of the share of the device `uuid` with this id, or none if no share has it.
    pub fn number(&self, uuid: &str, id: &str) -> Option<u32> {
        self.any_number(uuid, id).filter(|number| *number < self.shares())
    }

    /// Returns true if `other` differs by the number of time slices alone: ids stay, and a container
    /// gets the same from each.
    pub fn is_resize_of(&self, other: &Self) -> bool {
        matches!((self, other), (Self::TimeSlicing { .. }, Self::TimeSlicing { .. })) && self != other
    }

    /// Returns the number in the id of a share of the device `uuid`, also one that the device has no longer.
    pub(crate) fn any_number(&self, uuid: &str, id: &str) -> Option<u32> {
        let rest = id.strip_prefix(uuid)?;
        let separator = match self {
            Self::Whole => return rest.is_empty().then_some(0),
            Self::TimeSlicing { .. } | Self::Mps { .. } => REPLICA,
            Self::Memory { .. } => UNIT,
        };
        let digits = rest.strip_prefix(separator)?;
        // One spelling per number: neither `+1` nor `01`.
        let canonical = digits == "0" || !digits.starts_with(['0', '+']);
        digits.parse().ok().filter(|_| canonical)
    }

    /// Returns true if all shares of one container have to come from one device.
    pub(crate) fn one_device_per_container(&self) -> bool {
        matches!(self, Self::Memory { .. } | Self::Mps { .. })
    }
}

/// Returns the UUID in the id of a share.
pub fn device_of(id: &str) -> &str {
    let end = [REPLICA, UNIT]
        .into_iter()
        .filter_map(|separator| id.find(separator))
        .min();
    end.and_then(|end| id.get(..end)).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: DeviceSharing = DeviceSharing::Memory {
        unit: MemoryMiB(1024),
        units: 16,
    };

    #[test]
    fn ids_are_those_of_nvidia_and_of_gpushare() {
        assert_eq!(DeviceSharing::Whole.id("GPU-1", 0), "GPU-1");
        assert_eq!(DeviceSharing::TimeSlicing { replicas: 4 }.id("GPU-1", 3), "GPU-1::3");
        assert_eq!(DeviceSharing::Mps { replicas: 4 }.id("MIG-1", 3), "MIG-1::3");
        assert_eq!(MEMORY.id("GPU-1", 15), "GPU-1-_-15");
    }

    #[test]
    fn every_id_leads_to_its_device_and_number() {
        let shared = [
            DeviceSharing::TimeSlicing { replicas: 4 },
            DeviceSharing::Mps { replicas: 4 },
            MEMORY,
        ];
        for sharing in shared.into_iter().chain([DeviceSharing::Whole]) {
            for number in 0..sharing.shares() {
                let id = sharing.id("GPU-1", number);
                assert_eq!(sharing.number("GPU-1", &id), Some(number));
                assert_eq!(device_of(&id), "GPU-1");
            }
        }
    }

    #[test]
    fn ids_that_no_share_has_lead_nowhere() {
        let replicas = DeviceSharing::TimeSlicing { replicas: 4 };
        for id in [
            "GPU-1",
            "GPU-1::4",
            "GPU-1::03",
            "GPU-1::+3",
            "GPU-1::",
            "GPU-1::1::1",
            "GPU-1-_-1",
            "GPU-2::1",
            "",
        ] {
            assert_eq!(replicas.number("GPU-1", id), None, "{id}");
        }
        assert_eq!(DeviceSharing::Whole.number("GPU-1", "GPU-1::0"), None);
        assert_eq!(MEMORY.number("GPU-1", "GPU-1-_-16"), None);
    }

    #[test]
    fn an_assignment_is_saved_in_plain_words() {
        for (sharing, text) in [
            (DeviceSharing::Whole, r#"{"strategy":"Whole"}"#),
            (
                DeviceSharing::TimeSlicing { replicas: 4 },
                r#"{"strategy":"TimeSlicing","replicas":4}"#,
            ),
            (MEMORY, r#"{"strategy":"Memory","unitMiB":1024,"units":16}"#),
        ] {
            let assignment = Assignment {
                resource: "a.b/c".to_owned(),
                sharing,
                gpu_uuid: None,
            };
            let saved = serde_json::to_string(&assignment).unwrap();
            assert_eq!(saved, format!(r#"{{"resource":"a.b/c","sharing":{text}}}"#));
            assert_eq!(serde_json::from_str::<Assignment>(&saved).unwrap(), assignment);
        }
    }
}
