//! MIG of a GPU as programs change it: mode, instances, and what a reset or a boot leaves of them.
//!
//! The rules are those of `nvml.h` and of NVIDIA's MIG User Guide. Boards before Hopper keep the mode in the board and need a
//! reset to change it; Hopper and newer change it at once and forget it with the driver. No board keeps instances.

use serde::{Deserialize, Serialize};

use crate::{Board, ComputeInstance, ComputeProfile, Gpu, GpuInstance, MigProfile, ReturnCode, Scenario, mig};

/// MIG of one GPU, from the first change by a program on. Until then it is what the scenario says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MigState {
    /// The mode is on.
    pub enabled: bool,
    /// Mode after the next reset or boot; none: as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<bool>,
    /// Minor number since a reset for the mode; none: that of the scenario.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// Number of instances that programs have ever created, of GPUs and of compute. It only grows.
    pub created: u64,
    /// GPU instances by id.
    pub instances: Vec<GpuInstanceRecord>,
}

/// A GPU instance, without what its profile tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuInstanceRecord {
    /// Its id, which follows from its place: a later instance at that place has it too.
    pub id: u32,
    /// Profile id.
    pub profile: u32,
    /// First memory slice.
    pub start: u32,
    /// Value of [`MigState::created`] when it was created; 0 for those of the scenario.
    pub serial: u64,
    /// Its compute instances by id.
    pub compute_instances: Vec<ComputeInstanceRecord>,
}

/// A compute instance, without what its profile tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ComputeInstanceRecord {
    /// Its id within the GPU instance: the lowest that was free.
    pub id: u32,
    /// Profile id.
    pub profile: u32,
    /// First compute slice.
    pub start: u32,
    /// Value of [`MigState::created`] when it was created; 0 for those of the scenario.
    pub serial: u64,
    /// UUID of the MIG device.
    pub uuid: String,
}

/// An id, and which of the instances that have ever had it.
pub type InstanceKey = (u32, u64);

impl MigState {
    /// The state of a GPU that no program has changed.
    pub(crate) fn of(gpu: &Gpu) -> Self {
        let compute = |compute: &ComputeInstance| ComputeInstanceRecord {
            id: compute.id,
            profile: compute.profile.kind,
            start: compute.start,
            serial: compute.serial,
            uuid: compute.uuid.clone(),
        };
        let record = |instance: &GpuInstance| GpuInstanceRecord {
            id: instance.id,
            profile: instance.profile.id,
            start: instance.start,
            serial: instance.serial,
            compute_instances: instance.compute_instances.iter().map(compute).collect(),
        };
        MigState {
            enabled: gpu.mig.is_some(),
            pending: None,
            minor: None,
            created: 0,
            instances: gpu.mig.iter().flatten().map(record).collect(),
        }
    }

    /// The instances on a board, as [`Gpu::mig`] has them. Profiles that the board lacks are left out: the scenario was
    /// replaced.
    pub(crate) fn on(&self, board: &Board) -> Option<Vec<GpuInstance>> {
        let profiles = board.mig_profiles();
        let instance = |record: &GpuInstanceRecord| {
            let profile = profiles.iter().find(|profile| profile.id == record.profile)?;
            let kinds = profile.compute_profiles();
            let compute = |record: &ComputeInstanceRecord| {
                Some(ComputeInstance {
                    id: record.id,
                    profile: kinds.iter().find(|kind| kind.kind == record.profile)?.clone(),
                    start: record.start,
                    serial: record.serial,
                    uuid: record.uuid.clone(),
                })
            };
            Some(GpuInstance {
                id: record.id,
                profile: profile.clone(),
                start: record.start,
                serial: record.serial,
                compute_instances: record.compute_instances.iter().filter_map(compute).collect(),
            })
        };
        self.enabled
            .then(|| self.instances.iter().filter_map(instance).collect())
    }

    /// Changes the mode, as a success with nothing left pending.
    pub fn set_mode(&mut self, enabled: bool) {
        if self.enabled != enabled {
            self.instances.clear();
        }
        self.enabled = enabled;
        self.pending = None;
    }

    /// Resets the GPU: a pending mode comes into force, and no instance is left.
    pub(crate) fn reset(&mut self) {
        self.instances.clear();
        self.enabled = self.pending.take().unwrap_or(self.enabled);
    }

    /// Loads the driver anew, as a boot does.
    pub(crate) fn reload(&mut self, board: &Board) {
        self.reset();
        self.enabled = self.enabled && board.keeps_mig_mode();
        self.minor = None;
    }

    /// The number of instances of a profile that could be created beside those that exist.
    pub fn remaining(&self, board: &Board, profile: &MigProfile) -> u32 {
        let profiles = board.mig_profiles();
        let used: u32 = self.pieces(&profiles).map(|piece| piece.profile.slices).sum();
        let slices_left = board.max_mig_devices.saturating_sub(used);
        let existing = self
            .instances
            .iter()
            .filter(|record| record.profile == profile.id)
            .count();
        let places = length(self.free_starts(&profiles, profile).len());
        places
            .min(slices_left / profile.slices.max(1))
            .min(profile.max_instances.saturating_sub(length(existing)))
    }

    /// Creates a GPU instance at `start`, or where it leaves most places for others, as NVIDIA's driver does.
    pub fn create_instance(
        &mut self,
        board: &Board,
        profile: &MigProfile,
        start: Option<u32>,
    ) -> Result<InstanceKey, ReturnCode> {
        if !self.enabled {
            return Err(ReturnCode::NotSupported);
        }
        if start.is_some_and(|start| !profile.starts.contains(&start)) {
            return Err(ReturnCode::InvalidArgument);
        }
        let profiles = board.mig_profiles();
        let mut free = self.free_starts(&profiles, profile);
        free.retain(|place| start.is_none_or(|start| start == *place));
        let best = free
            .into_iter()
            .min_by_key(|place| self.blocked(&profiles, mask(*place, profile.size)));
        let Some(start) = best.filter(|_| self.remaining(board, profile) > 0) else {
            return Err(ReturnCode::InsufficientResources);
        };
        self.created += 1;
        let record = GpuInstanceRecord {
            id: mig::instance_id(board, profile, start),
            profile: profile.id,
            start,
            serial: self.created,
            compute_instances: Vec::new(),
        };
        let key = (record.id, record.serial);
        self.instances.push(record);
        self.instances.sort_by_key(|record| record.id);
        Ok(key)
    }

    /// Destroys a GPU instance, unless compute instances are left in it.
    pub fn destroy_instance(&mut self, key: InstanceKey) -> Result<(), ReturnCode> {
        if !self.instance(key)?.compute_instances.is_empty() {
            return Err(ReturnCode::InUse);
        }
        self.instances.retain(|record| (record.id, record.serial) != key);
        Ok(())
    }

    /// Creates a compute instance of a GPU instance, at `start` or at the first free place.
    pub fn create_compute_instance(
        &mut self,
        scenario: &Scenario,
        gpu: &Gpu,
        key: InstanceKey,
        profile: &ComputeProfile,
        start: Option<u32>,
    ) -> Result<InstanceKey, ReturnCode> {
        if start.is_some_and(|start| !profile.starts.contains(&start)) {
            return Err(ReturnCode::InvalidArgument);
        }
        let serial = self.created + 1;
        let record = self.instance(key)?;
        let mut free = record.free_starts(gpu.board, profile);
        free.retain(|place| start.is_none_or(|start| start == *place));
        let Some(start) = free.first().copied() else {
            return Err(ReturnCode::InsufficientResources);
        };
        let is_free = |id: &u32| record.compute_instances.iter().all(|compute| compute.id != *id);
        let id = (0..=u32::MAX).find(is_free).unwrap_or_default();
        let uuid = scenario.mig_uuid(gpu, (key.0, id), &profile.name, serial);
        record.compute_instances.push(ComputeInstanceRecord {
            id,
            profile: profile.kind,
            start,
            serial,
            uuid,
        });
        record.compute_instances.sort_by_key(|compute| compute.id);
        self.created = serial;
        Ok((id, serial))
    }

    /// The number of compute instances of a profile that could be created beside those that exist in a GPU instance.
    pub fn remaining_compute(&self, board: &Board, key: InstanceKey, profile: &ComputeProfile) -> u32 {
        let record = self.instances.iter().find(|record| (record.id, record.serial) == key);
        record.map_or(0, |record| length(record.free_starts(board, profile).len()))
    }

    /// Destroys a compute instance.
    pub fn destroy_compute_instance(&mut self, key: InstanceKey, compute: InstanceKey) -> Result<(), ReturnCode> {
        let computes = &mut self.instance(key)?.compute_instances;
        let before = computes.len();
        computes.retain(|record| (record.id, record.serial) != compute);
        if computes.len() == before {
            return Err(ReturnCode::InvalidArgument);
        }
        Ok(())
    }

    /// A handle of what is gone names nothing, also where the id is used again.
    fn instance(&mut self, key: InstanceKey) -> Result<&mut GpuInstanceRecord, ReturnCode> {
        self.instances
            .iter_mut()
            .find(|record| (record.id, record.serial) == key)
            .ok_or(ReturnCode::InvalidArgument)
    }

    fn pieces<'a>(&'a self, profiles: &'a [MigProfile]) -> impl Iterator<Item = Piece<'a>> {
        self.instances.iter().filter_map(move |record| {
            let profile = profiles.iter().find(|profile| profile.id == record.profile)?;
            let start = record.start;
            Some(Piece { profile, start })
        })
    }

    /// Memory slices at which an instance of a profile could begin.
    fn free_starts(&self, profiles: &[MigProfile], profile: &MigProfile) -> Vec<u32> {
        let taken = self
            .pieces(profiles)
            .fold(0, |taken, piece| taken | mask(piece.start, piece.profile.size));
        let starts = profile.starts.iter().copied();
        starts.filter(|start| taken & mask(*start, profile.size) == 0).collect()
    }

    /// The number of places, of instances of any profile, that would be gone with these memory slices.
    fn blocked(&self, profiles: &[MigProfile], slices: u32) -> usize {
        let places = profiles.iter().flat_map(|profile| {
            let starts = self.free_starts(profiles, profile).into_iter();
            starts.map(move |start| mask(start, profile.size))
        });
        places.filter(|place| place & slices != 0).count()
    }
}

/// A GPU instance on the axis of memory slices.
struct Piece<'a> {
    profile: &'a MigProfile,
    start: u32,
}

impl GpuInstanceRecord {
    /// Compute slices at which a compute instance of a profile could begin.
    fn free_starts(&self, board: &Board, profile: &ComputeProfile) -> Vec<u32> {
        let own = board.mig_profiles().into_iter().find(|own| own.id == self.profile);
        let kinds = own.map(|own| own.compute_profiles()).unwrap_or_default();
        let taken = self.compute_instances.iter().fold(0, |taken, compute| {
            let kind = kinds.iter().find(|kind| kind.kind == compute.profile);
            taken | kind.map_or(0, |kind| mask(compute.start, kind.slices))
        });
        let starts = profile.starts.iter().copied();
        starts
            .filter(|start| taken & mask(*start, profile.slices) == 0)
            .collect()
    }
}

/// Slices as bits.
fn mask(start: u32, length: u32) -> u32 {
    ((1 << length) - 1) << start
}

fn length(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MigGroup, MigUuids, Topology};

    const A100: &str = "NVIDIA A100-SXM4-80GB";
    const H100: &str = "NVIDIA H100 80GB HBM3";
    const A30: &str = "NVIDIA A30";

    /// An empty GPU with the mode on.
    fn empty(board: &str) -> (&'static Board, MigState) {
        let enabled = MigState {
            enabled: true,
            ..MigState::default()
        };
        (Board::named(board).unwrap(), enabled)
    }

    fn profile(board: &Board, name: &str) -> MigProfile {
        let mut profiles = board.mig_profiles().into_iter();
        profiles.find(|profile| profile.name == name).unwrap()
    }

    fn create(board: &Board, state: &mut MigState, name: &str) -> Result<u32, ReturnCode> {
        let key = state.create_instance(board, &profile(board, name), None)?;
        Ok(key.0)
    }

    /// As the MIG User Guide shows for `nvidia-smi mig -cgi`.
    #[test]
    fn instances_go_where_they_leave_most_places_for_others() {
        let (board, mut state) = empty(A100);
        let small: Vec<_> = (0..7).map(|_| create(board, &mut state, "1g.10gb").unwrap()).collect();
        assert_eq!(small, [13, 11, 12, 7, 8, 9, 10]);
        let (board, mut state) = empty(A100);
        assert_eq!(create(board, &mut state, "3g.40gb"), Ok(2));
        assert_eq!(create(board, &mut state, "3g.40gb"), Ok(1));
        let (board, mut state) = empty(A30);
        assert_eq!(create(board, &mut state, "4g.24gb"), Ok(0));
    }

    #[test]
    fn an_instance_needs_a_free_place_free_slices_and_its_own_limit() {
        let (board, mut state) = empty(A100);
        let remaining = |state: &MigState, name: &str| state.remaining(board, &profile(board, name));
        assert_eq!(
            ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"].map(|name| remaining(&state, name)),
            [7, 4, 3, 2, 1, 1]
        );
        let large = profile(board, "3g.40gb");
        state.create_instance(board, &large, Some(0)).unwrap();
        assert_eq!(
            state.create_instance(board, &large, Some(0)),
            Err(ReturnCode::InsufficientResources)
        );
        assert_eq!(
            state.create_instance(board, &large, Some(2)),
            Err(ReturnCode::InvalidArgument)
        );
        assert_eq!(
            create(board, &mut state, "4g.40gb"),
            Err(ReturnCode::InsufficientResources),
            "3g at 0 is where 4g would be"
        );
        create(board, &mut state, "3g.40gb").unwrap();
        // A compute slice is left, and no memory.
        assert_eq!(
            ["1g.10gb", "3g.40gb"].map(|name| remaining(&state, name)),
            [0, 0],
            "the memory is full"
        );
        let (board, mut state) = empty(A100);
        create(board, &mut state, "1g.10gb+me").unwrap();
        assert_eq!(
            create(board, &mut state, "1g.10gb+me"),
            Err(ReturnCode::InsufficientResources)
        );
        assert_eq!(state.remaining(board, &profile(board, "1g.10gb")), 6);
    }

    #[test]
    fn every_sum_of_slices_stays_within_the_board() {
        for board in Board::all().iter().filter(|board| board.max_mig_devices > 0) {
            for first in board.mig_profiles() {
                let (_, mut state) = empty(board.name);
                state.create_instance(board, &first, None).unwrap();
                for second in board.mig_profiles() {
                    while state.create_instance(board, &second, None).is_ok() {}
                    assert_eq!(state.remaining(board, &second), 0);
                }
                let instances = state.on(board).unwrap();
                let slices: u32 = instances.iter().map(|instance| instance.profile.slices).sum();
                assert!(slices <= board.max_mig_devices, "{}: {instances:?}", board.name);
                let ids: std::collections::BTreeSet<_> = instances.iter().map(|instance| instance.id).collect();
                assert_eq!(ids.len(), instances.len(), "{}: {instances:?}", board.name);
                let memory = instances.iter().fold(0, |taken, instance| {
                    let own = mask(instance.start, instance.profile.size);
                    assert_eq!(taken & own, 0, "{}: {instances:?}", board.name);
                    taken | own
                });
                assert!(memory < 1 << 8);
            }
        }
    }

    fn node(uuids: MigUuids) -> (Scenario, Gpu) {
        let mut scenario = Scenario::new("n", A100, 1, Topology::NvSwitch);
        scenario.mig_uuids = uuids;
        scenario.mig = vec![MigGroup {
            gpus: vec![0],
            instances: vec!["2g.20gb".to_owned()],
        }];
        let gpu = scenario.gpus().unwrap().remove(0);
        (scenario, gpu)
    }

    /// UUIDs of the one that the scenario has, and of another with its place and profile, created later.
    fn uuids_of_two(uuids: MigUuids) -> [String; 2] {
        let (scenario, gpu) = node(uuids);
        let mut state = MigState::of(&gpu);
        let first = state.instances[0].clone();
        let key = (first.id, first.serial);
        assert_eq!(state.destroy_instance(key), Err(ReturnCode::InUse));
        let computes = &first.compute_instances[0];
        state
            .destroy_compute_instance(key, (computes.id, computes.serial))
            .unwrap();
        state.destroy_instance(key).unwrap();
        assert_eq!(state.destroy_instance(key), Err(ReturnCode::InvalidArgument));

        let profile = profile(gpu.board, "2g.20gb");
        let again = state.create_instance(gpu.board, &profile, Some(first.start)).unwrap();
        assert_eq!(again.0, key.0, "the id is used again");
        assert_eq!(
            state.destroy_instance(key),
            Err(ReturnCode::InvalidArgument),
            "an old handle does not destroy what has its id now"
        );
        let whole = profile.compute_profiles().into_iter().next_back().unwrap();
        state
            .create_compute_instance(&scenario, &gpu, again, &whole, None)
            .unwrap();
        [&first, &state.instances[0]].map(|instance| instance.compute_instances[0].uuid.clone())
    }

    #[test]
    fn uuids_come_back_with_the_same_place_or_never() {
        let [before, after] = uuids_of_two(MigUuids::Returning);
        assert_eq!(before, after);
        let [before, after] = uuids_of_two(MigUuids::New);
        assert_ne!(before, after);
        assert!(after.starts_with("MIG-") && after.len() == 40, "{after}");
    }

    #[test]
    fn compute_instances_share_the_slices_of_their_gpu_instance() {
        let (scenario, gpu) = node(MigUuids::Returning);
        let (board, mut state) = empty(A100);
        let three = profile(board, "3g.40gb");
        let key = state.create_instance(board, &three, None).unwrap();
        let kinds = three.compute_profiles();
        let create = |state: &mut MigState, kind: usize, start| {
            state.create_compute_instance(&scenario, &gpu, key, &kinds[kind], start)
        };
        let one = create(&mut state, 0, None).unwrap();
        assert_eq!(create(&mut state, 2, None), Err(ReturnCode::InsufficientResources));
        assert_eq!(create(&mut state, 1, Some(1)), Err(ReturnCode::InvalidArgument));
        assert_eq!(state.remaining_compute(board, key, &kinds[0]), 2);
        let two = create(&mut state, 0, None).unwrap();
        assert_eq!([one.0, two.0], [0, 1]);
        state.destroy_compute_instance(key, one).unwrap();
        assert_eq!(create(&mut state, 0, None).unwrap().0, 0, "the id is used again");
    }

    #[test]
    fn the_mode_outlives_a_boot_on_boards_before_hopper_alone_and_instances_on_none() {
        for (name, kept) in [(A100, true), (A30, true), (H100, false), ("NVIDIA B200", false)] {
            let (board, mut state) = empty(name);
            let first = board.mig_profiles().remove(0);
            state.create_instance(board, &first, None).unwrap();
            let mut reset = state.clone();
            reset.reset();
            assert_eq!((reset.enabled, reset.instances.len()), (true, 0), "{name}");
            state.reload(board);
            assert_eq!((state.enabled, state.instances.len()), (kept, 0), "{name}");
            assert_eq!(state.created, 1, "{name}");
        }
        let (board, mut state) = empty(A100);
        state.pending = Some(false);
        state.reload(board);
        assert_eq!(state.pending, None);
        assert!(!state.enabled);
    }
}
