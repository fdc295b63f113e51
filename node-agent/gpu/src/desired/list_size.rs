//! The limit of the kubelet for a device list.

use super::{
    devices::DesiredDevice,
    error::{DesiredDevicesError, MAX_LIST_BYTES},
};
use crate::DeviceSharing;
use std::collections::BTreeMap;

/// Upper bound in bytes of one share in an encoded `ListAndWatchResponse` beside the UUID: tag and length of the share (4) and of the
/// id (2), separator and number (3 + 10), the health with its longest value (2 + 9), the topology with one node and its
/// number (2 + 2 + 11).
const SHARE_OVERHEAD: usize = 4 + 2 + 13 + 11 + 15;

/// Bytes of a companion's id: `path-` and 16 digits.
const COMPANION_ID: usize = 5 + 16;

/// Returns true if a list of the kubelet has room for the shares of one device.
pub fn fits_list(sharing: &DeviceSharing) -> bool {
    fits_bytes(bytes_of(sharing.shares() as usize, 0))
}

/// Returns the bytes of that many shares of a device in a list of the kubelet, at most.
pub fn list_bytes(uuid: &str, shares: usize) -> usize {
    bytes_of(shares, uuid.len())
}

fn bytes_of(shares: usize, id: usize) -> usize {
    shares.saturating_mul(id + SHARE_OVERHEAD)
}

/// Returns true if a list of the kubelet has room for this many bytes.
pub fn fits_bytes(bytes: usize) -> bool {
    bytes <= MAX_LIST_BYTES
}

/// Returns the number of devices with ids like those of companions for whose shares a list of the kubelet has room.
pub fn most_devices(sharing: DeviceSharing) -> usize {
    MAX_LIST_BYTES / bytes_of(sharing.shares() as usize, COMPANION_ID).max(1)
}

/// Fails if the list of a resource is larger than the kubelet receives.
pub fn check_list_sizes(devices: &[DesiredDevice]) -> Result<(), DesiredDevicesError> {
    // Shares, bytes and sharing of each resource's list.
    let mut lists: BTreeMap<&str, (usize, usize, DeviceSharing)> = BTreeMap::new();
    for DesiredDevice { device, assignment } in devices {
        let shares = assignment.sharing.shares() as usize;
        let list = lists.entry(&assignment.resource).or_insert((0, 0, assignment.sharing));
        list.0 = list.0.saturating_add(shares);
        list.1 = list.1.saturating_add(list_bytes(&device.uuid, shares));
    }
    match lists.into_iter().find(|(_, (_, bytes, _))| !fits_bytes(*bytes)) {
        None => Ok(()),
        Some((resource, (shares, bytes, sharing))) => {
            let by_memory = matches!(sharing, DeviceSharing::Memory { .. });
            let remedy = if by_memory {
                "raise sharing.unit"
            } else {
                "lower sharing.replicas"
            };
            Err(DesiredDevicesError::ListTooLong {
                resource: resource.to_owned(),
                shares,
                bytes,
                remedy,
            })
        }
    }
}
