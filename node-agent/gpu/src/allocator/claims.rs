//! Devices that containers have from NVIDIA's DRA driver. It knows nothing of gpunode, and gpunode nothing of its plans, so a
//! claimed GPU counts as held until the kubelet no longer lists the claim.

use super::observation::ContainerShares;
use crate::Device;
use gpunode_crds::DRA_DRIVER;
use std::collections::BTreeMap;

/// Start of a device's name at the driver, before the minor number of the GPU: `gpu-0`, and `gpu-0-mig-1g5gb-19-4` for a MIG
/// device of it (`CanonicalName` in `cmd/gpu-kubelet-plugin/deviceinfo.go` of kubernetes-sigs/dra-driver-nvidia-gpu). A GPU for
/// virtual machines is `gpu-vfio-0`, with a number of another kind.
const NAME_PREFIX: &str = "gpu-";

/// Start of the path of a GPU's device node, before its minor number.
const NODE_PREFIX: &str = "/dev/nvidia";

/// Devices that containers have from NVIDIA's DRA driver, by the driver's names.
#[derive(Clone, Debug, Default)]
pub struct DeviceClaims(Vec<ContainerShares>);

impl DeviceClaims {
    /// Takes the claims out of observed holders. Returns the other holders too.
    pub fn split_off(holders: Vec<ContainerShares>) -> (Self, Vec<ContainerShares>) {
        // No extended resource has this name: it has no slash.
        let (claims, others) = holders.into_iter().partition(|of| of.resource == DRA_DRIVER);
        (Self(claims), others)
    }

    /// Returns the claims of a device, its GPU or a part of it, and those that may be: a claim whose GPU is not among `devices`
    /// may be of any device, and a device without a known minor number may be of any claim.
    pub fn of_device<'a>(
        &'a self,
        uuid: &str,
        devices: &'a BTreeMap<String, Device>,
    ) -> impl Iterator<Item = &'a ContainerShares> {
        let minor = devices.get(uuid).and_then(device_minor);
        self.0.iter().filter(move |claim| {
            let mut gpus = claim.ids.iter().map(|name| known_minor(name, devices));
            gpus.any(|gpu| gpu.is_none() || minor.is_none() || gpu == minor)
        })
    }

    /// Returns each claim with the UUID of each GPU that it is of, or may be.
    pub fn gpus<'a>(
        &'a self,
        devices: &'a BTreeMap<String, Device>,
    ) -> impl Iterator<Item = (&'a ContainerShares, &'a str)> {
        let gpus = devices.values().filter(|device| device.mig.is_none());
        gpus.flat_map(move |gpu| {
            self.of_device(&gpu.uuid, devices)
                .map(move |claim| (claim, gpu.uuid.as_str()))
        })
    }
}

/// Returns the minor number of the GPU in a device's name at the driver, if one of `devices` has it.
fn known_minor(name: &str, devices: &BTreeMap<String, Device>) -> Option<u32> {
    let number = name.strip_prefix(NAME_PREFIX)?.split('-').next()?;
    let minor = number.parse().ok()?;
    let is_known = devices.values().any(|device| device_minor(device) == Some(minor));
    is_known.then_some(minor)
}

fn device_minor(device: &Device) -> Option<u32> {
    device.device_nodes.first()?.strip_prefix(NODE_PREFIX)?.parse().ok()
}
