//! The devices that an entry or `replicasPerDevice` selects.

use super::error::DesiredDevicesError;
use crate::{Device, Gpu};
use globset::{Glob, GlobMatcher};
use gpunode_config::{DeviceKind, DeviceSelector, MemoryMiB, MigStrategy};

/// A selector with its globs compiled.
pub struct DeviceSelection<'a> {
    selector: Option<&'a DeviceSelector>,
    products: Vec<GlobMatcher>,
    profiles: Vec<GlobMatcher>,
    least_memory: MemoryMiB,
    full: bool,
    mig: bool,
}

impl<'a> DeviceSelection<'a> {
    /// Compiles the selector of an entry of `resources`. Without a kind, the MIG strategy sets it.
    pub fn of_entry(
        resource: &str,
        selector: Option<&'a DeviceSelector>,
        strategy: MigStrategy,
    ) -> Result<Self, DesiredDevicesError> {
        Self::new(resource, selector, (true, strategy == MigStrategy::Single))
    }

    /// Compiles a selector within an entry. Without a kind, it selects both kinds.
    pub fn within_entry(resource: &str, selector: &'a DeviceSelector) -> Result<Self, DesiredDevicesError> {
        Self::new(resource, Some(selector), (true, true))
    }

    fn new(
        resource: &str,
        selector: Option<&'a DeviceSelector>,
        otherwise: (bool, bool),
    ) -> Result<Self, DesiredDevicesError> {
        let field = |field: fn(&DeviceSelector) -> &Option<Vec<String>>| selector.and_then(|of| field(of).as_deref());
        let globs = |name: &'static str, globs: Option<&[String]>| {
            let matchers = globs
                .into_iter()
                .flatten()
                .map(|glob| Glob::new(glob).map(|glob| glob.compile_matcher()));
            matchers
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| DesiredDevicesError::Glob {
                    resource: resource.to_owned(),
                    field: name,
                    reason: error.to_string(),
                })
        };
        let (full, mig) = match selector {
            Some(DeviceSelector { kind: Some(kind), .. }) => {
                (*kind == DeviceKind::FullGpu, *kind == DeviceKind::MigDevice)
            }
            Some(DeviceSelector {
                mig_profiles: Some(_), ..
            }) => (false, true),
            _ => otherwise,
        };
        let least = selector
            .and_then(|of| of.min_memory.as_deref())
            .and_then(MemoryMiB::parse);
        Ok(Self {
            selector,
            products: globs("products", field(|of| &of.products))?,
            profiles: globs("migProfiles", field(|of| &of.mig_profiles))?,
            least_memory: least.unwrap_or_default(),
            full,
            mig,
        })
    }

    /// Returns true if the selector selects `device`.
    pub fn selects(&self, device: &Device) -> bool {
        let kind = match &device.mig {
            None => self.full,
            Some(mig) => {
                let profiles = self.selector.is_some_and(|of| of.mig_profiles.is_some());
                self.mig && (!profiles || self.profiles.iter().any(|glob| glob.is_match(&mig.facts.profile)))
            }
        };
        kind && device.memory >= self.least_memory && self.selects_by_gpu(device)
    }

    /// Returns true if the selector would select MIG devices of `gpu` of any profile and memory.
    pub fn expects_instances_of(&self, gpu: &Gpu) -> bool {
        let by_profile = self.selector.is_some_and(|of| of.mig_profiles.is_some());
        self.mig && !by_profile && self.selects_by_gpu(&Device::full(gpu))
    }

    fn selects_by_gpu(&self, device: &Device) -> bool {
        let Some(selector) = self.selector else { return true };
        let index = selector
            .indices
            .as_ref()
            .is_none_or(|indices| indices.iter().any(|index| u32::try_from(*index) == Ok(device.gpu)));
        let named =
            |uuid: &String| uuid.eq_ignore_ascii_case(&device.uuid) || uuid.eq_ignore_ascii_case(&device.gpu_uuid);
        let uuid = selector.uuids.as_ref().is_none_or(|uuids| uuids.iter().any(named));
        let product = selector.products.is_none() || self.products.iter().any(|glob| glob.is_match(&device.product));
        let architecture = selector
            .architectures
            .as_ref()
            .is_none_or(|of| of.contains(&device.architecture));
        index && uuid && product && architecture
    }
}
