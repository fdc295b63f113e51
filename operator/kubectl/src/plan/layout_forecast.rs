//! The effect of a new MIG layout on the GPUs of one node: the instances that go and come, the pods that delay that, and the
//! GPUs that cannot have it. Pure.
//!
//! Places are not in the status, so this counts instances by profile. The agent may have to move a free instance to make
//! room, and waits if nothing fits around what is in use.

use super::simulation::configuration_of;
use gpunode_config::{GroupChoice, MigGroup};
use gpunode_crds::{GpuDevice, GpuNode, GpuNodeStatus, MigDevice, MigMode, named};
use gpunode_plan::{CountedLayout, LayoutObstacle, WantedLayout, choice, observed, wanted};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Most pods named for one group of GPUs.
const MAX_PODS: usize = 3;

/// The change of equal GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LayoutForecast {
    /// Indices of the GPUs.
    pub gpus: Vec<u32>,
    pub product: String,
    /// Layout that they have, such as `1g.10gb:3,4g.40gb:1`, `{}` or `off`.
    pub now: String,
    /// Layout that they get.
    pub then: String,
    /// Instances that go from each of them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub goes: BTreeMap<String, u32>,
    /// Instances that each of them gets.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub comes: BTreeMap<String, u32>,
    /// Pods that hold what may have to go; the change waits for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_by: Vec<String>,
}

impl LayoutForecast {
    /// Describes the change, such as `GPUs 0, 1: off -> 1g.10gb:7`, with what goes and comes where that is not all.
    pub fn words(&self) -> String {
        let list = |verb: &str, counts: &BTreeMap<String, u32>| {
            let parts: Vec<String> = counts
                .iter()
                .map(|(profile, count)| format!("{count} x {profile}"))
                .collect();
            (!parts.is_empty()).then(|| format!("{verb} {}", parts.join(", ")))
        };
        let parts = [list("goes", &self.goes), list("comes", &self.comes)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let parts = if parts.is_empty() {
            String::new()
        } else {
            format!(" ({})", parts.join("; "))
        };
        format!("{}: {} -> {}{parts}", gpus(&self.gpus), self.now, self.then)
    }
}

/// The effect of a layout on a node.
#[derive(Debug, Default)]
pub struct LayoutForecasts {
    pub changes: Vec<LayoutForecast>,
    pub notes: Vec<String>,
    /// GPUs that cannot have the layout.
    pub obstacles: Vec<String>,
    /// The node's status once the changes are over.
    pub status: Option<GpuNodeStatus>,
}

/// Compares the layouts of a node's configurations. A GPU that its present configuration already changes is left out.
pub fn layout_forecasts(before: &GpuNode, after: &GpuNode) -> LayoutForecasts {
    let groups = |node: &GpuNode| {
        let mig = configuration_of(node).and_then(|config| config.mig);
        mig.map(|mig| mig.layout).unwrap_or_default()
    };
    let (old, new) = (groups(before), groups(after));
    let mut forecasts = LayoutForecasts::default();
    let Some(status) = before.status.as_ref().filter(|_| old != new) else {
        return forecasts;
    };
    let mut then = status.clone();
    let mut texts = GroupedTexts::default();
    for (gpu, changed) in status.gpus.iter().zip(&mut then.gpus) {
        if gpu.missing_since.is_some() {
            continue;
        }
        let (was, is) = (choice(gpu, &old), choice(gpu, &new));
        if target(was) == target(is) && is != GroupChoice::Unknown {
            continue;
        }
        match is {
            GroupChoice::None => {
                if let Some(layout) = observed(gpu) {
                    texts.note(gpu.index, format!("no group of mig.layout selects {{}} any more, so the layout stays {layout}"));
                }
            }
            GroupChoice::Unknown => texts.note(
                gpu.index,
                format!(
                    "a group selects by deviceIds, and the status does not have the PCI id of {{}} ({}); the agent decides",
                    gpu.product
                ),
            ),
            GroupChoice::Group(_, group) => forecasts.of_gpu(status, gpu, wanted(gpu, group), &mut texts, changed),
        }
    }
    forecasts.notes = texts.notes.lines();
    forecasts.obstacles = texts.obstacles.lines();
    for change in &forecasts.changes {
        forecasts.notes.extend(delay(change));
    }
    if status.holders_truncated && forecasts.changes.iter().any(|change| !change.goes.is_empty()) {
        forecasts
            .notes
            .push("the agent's list of holders is incomplete, so more pods may delay the change of MIG".to_owned());
    }
    forecasts.status = Some(then);
    forecasts
}

/// Returns what a group gives its GPUs; none for no group and one that is not known.
fn target(choice: GroupChoice<'_>) -> Option<MigGroup> {
    match choice {
        GroupChoice::Group(_, group) => Some(MigGroup {
            devices: None,
            ..group.clone()
        }),
        GroupChoice::None | GroupChoice::Unknown => None,
    }
}

impl LayoutForecasts {
    fn of_gpu(
        &mut self,
        status: &GpuNodeStatus,
        gpu: &GpuDevice,
        wanted: WantedLayout,
        texts: &mut GroupedTexts,
        changed: &mut GpuDevice,
    ) {
        let product = &gpu.product;
        let layout = match wanted {
            WantedLayout::Impossible(LayoutObstacle::NoMig) => {
                return texts.note(
                    gpu.index,
                    format!("{{}} ({product}) stays as it is: the board has no MIG"),
                );
            }
            WantedLayout::Impossible(LayoutObstacle::DoesNotFit(why)) => {
                return texts.obstacle(gpu.index, format!("{{}}: {why}"));
            }
            WantedLayout::Preset(preset) => {
                return texts.note(
                    gpu.index,
                    format!("{{}} ({product}): this program has no table of the board, so it does not know what {preset} is there"),
                );
            }
            WantedLayout::Known { layout, is_checked } => {
                if !is_checked {
                    texts.note(
                        gpu.index,
                        format!("{{}} ({product}): this program has no table of the board, so the agent decides if {layout} fits"),
                    );
                }
                layout
            }
        };
        let now = observed(gpu).unwrap_or(CountedLayout::Off);
        if now == layout {
            return;
        }
        let empty = BTreeMap::new();
        let (old, new) = (now.instances().unwrap_or(&empty), layout.instances().unwrap_or(&empty));
        let goes = surplus(old, new);
        let change = LayoutForecast {
            gpus: vec![gpu.index],
            product: product.clone(),
            held_by: delaying_pods(status, gpu, &now, &layout, &goes),
            comes: surplus(new, old),
            now: now.to_string(),
            then: layout.to_string(),
            goes,
        };
        carry_out(status, changed, &layout);
        let is_same = |known: &&mut LayoutForecast| {
            LayoutForecast {
                gpus: change.gpus.clone(),
                ..(**known).clone()
            } == change
        };
        match self.changes.iter_mut().find(is_same) {
            Some(known) => known.gpus.extend(change.gpus),
            None => self.changes.push(change),
        }
    }
}

/// Returns the instances of `of` that `other` has not.
fn surplus(of: &BTreeMap<String, u32>, other: &BTreeMap<String, u32>) -> BTreeMap<String, u32> {
    let rest = of.iter().map(|(profile, count)| {
        let left = other.get(profile).copied().unwrap_or_default();
        (profile.clone(), count.saturating_sub(left))
    });
    rest.filter(|(_, count)| *count > 0).collect()
}

/// Returns the pods that hold what has to go: everything where the mode changes, otherwise the instances of profiles of which
/// more have to go than are free.
fn delaying_pods(
    status: &GpuNodeStatus,
    gpu: &GpuDevice,
    now: &CountedLayout,
    then: &CountedLayout,
    goes: &BTreeMap<String, u32>,
) -> Vec<String> {
    let holders = |device: &str| {
        let of = status.holders.iter().filter(move |holder| holder.device == device);
        of.map(|holder| format!("{}/{}", holder.namespace, holder.pod))
            .collect::<BTreeSet<_>>()
    };
    let mode_changes = (*now == CountedLayout::Off) != (*then == CountedLayout::Off);
    let mut pods = BTreeSet::new();
    if mode_changes {
        pods.extend(holders(&gpu.uuid));
    }
    for (profile, count) in goes {
        let held: Vec<BTreeSet<String>> = devices_of(gpu, profile).map(|device| holders(&device.uuid)).collect();
        let free = held.iter().filter(|pods| pods.is_empty()).count();
        if mode_changes || *count as usize > free {
            pods.extend(held.into_iter().flatten());
        }
    }
    pods.into_iter().collect()
}

fn devices_of<'a>(gpu: &'a GpuDevice, profile: &'a str) -> impl Iterator<Item = &'a MigDevice> {
    gpu.mig_devices.iter().filter(move |device| device.profile == profile)
}

/// Says for which pods a change waits.
fn delay(change: &LayoutForecast) -> Option<String> {
    let wait = if change.gpus.len() == 1 { "waits" } else { "wait" };
    let (noun, hold) = if change.held_by.len() == 1 {
        ("pod", "holds")
    } else {
        ("pods", "hold")
    };
    (!change.held_by.is_empty()).then(|| {
        format!(
            "{} {wait} for {noun} {}, which {hold} what has to go",
            gpus(&change.gpus),
            named(&change.held_by, MAX_PODS)
        )
    })
}

/// Gives a GPU the MIG devices of a layout: those that stay, held ones first, and new ones.
fn carry_out(status: &GpuNodeStatus, gpu: &mut GpuDevice, layout: &CountedLayout) {
    let Some(counts) = layout.instances() else {
        gpu.mig_mode = Some(MigMode::Disabled);
        gpu.mig_devices.clear();
        return;
    };
    gpu.mig_mode = Some(MigMode::Enabled);
    let is_free = |device: &MigDevice| !status.holders.iter().any(|holder| holder.device == device.uuid);
    let mut devices = Vec::new();
    let mut instance = gpu
        .mig_devices
        .iter()
        .map(|device| device.gpu_instance + 1)
        .max()
        .unwrap_or_default();
    for (profile, count) in counts {
        let mut kept: Vec<MigDevice> = devices_of(gpu, profile).cloned().collect();
        kept.sort_by_key(is_free);
        kept.truncate(*count as usize);
        let mut known = status.gpus.iter().flat_map(|gpu| devices_of(gpu, profile));
        let like = known.next().cloned().unwrap_or_else(|| MigDevice {
            memory_mib: nominal_mib(profile),
            ..MigDevice::default()
        });
        while kept.len() < *count as usize {
            kept.push(MigDevice {
                uuid: format!("MIG-new-{}-{instance}", gpu.index),
                profile: profile.clone(),
                gpu_instance: instance,
                health: None,
                ..like.clone()
            });
            instance += 1;
        }
        devices.extend(kept);
    }
    gpu.mig_devices = devices;
}

/// Returns the memory that the name of a profile says.
fn nominal_mib(profile: &str) -> u64 {
    let memory = profile.split_once("g.").and_then(|(_, rest)| rest.split_once("gb"));
    memory
        .and_then(|(number, _)| number.parse::<u64>().ok())
        .unwrap_or_default()
        * 1024
}

fn gpus(indices: &[u32]) -> String {
    let names: Vec<String> = indices.iter().map(ToString::to_string).collect();
    let noun = if names.len() == 1 { "GPU" } else { "GPUs" };
    format!("{noun} {}", names.join(", "))
}

/// Sentences about GPUs, each said once with all of them.
#[derive(Default)]
struct GroupedTexts {
    notes: TextsByGpu,
    obstacles: TextsByGpu,
}

/// Sentences with `{}` for the GPUs, in order.
#[derive(Default)]
struct TextsByGpu(Vec<(String, Vec<u32>)>);

impl GroupedTexts {
    fn note(&mut self, gpu: u32, text: String) {
        self.notes.add(gpu, text);
    }

    fn obstacle(&mut self, gpu: u32, text: String) {
        self.obstacles.add(gpu, text);
    }
}

impl TextsByGpu {
    fn add(&mut self, gpu: u32, text: String) {
        match self.0.iter_mut().find(|(known, _)| *known == text) {
            Some((_, of)) => of.push(gpu),
            None => self.0.push((text, vec![gpu])),
        }
    }

    fn lines(self) -> Vec<String> {
        let line = |(text, of): (String, Vec<u32>)| text.replacen("{}", &gpus(&of), 1);
        self.0.into_iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests;
