//! The group of a configuration that selects a GPU of a `GpuNode`.

use gpunode_config::{GroupChoice, MigGroup, SelectableGpu, pci_device_id};
use gpunode_crds::GpuDevice;
use gpunode_mig::MigBoard;

/// Returns the first group that selects a GPU, as the agent chooses it. Where the agent is too old to report the PCI id, the GPU has
/// one of those of its board. The operator keeps no UUID of GPUs without MIG devices.
pub fn choice<'a>(gpu: &GpuDevice, groups: &'a [MigGroup]) -> GroupChoice<'a> {
    let reported = gpu.pci_device_id.as_deref().and_then(pci_device_id);
    let of_board = || MigBoard::of_product(&gpu.product).map_or(&[][..], |board| board.device_ids);
    let selectable = SelectableGpu {
        index: gpu.index,
        uuid: Some(gpu.uuid.as_str()).filter(|uuid| uuid.starts_with("GPU-")),
        product: &gpu.product,
        pci_device_ids: if reported.is_some() {
            reported.as_slice()
        } else {
            of_board()
        },
    };
    GroupChoice::of(selectable, groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chosen(product: &str, pci_device_id: Option<&str>, layout: &str) -> String {
        let config = gpunode_config::load(&format!("mig: {{strategy: Mixed, layout: [{layout}]}}\n"));
        let groups = config.expect("a configuration").mig.expect("a layout").layout;
        let gpu = json!({"index": 3, "uuid": "GPU-0000abcd-0000", "product": product, "memoryMiB": 1,
            "pciDeviceId": pci_device_id});
        let gpu = serde_json::from_value(gpu).expect("a GPU");
        match choice(&gpu, &groups) {
            GroupChoice::None => "none".to_owned(),
            GroupChoice::Group(place, _) => place.to_string(),
            GroupChoice::Unknown => "unknown".to_owned(),
        }
    }

    const A100: &str = "NVIDIA-A100-SXM4-80GB";
    const BY_ID: &str = "{devices: {deviceIds: ['0x20b210de']}, disabled: true}";

    #[test]
    fn gpu_is_selected_by_what_its_status_says() {
        for devices in [
            "{indices: [3]}",
            "{uuids: [GPU-0000ABCD-0000]}",
            "{products: ['*H100*', '*A100*']}",
            "{deviceIds: ['0x20B210DE'], indices: [3]}",
        ] {
            let layout = format!("{{devices: {devices}, disabled: true}}");
            assert_eq!(chosen(A100, Some("0x20B210DE"), &layout), "0", "{devices}");
        }
        assert_eq!(chosen(A100, Some("0x20B510DE"), BY_ID), "none");
        assert_eq!(
            chosen("NVIDIA-H20", Some("0x20B210DE"), BY_ID),
            "0",
            "the product does not decide"
        );
    }

    #[test]
    fn gpu_of_an_older_agent_has_one_of_the_pci_ids_of_its_board() {
        let of_board =
            "{devices: {deviceIds: ['0x20b210de', '0x20B510DE', '0x20F310DE', '0x20F510DE']}, disabled: true}";
        assert_eq!(chosen(A100, None, of_board), "0");
        assert_eq!(chosen(A100, None, BY_ID), "unknown");
        assert_eq!(chosen("NVIDIA-H20", None, BY_ID), "unknown");
        let other = "{devices: {deviceIds: ['0x233010DE']}, disabled: true}";
        assert_eq!(chosen(A100, None, other), "none");
    }
}
