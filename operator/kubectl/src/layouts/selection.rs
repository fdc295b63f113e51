//! The group of a configuration that selects a GPU.

use globset::Glob;
use gpunode_config::{MigGpuSelector, MigGroup};
use gpunode_crds::GpuDevice;
use gpunode_mig::MigBoard;

/// The group that selects a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupChoice<'a> {
    /// No group does.
    None,
    /// The first that does, with its place in the layout.
    Group(usize, &'a MigGroup),
    /// A group selects by PCI id, which the status does not have, and the product does not tell it.
    Unknown,
}

/// Returns the first group that selects a GPU, as the agent chooses it.
pub fn choice<'a>(gpu: &GpuDevice, groups: &'a [MigGroup]) -> GroupChoice<'a> {
    for (place, group) in groups.iter().enumerate() {
        match group
            .devices
            .as_ref()
            .map_or(Some(true), |devices| selects(devices, gpu))
        {
            Some(true) => return GroupChoice::Group(place, group),
            Some(false) => {}
            None => return GroupChoice::Unknown,
        }
    }
    GroupChoice::None
}

/// Returns none where only the PCI id decides, and it is not known.
fn selects(selector: &MigGpuSelector, gpu: &GpuDevice) -> Option<bool> {
    let MigGpuSelector {
        indices,
        uuids,
        products,
        device_ids,
    } = selector;
    let is_met = has(indices.as_ref(), |index| u32::try_from(*index) == Ok(gpu.index))
        && has(uuids.as_ref(), |uuid| uuid.eq_ignore_ascii_case(&gpu.uuid))
        && has(products.as_ref(), |glob| glob_matches(glob, &gpu.product));
    match device_ids {
        _ if !is_met => Some(false),
        None => Some(true),
        Some(ids) => {
            let board = MigBoard::of_product(&gpu.product)?;
            let is_selected = |id: &u32| ids.iter().any(|text| pci_id(text) == Some(*id));
            if board.device_ids.iter().all(is_selected) {
                Some(true)
            } else if board.device_ids.iter().any(is_selected) {
                None
            } else {
                Some(false)
            }
        }
    }
}

/// Returns true if a condition is not set, or one of its values fits.
fn has<T>(values: Option<&Vec<T>>, fits: impl Fn(&T) -> bool) -> bool {
    values.is_none_or(|values| values.iter().any(fits))
}

fn pci_id(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Returns true if a glob for products matches one.
pub fn glob_matches(glob: &str, product: &str) -> bool {
    Glob::new(glob).is_ok_and(|glob| glob.compile_matcher().is_match(product))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chosen(product: &str, layout: &str) -> String {
        let config = gpunode_config::load(&format!("mig: {{strategy: Mixed, layout: [{layout}]}}\n"));
        let groups = config.expect("a configuration").mig.expect("a layout").layout;
        let gpu = json!({"index": 3, "uuid": "GPU-0000abcd-0000", "product": product, "memoryMiB": 1});
        let gpu = serde_json::from_value(gpu).expect("a GPU");
        match choice(&gpu, &groups) {
            GroupChoice::None => "none".to_owned(),
            GroupChoice::Group(place, _) => place.to_string(),
            GroupChoice::Unknown => "unknown".to_owned(),
        }
    }

    #[test]
    fn the_first_group_of_which_every_condition_is_met_is_chosen() {
        let a100 = "NVIDIA-A100-SXM4-80GB";
        for (layout, place) in [
            ("{devices: {indices: [0]}, disabled: true}", "none"),
            ("{devices: {indices: [0]}, disabled: true}, {disabled: true}", "1"),
            (
                "{devices: {indices: [3], products: ['*H100*']}, disabled: true}",
                "none",
            ),
            (
                "{devices: {indices: [3], products: ['*H100*', '*A100*']}, disabled: true}",
                "0",
            ),
            ("{devices: {uuids: [GPU-0000ABCD-0000]}, disabled: true}", "0"),
            ("{devices: {deviceIds: ['0x233010DE']}, disabled: true}", "none"),
            ("{devices: {deviceIds: ['0x20B210DE']}, disabled: true}", "unknown"),
            (
                "{devices: {indices: [1], deviceIds: ['0x20B210DE']}, disabled: true}",
                "none",
            ),
            (
                "{devices: {deviceIds: ['0x20b210de', '0x20B510DE', '0x20F310DE', '0x20F510DE']}, disabled: true}",
                "0",
            ),
        ] {
            assert_eq!(chosen(a100, layout), place, "{layout}");
        }
        let filter = "{devices: {deviceIds: ['0x233010DE']}, disabled: true}";
        assert_eq!(chosen("NVIDIA-H20", filter), "unknown");
    }
}
