//! The holders of devices, with the UIDs of their pods.

use crate::{ContainerShares, DeviceHolder, device_of};
use std::collections::BTreeMap;

/// A container that holds shares of a device, with the UID of its pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageHolder {
    /// The container and the device.
    pub holder: DeviceHolder,
    /// UID of its pod; none if the kubelet's checkpoint does not have it.
    pub pod_uid: Option<String>,
}

/// Returns the holders of devices with the UIDs of their pods, from the shares that containers hold and the pods of shares by resource
/// and id.
pub fn usage_holders(observed: &[ContainerShares], pods: &BTreeMap<(String, String), String>) -> Vec<UsageHolder> {
    let mut holders: BTreeMap<DeviceHolder, UsageHolder> = BTreeMap::new();
    for shares in observed {
        for id in &shares.ids {
            let key = DeviceHolder::of(shares, device_of(id));
            let of = holders.entry(key.clone()).or_insert_with(|| UsageHolder {
                holder: key,
                pod_uid: None,
            });
            of.holder.count += 1;
            of.pod_uid = of
                .pod_uid
                .take()
                .or_else(|| pods.get(&(shares.resource.clone(), id.clone())).cloned());
        }
    }
    holders.into_values().collect()
}
