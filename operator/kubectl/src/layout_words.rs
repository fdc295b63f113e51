//! The layout of a configuration in words.

use gpunode_config::MigGroup;

/// Describes the groups of a layout, such as `indices 0, 1: 3g.40gb:2; every other GPU: off`.
pub fn layout_words(groups: &[MigGroup]) -> String {
    let group = |(place, group): (usize, &MigGroup)| {
        let devices = match &group.devices {
            Some(devices) => {
                let texts = |values: &Option<Vec<String>>| values.as_ref().map(|values| values.join(", "));
                let indices = devices.indices.as_ref().map(|indices| {
                    let indices: Vec<String> = indices.iter().map(ToString::to_string).collect();
                    indices.join(", ")
                });
                let conditions = [
                    ("indices", indices),
                    ("uuids", texts(&devices.uuids)),
                    ("products", texts(&devices.products)),
                    ("deviceIds", texts(&devices.device_ids)),
                ];
                let conditions = conditions
                    .into_iter()
                    .filter_map(|(name, values)| Some(format!("{name} {}", values?)));
                conditions.collect::<Vec<_>>().join(" and ")
            }
            None if place == 0 => "every GPU".to_owned(),
            None => "every other GPU".to_owned(),
        };
        format!("{devices}: {}", wanted_words(group))
    };
    groups.iter().enumerate().map(group).collect::<Vec<_>>().join("; ")
}

fn wanted_words(group: &MigGroup) -> String {
    match (&group.instances, &group.preset) {
        (Some(instances), _) if instances.is_empty() => "{}".to_owned(),
        (Some(instances), _) => {
            let parts = instances.iter().map(|(profile, count)| format!("{profile}:{count}"));
            parts.collect::<Vec<_>>().join(",")
        }
        (None, Some(preset)) => preset.clone(),
        (None, None) => "off".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_is_named_by_its_conditions() {
        let config = gpunode_config::load(
            "mig: {strategy: Mixed, layout: [{devices: {indices: [0, 1], products: ['*A100*']}, instances: {3g.40gb: 2}}, {devices: {deviceIds: ['0x20B210DE']}, preset: all-balanced}, {devices: {uuids: [GPU-0]}, instances: {}}, {disabled: true}]}",
        );
        let mig = config.expect("a configuration").mig.expect("a layout");
        assert_eq!(
            layout_words(&mig.layout),
            "indices 0, 1 and products *A100*: 3g.40gb:2; deviceIds 0x20B210DE: all-balanced; uuids GPU-0: {}; every other GPU: off"
        );
        assert_eq!(layout_words(&mig.layout[3..]), "every GPU: off");
    }
}
