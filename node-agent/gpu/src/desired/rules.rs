//! Rules of a resource for requests and for the choice of devices.

use crate::DeviceSharing;
use gpunode_config::{Allocation, Placement};

/// Rules of a resource, whatever its devices are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceRules {
    /// True if a request for more than one replica is refused.
    pub fail_requests_greater_than_one: bool,
    /// Order of devices for memory units.
    pub placement: Placement,
    /// Order of sets of devices.
    pub allocation: Allocation,
}

impl ResourceRules {
    /// Returns the rank of a device, with this many shares free and held, among devices of which one gives all shares of a
    /// container; the lowest wins.
    pub fn rank_of_one(&self, sharing: DeviceSharing, free: u32, held: u32) -> i64 {
        let (free, held) = (i64::from(free), i64::from(held));
        match (sharing, self.placement, self.allocation) {
            (DeviceSharing::Memory { .. }, Placement::Packed, _) => free,
            (DeviceSharing::Memory { .. }, Placement::Spread, _) => -free,
            (_, _, Allocation::Packed) => -held,
            (_, _, Allocation::Topology | Allocation::Spread) => held,
        }
    }
}
