//! The share of a device that a container was given.
//!
//! | sharing | memory | SMs |
//! |---|---|---|
//! | whole device | all | all |
//! | time slices | all: nothing divides it | the part of the slices: of the time, while all slices are busy |
//! | units of memory | the units | nothing is said of them |
//! | MPS | the part of the shares, as the limit of each process | the percentage of threads, as the limit of each process |

use crate::DeviceSharing;
use gpunode_config::MemoryMiB;

const MIB: u64 = 1 << 20;

/// Share of a device that a container was given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GivenShare {
    /// None if the memory of the device is unknown.
    pub memory_bytes: Option<u64>,
    /// Part of the SMs, or of their time; none if sharing says nothing of it.
    pub sm_ratio: Option<f64>,
}

/// Returns the share of a container that holds `count` shares of a device with this memory.
pub fn given_share(sharing: &DeviceSharing, memory: MemoryMiB, count: u32) -> GivenShare {
    let all = memory.0;
    let part_of = |replicas: u32| f64::from(count) / f64::from(replicas.max(1));
    let (memory_mib, sm_ratio) = match *sharing {
        DeviceSharing::Whole => (all, Some(1.0)),
        DeviceSharing::TimeSlicing { replicas } => (all, Some(part_of(replicas).min(1.0))),
        DeviceSharing::Memory { unit, .. } => (unit.0.saturating_mul(count.into()), None),
        DeviceSharing::Mps { replicas } => {
            let replicas = replicas.max(1);
            let percent = (100 * u64::from(count) / u64::from(replicas)).max(1);
            let mib = u128::from(all) * u128::from(count) / u128::from(replicas);
            let percent = u32::try_from(percent).unwrap_or(100);
            (u64::try_from(mib).unwrap_or(all), Some(f64::from(percent) / 100.0))
        }
    };
    GivenShare {
        memory_bytes: (memory_mib > 0).then(|| memory_mib.saturating_mul(MIB)),
        sm_ratio,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sharing_gives_what_its_containers_are_told() {
        let given = |sharing: DeviceSharing, memory: u64, count: u32| {
            let given = given_share(&sharing, MemoryMiB(memory), count);
            (given.memory_bytes.map(|bytes| bytes / MIB), given.sm_ratio)
        };
        let unit = MemoryMiB(1024);
        assert_eq!(given(DeviceSharing::Whole, 16_160, 1), (Some(16_160), Some(1.0)));
        let slices = DeviceSharing::TimeSlicing { replicas: 4 };
        assert_eq!(given(slices, 16_160, 1), (Some(16_160), Some(0.25)));
        assert_eq!(given(slices, 16_160, 3), (Some(16_160), Some(0.75)));
        let units = DeviceSharing::Memory { unit, units: 15 };
        assert_eq!(given(units, 16_160, 4), (Some(4096), None));
        let mps = DeviceSharing::Mps { replicas: 3 };
        // As in the variables of the container.
        assert_eq!(given(mps, 16_160, 1), (Some(5386), Some(0.33)));
        assert_eq!(given(mps, 0, 1), (None, Some(0.33)));
        assert_eq!(given(DeviceSharing::Whole, 0, 1), (None, Some(1.0)));
    }
}
