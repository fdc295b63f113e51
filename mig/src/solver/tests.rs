use super::*;
use crate::{
    boards::MigBoard,
    instances::parse_instances,
    limits::{largest_first, largest_fitting},
    profile::GpuInstanceProfile,
};
use proptest::{prelude::*, sample::Index};
use std::{collections::HashMap, sync::LazyLock};

fn geometry(board: &str) -> MigGeometry {
    MigBoard::named(board).unwrap().geometry
}

fn present(geometry: &MigGeometry, names: &[&str], in_use: bool) -> Vec<PresentInstance> {
    let instances = parse_instances(names, geometry).unwrap();
    instances
        .into_iter()
        .map(|instance| PresentInstance { instance, in_use })
        .collect()
}

/// Solves with instances in use and idle ones, and writes the result.
fn solved(board: &str, layout: &str, in_use: &[&str], idle: &[&str]) -> String {
    let geometry = geometry(board);
    let layout = MigLayout::parse(layout, &geometry).unwrap();
    let there = [present(&geometry, in_use, true), present(&geometry, idle, false)].concat();
    match solve(&geometry, &layout, &there) {
        Ok(placed) => [
            ("keep", &placed.kept),
            ("create", &placed.created),
            ("surplus", &placed.surplus),
            ("remove", &placed.removed),
        ]
        .into_iter()
        .filter(|(_, instances)| !instances.is_empty())
        .map(|(verb, instances)| {
            let names: Vec<_> = instances
                .iter()
                .map(|instance| geometry.instance_name(instance))
                .collect();
            format!("{verb} {}", names.join(" "))
        })
        .collect::<Vec<_>>()
        .join(", "),
        Err(error) => error.to_string(),
    }
}

#[test]
fn instances_go_where_the_largest_profile_stays_possible() {
    for (layout, placed) in [
        ("1g.10gb:3,4g.40gb:1", "create 4g.40gb@0 1g.10gb@4 1g.10gb@5 1g.10gb@6"),
        ("3g.40gb:1,4g.40gb:1", "create 4g.40gb@0 3g.40gb@4"),
        // A 4g can only begin at 0, and beside it a 2g only at 4.
        ("1g.10gb:1", "create 1g.10gb@6"),
        ("3g.40gb:1", "create 3g.40gb@4"),
        ("2g.20gb:1", "create 2g.20gb@4"),
        ("1g.10gb:1,2g.20gb:1", "create 2g.20gb@4 1g.10gb@6"),
        ("7g.80gb:1", "create 7g.80gb@0"),
        ("{}", ""),
    ] {
        assert_eq!(solved("A100-80GB", layout, &[], &[]), placed, "{layout}");
    }
}

#[test]
fn instances_that_stay_keep_their_place_and_count_as_wanted() {
    for (layout, in_use, idle, result) in [
        (
            "1g.10gb:1,2g.20gb:1,4g.40gb:1",
            ["4g.40gb@0", "1g.10gb@6"].as_slice(),
            ["1g.10gb@4", "1g.10gb@5"].as_slice(),
            "keep 4g.40gb@0 1g.10gb@6, create 2g.20gb@4, remove 1g.10gb@4 1g.10gb@5",
        ),
        // An idle instance keeps its place too, even where that leaves less room.
        ("1g.10gb:1", &[], &["1g.10gb@0"], "keep 1g.10gb@0"),
        ("2g.20gb:1", &["1g.10gb@0"], &[], "create 2g.20gb@2, surplus 1g.10gb@0"),
        (
            "1g.10gb:1",
            &["1g.10gb@1", "1g.10gb@5"],
            &["1g.10gb@6"],
            "keep 1g.10gb@1, surplus 1g.10gb@5, remove 1g.10gb@6",
        ),
        ("{}", &[], &["7g.80gb@0"], "remove 7g.80gb@0"),
    ] {
        assert_eq!(
            solved("A100-80GB", layout, in_use, idle),
            result,
            "{layout} {in_use:?} {idle:?}"
        );
    }
}

#[test]
fn what_does_not_fit_has_a_reason_and_a_layout_that_does() {
    for (board, layout, in_use, error) in [
        (
            "A100-80GB",
            "3g.40gb:2,1g.10gb:1",
            [].as_slice(),
            "it needs 9 memory slices, and a GPU has 8; the nearest layout that fits is 3g.40gb:2",
        ),
        (
            "A100-80GB",
            "4g.40gb:2",
            &[],
            "a GPU has at most 1 x 4g.40gb, and 2 are wanted; the nearest layout that fits is 3g.40gb:1,4g.40gb:1",
        ),
        (
            "A100-80GB",
            "2g.20gb:3,1g.10gb:2",
            &[],
            "it needs 8 compute slices, and a GPU has 7; the nearest layout that fits is 1g.10gb:1,2g.20gb:3",
        ),
        (
            "A100-80GB",
            "1g.10gb:4000000000",
            &[],
            "a GPU has at most 7 x 1g.10gb, and 4000000000 are wanted; the nearest layout that fits is 1g.10gb:7",
        ),
        (
            "A30",
            "1g.6gb+me:1,2g.12gb+me:1",
            &[],
            "1g.6gb+me and 2g.12gb+me need the same media engines, which a GPU has once; the nearest layout that fits \
             is 1g.6gb:1,2g.12gb+me:1",
        ),
        // Double memory at the last two slices would leave six places for a 1g.
        (
            "A100-80GB",
            "1g.10gb:6,1g.20gb:1",
            &["1g.20gb@4"],
            "it fits a GPU that is free, but not around what is in use: 1g.20gb@4; the nearest layout that fits is \
             1g.10gb:5,1g.20gb:1",
        ),
        (
            "A100-80GB",
            "1g.10gb:1,2g.20gb:1,4g.40gb:1",
            &["4g.40gb@0", "1g.10gb@4"],
            "it fits a GPU that is free, but not around what is in use: 1g.10gb@4; the nearest layout that fits is \
             1g.10gb:1,1g.20gb:1,4g.40gb:1",
        ),
        (
            "A100-80GB",
            "4g.40gb:1",
            &["1g.10gb@0"],
            "it fits a GPU that is free, but not around what is in use: 1g.10gb@0; the nearest layout that fits is \
             3g.40gb:1",
        ),
        (
            "A100-80GB",
            "1g.10gb:1",
            &["7g.80gb@0"],
            "it fits a GPU that is free, but not around what is in use: 7g.80gb@0; nothing of it fits",
        ),
    ] {
        assert_eq!(solved(board, layout, in_use, &[]), error, "{board} {layout} {in_use:?}");
    }
}

#[test]
fn places_can_be_missing_although_slices_are_left() {
    let mut geometry = geometry("A100-80GB");
    for profile in &mut geometry.profiles {
        profile.placements.retain(|placement| placement.start == 0);
    }
    let layout = MigLayout::parse("1g.10gb:1,2g.20gb:1", &geometry).unwrap();
    let error = solve(&geometry, &layout, &[]).unwrap_err();
    assert_eq!(error.obstacle, PlacementObstacle::Positions);
    assert_eq!(error.nearest.to_string(), "2g.20gb:1");
}

#[test]
fn layout_of_another_board_is_refused_by_name() {
    let layout = MigLayout::parse("1g.6gb:2", &geometry("A30")).unwrap();
    let mut other = geometry("A30");
    other.profiles.remove(0);
    let error = solve(&other, &layout, &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a GPU has at most 0 x 1g.6gb, and 2 are wanted; nothing of it fits"
    );
}

#[test]
fn instance_of_an_unknown_profile_keeps_its_slices() {
    let geometry = geometry("A100-80GB");
    let unknown = PlacedInstance {
        profile: 99,
        ..parse_instances(&["3g.40gb@4"], &geometry).unwrap()[0]
    };
    let there = [PresentInstance {
        instance: unknown,
        in_use: true,
    }];
    let layout = |text| MigLayout::parse(text, &geometry).unwrap();
    let placed = solve(&geometry, &layout("3g.40gb:1"), &there).unwrap();
    assert_eq!(placed.surplus, [unknown]);
    assert_eq!(placed.created[0].placement.start, 0);
    let error = solve(&geometry, &layout("4g.40gb:1"), &there).unwrap_err();
    assert_eq!(
        error.obstacle,
        PlacementObstacle::InUse {
            instances: "profile 99@4".to_owned()
        }
    );
}

/// The time of a search is that of its partial problems.
#[test]
fn search_solves_few_partial_problems() {
    for board in MigBoard::all() {
        let around = Neighbourhood::new(&board.geometry, &[]);
        for counts in counts_up_to(&board.geometry) {
            if let Some(mut search) = around.search(&counts) {
                search.best_arrangement();
                assert!(search.states() < 2000, "{}: {counts:?} {}", board.name, search.states());
            }
        }
    }
}

/// A set of instances that can be on one GPU, found by trying them all.
#[derive(Clone, Debug)]
struct Packing {
    instances: Vec<PlacedInstance>,
    room: Vec<u32>,
}

/// All packings of a board.
struct Exhaustive {
    geometry: MigGeometry,
    by_counts: HashMap<Vec<u32>, Vec<Packing>>,
    all: Vec<Packing>,
}

/// One board of each shape: the others differ in names and sizes.
static EXHAUSTIVE: LazyLock<Vec<Exhaustive>> =
    LazyLock::new(|| ["A30", "A100-80GB", "RTX-PRO-6000"].map(exhaustive).into());

fn exhaustive(board: &str) -> Exhaustive {
    let geometry = geometry(board);
    let mut sets = vec![Vec::new()];
    for profile in &geometry.profiles {
        sets = with_more(&geometry, &sets, profile);
    }
    let packing = |instances: Vec<PlacedInstance>| Packing {
        room: room(&geometry, &instances),
        instances,
    };
    let all: Vec<Packing> = sets.into_iter().map(packing).collect();
    let mut by_counts: HashMap<Vec<u32>, Vec<Packing>> = HashMap::new();
    for packing in &all {
        let counts = geometry.counts(&packing.instances);
        by_counts.entry(counts).or_default().push(packing.clone());
    }
    Exhaustive {
        geometry,
        by_counts,
        all,
    }
}

/// Each set with each possible choice of instances of one profile.
fn with_more(
    geometry: &MigGeometry,
    sets: &[Vec<PlacedInstance>],
    profile: &GpuInstanceProfile,
) -> Vec<Vec<PlacedInstance>> {
    let mut sets = sets.to_vec();
    for placement in &profile.placements {
        let instance = PlacedInstance {
            placement: *placement,
            profile: profile.id,
        };
        let fitting = sets.iter().filter(|set| can_join(geometry, set, &instance));
        let with: Vec<Vec<PlacedInstance>> = fitting.map(|set| [set.as_slice(), &[instance]].concat()).collect();
        sets.extend(with);
    }
    sets
}

/// The most instances of each profile that can be added, the largest profile first.
fn room(geometry: &MigGeometry, set: &[PlacedInstance]) -> Vec<u32> {
    let most = |index: usize| {
        let sets = with_more(geometry, &[set.to_vec()], &geometry.profiles[index]);
        let longest = sets.iter().map(Vec::len).max().unwrap();
        u32::try_from(longest - set.len()).unwrap()
    };
    largest_first(geometry).into_iter().map(most).collect()
}

/// Restates the rules for a set that keeps them, and one more instance.
fn can_join(geometry: &MigGeometry, set: &[PlacedInstance], instance: &PlacedInstance) -> bool {
    let profile = |instance: &PlacedInstance| geometry.profile(instance.profile).unwrap();
    let own = profile(instance);
    let compute: u32 = set.iter().map(|other| profile(other).slices).sum();
    let same = set.iter().filter(|other| other.profile == own.id).count();
    let end = |instance: &PlacedInstance| instance.placement.start + instance.placement.size;
    let beside = set.iter().all(|other| {
        let disjoint = end(instance) <= other.placement.start || end(other) <= instance.placement.start;
        let has = |part: &str| [&own.name, &profile(other).name].map(|name| name.contains(part));
        let engines = match (has("+me"), has("+me.all"), has("-me")) {
            ([true, true], ..) => false,
            (_, [true, _] | [_, true], without) => without.contains(&true),
            _ => true,
        };
        disjoint && engines
    });
    beside && compute + own.slices <= geometry.compute_slices && same < own.max_count as usize
}

fn can_exist(geometry: &MigGeometry, set: &[PlacedInstance]) -> bool {
    (0..set.len()).all(|index| can_join(geometry, &set[..index], &set[index]))
}

/// All counts that need at most one compute slice more than there are.
fn counts_up_to(geometry: &MigGeometry) -> Vec<Vec<u32>> {
    let mut all: Vec<(Vec<u32>, u32)> = vec![(Vec::new(), 0)];
    for profile in &geometry.profiles {
        all = all
            .iter()
            .flat_map(|(counts, slices)| {
                (0..=profile.max_count + 1).map(move |count| {
                    let counts: Vec<u32> = [counts.as_slice(), &[count]].concat();
                    (counts, slices + count * profile.slices)
                })
            })
            .filter(|(_, slices)| *slices <= geometry.compute_slices + 1)
            .collect();
    }
    all.into_iter().map(|(counts, _)| counts).collect()
}

/// The packings of a board with these profiles, whatever their names.
fn packings_of(geometry: &MigGeometry) -> &'static Exhaustive {
    let shape = |geometry: &MigGeometry| -> Vec<_> {
        let profiles = geometry.profiles.iter();
        profiles
            .map(|profile| (profile.id, profile.placements.clone()))
            .collect()
    };
    let same = |exhaustive: &&Exhaustive| shape(&exhaustive.geometry) == shape(geometry);
    EXHAUSTIVE.iter().find(same).unwrap()
}

#[test]
fn every_layout_of_every_board_fits_exactly_if_exhaustive_search_finds_it() {
    for board in MigBoard::all() {
        let Exhaustive { by_counts, .. } = packings_of(&board.geometry);
        let around = Neighbourhood::new(&board.geometry, &[]);
        let mut fitting = 0;
        for counts in counts_up_to(&board.geometry) {
            let arrangement = around.arrange(&counts);
            let packings = by_counts.get(&counts).into_iter().flatten();
            assert_eq!(
                arrangement.as_ref().map(|arrangement| &arrangement.room),
                packings.map(|packing| &packing.room).max(),
                "{} {counts:?}",
                board.name
            );
            if let Some(arrangement) = arrangement {
                fitting += 1;
                assert!(can_exist(&board.geometry, &arrangement.placed));
                assert_eq!(board.geometry.counts(&arrangement.placed), counts);
            }
        }
        assert_eq!(fitting, by_counts.len(), "{}: layouts that fit", board.name);
    }
}

#[test]
fn largest_profile_that_fits_beside_any_instances_of_any_board_is_that_of_exhaustive_search() {
    for board in MigBoard::all() {
        let geometry = &board.geometry;
        for packing in &packings_of(geometry).all {
            let can_join = |profile: &&GpuInstanceProfile| {
                let mut places = profile.placements.iter().map(|placement| PlacedInstance {
                    placement: *placement,
                    profile: profile.id,
                });
                places.any(|instance| can_join(geometry, &packing.instances, &instance))
            };
            let joining = geometry.profiles.iter().filter(can_join);
            let largest = joining.map(|profile| (profile.slices, profile.memory_slices())).max();
            let found = largest_fitting(geometry, &packing.instances);
            assert_eq!(
                found.map(|profile| (profile.slices, profile.memory_slices())),
                largest,
                "{} {:?}",
                board.name,
                packing.instances
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn around_any_instances_the_best_of_all_packings_is_found(
        board in any::<Index>(),
        there in any::<Index>(),
        wanted in any::<Index>(),
        in_use in any::<u8>(),
        more in any::<Option<Index>>(),
    ) {
        let Exhaustive { geometry, by_counts, all } = board.get(EXHAUSTIVE.as_slice());
        let there = there.get(all.as_slice()).instances.iter().enumerate();
        let present: Vec<PresentInstance> = there.map(|(place, instance)| {
            PresentInstance { instance: *instance, in_use: (in_use >> place) & 1 == 1 }
        }).collect();
        let (stay, go): (Vec<PresentInstance>, Vec<_>) = present.iter().copied().partition(|present| present.in_use);
        let stay: Vec<_> = stay.iter().map(|present| present.instance).collect();
        let go: Vec<_> = go.iter().map(|present| present.instance).collect();
        let mut counts = geometry.counts(&wanted.get(all.as_slice()).instances);
        if let Some(more) = more {
            counts[more.index(geometry.profiles.len())] += 1;
        }
        let layout = MigLayout::of_counts(geometry, &counts);
        let totals = counts.iter().zip(geometry.counts(&stay));
        let totals: Vec<u32> = totals.map(|(wanted, there)| *wanted.max(&there)).collect();
        let kept = |packing: &Packing| go.iter().filter(|instance| packing.instances.contains(instance)).count();
        let packings = by_counts.get(&totals).into_iter().flatten();
        let around = packings.filter(|packing| stay.iter().all(|instance| packing.instances.contains(instance)));
        let best = around.map(|packing| (kept(packing), packing.room.clone())).max();
        let answer = solve(geometry, &layout, &present);
        prop_assert_eq!(&answer, &solve(geometry, &layout, &present), "the same again");
        match (answer, best) {
            (Ok(placed), Some((kept, room))) => {
                let instances = placed.instances();
                prop_assert!(can_exist(geometry, &instances));
                prop_assert_eq!(geometry.counts(&instances), totals);
                prop_assert!(stay.iter().all(|instance| instances.contains(instance)));
                prop_assert_eq!(placed.kept.iter().filter(|instance| go.contains(instance)).count(), kept);
                prop_assert_eq!(placed.removed.len(), go.len() - kept);
                prop_assert!(placed.created.iter().all(|instance| !go.contains(instance) && !stay.contains(instance)));
                let capacities = crate::remaining_capacity(geometry, &instances);
                let found: Vec<u32> = largest_first(geometry).iter().map(|index| capacities[*index]).collect();
                prop_assert_eq!(found, room);
            }
            (Err(NoPlacement { nearest, .. }), None) => {
                let smaller = solve(geometry, &nearest, &present);
                prop_assert!(smaller.is_ok(), "{} does not fit", nearest);
                // No packing has more of what is wanted.
                let worth = |there: &[u32]| {
                    let parts = geometry.profiles.iter().zip(counts.iter().zip(there));
                    parts.fold((0, 0, 0), |(instances, memory, compute), (profile, (wanted, there))| {
                        let count = *wanted.min(there);
                        (instances + count, memory + count * profile.memory_slices(), compute + count * profile.slices)
                    })
                };
                let around = all.iter().filter(|packing| stay.iter().all(|instance| packing.instances.contains(instance)));
                let best = around.map(|packing| worth(&geometry.counts(&packing.instances))).max();
                let found = nearest.counts(geometry).map_err(|error| TestCaseError::fail(error.to_string()))?;
                prop_assert_eq!(Some(worth(&found)), best, "{}", nearest);
            }
            (answer, best) => return Err(TestCaseError::fail(format!("{answer:?}, exhaustive search: {best:?}"))),
        }
    }
}
