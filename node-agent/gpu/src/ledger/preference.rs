//! Which of the available shares a container had best get.
//!
//! The answer is advice to the kubelet, and an error would fail the pod: there is always an answer.

use super::{
    Ledger,
    offer::{Offered, State},
};
use crate::{DeviceSharing, device_of};
use gpunode_config::Placement;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Available shares of one device by number; those that the kubelet said to be held come last.
type Free<'a> = BTreeMap<(bool, u32), &'a str>;

/// The available shares of one device.
struct Candidate<'a> {
    sharing: DeviceSharing,
    /// GPU index, for its utilisation.
    gpu: Option<u32>,
    /// Whether shares of it had better not be given out: it is to change, or is out.
    unfit: bool,
    /// Shares that the container has already, or is to get.
    picked: usize,
    /// Shares that others hold.
    held: usize,
    /// Shares to pick from.
    free: VecDeque<&'a str>,
    /// How many of these nobody holds; they come first. The others the kubelet said to be held, and they are refused unless
    /// they were freed since.
    sure: usize,
}

/// The available shares, by device in the order of the indices.
struct Choice<'a> {
    candidates: Vec<Candidate<'a>>,
    /// Ids of a list that was sent before: the kubelet asks with what it knows.
    unknown: Vec<&'a str>,
    placement: Placement,
}

impl Ledger {
    /// `size` of the `available` ids, among them those of `must_include`; fewer where there are not enough. Where devices
    /// are equal, `busy`, the utilisation of GPUs by index in percent, decides.
    pub fn preferred(
        &self,
        resource: &str,
        available: &[String],
        must_include: &[String],
        size: usize,
        busy: &BTreeMap<u32, u32>,
    ) -> Vec<String> {
        let required: BTreeSet<&str> = must_include.iter().map(String::as_str).collect();
        let mut choice = self.choice(resource, available, &required);
        let missing = size.saturating_sub(required.len());
        let picks = choice.pick(missing, busy);
        let rest: Vec<&str> = choice.unknown.iter().copied().take(missing.saturating_sub(picks.len())).collect();
        required.into_iter().chain(picks).chain(rest).map(str::to_owned).collect()
    }

    /// Whether utilisation decides what [`Self::preferred`] answers.
    pub fn has_tie(&self, resource: &str, available: &[String], size: usize) -> bool {
        self.choice(resource, available, &BTreeSet::new()).has_tie(size)
    }

    fn choice<'a>(&self, resource: &str, available: &'a [String], required: &BTreeSet<&str>) -> Choice<'a> {
        let offered = self.offered(resource);
        let places: BTreeMap<&str, usize> = offered.iter().enumerate().map(|(at, of)| (of.uuid, at)).collect();
        let place = |id: &str| {
            let at = *places.get(device_of(id))?;
            let of = offered.get(at)?;
            Some((at, of.sharing.number(of.uuid, id)?))
        };
        let mut picked = vec![0_usize; offered.len()];
        for (at, _) in required.iter().filter_map(|id| place(id)) {
            picked.get_mut(at).into_iter().for_each(|count| *count += 1);
        }
        let mut free: Vec<Free<'a>> = vec![Free::new(); offered.len()];
        let mut unknown = BTreeSet::new();
        for id in available.iter().map(String::as_str).filter(|id| !required.contains(id)) {
            match place(id).and_then(|(at, number)| Some((free.get_mut(at)?, number))) {
                Some((free, number)) => {
                    let held = self.held.holder(&(resource.to_owned(), id.to_owned())).is_some();
                    free.insert((held, number), id);
                }
                None => _ = unknown.insert(id),
            }
        }
        let candidate = |((of, free), picked): ((&Offered<'_>, Free<'a>), usize)| {
            let sure = free.keys().filter(|(held, _)| !held).count();
            Candidate {
                sharing: of.sharing,
                gpu: of.device.map(|device| device.gpu),
                unfit: of.state != State::InForce,
                picked,
                held: of.held.len().saturating_sub(sure + picked),
                free: free.into_values().collect(),
                sure,
            }
        };
        Choice {
            candidates: offered.iter().zip(free).zip(picked).map(candidate).collect(),
            unknown: unknown.into_iter().collect(),
            placement: self.rules.get(resource).map(|rules| rules.placement).unwrap_or_default(),
        }
    }
}

impl<'a> Choice<'a> {
    fn pick(&mut self, missing: usize, busy: &BTreeMap<u32, u32>) -> Vec<&'a str> {
        if let Some(of) = self.one_device(missing, busy).and_then(|at| self.candidates.get_mut(at)) {
            return of.free.drain(..missing.min(of.free.len())).collect();
        }
        let mut picks = Vec::new();
        while picks.len() < missing {
            let Some(of) = self.next(busy).and_then(|at| self.candidates.get_mut(at)) else { break };
            picks.extend(of.take());
        }
        picks
    }

    /// The device that all missing shares come from, where they have to come from one.
    fn one_device(&self, missing: usize, busy: &BTreeMap<u32, u32>) -> Option<usize> {
        let fitting = self.fitting(missing);
        let (at, best) = fitting.into_iter().min_by_key(|(at, of)| (self.of_one(of, missing), of.busy(busy), *at))?;
        let others = self.candidates.iter().filter(|of| !of.unfit && !of.sharing.one_device_per_container());
        let enough = others.map(|of| of.free.len()).sum::<usize>() >= missing;
        (!best.unfit || !enough).then_some(at)
    }

    /// Devices of which a container's shares all come from one, and which have enough of them: the one that the container
    /// has shares of already, if any.
    fn fitting(&self, missing: usize) -> Vec<(usize, &Candidate<'a>)> {
        let begun = self.candidates.iter().any(|of| of.picked > 0);
        let fits = |of: &Candidate<'_>| {
            of.sharing.one_device_per_container() && of.free.len() >= missing && (!begun || of.picked > 0)
        };
        self.candidates.iter().enumerate().filter(|(_, of)| missing > 0 && fits(of)).collect()
    }

    /// What decides between devices that all shares would come from; less is better.
    fn of_one(&self, of: &Candidate<'_>, missing: usize) -> (bool, bool, i64) {
        let count = |shares: usize| i64::try_from(shares).unwrap_or(i64::MAX);
        let rank = match (of.sharing, self.placement) {
            (DeviceSharing::Memory { .. }, Placement::Packed) => count(of.sure),
            (DeviceSharing::Memory { .. }, Placement::Spread) => -count(of.sure),
            _ => count(of.held),
        };
        (of.unfit, of.sure < missing, rank)
    }

    /// The device that the next share had best come from: one that gave none yet, then the one of which least is held.
    fn next(&self, busy: &BTreeMap<u32, u32>) -> Option<usize> {
        let open = self.candidates.iter().enumerate().filter(|(_, of)| !of.free.is_empty());
        open.min_by_key(|(at, of)| (of.of_many(), of.busy(busy), *at)).map(|(at, _)| at)
    }

    fn has_tie(&mut self, size: usize) -> bool {
        let nobody = BTreeMap::new();
        if let Some(of) = self.one_device(size, &nobody).and_then(|at| self.candidates.get(at)) {
            let best = self.of_one(of, size);
            return self.fitting(size).iter().filter(|(_, of)| self.of_one(of, size) == best).count() > 1;
        }
        for missing in (1..=size).rev() {
            let Some(at) = self.next(&nobody) else { break };
            let Some(best) = self.candidates.get(at).map(Candidate::of_many) else { break };
            let equal = |of: &&Candidate<'_>| !of.free.is_empty() && of.of_many() == best;
            let shared = |of: &&Candidate<'_>| of.sharing != DeviceSharing::Whole;
            // Where all equals are picked, it does not matter which is first.
            if self.candidates.iter().filter(equal).filter(shared).count() > missing {
                return true;
            }
            self.candidates.get_mut(at).and_then(Candidate::take);
        }
        false
    }
}

impl<'a> Candidate<'a> {
    fn of_many(&self) -> (bool, bool, bool, usize, usize) {
        (self.unfit, self.sure == 0, self.sharing.one_device_per_container(), self.picked, self.held)
    }

    fn take(&mut self) -> Option<&'a str> {
        self.picked += 1;
        self.sure = self.sure.saturating_sub(1);
        self.free.pop_front()
    }

    /// Utilisation of its GPU; that of a whole GPU, which nobody uses, decides nothing.
    fn busy(&self, busy: &BTreeMap<u32, u32>) -> u32 {
        if self.sharing == DeviceSharing::Whole {
            return 0;
        }
        self.gpu.and_then(|gpu| busy.get(&gpu)).copied().unwrap_or_default()
    }
}
