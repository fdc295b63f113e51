//! Keeps what containers were given by the file while no strategy uses it.

use super::{demand::CdiOptions, device_nodes::options_of, survey::CdiSurvey};
use gpunode_cdi::{CdiDescription, CdiSpec, DevicesInUse, KIND};
use std::collections::BTreeSet;

/// Returns the options to describe devices with that were given out by the file before; none if nothing is left to describe.
pub fn options_to_keep(before: Option<&CdiSpec>, in_use: &DevicesInUse) -> Option<CdiOptions> {
    let is_held = !in_use.assigned.is_disjoint(&in_use.held);
    before.map(options_of).or_else(|| is_held.then(CdiOptions::default))
}

/// Returns the description of the devices of the file before that are in use, and of assigned ones that are held: after a boot there
/// is no file, and the kubelet still has the names. It has the files of the driver that the node has now: those of an earlier one may
/// be gone, and a container that restarts would fail for them.
pub fn keep_named(survey: &CdiSurvey, before: Option<CdiSpec>, in_use: &DevicesInUse) -> CdiDescription {
    let named: BTreeSet<String> = before
        .iter()
        .filter(|before| before.kind == KIND)
        .flat_map(|before| before.devices.iter().map(|device| device.name.clone()))
        .collect();
    let may_be_held =
        |uuid: &String| !in_use.is_complete || in_use.held.contains(uuid) || in_use.assigned.contains(uuid);
    let is_assigned = |uuid: &String| in_use.assigned.contains(uuid) && in_use.held.contains(uuid);
    let is_kept = |uuid: &String| (named.contains(uuid) && may_be_held(uuid)) || is_assigned(uuid);
    let mut description = survey.description.clone();
    description.left_out.clear();
    description.described.retain(is_kept);
    if let Some(spec) = &mut description.spec {
        spec.devices.retain(|device| is_kept(&device.name));
    }
    description.spec = description.spec.filter(|spec| !spec.devices.is_empty());
    description.keep(before, &survey.gpus, in_use)
}
