//! Memory, cores and shares in use. Pure.
//!
//! | device | memory | cores |
//! |---|---|---|
//! | whole GPU | all | all |
//! | GPU by units of memory | by units | not limited, so not counted |
//! | GPU by MPS | by shares | by shares |
//! | GPU by time-slicing | not limited, so not counted | not limited, so not counted |
//! | companion | none | none |
//! | MIG device | like a GPU | not counted: the driver does not say how many the whole GPU has |

use super::{amount::HeldAmount, devices::DeviceSummary};
use gpunode_crds::SharingStrategy;
use serde::Serialize;
use std::collections::BTreeMap;

/// Memory, cores and shares in use of some devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AmountsInUse {
    /// In MiB.
    #[serde(rename = "memoryMiB")]
    pub memory: HeldAmount,
    /// In percent of one GPU.
    pub cores_percent: HeldAmount,
    /// Whole devices, replicas or units of each resource.
    pub shares: BTreeMap<String, HeldAmount>,
    /// True where the list of holders is incomplete, so that more may be held.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
}

impl AmountsInUse {
    /// Sums these devices. `at_least` where the list of holders is incomplete.
    pub fn of(devices: &[DeviceSummary], at_least: bool) -> Self {
        let mut amounts = Self {
            at_least,
            ..Self::default()
        };
        for device in devices {
            let Some((resource, shares)) = device.resource.as_ref().zip(device.in_use()) else {
                continue;
            };
            amounts.shares.entry(resource.clone()).or_default().add(shares);
            if device.sharing != Some(SharingStrategy::TimeSlicing) {
                amounts
                    .memory
                    .add(shares.of(device.memory_mib.try_into().unwrap_or(i64::MAX)));
            }
            if matches!(
                device.sharing,
                None | Some(SharingStrategy::None | SharingStrategy::Mps)
            ) && !device.is_mig()
                && !device.companion
            {
                amounts.cores_percent.add(shares.of(100));
            }
        }
        amounts
    }

    /// Adds the sums of other devices.
    pub fn add(&mut self, other: &Self) {
        self.memory.add(other.memory);
        self.cores_percent.add(other.cores_percent);
        for (resource, shares) in &other.shares {
            self.shares.entry(resource.clone()).or_default().add(*shares);
        }
        self.at_least |= other.at_least;
    }
}

#[cfg(test)]
mod tests {
    use crate::status::sample::shared;

    #[test]
    fn what_is_held_is_counted_by_what_a_share_stands_for() {
        let fleet = shared();
        let amounts = serde_json::to_value(&fleet.in_use).expect("JSON");
        // GPU 0: 30 of 80 units, 2: one of two MIG devices of 9728 MiB, 4: 1 of 80, 8: 3 of 4 replicas, which say nothing
        // of memory and cores.
        let expected = serde_json::json!({
            "memoryMiB": {"held": 30720 + 9728 + 1024, "total": 6 * 81920 + 2 * 9728},
            "coresPercent": {"held": 0, "total": 200},
            "shares": {
                "aliyun.com/gpu-mem": {"held": 31, "total": 250},
                "nvidia.com/gpu": {"held": 0, "total": 1},
                "nvidia.com/gpu.mps": {"held": 0, "total": 10},
                "nvidia.com/gpu.shared": {"held": 3, "total": 4},
                "nvidia.com/mig-1g.10gb": {"held": 1, "total": 2},
            },
        });
        assert_eq!(amounts, expected);
    }
}
