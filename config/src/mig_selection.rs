//! The group of MIG layouts that selects a GPU.

use crate::mig_layout::{MigGpuSelector, MigGroup};
use globset::Glob;

/// A GPU as groups of MIG layouts select it.
#[derive(Clone, Copy, Debug)]
pub struct SelectableGpu<'a> {
    /// NVML index.
    pub index: u32,
    /// UUID, such as `GPU-0c1b5e0a-...`; none if nobody knows it.
    pub uuid: Option<&'a str>,
    /// Product name in label form.
    pub product: &'a str,
    /// PCI device in the high and vendor in the low 16 bits, such as `0x20B2_10DE`. Several if it has one of them, and
    /// nobody knows which; none if nobody knows anything.
    pub pci_device_ids: &'a [u32],
}

/// The group that selects a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupChoice<'a> {
    /// No group does.
    None,
    /// The first that does, with its place in the layout.
    Group(usize, &'a MigGroup),
    /// A group selects by UUID or PCI id, which is not known well enough to tell.
    Unknown,
}

impl<'a> GroupChoice<'a> {
    /// Returns the first group that selects a GPU.
    pub fn of(gpu: SelectableGpu<'_>, groups: &'a [MigGroup]) -> Self {
        for (place, group) in groups.iter().enumerate() {
            match group
                .devices
                .as_ref()
                .map_or(Some(true), |devices| selects(devices, gpu))
            {
                Some(true) => return Self::Group(place, group),
                Some(false) => {}
                None => return Self::Unknown,
            }
        }
        Self::None
    }
}

/// Returns none where the UUID or the PCI id decides, and is not known well enough.
fn selects(selector: &MigGpuSelector, gpu: SelectableGpu<'_>) -> Option<bool> {
    let MigGpuSelector {
        indices,
        uuids,
        products,
        device_ids,
    } = selector;
    let is_met = has(indices.as_ref(), |index| u32::try_from(*index) == Ok(gpu.index))
        && has(products.as_ref(), |glob| product_matches(glob, gpu.product));
    let by_uuid = uuids.as_ref().map_or(Some(true), |uuids| {
        let own = gpu.uuid?;
        Some(uuids.iter().any(|uuid| uuid.eq_ignore_ascii_case(own)))
    });
    let by_id = device_ids.as_ref().map_or(Some(true), |ids| {
        let selected: Vec<u32> = ids.iter().filter_map(|id| pci_device_id(id)).collect();
        let mut candidates = gpu.pci_device_ids.iter().map(|id| selected.contains(id));
        let first = candidates.next()?;
        candidates.all(|is_selected| is_selected == first).then_some(first)
    });
    match (is_met, by_uuid, by_id) {
        (false, ..) | (_, Some(false), _) | (.., Some(false)) => Some(false),
        (true, Some(true), Some(true)) => Some(true),
        (true, None, _) | (true, _, None) => None,
    }
}

/// Returns true if a condition is not set, or one of its values fits.
fn has<T>(values: Option<&Vec<T>>, fits: impl Fn(&T) -> bool) -> bool {
    values.is_none_or(|values| values.iter().any(fits))
}

/// Returns true if a glob for products matches one. A malformed glob, which the loader refuses, matches none.
pub fn product_matches(glob: &str, product: &str) -> bool {
    Glob::new(glob).is_ok_and(|glob| glob.compile_matcher().is_match(product))
}

/// Parses a PCI id such as `0x20B210DE`: device in the high and vendor in the low 16 bits.
pub fn pci_device_id(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;

    fn choice(pci_device_ids: &[u32], layout: &str) -> String {
        choice_with(Some("GPU-0000abcd-0000-0000-0000-000000000000"), pci_device_ids, layout)
    }

    fn choice_with(uuid: Option<&str>, pci_device_ids: &[u32], layout: &str) -> String {
        let config = load(&format!("mig: {{strategy: Mixed, layout: [{layout}]}}\n")).unwrap();
        let gpu = SelectableGpu {
            index: 3,
            uuid,
            product: "NVIDIA-A100-SXM4-80GB",
            pci_device_ids,
        };
        match GroupChoice::of(gpu, &config.mig.unwrap().layout) {
            GroupChoice::None => "none".to_owned(),
            GroupChoice::Group(place, _) => place.to_string(),
            GroupChoice::Unknown => "unknown".to_owned(),
        }
    }

    #[test]
    fn first_group_of_which_every_condition_is_met_is_chosen() {
        for (layout, chosen) in [
            ("{devices: {indices: [0]}, disabled: true}", "none"),
            ("{devices: {indices: [0]}, disabled: true}, {disabled: true}", "1"),
            ("{disabled: true}, {devices: {indices: [3]}, disabled: true}", "0"),
            ("{devices: {indices: [0, 3]}, disabled: true}", "0"),
            (
                "{devices: {uuids: [GPU-0000ABCD-0000-0000-0000-000000000000]}, disabled: true}",
                "0",
            ),
            (
                "{devices: {uuids: [GPU-0000abce-0000-0000-0000-000000000000]}, disabled: true}",
                "none",
            ),
            ("{devices: {products: ['*H100*', 'NVIDIA-A100*']}, disabled: true}", "0"),
            (
                "{devices: {indices: [3], products: ['*H100*']}, disabled: true}",
                "none",
            ),
            ("{devices: {deviceIds: ['0x20B210DE']}, disabled: true}", "0"),
            ("{devices: {deviceIds: ['0x20b210de']}, disabled: true}", "0"),
            ("{devices: {deviceIds: ['0x20B010DE']}, disabled: true}", "none"),
            (
                "{devices: {deviceIds: ['0x20B210DE'], indices: [2]}, disabled: true}",
                "none",
            ),
        ] {
            assert_eq!(choice(&[0x20B2_10DE], layout), chosen, "{layout}");
        }
    }

    #[test]
    fn pci_id_that_is_not_known_decides_only_where_all_candidates_agree() {
        let by_id = "{devices: {deviceIds: ['0x20B210DE', '0x20B510DE']}, disabled: true}";
        for (candidates, chosen) in [
            ([0x20B2_10DE, 0x20B5_10DE].as_slice(), "0"),
            (&[0x20B2_10DE, 0x20F3_10DE], "unknown"),
            (&[0x20F3_10DE, 0x20F5_10DE], "none"),
            (&[], "unknown"),
        ] {
            assert_eq!(choice(candidates, by_id), chosen, "{candidates:x?}");
        }
        // A later group must not get a GPU that an earlier one may select.
        assert_eq!(choice(&[], &format!("{by_id}, {{disabled: true}}")), "unknown");
        let other = "{devices: {deviceIds: ['0x20B210DE'], indices: [0]}, disabled: true}";
        assert_eq!(choice(&[], &format!("{other}, {{disabled: true}}")), "1");
    }

    #[test]
    fn uuid_that_is_not_known_decides_only_where_nothing_else_does() {
        let chosen = |layout: &str| choice_with(None, &[0x20B2_10DE], layout);
        let by_uuid = "{devices: {uuids: [GPU-0000abcd-0000]MORE}, disabled: true}";
        assert_eq!(chosen(&by_uuid.replace("MORE", "")), "unknown");
        assert_eq!(chosen(&by_uuid.replace("MORE", ", indices: [2]")), "none");
        assert_eq!(chosen(&by_uuid.replace("MORE", ", deviceIds: ['0x20B010DE']")), "none");
        let earlier = "{devices: {indices: [3]}, disabled: true}";
        assert_eq!(chosen(&format!("{earlier}, {}", by_uuid.replace("MORE", ""))), "0");
    }
}
