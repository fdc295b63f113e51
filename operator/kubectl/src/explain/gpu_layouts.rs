//! The source of each GPU's MIG layout. Pure.

use gpunode_config::GroupChoice;
use gpunode_crds::GpuNode;
use gpunode_plan::{WantedLayout, choice, observed, wanted};
use serde::Serialize;

/// The layout of equal GPUs, and the group of the configuration that it comes from.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedLayout {
    /// Indices of the GPUs.
    pub gpus: Vec<u32>,
    /// Path of the group in a policy; none if no group selects the GPUs, which stay as they are then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Layout that the group gives them; none if it is not known here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    /// Layout that they have; none without MIG.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<String>,
    /// Phase that the agent reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<&'static str>,
}

/// Returns the layouts of a node's GPUs by index; none if its configuration has no layout.
pub fn explained_layouts(gpu_node: &GpuNode) -> Vec<ExplainedLayout> {
    let document = gpu_node.spec.config.as_ref().map(|config| &config.document);
    let config = document.and_then(|document| gpunode_config::load(document).ok());
    let groups = config
        .and_then(|config| config.mig)
        .map(|mig| mig.layout)
        .unwrap_or_default();
    let gpus = gpu_node.status.iter().flat_map(|status| &status.gpus);
    let mut layouts: Vec<ExplainedLayout> = Vec::new();
    for gpu in gpus.filter(|gpu| !groups.is_empty() && gpu.missing_since.is_none()) {
        let (field, computed) = match choice(gpu, &groups) {
            GroupChoice::None => (None, None),
            GroupChoice::Unknown => (Some("the PCI id decides".to_owned()), None),
            GroupChoice::Group(place, group) => {
                let computed = match wanted(gpu, group) {
                    WantedLayout::Known { layout, .. } => Some(layout.to_string()),
                    WantedLayout::Preset(preset) => Some(preset),
                    WantedLayout::Impossible(_) => None,
                };
                (Some(format!("spec.devicePlugin.mig.layout[{place}]")), computed)
            }
        };
        let reported = gpu.mig.as_ref();
        let layout = ExplainedLayout {
            gpus: vec![gpu.index],
            wanted: reported
                .map(|mig| mig.wanted.clone())
                .filter(|_| field.is_some())
                .or(computed),
            field,
            observed: observed(gpu).map(|layout| layout.to_string()),
            phase: reported.map(|mig| mig.phase.as_str()),
        };
        let is_same = |known: &&mut ExplainedLayout| {
            (&known.field, &known.wanted) == (&layout.field, &layout.wanted)
                && (&known.observed, known.phase) == (&layout.observed, layout.phase)
        };
        match layouts.iter_mut().find(is_same) {
            Some(known) => known.gpus.extend(layout.gpus),
            None => layouts.push(layout),
        }
    }
    layouts
}
