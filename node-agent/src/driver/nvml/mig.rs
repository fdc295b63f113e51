//! Reads the MIG devices of a GPU.

use super::{capabilities::Capabilities, error::Unanswered, lookup::mig_device_at, profile, raw};
use gpunode_gpu::{Gpu, MigDevice, MigEngines, MigInstance, MigSlices};
use nvml_wrapper::{Device, error::NvmlError};

/// Limit on the kinds of GPU instances, above that of any driver (`NVML_GPU_INSTANCE_PROFILE_COUNT`, 18 in NVML 13).
const MAX_KINDS: u32 = 32;

/// Returns the MIG devices by index, and one sentence for each that does not answer. `memory` is that of the GPU in bytes.
pub fn devices(
    device: &Device<'_>,
    gpu: &Gpu,
    memory: u64,
    capabilities: &Capabilities,
) -> Result<(Vec<MigInstance>, Vec<String>), Unanswered> {
    let unanswered = |question, source| Unanswered {
        question,
        gpu: gpu.index,
        source,
    };
    let count = device
        .mig_device_count()
        .map_err(|error| unanswered("count the MIG devices", error))?;
    let parent = Parent { device, gpu, memory };
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    for index in 0..count {
        match parent.device(index, capabilities) {
            Ok(mig) => found.extend(mig),
            Err(error) => unreadable.push((index, error)),
        }
    }
    if found.is_empty()
        && let Some((_, error)) = unreadable.pop()
    {
        // A GPU with MIG devices must not look like one without.
        return Err(unanswered("read any MIG device", error));
    }
    let sentence = |(index, error)| format!("read MIG device {index} of GPU {}: {error}", gpu.index);
    Ok((found, unreadable.into_iter().map(sentence).collect()))
}

struct Parent<'a> {
    device: &'a Device<'a>,
    gpu: &'a Gpu,
    /// Bytes.
    memory: u64,
}

impl Parent<'_> {
    /// Returns the MIG device at an index, if there is one.
    fn device(&self, index: u32, capabilities: &Capabilities) -> Result<Option<MigInstance>, NvmlError> {
        let Some(device) = mig_device_at(self.device, index)? else {
            return Ok(None);
        };
        let attributes = device.attributes()?;
        let slices = MigSlices {
            gpu_instance: attributes.gpu_instance_slice_count,
            compute_instance: attributes.compute_instance_slice_count,
        };
        let engines = MigEngines {
            copy: attributes.shared_copy_engine_count,
            decoder: attributes.shared_decoder_count,
            encoder: attributes.shared_encoder_count,
            jpeg: attributes.shared_jpeg_count,
            ofa: attributes.shared_ofa_count,
        };
        let memory_mib = attributes.memory_size_mb;
        let gpu_instance = raw::gpu_instance_id(&device)?;
        let compute_instance = raw::compute_instance_id(&device)?;
        let kind = self.kind(raw::gpu_instance_profile(self.device, gpu_instance)?)?;
        let nodes = self
            .gpu
            .minor
            .map(|minor| capabilities.device_nodes(minor, gpu_instance, compute_instance));
        Ok(Some(MigInstance {
            index,
            facts: MigDevice {
                uuid: device.uuid()?,
                profile: profile::name(slices, memory_mib, self.memory, kind),
                gpu_instance,
                compute_instance,
                memory_mib,
                health: None,
                multiprocessors: Some(attributes.multiprocessor_count),
                slices: Some(slices),
                engines: Some(engines),
            },
            device_nodes: nodes.unwrap_or_default(),
        }))
    }

    /// Returns the kind of GPU instance with that profile id, if the driver has it. Goes on past kinds that the driver
    /// refuses, as NVIDIA's go-nvlib does (`VisitMigProfiles`): there may be gaps.
    fn kind(&self, profile: u32) -> Result<Option<u32>, NvmlError> {
        for kind in 0..MAX_KINDS {
            match self.device.profile_info(kind) {
                Ok(info) if info.id == profile => return Ok(Some(kind)),
                Ok(_) | Err(NvmlError::NotSupported | NvmlError::InvalidArg) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}
