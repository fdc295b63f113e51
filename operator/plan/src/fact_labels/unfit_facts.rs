//! Facts that an agent reports and that do not fit into labels: each is written in another form or left out, and no other label
//! waits for it.

use crate::label_syntax::is_label_value;
use gpunode_crds::GpuNodeStatus;
use gpunode_gpu::product_label;
use std::borrow::Cow;

/// Maximum number of facts that a message names.
const MAX_NAMED: usize = 3;
/// Maximum length of a reported value in a message.
const MAX_SHOWN: usize = 63;

/// Returns a status whose facts fit into labels, and a sentence for each fact that was changed for it.
pub fn fitting(status: &GpuNodeStatus) -> (Cow<'_, GpuNodeStatus>, Vec<String>) {
    if is_fitting(status) {
        return (Cow::Borrowed(status), Vec::new());
    }
    let mut problems = Vec::new();
    let mut fitted = status.clone();
    fit_optional("machine", &mut fitted.machine, &mut problems);
    for (at, gpu) in fitted.gpus.iter_mut().enumerate() {
        fit(&format!("gpus[{at}].product"), &mut gpu.product, &mut problems);
        if let Some(fabric) = &mut gpu.fabric {
            let path = format!("gpus[{at}].fabric.clusterUuid");
            fit(&path, &mut fabric.cluster_uuid, &mut problems);
        }
        for (device, mig) in gpu.mig_devices.iter_mut().enumerate() {
            let path = format!("gpus[{at}].migDevices[{device}].profile");
            if !is_profile(&mig.profile) {
                fit(&path, &mut mig.profile, &mut problems);
            }
        }
        gpu.mig_devices.retain(|mig| !mig.profile.is_empty());
    }
    if let Some(vgpu) = &mut fitted.vgpu {
        let (version, branch) = (&mut vgpu.host_driver_version, &mut vgpu.host_driver_branch);
        fit_optional("vgpu.hostDriverVersion", version, &mut problems);
        fit_optional("vgpu.hostDriverBranch", branch, &mut problems);
    }
    (Cow::Owned(fitted), problems)
}

/// Names the facts that do not fit.
pub fn unfit_message(problems: &[String]) -> String {
    let named = problems.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join("; ");
    let more = problems.len().saturating_sub(MAX_NAMED);
    let more = if more == 0 {
        String::new()
    } else {
        format!("; and {more} more")
    };
    format!("facts in the status of the GpuNode do not fit into labels: {named}{more}")
}

fn is_fitting(status: &GpuNodeStatus) -> bool {
    let is_value = |text: &Option<String>| text.as_deref().is_none_or(is_label_value);
    let is_gpu = |gpu: &gpunode_crds::GpuDevice| {
        is_label_value(&gpu.product)
            && gpu
                .fabric
                .as_ref()
                .is_none_or(|fabric| is_label_value(&fabric.cluster_uuid))
            && gpu.mig_devices.iter().all(|mig| is_profile(&mig.profile))
    };
    is_value(&status.machine)
        && status.gpus.iter().all(is_gpu)
        && status
            .vgpu
            .as_ref()
            .is_none_or(|vgpu| is_value(&vgpu.host_driver_version) && is_value(&vgpu.host_driver_branch))
}

/// Returns true for a MIG profile that fits into the names of labels, where `+` becomes a dot.
fn is_profile(profile: &str) -> bool {
    !profile.is_empty() && is_label_value(&profile.replace('+', "."))
}

fn fit(fact: &str, value: &mut String, problems: &mut Vec<String>) {
    if is_label_value(value) {
        return;
    }
    let fitted = product_label(value);
    let reported: String = value.chars().take(MAX_SHOWN).collect();
    problems.push(if fitted.is_empty() {
        format!("{fact} is {reported:?}, left out")
    } else {
        format!("{fact} is {reported:?}, written as \"{fitted}\"")
    });
    *value = fitted;
}

fn fit_optional(fact: &str, value: &mut Option<String>, problems: &mut Vec<String>) {
    if let Some(text) = value {
        fit(fact, text, problems);
    }
    if value.as_deref() == Some("") {
        *value = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_three_facts_and_counts_the_rest() {
        let problems: Vec<String> = (0..5).map(|at| format!("fact {at}")).collect();
        assert_eq!(
            unfit_message(&problems),
            "facts in the status of the GpuNode do not fit into labels: fact 0; fact 1; fact 2; and 2 more"
        );
    }
}
