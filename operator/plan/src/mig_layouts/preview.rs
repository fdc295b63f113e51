//! The MIG layouts that the GPUs of a node would get.

use crate::mig_layouts::{
    observed::{CountedLayout, observed},
    selection::choice,
    wanted::{LayoutObstacle, WantedLayout, wanted},
};
use gpunode_config::{GroupChoice, MigGroup};
use gpunode_crds::{GpuDevice, LayoutPreview, MAX_LAYOUT_PREVIEWS, MAX_LAYOUT_TEXT, MAX_MIG_MESSAGE};
use std::collections::HashMap;

const SELECTED_BY_ID: &str = "a group selects by uuids or deviceIds, which are not known here; the agent decides";
const NO_TABLE: &str = "gpunode has no table of the board; the agent decides if it fits";

/// Returns the GPUs that would get another layout, or cannot have the one that is wanted; equal ones together. GPUs without MIG
/// stay as they are.
pub fn layout_previews(gpus: &[GpuDevice], groups: &[MigGroup]) -> Vec<LayoutPreview> {
    let mut previews: Vec<LayoutPreview> = Vec::new();
    // The solver is asked once for all GPUs of a board.
    let mut known = HashMap::new();
    let is_concerned = |gpu: &&GpuDevice| gpu.missing_since.is_none() && gpu.mig_mode.is_some();
    for gpu in gpus.iter().filter(is_concerned) {
        let (then, message) = match choice(gpu, groups) {
            GroupChoice::None => continue,
            GroupChoice::Unknown => (None, Some(SELECTED_BY_ID.to_owned())),
            GroupChoice::Group(place, group) => {
                match known
                    .entry((place, gpu.product.as_str()))
                    .or_insert_with(|| wanted(gpu, group))
                {
                    WantedLayout::Impossible(LayoutObstacle::NoMig) => continue,
                    WantedLayout::Impossible(LayoutObstacle::DoesNotFit(why)) => (None, Some(why.to_string())),
                    WantedLayout::Preset(preset) => (Some(preset.clone()), Some(NO_TABLE.to_owned())),
                    WantedLayout::Known { layout, is_checked } => {
                        (Some(layout.to_string()), (!*is_checked).then(|| NO_TABLE.to_owned()))
                    }
                }
            }
        };
        let now = observed(gpu).unwrap_or(CountedLayout::Off).to_string();
        if then.as_ref() == Some(&now) {
            continue;
        }
        let bounded = |text: String, most| text.chars().take(most).collect::<String>();
        let now = bounded(now, MAX_LAYOUT_TEXT);
        let then = then.map(|then| bounded(then, MAX_LAYOUT_TEXT));
        let message = message.map(|message| bounded(message, MAX_MIG_MESSAGE));
        let equal = previews
            .iter_mut()
            .find(|other| (&other.now, &other.then, &other.message) == (&now, &then, &message));
        match equal {
            Some(other) => other.gpus.push(gpu.index),
            None => previews.push(LayoutPreview {
                gpus: vec![gpu.index],
                now,
                then,
                message,
            }),
        }
    }
    previews.truncate(MAX_LAYOUT_PREVIEWS);
    previews
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn gpu(index: u32, uuid: &str, product: &str, mode: &Value, devices: &[(&str, u32)]) -> GpuDevice {
        let devices = devices.iter().map(|(profile, instance)| {
            json!({"uuid": format!("MIG-{instance}"), "profile": profile, "gpuInstance": instance, "computeInstance": 0,
                "memoryMiB": 1})
        });
        let gpu = json!({"index": index, "uuid": uuid, "product": product, "memoryMiB": 1, "migMode": mode,
            "migDevices": devices.collect::<Vec<_>>()});
        serde_json::from_value(gpu).expect("a GPU")
    }

    fn previews(gpus: &[GpuDevice], layout: &str) -> Vec<String> {
        let config = gpunode_config::load(&format!("mig: {{strategy: Mixed, layout: [{layout}]}}\n"));
        let groups = config.expect("a configuration").mig.expect("a layout").layout;
        let line = |preview: LayoutPreview| {
            let then = preview.then.unwrap_or_else(|| "?".to_owned());
            let message = preview
                .message
                .map(|message| format!(": {message}"))
                .unwrap_or_default();
            format!("{:?} {} -> {then}{message}", preview.gpus, preview.now)
        };
        layout_previews(gpus, &groups).into_iter().map(line).collect()
    }

    const A100: &str = "NVIDIA-A100-SXM4-80GB";

    fn node() -> Vec<GpuDevice> {
        let (off, on) = (json!("Disabled"), json!("Enabled"));
        vec![
            gpu(0, "0", A100, &off, &[]),
            gpu(1, "1", A100, &off, &[]),
            gpu(2, "2", A100, &on, &[("3g.40gb", 1), ("3g.40gb", 2)]),
            gpu(3, "3", "Tesla-V100-SXM2-32GB", &json!(null), &[]),
            gpu(4, "4", "NVIDIA-H20", &on, &[]),
        ]
    }

    #[test]
    fn gpus_that_change_alike_are_one_entry_and_those_that_do_not_change_are_none() {
        assert_eq!(
            previews(&node()[..4], "{instances: {3g.40gb: 2}}"),
            ["[0, 1] off -> 3g.40gb:2"]
        );
        assert_eq!(
            previews(&node()[..4], "{devices: {indices: [2]}, disabled: true}"),
            ["[2] 3g.40gb:2 -> off"]
        );
    }

    #[test]
    fn layout_that_cannot_be_says_why() {
        let seen = previews(&node()[..2], "{instances: {3g.40gb: 2, 1g.10gb: 1}}");
        assert_eq!(seen.len(), 1);
        assert!(
            seen[0].starts_with("[0, 1] off -> ?: 1g.10gb:1,3g.40gb:2 cannot be on A100-80GB: "),
            "{seen:?}"
        );
    }

    #[test]
    fn agent_decides_what_is_not_known_here() {
        let of_h20 = "{devices: {products: ['*H20']}, preset: all-balanced}";
        assert_eq!(
            previews(&node(), of_h20),
            [format!("[4] {{}} -> all-balanced: {NO_TABLE}")]
        );
        let by_uuid = "{devices: {uuids: [GPU-0000abcd-0000]}, disabled: true}, {instances: {}}";
        assert_eq!(
            previews(&node()[..2], by_uuid),
            [format!("[0, 1] off -> ?: {SELECTED_BY_ID}")]
        );
        assert_eq!(previews(&node()[3..4], by_uuid), [""; 0], "it has no MIG");
        let named = gpu(0, "GPU-0000abcd-0000", A100, &json!("Enabled"), &[]);
        assert_eq!(previews(&[named], by_uuid), ["[0] {} -> off"]);
    }
}
