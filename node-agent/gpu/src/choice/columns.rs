//! Devices by GPU, and the shares that are settled before GPUs compare.

use super::{
    level::level,
    pool::{CandidateDevice, CandidatePool, GpuLoad},
};
use gpunode_config::Allocation;

/// The GPUs, and the units that the search deals among them: shares that have a choice.
#[derive(Debug, Default)]
pub struct Columns {
    /// The GPUs by index, then those that the driver does not list.
    pub gpus: Vec<Column>,
    /// Number of units to pick.
    pub units: u32,
    /// Shares of each candidate that have no choice.
    settled: Vec<u32>,
    /// Number of units of each candidate.
    open: Vec<u32>,
}

/// One GPU.
#[derive(Debug, Default)]
pub struct Column {
    /// Its place in the scores.
    pub place: Option<usize>,
    /// Candidates that are this GPU or a part of it.
    pub devices: Vec<usize>,
    /// True if the container has a share of it or gets one in any case.
    pub given: bool,
    /// Number of its units to pick from.
    pub units: u32,
    /// Its load by other containers.
    pub load: GpuLoad,
}

impl Columns {
    /// Returns the columns of a pool for a request of `size` shares.
    pub fn new(pool: &CandidatePool<'_>, size: u32) -> Self {
        let all = pool
            .devices
            .iter()
            .map(|device| device.free)
            .fold(0, u32::saturating_add);
        let size = size.min(all);
        let mut columns = match pool.allocation {
            Allocation::Packed => Self {
                gpus: Vec::new(),
                units: size,
                settled: vec![0; pool.devices.len()],
                open: pool.devices.iter().map(|device| device.free).collect(),
            },
            Allocation::Topology | Allocation::Spread => {
                let devices: Vec<(u32, u32)> = pool.devices.iter().map(|of| (of.has, of.free)).collect();
                let dealt = level(&devices, size);
                let open = dealt.open.into_iter().map(u32::from).collect();
                Self {
                    gpus: Vec::new(),
                    units: dealt.left,
                    settled: dealt.added,
                    open,
                }
            }
        };
        columns.gpus = columns.by_gpu(pool);
        if pool.allocation == Allocation::Spread {
            columns.level_gpus(pool);
        }
        columns
    }

    fn by_gpu(&self, pool: &CandidatePool<'_>) -> Vec<Column> {
        let mut listed: Vec<Column> = (0..pool.scores.gpus()).map(|place| column(pool, Some(place))).collect();
        let mut others = Vec::new();
        for (at, device) in pool.devices.iter().enumerate() {
            let of = if let Some(known) = device.gpu.and_then(|place| listed.get_mut(place)) {
                known
            } else {
                others.push(column(pool, None));
                let Some(new) = others.last_mut() else { continue };
                new
            };
            of.devices.push(at);
            of.given |= device.has > 0 || self.settled.get(at).is_some_and(|settled| *settled > 0);
            of.units = of.units.saturating_add(self.open.get(at).copied().unwrap_or_default());
        }
        listed
            .into_iter()
            .chain(others)
            .filter(|of| !of.devices.is_empty())
            .collect()
    }

    /// Settles units so that no GPU gives more than it has to; the rest comes one by one from equal GPUs.
    fn level_gpus(&mut self, pool: &CandidatePool<'_>) {
        let has = |at: &usize| {
            let has = pool.devices.get(*at).map_or(0, |device| device.has);
            has.saturating_add(self.settled.get(*at).copied().unwrap_or_default())
        };
        let heights = self
            .gpus
            .iter()
            .map(|gpu| (gpu.devices.iter().map(has).fold(0, u32::saturating_add), gpu.units));
        let dealt = level(&heights.collect::<Vec<_>>(), self.units);
        self.units = dealt.left;
        for ((at, added), open) in dealt.added.iter().enumerate().zip(dealt.open) {
            let shares = self.of_gpu(pool, at, *added);
            for (device, shares) in shares {
                self.settled
                    .get_mut(device)
                    .into_iter()
                    .for_each(|settled| *settled += shares);
                self.open.get_mut(device).into_iter().for_each(|open| *open -= shares);
            }
            let Some(gpu) = self.gpus.get_mut(at) else { continue };
            gpu.given |= *added > 0;
            gpu.units = u32::from(open);
        }
    }

    /// Returns the number of shares of each candidate for this number of units of each GPU.
    pub fn shares(&self, pool: &CandidatePool<'_>, units: &[u32]) -> Vec<u32> {
        let mut shares = self.settled.clone();
        for (at, units) in units.iter().enumerate() {
            for (device, picked) in self.of_gpu(pool, at, *units) {
                shares.get_mut(device).into_iter().for_each(|shares| *shares += picked);
            }
        }
        shares
    }

    /// Returns the shares for this number of units of a GPU: from the device with the fewest held shares first, or with the
    /// most under `Packed`.
    fn of_gpu(&self, pool: &CandidatePool<'_>, gpu: usize, units: u32) -> Vec<(usize, u32)> {
        let Some(gpu) = self.gpus.get(gpu).filter(|_| units > 0) else {
            return Vec::new();
        };
        let mut devices = gpu.devices.clone();
        let held = |at: usize| {
            pool.devices
                .get(at)
                .map_or(0, |device: &CandidateDevice| i64::from(device.held))
        };
        let packed = pool.allocation == Allocation::Packed;
        devices.sort_by_key(|at| (if packed { -held(*at) } else { held(*at) }, *at));
        let mut left = units;
        let take = |at: usize| {
            let shares = self.open.get(at).copied().unwrap_or_default().min(left);
            left -= shares;
            (at, shares)
        };
        devices.into_iter().map(take).collect()
    }
}

fn column(pool: &CandidatePool<'_>, place: Option<usize>) -> Column {
    let load = place
        .and_then(|place| pool.loads.get(place))
        .copied()
        .unwrap_or_default();
    Column {
        place,
        load,
        ..Column::default()
    }
}
