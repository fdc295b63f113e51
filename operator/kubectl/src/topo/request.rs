//! The answer to a request for some shares of a resource. Pure.

use super::links::is_part;
use crate::output::plural;
use gpunode_config::{Allocation, MemoryMiB, ResourceConfig, Sharing, SharingStrategy};
use gpunode_crds::{AdvertisedDevice, GpuDevice, GpuNode, GpuNodeStatus, ResourceStatus};
use gpunode_gpu::{
    CandidateDevice, CandidatePool, Criterion, DeviceSharing, GpuChoice, GpuLoad, PairScores, ResourceRules,
    best_choices,
};
use gpunode_plan::inventory;
use serde::Serialize;

/// Most choices shown.
const MOST: usize = 4;

/// The default resource.
const USUAL: &str = "nvidia.com/gpu";

/// The answer to a request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestAnswer {
    pub resource: String,
    pub size: u32,
    /// Order of choice: the resource's `allocation`, or `sharing.placement` for units of memory.
    pub order: String,
    /// Shares that are free now.
    pub free: u32,
    /// The best choices, best first; none where the request cannot be met.
    pub choices: Vec<DeviceChoice>,
    /// Reason for the first choice, or for none.
    pub why: String,
    /// True for a companion, whose devices have no links to choose by.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub companion: bool,
}

/// One choice of devices for a container.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceChoice {
    pub devices: Vec<ChosenDevice>,
    /// Sum of the pair scores of its GPUs.
    pub pair_scores: u64,
    pub numa_nodes: usize,
    /// GPUs left free. Only where they count in the order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_free: Option<FreeGpus>,
    /// Shares of its GPUs that other containers hold, summed over the chosen shares.
    pub held_by_others: u64,
}

/// GPUs that no container would hold, and the sum of their pair scores.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FreeGpus {
    pub gpus: usize,
    pub pair_scores: u64,
}

/// Shares of one device.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChosenDevice {
    pub gpu: u32,
    pub device: String,
    pub shares: u32,
}

/// A device of the resource, with its free shares.
struct ResourceDevice<'a> {
    uuid: &'a str,
    gpu: &'a GpuDevice,
    candidate: CandidateDevice,
}

/// Answers a request for `size` shares.
///
/// # Errors
/// When the node does not advertise the resource.
pub fn answer(
    gpu_node: &GpuNode,
    status: &GpuNodeStatus,
    resource: Option<&str>,
    size: u32,
) -> anyhow::Result<RequestAnswer> {
    let offered = offered(status, resource)?;
    if offered.companion {
        return Ok(of_companion(status, offered, size));
    }
    let config = gpu_node
        .spec
        .config
        .as_ref()
        .and_then(|config| gpunode_config::load(&config.document).ok());
    let entries = config.map(|config| config.effective_resources()).unwrap_or_default();
    let entry = entries.iter().find(|entry| entry.advertised_name() == offered.name);
    let sharing = entry.and_then(|entry| entry.sharing.as_ref());
    let rules = ResourceRules {
        fail_requests_greater_than_one: entry.is_some_and(ResourceConfig::fail_requests_greater_than_one),
        placement: sharing.map(Sharing::placement).unwrap_or_default(),
        allocation: entry.map(ResourceConfig::allocation).unwrap_or_default(),
    };
    let scores = PairScores::new(&inventory(status));
    let devices = devices(status, offered, &scores);
    let free = devices.iter().map(|device| device.candidate.free).sum();
    let strategy = offered.sharing.unwrap_or_default();
    let order = match strategy {
        SharingStrategy::Memory => format!("placement {:?}", rules.placement),
        _ => format!("allocation {:?}", rules.allocation),
    };
    let mut answer = RequestAnswer {
        resource: offered.name.clone(),
        size,
        order,
        free,
        choices: Vec::new(),
        why: String::new(),
        companion: false,
    };
    if rules.fail_requests_greater_than_one && size > 1 {
        answer.why = String::from("a container can request only one: failRequestsGreaterThanOne");
    } else if size > free {
        answer.why = cannot_start(free, size);
    } else if matches!(strategy, SharingStrategy::Memory | SharingStrategy::Mps) {
        of_one(&mut answer, &devices, strategy, rules);
    } else {
        of_many(&mut answer, status, &devices, strategy, rules.allocation, &scores);
    }
    Ok(answer)
}

/// Answers for a companion, whose devices have no links.
fn of_companion(status: &GpuNodeStatus, offered: &ResourceStatus, size: u32) -> RequestAnswer {
    let free_of = |device: &AdvertisedDevice| {
        let holders = status.holders.iter().filter(|holder| holder.device == device.device);
        let held: i32 = holders.map(|holder| holder.count).sum();
        // An unhealthy device may still be held.
        u32::try_from(device.healthy.saturating_sub(held)).unwrap_or_default()
    };
    let free = offered.devices.iter().map(free_of).sum();
    let why = if size > free {
        cannot_start(free, size)
    } else {
        "companions have no links: each share comes from the device of which containers hold least".to_owned()
    };
    RequestAnswer {
        resource: offered.name.clone(),
        size,
        order: "least held".to_owned(),
        free,
        choices: Vec::new(),
        why,
        companion: true,
    }
}

fn cannot_start(free: u32, size: u32) -> String {
    format!(
        "{} free, so a pod that requests {size} cannot start here",
        plural(free as usize, "is", "are")
    )
}

fn offered<'a>(status: &'a GpuNodeStatus, name: Option<&str>) -> anyhow::Result<&'a ResourceStatus> {
    let named = |name: &str| status.resources.iter().find(|resource| resource.name == name);
    let every = || {
        status
            .resources
            .iter()
            .map(|resource| resource.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    match (name, status.resources.as_slice()) {
        (_, []) => {
            anyhow::bail!("answer the request: the node advertises no resource; see why with `kubectl gpunode status`")
        }
        (Some(name), _) => named(name).ok_or_else(|| {
            anyhow::anyhow!(
                "answer the request: the node does not advertise {name}; it advertises {}",
                every()
            )
        }),
        (None, [only]) => Ok(only),
        (None, _) => named(USUAL).ok_or_else(|| {
            anyhow::anyhow!(
                "answer the request: choose a resource with --resource; the node advertises {}",
                every()
            )
        }),
    }
}

/// Returns the devices of a resource by index. An unhealthy share counts as held, because it cannot be allocated.
fn devices<'a>(
    status: &'a GpuNodeStatus,
    resource: &'a ResourceStatus,
    scores: &PairScores,
) -> Vec<ResourceDevice<'a>> {
    let number = |count: i32| u32::try_from(count).unwrap_or_default();
    let device = |(place, gpu, uuid): (usize, &'a GpuDevice, &'a str)| {
        let of = resource.devices.iter().find(|device| device.device == uuid)?;
        let holders = status
            .holders
            .iter()
            .filter(|holder| holder.device == uuid && holder.resource == resource.name);
        let free = number(of.healthy).saturating_sub(holders.map(|holder| number(holder.count)).sum());
        let candidate = CandidateDevice {
            gpu: Some(place),
            has: 0,
            free,
            held: number(of.shares).saturating_sub(free),
        };
        Some(ResourceDevice { uuid, gpu, candidate })
    };
    let there = status
        .gpus
        .iter()
        .filter_map(|gpu| Some((scores.place(&gpu.uuid)?, gpu)));
    let all = there.flat_map(|(place, gpu)| {
        let parts = gpu.mig_devices.iter().map(|mig| mig.uuid.as_str());
        std::iter::once(gpu.uuid.as_str())
            .chain(parts)
            .map(move |uuid| (place, gpu, uuid))
    });
    all.filter_map(device).collect()
}

/// Answers for units of memory and MPS shares, which all come from one device.
fn of_one(answer: &mut RequestAnswer, devices: &[ResourceDevice<'_>], strategy: SharingStrategy, rules: ResourceRules) {
    let sharing = |shares: u32| match strategy {
        SharingStrategy::Memory => DeviceSharing::Memory {
            unit: MemoryMiB::default(),
            units: shares,
        },
        _ => DeviceSharing::Mps { replicas: shares },
    };
    let rank = |of: &CandidateDevice| rules.rank_of_one(sharing(of.free + of.held), of.free, of.held);
    let mut fitting: Vec<_> = devices
        .iter()
        .filter(|device| device.candidate.free >= answer.size)
        .collect();
    fitting.sort_by_key(|device| rank(&device.candidate));
    let set = |device: &&ResourceDevice<'_>| DeviceChoice {
        devices: vec![picked(device, answer.size)],
        pair_scores: 0,
        numa_nodes: 1,
        left_free: None,
        held_by_others: u64::from(device.candidate.held) * u64::from(answer.size),
    };
    answer.choices = fitting.iter().take(MOST).map(set).collect();
    answer.why = match fitting.as_slice() {
        [] => format!(
            "no device has {} free, and one device must supply all of them",
            answer.size
        ),
        [_] => "no other device has enough free".to_owned(),
        [one, other, ..] if rank(&one.candidate) == rank(&other.candidate) => {
            "tied with rank 2; utilisation at that moment decides, then the lower index".to_owned()
        }
        _ => format!(
            "it has the {} free shares of the devices that fit",
            most_or_fewest(strategy, rules)
        ),
    };
}

fn most_or_fewest(strategy: SharingStrategy, rules: ResourceRules) -> &'static str {
    let packed = match strategy {
        SharingStrategy::Memory => rules.placement == gpunode_config::Placement::Packed,
        _ => rules.allocation == Allocation::Packed,
    };
    if packed { "fewest" } else { "most" }
}

fn of_many(
    answer: &mut RequestAnswer,
    status: &GpuNodeStatus,
    devices: &[ResourceDevice<'_>],
    strategy: SharingStrategy,
    allocation: Allocation,
    scores: &PairScores,
) {
    let candidates: Vec<CandidateDevice> = devices.iter().map(|device| device.candidate).collect();
    let mut loads = vec![GpuLoad::default(); scores.gpus()];
    for gpu in &status.gpus {
        let Some(load) = scores.place(&gpu.uuid).and_then(|place| loads.get_mut(place)) else {
            continue;
        };
        let own = devices
            .iter()
            .filter(|device| device.gpu.uuid == gpu.uuid)
            .map(|device| device.candidate.held);
        let is_own = |uuid: &str| devices.iter().any(|device| device.uuid == uuid);
        let others = status
            .holders
            .iter()
            .filter(|holder| is_part(gpu, &holder.device) && !is_own(&holder.device));
        let others = others.map(|holder| u32::try_from(holder.count).unwrap_or_default());
        load.held = own.chain(others).sum();
    }
    let shared = strategy != SharingStrategy::None;
    let pool = CandidatePool {
        scores,
        allocation,
        shared,
        devices: &candidates,
        loads: &loads,
    };
    let choices = best_choices(&pool, answer.size, MOST);
    let counts_free = allocation == Allocation::Packed || (allocation == Allocation::Topology && !shared);
    let set = |choice: &GpuChoice| DeviceChoice {
        devices: devices
            .iter()
            .zip(&choice.shares)
            .filter(|(_, shares)| **shares > 0)
            .map(|(device, shares)| picked(device, *shares))
            .collect(),
        pair_scores: choice.score.pairs,
        numa_nodes: choice.score.numa_nodes,
        left_free: counts_free.then_some(FreeGpus {
            gpus: choice.score.free_gpus,
            pair_scores: choice.score.free_pairs,
        }),
        held_by_others: choice.score.held,
    };
    answer.choices = choices.iter().map(set).collect();
    answer.why = match choices.as_slice() {
        [best, next, ..] => why(best, next, allocation, shared).to_owned(),
        _ => "no other choice of GPUs is possible".to_owned(),
    };
}

/// Says why the best choice ranks before the next one.
fn why(best: &GpuChoice, next: &GpuChoice, allocation: Allocation, shared: bool) -> &'static str {
    match best.better_by(allocation, next) {
        Some(Criterion::Pairs) => "better linked than rank 2",
        Some(Criterion::NumaNodes) if allocation == Allocation::Spread => "on more NUMA nodes than rank 2",
        Some(Criterion::NumaNodes) => "on fewer NUMA nodes than rank 2",
        Some(Criterion::LeftFree) if best.score.free_gpus > next.score.free_gpus => "leaves more GPUs free than rank 2",
        Some(Criterion::LeftFree) => "leaves better linked GPUs free than rank 2",
        Some(Criterion::Load) if allocation == Allocation::Packed => {
            "other containers hold more of its GPUs than of rank 2"
        }
        Some(Criterion::Load) => "other containers hold less of its GPUs than of rank 2",
        Some(Criterion::Distance) => "fewer links to one another and to GPUs in use than rank 2",
        None if shared && best.is_tied => "tied with rank 2; utilisation at that moment decides, then the lower index",
        None => "tied with rank 2; the lower index wins",
    }
}

fn picked(device: &ResourceDevice<'_>, shares: u32) -> ChosenDevice {
    ChosenDevice {
        gpu: device.gpu.index,
        device: device.uuid.to_owned(),
        shares,
    }
}
