//! The groups of a layout that a node has. Pure.

use gpunode_config::{MigGpuSelector, MigGroup};
use gpunode_crds::{GpuDevice, named};
use gpunode_plan::{CountedLayout, observed};
use std::collections::BTreeSet;

/// Most GPUs and instances named in a warning.
const MAX_NAMES: usize = 8;

/// The way in which groups select their GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupSelection {
    /// By product where that tells the groups apart, otherwise by index.
    Products,
    /// By index.
    Indices,
}

/// Groups of GPUs, and what they do not say about the node.
#[derive(Debug, Default)]
pub struct NodeLayout {
    pub groups: Vec<MigGroup>,
    pub warnings: Vec<String>,
}

/// Returns a group for each layout that GPUs of the node have, in the order of their indices. A group of every GPU of the node
/// has no selector. GPUs without MIG and missing ones are in no group.
pub fn node_layout(gpus: &[GpuDevice], selection: GroupSelection) -> NodeLayout {
    let mut layouts: Vec<(CountedLayout, Vec<&GpuDevice>)> = Vec::new();
    let (there, missing): (Vec<_>, Vec<_>) = gpus.iter().partition(|gpu| gpu.missing_since.is_none());
    for gpu in &there {
        let Some(layout) = observed(gpu) else { continue };
        match layouts.iter_mut().find(|(known, _)| *known == layout) {
            Some((_, group)) => group.push(gpu),
            None => layouts.push((layout, vec![gpu])),
        }
    }
    let products = |group: &[&GpuDevice]| -> BTreeSet<String> { group.iter().map(|gpu| gpu.product.clone()).collect() };
    let is_apart = layouts.iter().all(|(_, group)| {
        let own = products(group);
        let is_of_group = |gpu: &GpuDevice| group.iter().any(|of| of.uuid == gpu.uuid);
        own.iter().all(|product| !product.is_empty())
            && there.iter().all(|gpu| is_of_group(gpu) || !own.contains(&gpu.product))
    });
    let selector = |group: &[&GpuDevice]| {
        if group.len() == there.len() {
            return None;
        }
        let index = |gpu: &&GpuDevice| i32::try_from(gpu.index).ok();
        Some(if is_apart && selection == GroupSelection::Products {
            MigGpuSelector {
                products: Some(products(group).into_iter().collect()),
                ..MigGpuSelector::default()
            }
        } else {
            MigGpuSelector {
                indices: Some(group.iter().filter_map(index).collect()),
                ..MigGpuSelector::default()
            }
        })
    };
    let groups = layouts.iter().map(|(layout, group)| MigGroup {
        devices: selector(group),
        instances: match layout {
            CountedLayout::Off => None,
            CountedLayout::Instances(counts) => {
                let counts = counts.iter();
                let count = |(profile, count): (&String, &u32)| Some((profile.clone(), i32::try_from(*count).ok()?));
                Some(counts.filter_map(count).collect())
            }
        },
        preset: None,
        disabled: (*layout == CountedLayout::Off).then_some(true),
    });
    NodeLayout {
        groups: groups.collect(),
        warnings: missing_gpus(&missing)
            .into_iter()
            .chain(partial_instances(&there))
            .collect(),
    }
}

fn missing_gpus(missing: &[&GpuDevice]) -> Option<String> {
    let names = named(missing.iter().map(|gpu| format!("GPU {}", gpu.index)), MAX_NAMES);
    (!missing.is_empty()).then(|| format!("missing, so not in the layout: {names}"))
}

/// Names the compute instances on part of a GPU instance, which a layout cannot have.
fn partial_instances(gpus: &[&GpuDevice]) -> Option<String> {
    let devices = gpus
        .iter()
        .flat_map(|gpu| gpu.mig_devices.iter().map(move |device| (gpu, device)));
    let partial = devices.filter(|(_, device)| device.profile.contains("c."));
    let partial: Vec<String> = partial
        .map(|(gpu, device)| format!("{} on GPU {}", device.profile, gpu.index))
        .collect();
    (!partial.is_empty()).then(|| {
        format!(
            "a layout has only whole GPU instances, and these are compute instances on part of one: {}",
            named(&partial, MAX_NAMES)
        )
    })
}
