//! The layout that a GPU has, from the status of its node.

use gpunode_crds::{GpuDevice, MigMode, MigPhase};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Layout of a GPU: no MIG, or a number of instances by the name of their profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountedLayout {
    /// MIG is off.
    Off,
    /// MIG is on.
    Instances(BTreeMap<String, u32>),
}

/// Writes the layout as the status has it: `off`, `{}` or `1g.10gb:3,4g.40gb:1`.
impl fmt::Display for CountedLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Instances(counts) if counts.is_empty() => f.write_str("{}"),
            Self::Instances(counts) => {
                let parts = counts.iter().map(|(profile, count)| format!("{profile}:{count}"));
                f.write_str(&parts.collect::<Vec<_>>().join(","))
            }
        }
    }
}

impl CountedLayout {
    /// Returns the number of instances of each profile; none without MIG.
    pub fn instances(&self) -> Option<&BTreeMap<String, u32>> {
        match self {
            Self::Off => None,
            Self::Instances(counts) => Some(counts),
        }
    }

    /// Parses a layout of the status.
    pub fn parse(text: &str) -> Option<Self> {
        let part = |part: &str| {
            let (profile, count) = part.split_once(':')?;
            Some((profile.to_owned(), count.parse().ok()?))
        };
        match text {
            "off" => Some(Self::Off),
            "{}" => Some(Self::Instances(BTreeMap::new())),
            text => text.split(',').map(part).collect::<Option<_>>().map(Self::Instances),
        }
    }
}

/// Returns the layout that a GPU has; none if it has no MIG. Where the agent does not report it, its MIG devices tell: these
/// lack GPU instances without a compute instance, and one on a part of a GPU instance stands for all of it.
pub fn observed(gpu: &GpuDevice) -> Option<CountedLayout> {
    let mode = gpu.mig_mode?;
    let reported = gpu.mig.as_ref().filter(|mig| mig.phase != MigPhase::Unsupported);
    if let Some(layout) = reported.and_then(|mig| CountedLayout::parse(&mig.observed)) {
        return Some(layout);
    }
    if mode == MigMode::Disabled {
        return Some(CountedLayout::Off);
    }
    let mut seen = BTreeSet::new();
    let mut counts = BTreeMap::new();
    for device in gpu.mig_devices.iter().filter(|device| seen.insert(device.gpu_instance)) {
        let whole = device
            .profile
            .split_once("c.")
            .map_or(device.profile.as_str(), |(_, whole)| whole);
        *counts.entry(whole.to_owned()).or_insert(0) += 1;
    }
    Some(CountedLayout::Instances(counts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn layout(mode: &Value, devices: &[(&str, u32)], reported: Option<(&str, &str)>) -> String {
        let devices = devices.iter().enumerate().map(|(index, (profile, instance))| {
            json!({"uuid": format!("MIG-{index}"), "profile": profile, "gpuInstance": instance, "computeInstance": index,
                "memoryMiB": 1})
        });
        let mig = reported.map(|(observed, phase)| json!({"wanted": "off", "observed": observed, "phase": phase}));
        let gpu = json!({"index": 0, "uuid": "GPU-0", "product": "P", "memoryMiB": 1, "migMode": mode, "mig": mig,
            "migDevices": devices.collect::<Vec<_>>()});
        let gpu = serde_json::from_value(gpu).expect("a GPU");
        observed(&gpu).map_or("none".to_owned(), |layout| layout.to_string())
    }

    #[test]
    fn a_gpu_has_what_its_agent_reports_or_what_its_devices_tell() {
        let (on, off) = (json!("Enabled"), json!("Disabled"));
        let devices = [("1g.10gb", 7), ("1c.3g.40gb", 1), ("2c.3g.40gb", 1), ("1g.10gb", 8)];
        assert_eq!(layout(&json!(null), &[], None), "none");
        assert_eq!(layout(&off, &[], None), "off");
        assert_eq!(layout(&on, &[], None), "{}");
        assert_eq!(layout(&on, &devices, None), "1g.10gb:2,3g.40gb:1");
        assert_eq!(layout(&on, &devices, Some(("1g.10gb:3", "Applied"))), "1g.10gb:3");
        assert_eq!(layout(&on, &devices, Some(("", "Waiting"))), "1g.10gb:2,3g.40gb:1");
        assert_eq!(layout(&off, &[], Some(("off", "Unsupported"))), "off");
    }
}
