//! The layout that a configuration wants on a GPU, before its places are known.

use crate::Gpu;
use gpunode_config::{GroupChoice, MigGroup, SelectableGpu};
use gpunode_mig::{LayoutError, MigGeometry, MigLayout};
use std::{collections::BTreeMap, fmt};

/// Layout of a group of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutTarget {
    /// MIG is off.
    Off,
    /// Number of GPU instances by the name of their profile; MIG is on also if there are none.
    Instances(BTreeMap<String, u32>),
    /// Name of a layout that is computed for the board, such as `all-balanced`.
    Preset(String),
}

impl LayoutTarget {
    /// Returns the layout of the first group that selects a GPU; none if no group does, or if one may, by a PCI id that the
    /// driver does not tell.
    pub fn of(gpu: &Gpu, groups: &[MigGroup]) -> Option<Self> {
        let selectable = SelectableGpu {
            index: gpu.index,
            uuid: Some(&gpu.uuid),
            product: &gpu.product(),
            pci_device_ids: gpu.pci_device_id.as_slice(),
        };
        let GroupChoice::Group(_, group) = GroupChoice::of(selectable, groups) else {
            return None;
        };
        let number = |count: i32| u32::try_from(count).unwrap_or_default();
        match (&group.instances, &group.preset) {
            (Some(instances), _) => {
                let counts = instances
                    .iter()
                    .map(|(profile, count)| (profile.clone(), number(*count)));
                Some(Self::Instances(counts.collect()))
            }
            (None, Some(preset)) => Some(Self::Preset(preset.clone())),
            (None, None) => Some(Self::Off),
        }
    }

    /// Returns the instances on a GPU of this geometry; none if MIG is off.
    pub fn resolve(&self, geometry: &MigGeometry) -> Result<Option<MigLayout>, LayoutError> {
        match self {
            Self::Off => Ok(None),
            Self::Instances(counts) => {
                let counts = counts.iter().map(|(profile, count)| (profile.as_str(), *count));
                MigLayout::of_profiles(counts, geometry).map(Some)
            }
            Self::Preset(name) => MigLayout::parse(name, geometry).map(Some),
        }
    }
}

/// Writes the layout as the configuration has it: `off`, `{}`, `1g.10gb:3,4g.40gb:1` or the name of a preset.
impl fmt::Display for LayoutTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Preset(name) => f.write_str(name),
            Self::Instances(counts) if counts.is_empty() => f.write_str("{}"),
            Self::Instances(counts) => {
                let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{name}:{count}")).collect();
                f.write_str(&parts.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_config::load;
    use gpunode_mig::MigBoard;

    fn gpu() -> Gpu {
        Gpu {
            index: 3,
            uuid: "GPU-0000abcd-0000-0000-0000-000000000000".to_owned(),
            name: "NVIDIA A100-SXM4-80GB".to_owned(),
            pci_device_id: Some(0x20B2_10DE),
            ..Gpu::default()
        }
    }

    /// Returns the layout under groups in YAML, as text.
    fn target(groups: &str) -> String {
        let config = load(&format!("mig: {{strategy: Mixed, layout: [{groups}]}}\n")).unwrap();
        let target = LayoutTarget::of(&gpu(), &config.mig.unwrap().layout);
        target.map_or("none".to_owned(), |target| target.to_string())
    }

    #[test]
    fn gpu_has_the_layout_of_the_first_group_that_selects_it() {
        assert_eq!(target("{preset: all-balanced}, {disabled: true}"), "all-balanced");
        assert_eq!(
            target("{devices: {indices: [0]}, disabled: true}, {instances: {4g.40gb: 1, 1g.10gb: 3}}"),
            "1g.10gb:3,4g.40gb:1"
        );
        assert_eq!(target("{devices: {indices: [0, 3]}, instances: {}}"), "{}");
        assert_eq!(target("{devices: {indices: [0]}, disabled: true}"), "none");
    }

    #[test]
    fn gpu_is_selected_by_what_the_driver_tells_of_it() {
        for devices in [
            "{indices: [3]}",
            "{uuids: [GPU-0000ABCD-0000-0000-0000-000000000000]}",
            "{products: ['NVIDIA-A100*']}",
            "{deviceIds: ['0x20B210DE']}",
        ] {
            assert_eq!(
                target(&format!("{{disabled: true, devices: {devices}}}")),
                "off",
                "{devices}"
            );
        }
        let unknown = Gpu {
            pci_device_id: None,
            ..gpu()
        };
        let config = load("mig: {strategy: None, layout: [{disabled: true, devices: {deviceIds: ['0x00000000']}}]}\n");
        assert_eq!(LayoutTarget::of(&unknown, &config.unwrap().mig.unwrap().layout), None);
    }

    #[test]
    fn profiles_and_presets_are_those_of_the_board() {
        let geometry = MigBoard::named("A100-40GB").unwrap().geometry;
        let resolved = |target: &LayoutTarget| match target.resolve(&geometry) {
            Ok(layout) => layout.map_or("off".to_owned(), |layout| layout.to_string()),
            Err(error) => error.to_string(),
        };
        assert_eq!(resolved(&LayoutTarget::Off), "off");
        assert_eq!(
            resolved(&LayoutTarget::Preset("all-balanced".to_owned())),
            "1g.5gb:2,2g.10gb:1,3g.20gb:1"
        );
        assert_eq!(
            resolved(&LayoutTarget::Instances([("1g.5gb".to_owned(), 7)].into())),
            "1g.5gb:7"
        );
        let wrong = resolved(&LayoutTarget::Instances([("1g.6gb".to_owned(), 7)].into()));
        assert!(
            wrong.starts_with("the board has no profile `1g.6gb`; it has 1g.5gb, "),
            "{wrong}"
        );
    }
}
