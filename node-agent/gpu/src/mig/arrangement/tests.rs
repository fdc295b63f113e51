//! The instances that stay, against every way to place a layout.

use super::*;
use crate::{ComputeInstance, GpuVirtualization};
use gpunode_mig::{MigBoard, MigGeometry};
use proptest::{prelude::*, sample::Index};
use std::sync::LazyLock;

/// All sets of instances that a board can have.
struct Packings {
    geometry: MigGeometry,
    sets: Vec<Packing>,
}

struct Packing {
    instances: Vec<PlacedInstance>,
    layout: MigLayout,
    room: Vec<u32>,
}

/// The board with fewest places, with all profiles, and one with most, with those that its layouts are usually made of.
static PACKINGS: LazyLock<[Packings; 2]> = LazyLock::new(|| {
    let usual = ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"];
    [
        Packings::of("A30", |_| true),
        Packings::of("A100-80GB", |name| usual.contains(&name)),
    ]
});

impl Packings {
    fn of(board: &str, has: impl Fn(&str) -> bool) -> Self {
        let mut geometry = MigBoard::named(board).unwrap().geometry;
        geometry.profiles.retain(|profile| has(&profile.name));
        let mut sets = vec![Vec::new()];
        for profile in &geometry.profiles {
            for placement in &profile.placements {
                let instance = PlacedInstance {
                    placement: *placement,
                    profile: profile.id,
                };
                let fitting = sets.iter().filter(|set| can_join(&geometry, set, instance));
                let with: Vec<_> = fitting.map(|set| [set.as_slice(), &[instance]].concat()).collect();
                sets.extend(with);
            }
        }
        let packing = |instances: Vec<PlacedInstance>| {
            let layout = layout(&geometry, &instances);
            let present = instances.iter().map(|instance| (*instance, true));
            let placed = place(&geometry, &layout, &present_instances(present)).unwrap();
            Packing {
                instances,
                layout,
                room: placed.room,
            }
        };
        let sets = sets.into_iter().map(packing).collect();
        Self { geometry, sets }
    }
}

/// Instances, and whether they are in use.
fn present_instances(instances: impl Iterator<Item = (PlacedInstance, bool)>) -> Vec<PresentInstance> {
    instances
        .map(|(instance, in_use)| PresentInstance { instance, in_use })
        .collect()
}

fn can_join(geometry: &MigGeometry, set: &[PlacedInstance], instance: PlacedInstance) -> bool {
    let in_use = set.iter().map(|instance| (*instance, true));
    let present = present_instances(in_use.chain([(instance, false)]));
    let all = [set, &[instance]].concat();
    place(geometry, &layout(geometry, &all), &present).is_some_and(|placed| placed.kept.contains(&instance))
}

fn layout(geometry: &MigGeometry, instances: &[PlacedInstance]) -> MigLayout {
    let names = instances
        .iter()
        .map(|instance| geometry.profile(instance.profile).unwrap().name.as_str());
    MigLayout::of_profiles(names.map(|name| (name, 1)), geometry).unwrap()
}

fn gpu(geometry: &MigGeometry, instances: &[PlacedInstance]) -> GpuMigState {
    let instance = |(id, placed): (u32, &PlacedInstance)| GpuInstance {
        id,
        placed: *placed,
        compute: vec![ComputeInstance {
            id: 0,
            uuid: None,
            fills: true,
        }],
    };
    GpuMigState {
        enabled: true,
        pending: true,
        mode_needs_reset: true,
        virtualization: GpuVirtualization::None,
        geometry: geometry.clone(),
        instances: (1..).zip(instances).map(instance).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn most_instances_in_use_stay_then_most_instances_then_those_that_leave_most_room(
        board in any::<Index>(),
        there in any::<Index>(),
        wanted in any::<Index>(),
        in_use in any::<u8>(),
    ) {
        let Packings { geometry, sets } = board.get(PACKINGS.as_slice());
        let there = &there.get(sets.as_slice()).instances;
        let wanted = &wanted.get(sets.as_slice()).layout;
        let is_in_use = |placed: &PlacedInstance| {
            there.iter().position(|other| other == placed).is_some_and(|at| in_use >> at & 1 == 1)
        };
        // In use, and all.
        let staying = |set: &[PlacedInstance]| {
            let stay = || set.iter().filter(|instance| there.contains(instance));
            (stay().filter(|instance| is_in_use(instance)).count(), stay().count())
        };
        let found = arrange(&gpu(geometry, there), wanted, |instance| is_in_use(&instance.placed));
        let found = found.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let fitting = sets.iter().filter(|set| set.layout == *wanted);
        let best = fitting.map(|set| (staying(&set.instances), &set.room)).max();
        prop_assert_eq!(Some((staying(&found.kept), &found.room)), best);
        prop_assert_eq!(found.kept.len(), staying(&found.kept).1);
        prop_assert_eq!(&layout(geometry, &found.instances()), wanted);
    }
}
