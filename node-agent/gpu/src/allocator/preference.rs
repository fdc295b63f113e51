//! The best of the available shares for a container.
//!
//! The result is advice to the kubelet. An error would fail the pod, so there is always a result.

use super::{
    device_shares::{Availability, DeviceShares, advertised_devices},
    slices::healthy_slices,
    state::AllocatorState,
};
use crate::{CandidateDevice, CandidatePool, DeviceSharing, GpuLoad, ResourceRules, choose, device_of};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The shares that a container should get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreferredAllocation {
    /// Ids of the shares.
    pub ids: Vec<String>,
    /// True if utilisation decides between devices that are equal otherwise.
    pub is_tied: bool,
}

/// Available shares of one device by number; shares that were held at the last observation come last.
type Free<'a> = BTreeMap<(bool, u32), &'a str>;

/// The available shares of one device.
struct Supply<'a> {
    sharing: DeviceSharing,
    /// Place of its GPU in the scores.
    gpu: Option<usize>,
    /// Utilisation of its GPU in percent; 0 for a whole device, which no container uses.
    busy: u32,
    /// True if no container should get its shares: it is to change, or is unavailable.
    unfit: bool,
    /// Number of shares that the container has or gets.
    picked: usize,
    /// Number of shares that others hold.
    held: usize,
    /// Ids of free shares.
    sure: VecDeque<&'a str>,
    /// Ids of shares that were held at the last observation: the allocation is refused unless they were freed since.
    unsure: VecDeque<&'a str>,
}

/// Shares to choose from.
struct Stock<'a> {
    /// By index.
    supplies: Vec<Supply<'a>>,
    /// Ids of an earlier list, which the kubelet may still use.
    unknown: Vec<&'a str>,
    /// Load of each GPU by other containers, by place.
    loads: Vec<GpuLoad>,
    rules: ResourceRules,
    /// True if the devices are companions, which have no links.
    are_companions: bool,
}

/// Returns `size` of the `available` ids, among them those of `must_include`, or fewer where there are not enough. Between
/// equal devices `busy`, the utilisation of GPUs by index in percent, decides.
pub fn preferred(
    state: &AllocatorState,
    resource: &str,
    available: &[String],
    must_include: &[String],
    size: usize,
    busy: &BTreeMap<u32, u32>,
) -> PreferredAllocation {
    let required: BTreeSet<&str> = must_include.iter().map(String::as_str).collect();
    let mut stock = stock(state, resource, available, &required, busy);
    let missing = size.saturating_sub(required.len());
    let (picks, is_tied) = if stock.are_companions {
        (stock.of_companions(missing), false)
    } else if let Some(pick) = stock.of_one_device(missing) {
        pick
    } else {
        of_many(state, &mut stock, missing)
    };
    let rest: Vec<&str> = stock
        .unknown
        .iter()
        .copied()
        .take(missing.saturating_sub(picks.len()))
        .collect();
    let ids = required
        .into_iter()
        .chain(picks)
        .chain(rest)
        .map(str::to_owned)
        .collect();
    PreferredAllocation { ids, is_tied }
}

fn stock<'a>(
    state: &AllocatorState,
    resource: &str,
    available: &'a [String],
    required: &BTreeSet<&str>,
    busy: &BTreeMap<u32, u32>,
) -> Stock<'a> {
    let advertised = advertised_devices(state, resource);
    let places: BTreeMap<&str, usize> = advertised.iter().enumerate().map(|(at, of)| (of.uuid, at)).collect();
    let place = |id: &str| {
        let at = *places.get(device_of(id))?;
        let of = advertised.get(at)?;
        Some((at, of.sharing.number(of.uuid, id)?))
    };
    // Shares of each device that the container has in any case.
    let mut picked = vec![0_usize; advertised.len()];
    for (at, _) in required.iter().filter_map(|id| place(id)) {
        picked.get_mut(at).into_iter().for_each(|count| *count += 1);
    }
    // Free shares of each device; ids of no device are unknown.
    let mut free: Vec<Free<'a>> = vec![Free::new(); advertised.len()];
    let mut unknown = BTreeSet::new();
    for id in available.iter().map(String::as_str).filter(|id| !required.contains(id)) {
        match place(id).and_then(|(at, number)| Some((free.get_mut(at)?, number))) {
            Some((free, number)) => {
                let held = state.held.holder(&(resource.to_owned(), id.to_owned())).is_some();
                free.insert((held, number), id);
            }
            None => _ = unknown.insert(id),
        }
    }
    // While a device has too many time slices, unhealthy ones are not held, and each device gives only what it has room for.
    // The others come last, as ids of an earlier list.
    let mut held_slices: Vec<Option<usize>> = vec![None; advertised.len()];
    if healthy_slices(state, resource, &advertised).is_some() {
        let requested: BTreeSet<&str> = available
            .iter()
            .map(String::as_str)
            .chain(required.iter().copied())
            .collect();
        let all = held_slices.iter_mut().zip(&advertised).zip(&mut free).zip(&picked);
        for (((held, of), free), picked) in all {
            let by_others = of.held_ids().filter(|id| !requested.contains(id.as_str())).count();
            *held = Some(by_others);
            while by_others + picked + free.len() > of.held.len()
                && let Some((_, id)) = free.pop_last()
            {
                unknown.insert(id);
            }
        }
    }
    // Of ids that no device should give, those of the device with the fewest holders come first.
    let load = |id: &str| {
        let held = places
            .get(device_of(id))
            .and_then(|at| held_slices.get(*at).copied().flatten());
        held.unwrap_or(usize::MAX)
    };
    let mut unknown: Vec<(usize, &str)> = unknown.into_iter().map(|id| (load(id), id)).collect();
    unknown.sort_unstable();
    let supply = |(((of, free), picked), held): (((&DeviceShares<'_>, Free<'a>), usize), Option<usize>)| {
        let (unsure, sure): (Vec<_>, Vec<_>) = free.into_iter().partition(|((held, _), _)| *held);
        let ids = |free: Vec<((bool, u32), &'a str)>| free.into_iter().map(|(_, id)| id).collect::<VecDeque<_>>();
        let gpu = of
            .device
            .filter(|_| of.sharing != DeviceSharing::Whole)
            .map(|device| device.gpu);
        Supply {
            sharing: of.sharing,
            gpu: of.device.and_then(|device| state.scores.place(&device.gpu_uuid)),
            busy: gpu.and_then(|gpu| busy.get(&gpu)).copied().unwrap_or_default(),
            unfit: of.availability != Availability::Allocatable,
            picked,
            // The ids in the request are newer than the last observation of holders.
            held: held.unwrap_or_else(|| of.held.len().saturating_sub(sure.len() + unsure.len() + picked)),
            sure: ids(sure),
            unsure: ids(unsure),
        }
    };
    let supplies: Vec<_> = advertised
        .iter()
        .zip(free)
        .zip(picked)
        .zip(held_slices)
        .map(supply)
        .collect();
    let mut loads = vec![GpuLoad::default(); state.scores.gpus()];
    for of in &supplies {
        let Some(load) = of.gpu.and_then(|gpu| loads.get_mut(gpu)) else {
            continue;
        };
        load.held = load.held.saturating_add(count(of.held));
        load.busy = of.busy;
    }
    // Shares of the same GPUs under other resources count as load.
    for (uuid, shares) in state
        .held
        .shares_of_devices()
        .filter(|(uuid, _)| !places.contains_key(uuid.as_str()))
    {
        let gpu = state
            .devices
            .get(uuid)
            .and_then(|device| state.scores.place(&device.gpu_uuid));
        if let Some(load) = gpu.and_then(|gpu| loads.get_mut(gpu)) {
            load.held = load.held.saturating_add(count(shares));
        }
    }
    let rules = state.rules.get(resource).copied().unwrap_or_default();
    Stock {
        supplies,
        unknown: unknown.into_iter().map(|(_, id)| id).collect(),
        loads,
        rules,
        are_companions: advertised.iter().any(|of| of.companion.is_some()),
    }
}

/// Picks shares of as many devices as needed, tier by tier.
fn of_many<'a>(state: &AllocatorState, stock: &mut Stock<'a>, missing: usize) -> (Vec<&'a str>, bool) {
    let (mut picks, mut is_tied) = (Vec::new(), false);
    for tier in TIERS {
        let of_tier = |of: &Supply<'_>| of.unfit == tier.unfit && of.sharing.one_device_per_container() == tier.of_one;
        let devices: Vec<CandidateDevice> = stock
            .supplies
            .iter()
            .map(|of| CandidateDevice {
                gpu: of.gpu,
                has: count(of.picked),
                free: if of_tier(of) {
                    count(of.ids(tier.unsure).len())
                } else {
                    0
                },
                held: count(of.held),
            })
            .collect();
        if picks.len() >= missing || devices.iter().all(|device| device.free == 0) {
            continue;
        }
        let shared = |of: &Supply<'_>| of_tier(of) && of.sharing != DeviceSharing::Whole;
        let pool = CandidatePool {
            scores: &state.scores,
            allocation: stock.rules.allocation,
            shared: stock.supplies.iter().any(shared),
            devices: &devices,
            loads: &stock.loads,
        };
        let choice = choose(&pool, count(missing - picks.len()));
        is_tied |= choice.is_tied && pool.shared;
        picks.extend(stock.take(&choice.shares, tier.unsure));
    }
    (picks, is_tied)
}

/// Shares that come before or after others, whatever their GPUs.
#[derive(Clone, Copy)]
struct Tier {
    unfit: bool,
    unsure: bool,
    /// Devices that give all shares of a container alone.
    of_one: bool,
}

const TIERS: [Tier; 8] = {
    const fn tier(unfit: bool, unsure: bool, of_one: bool) -> Tier {
        Tier { unfit, unsure, of_one }
    }
    [
        tier(false, false, false),
        tier(false, false, true),
        tier(false, true, false),
        tier(false, true, true),
        tier(true, false, false),
        tier(true, false, true),
        tier(true, true, false),
        tier(true, true, true),
    ]
};

impl<'a> Stock<'a> {
    /// Takes this number of shares of each device; the first share of each comes first.
    fn take(&mut self, shares: &[u32], unsure: bool) -> Vec<&'a str> {
        let mut taken = Vec::new();
        for (at, (of, shares)) in self.supplies.iter_mut().zip(shares).enumerate() {
            let ids = if unsure { &mut of.unsure } else { &mut of.sure };
            let end = (*shares as usize).min(ids.len());
            taken.extend(ids.drain(..end).enumerate().map(|(row, id)| (row, at, id)));
            of.picked += end;
        }
        taken.sort_unstable();
        taken.into_iter().map(|(.., id)| id).collect()
    }

    /// Takes shares of companions one by one, each of the device of which containers hold least.
    fn of_companions(&mut self, missing: usize) -> Vec<&'a str> {
        let mut picks = Vec::new();
        while picks.len() < missing
            && let Some((_, best)) = self
                .supplies
                .iter_mut()
                .enumerate()
                .filter(|(_, of)| of.free() > 0)
                .min_by_key(|(at, of)| (of.unfit, of.sure.is_empty(), of.held + of.picked, *at))
            && let Some(id) = best.sure.pop_front().or_else(|| best.unsure.pop_front())
        {
            best.picked += 1;
            picks.push(id);
        }
        picks
    }

    /// Takes all missing shares from one device, where they have to come from one. The flag is true if utilisation decides.
    fn of_one_device(&mut self, missing: usize) -> Option<(Vec<&'a str>, bool)> {
        let rules = self.rules;
        let fitting = self.fitting(missing);
        let rank = |of: &Supply<'_>| of.rank(missing, rules);
        let (at, best) = fitting.iter().min_by_key(|(at, of)| (rank(of), of.busy, *at))?;
        let is_tied = fitting.iter().filter(|(_, of)| rank(of) == rank(best)).count() > 1;
        let others = self
            .supplies
            .iter()
            .filter(|of| !of.unfit && !of.sharing.one_device_per_container());
        let enough = others.map(Supply::free).sum::<usize>() >= missing;
        if best.unfit && enough {
            return None;
        }
        let at = *at;
        let of = self.supplies.get(at)?;
        Some((
            of.sure.iter().chain(&of.unsure).copied().take(missing).collect(),
            is_tied,
        ))
    }

    /// Returns the devices that can give all missing shares alone; only the device of which the container has shares, if
    /// there is one.
    fn fitting(&self, missing: usize) -> Vec<(usize, &Supply<'a>)> {
        let begun = self.supplies.iter().any(|of| of.picked > 0);
        let fits = |of: &Supply<'_>| {
            of.sharing.one_device_per_container() && of.free() >= missing && (!begun || of.picked > 0)
        };
        self.supplies
            .iter()
            .enumerate()
            .filter(|(_, of)| missing > 0 && fits(of))
            .collect()
    }
}

impl<'a> Supply<'a> {
    fn free(&self) -> usize {
        self.sure.len() + self.unsure.len()
    }

    fn ids(&self, unsure: bool) -> &VecDeque<&'a str> {
        if unsure { &self.unsure } else { &self.sure }
    }

    /// Returns the rank among devices that can give all shares alone; the lowest wins.
    fn rank(&self, missing: usize, rules: ResourceRules) -> (bool, bool, i64) {
        let rank = rules.rank_of_one(self.sharing, count(self.sure.len()), count(self.held));
        (self.unfit, self.sure.len() < missing, rank)
    }
}

fn count(shares: usize) -> u32 {
    u32::try_from(shares).unwrap_or(u32::MAX)
}
