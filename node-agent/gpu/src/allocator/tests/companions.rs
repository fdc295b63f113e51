//! Companions in the allocator: files that come, go and change their device while containers have them.

use super::*;
use crate::{CompanionFile, CompanionFiles, MatchedFiles, desired_companions};
use proptest::prelude::*;

const EACH: &str = "companions: [{resource: a.b/c, paths: ['/dev/x/*']}]";
const TOGETHER: &str = "companions: [{resource: a.b/c, paths: ['/dev/x/*'], group: Together}]";
const SHARED: &str = "companions: [{resource: a.b/c, paths: ['/dev/x/*'], group: Together, shares: 3}]";
const SLOTS: &str = "companions: [{resource: a.b/c, paths: ['/dev/x/*'], group: PciSlot}]";
const RENAMED: &str = "companions: [{resource: a.b/d, paths: ['/dev/x/*']}]";
const TWO_OF_A_SLOT: &str = "companions: [{resource: a.b/d, paths: [/dev/x/0], group: PciSlot}, {resource: a.b/c, paths: [/dev/x/1], group: PciSlot}]";
const SPLIT: &str = "companions: [{resource: a.b/d, paths: ['/dev/x/0', '/dev/x/1'], group: Together}, {resource: a.b/c, paths: ['/dev/x/*']}]";
const NONE: &str = "{}";

/// Returns files `/dev/x/N`; two neighbours have a PCI slot.
fn files(config: &AgentConfig, numbers: &BTreeSet<u32>) -> CompanionFiles {
    let file = |number: &u32| CompanionFile {
        path: format!("/dev/x/{number}"),
        host_path: format!("/dev/x/{number}"),
        is_device: true,
        globs: BTreeSet::new(),
        pci_slot: Some(format!("0000:0{}:00", number / 2)),
        numa_node: Some(number % 2),
    };
    let matched = |globs: &[String]| {
        let matching = |file: CompanionFile| {
            let matches = |glob: &String| glob.ends_with('*') || *glob == file.path;
            let globs = globs
                .iter()
                .enumerate()
                .filter(|(_, glob)| matches(glob))
                .map(|(place, _)| place)
                .collect();
            CompanionFile { globs, ..file }
        };
        numbers
            .iter()
            .map(file)
            .map(matching)
            .filter(|file| !file.globs.is_empty())
            .collect()
    };
    let companions = config.companions.iter().map(|companion| {
        let files = matched(&companion.paths);
        (
            companion.resource.clone(),
            MatchedFiles {
                files,
                refused: Vec::new(),
            },
        )
    });
    companions.collect()
}

use gpunode_config::AgentConfig;

/// Gives the allocator these files under a configuration.
fn set(allocator: &mut Allocator, config: &str, numbers: &BTreeSet<u32>, now: Instant) {
    let config = load(config).unwrap();
    let files = files(&config, numbers);
    let assigned = allocator.assigned().clone();
    let desired = desired_companions(&config, &files, |id| assigned.contains_key(id));
    let exists = |file: &&String| numbers.iter().any(|number| **file == format!("/dev/x/{number}"));
    let existing = allocator.claimed_files().keys().filter(exists).cloned().collect();
    allocator.set_companions(&desired, &existing, now);
    save(allocator);
}

/// Saves the claimed files, as the agent does before it advertises anything.
fn save(allocator: &mut Allocator) {
    let files = allocator.claimed_files().clone();
    allocator.set_saved_files(&files);
}

impl AllocatorTest {
    fn of_files(config: &str, numbers: &[u32]) -> Self {
        let mut test = Self {
            allocator: Allocator::default(),
            now: Instant::now(),
        };
        test.allocator.set_desired(DesiredDevices::default(), test.now);
        test.files(config, numbers);
        test.observe(&[]);
        save(&mut test.allocator);
        test
    }

    fn files(&mut self, config: &str, numbers: &[u32]) {
        set(
            &mut self.allocator,
            config,
            &numbers.iter().copied().collect(),
            self.now,
        );
    }

    /// Returns ids of a resource with their files and health.
    fn list(&self, resource: &str) -> Vec<(String, bool)> {
        let lists = self.allocator.advertised();
        let list = lists.iter().find(|list| list.name == resource);
        let shares = list.into_iter().flat_map(|list| &list.shares);
        shares.map(|share| (share.id.clone(), share.healthy)).collect()
    }

    /// Returns the health of each share.
    fn health(&self, resource: &str) -> Vec<bool> {
        self.list(resource).into_iter().map(|(_, healthy)| healthy).collect()
    }

    /// Gives a container the first healthy share. Returns its holding and its files.
    fn give(&mut self, pod: &str, resource: &str) -> Result<(ContainerShares, Vec<String>), String> {
        let id = self
            .list(resource)
            .into_iter()
            .find(|(_, healthy)| *healthy)
            .ok_or("none is free")?
            .0;
        save(&mut self.allocator);
        let given = self.allocate(resource, &[&id]).map_err(|error| error.to_string())?;
        let paths = given.companions.iter().flat_map(|device| device.host_paths().cloned());
        Ok((holding(pod, resource, &[&id]), paths.collect()))
    }
}

#[test]
fn files_are_advertised_with_their_numa_node_and_an_empty_resource_too() {
    let test = AllocatorTest::of_files(EACH, &[0, 1]);
    let lists = test.allocator.advertised();
    assert!(lists[0].is_companion);
    let nodes: Vec<_> = lists[0].shares.iter().map(|share| share.numa_node).collect();
    assert_eq!(
        (nodes, test.health("a.b/c")),
        (vec![Some(0), Some(1)], vec![true, true])
    );
    let none = AllocatorTest::of_files(EACH, &[]);
    let lists = none.allocator.advertised();
    assert_eq!(
        (lists[0].name.as_str(), lists[0].shares.len(), lists[0].is_companion),
        ("a.b/c", 0, true)
    );
}

#[test]
fn an_absent_driver_and_claims_of_gpus_do_not_concern_companions() {
    let mut test = AllocatorTest {
        allocator: Allocator::default(),
        now: Instant::now(),
    };
    test.files(EACH, &[0]);
    test.observe(&[]);
    assert_eq!(test.health("a.b/c"), [true], "no GPU is known");
    let (pod, files) = test.give("a", "a.b/c").unwrap();
    assert_eq!(files, ["/dev/x/0"]);
    test.observe(&[pod]);
    let claim = ContainerShares {
        resource: gpunode_crds::DRA_DRIVER.to_owned(),
        ids: strings(&["gpu-7"]),
        ..ContainerShares::default()
    };
    test.observe(&[claim]);
    assert_eq!(test.health("a.b/c"), [true], "a claim of a GPU is no holder of a file");
}

#[test]
fn a_file_that_goes_is_unhealthy_until_its_pod_ends_and_healthy_when_it_comes_back() {
    let mut test = AllocatorTest::of_files(EACH, &[0, 1]);
    let (pod, _) = test.give("a", "a.b/c").unwrap();
    test.observe(std::slice::from_ref(&pod));
    test.files(EACH, &[1]);
    assert_eq!(test.health("a.b/c"), [false, true]);
    let refusal = test.allocate("a.b/c", &[&pod.ids[0]]).unwrap_err().to_string();
    assert!(
        refusal.ends_with("a file of it is gone, or a change of it waits"),
        "{refusal}"
    );
    test.observe(std::slice::from_ref(&pod));
    assert_eq!(test.health("a.b/c"), [false, true]);
    test.files(EACH, &[0, 1]);
    assert_eq!(test.health("a.b/c"), [true, true]);
    test.files(EACH, &[1]);
    test.observe(&[]);
    test.observe(&[]);
    assert_eq!(test.health("a.b/c"), [true]);
}

#[test]
fn a_device_that_the_configuration_drops_stays_healthy_for_its_pod_alone() {
    for config in [NONE, RENAMED, TOGETHER] {
        let mut test = AllocatorTest::of_files(EACH, &[0, 1]);
        let (pod, _) = test.give("a", "a.b/c").unwrap();
        test.observe(std::slice::from_ref(&pod));
        test.files(config, &[0, 1]);
        let list = test.list("a.b/c");
        let healthy: Vec<&String> = list.iter().filter(|(_, healthy)| *healthy).map(|(id, _)| id).collect();
        assert_eq!(healthy, [&pod.ids[0]], "{config}");
        test.observe(std::slice::from_ref(&pod));
        test.observe(&[pod]);
        test.observe(&[]);
        test.observe(&[]);
        let lists = test.allocator.advertised();
        let left: Vec<&str> = lists
            .iter()
            .flat_map(|list| &list.shares)
            .map(|share| share.id.as_str())
            .collect();
        assert!(
            !left.contains(&healthy[0].as_str()) || config == RENAMED,
            "{config}: {left:?}"
        );
    }
}

#[test]
fn a_group_gives_each_container_the_files_of_that_moment() {
    let mut test = AllocatorTest::of_files(SHARED, &[0]);
    let (one, files) = test.give("one", "a.b/c").unwrap();
    assert_eq!(files, ["/dev/x/0"]);
    test.observe(std::slice::from_ref(&one));
    test.files(SHARED, &[0, 1]);
    let id = test.list("a.b/c").remove(1).0;
    let two = test.allocate("a.b/c", &[&id]).unwrap();
    assert_eq!(two.companions[0].files.len(), 2);
    assert_eq!(test.health("a.b/c"), [true; 3]);
}

#[test]
fn a_file_that_a_held_group_has_lost_goes_to_no_other_container_also_after_a_restart() {
    let mut test = AllocatorTest::of_files(
        "companions: [{resource: a.b/d, paths: ['/dev/x/0', '/dev/x/1'], group: Together}]",
        &[0, 1],
    );
    let (pod, files) = test.give("group", "a.b/d").unwrap();
    assert_eq!(files.len(), 2);
    test.observe(std::slice::from_ref(&pod));
    let other =
        "companions: [{resource: a.b/d, paths: ['/dev/x/0'], group: Together}, {resource: a.b/c, paths: ['/dev/x/*']}]";
    test.files(other, &[0, 1]);
    test.observe(std::slice::from_ref(&pod));
    let id = test.list("a.b/c").remove(0).0;
    assert_eq!(test.health("a.b/c"), [false]);
    let refusal = test.allocate("a.b/c", &[&id]).unwrap_err().to_string();
    assert!(
        refusal.ends_with("/dev/x/1 is a part of another device, held by team/group"),
        "{refusal}"
    );
    let waiting = test.allocator.pending_changes();
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert_eq!(
        (waiting[0].message.as_str(), waiting[0].pods.as_slice()),
        (
            "no container gets /dev/x/1: /dev/x/1 is a part of another device, held by team/group",
            &["team/group".to_owned()][..]
        )
    );
    let saved = (
        test.allocator.assigned().clone(),
        test.allocator.claimed_files().clone(),
    );
    let mut again = AllocatorTest {
        allocator: Allocator::restore(saved.0, saved.1),
        now: test.now,
    };
    again.files(other, &[0, 1]);
    again.now += Duration::from_secs(10);
    again.observe(std::slice::from_ref(&pod));
    again.observe(&[pod]);
    assert_eq!(again.health("a.b/c"), [false]);
    // An allocation of the earlier process may be on its way to the kubelet.
    again.observe(&[]);
    assert_eq!(again.health("a.b/c"), [false]);
    again.now += Duration::from_secs(5);
    again.observe(&[]);
    assert_eq!(again.health("a.b/c"), [true]);
    save(&mut again.allocator);
    assert_eq!(again.give("other", "a.b/c").unwrap().1, ["/dev/x/1"]);
}

#[test]
fn whole_devices_wait_for_the_pods_of_an_earlier_plugin_and_shared_ones_do_not() {
    let earlier = holding("old", "a.b/c", &["0"]);
    for (config, healthy) in [(EACH, false), (SHARED, true)] {
        let mut test = AllocatorTest::of_files(config, &[0]);
        test.observe(std::slice::from_ref(&earlier));
        assert!(test.health("a.b/c").iter().all(|share| *share == healthy), "{config}");
        let id = test.list("a.b/c").remove(0).0;
        let given = test.allocate("a.b/c", &[&id]);
        assert_eq!(given.is_ok(), healthy, "{given:?}");
        if let Err(refusal) = given {
            let reason = "an earlier plugin gave devices of this resource to team/old, and one may be this";
            assert!(refusal.to_string().ends_with(reason), "{refusal}");
            assert_eq!(test.allocator.pending_changes()[0].pods, ["team/old"]);
        }
        test.observe(&[]);
        test.observe(&[]);
        assert!(test.health("a.b/c").iter().all(|share| *share));
    }
}

#[test]
fn a_file_is_given_only_once_its_claim_is_on_disk() {
    let mut test = AllocatorTest::of_files(SHARED, &[0]);
    let config = load(SHARED).unwrap();
    let both = desired_companions(&config, &files(&config, &BTreeSet::from([0, 1])), |_| true);
    test.allocator.set_companions(&both, &BTreeSet::new(), test.now);
    let id = test.list("a.b/c").remove(0).0;
    let paths = |given: AllocatedDevices| given.companions[0].files.len();
    assert_eq!(
        test.allocate("a.b/c", &[&id]).map(paths),
        Ok(1),
        "the disk has /dev/x/0 alone"
    );
    save(&mut test.allocator);
    assert_eq!(test.allocate("a.b/c", &[&id]).map(paths), Ok(2));
    test.allocator.set_saved_files(&BTreeMap::new());
    let refusal = test.allocate("a.b/c", &[&id]).unwrap_err().to_string();
    assert!(
        refusal.ends_with("its files are not on the agent's disk yet"),
        "{refusal}"
    );
}

#[test]
fn two_resources_of_one_card_are_two_devices() {
    let test = AllocatorTest::of_files(TWO_OF_A_SLOT, &[0, 1]);
    assert_eq!((test.health("a.b/c"), test.health("a.b/d")), (vec![true], vec![true]));
    assert_ne!(test.list("a.b/c"), test.list("a.b/d"));
}

#[test]
fn unknown_ids_are_refused_by_name() {
    let mut test = AllocatorTest::of_files(SHARED, &[0]);
    let id = test.list("a.b/c").remove(0).0;
    for bad in ["0", "path-0", &format!("{id}9"), &id.replace("::0", "::3"), "GPU-0", ""] {
        let refusal = test.allocate("a.b/c", &[bad]).unwrap_err();
        assert!(
            matches!(&refusal, AllocationRefusal::Unknown { ids, .. } if ids == &[bad]),
            "{refusal:?}"
        );
    }
    let once = test.allocate("a.b/c", &[&id]).unwrap();
    assert_eq!(
        test.allocate("a.b/c", &[&id]).unwrap(),
        once,
        "the same request gets the same"
    );
}

#[test]
fn shares_come_from_the_device_of_which_containers_hold_least() {
    let mut test = AllocatorTest::of_files(
        "companions: [{resource: a.b/c, paths: ['/dev/x/*'], shares: 2}]",
        &[0, 1],
    );
    let available: Vec<String> = test.list("a.b/c").into_iter().map(|(id, _)| id).collect();
    let preferred = |test: &AllocatorTest, available: &[String], size| {
        let preferred = test
            .allocator
            .preferred("a.b/c", available, &[], size, &BTreeMap::new());
        preferred
            .ids
            .iter()
            .map(|id| device_of(id).to_owned())
            .collect::<Vec<_>>()
    };
    let first = preferred(&test, &available, 1);
    let two = preferred(&test, &available, 2);
    assert!(two[0] != two[1] && two[0] == first[0], "{two:?}");
    let (pod, _) = test.give("a", "a.b/c").unwrap();
    test.observe(std::slice::from_ref(&pod));
    let left: Vec<String> = available.into_iter().filter(|id| *id != pod.ids[0]).collect();
    assert_ne!(preferred(&test, &left, 1)[0], device_of(&pod.ids[0]));
    assert_eq!(preferred(&test, &left, 3).len(), 3);
    assert_eq!(preferred(&test, &left, 9).len(), 3);
}

const CONFIGS: [&str; 8] = [EACH, TOGETHER, SHARED, SLOTS, RENAMED, SPLIT, TWO_OF_A_SLOT, NONE];

#[derive(Clone, Debug)]
enum FileStep {
    Configure(usize),
    /// A file comes or goes.
    Toggle(u32),
    /// A pod asks for a healthy share of the list that the kubelet has.
    Start(usize, usize),
    /// The oldest pods end.
    End(usize),
    Observe,
    /// The agent is killed.
    Restart,
    /// The files of companions are lost.
    RestartWithoutClaims,
}

fn any_file_step() -> impl Strategy<Value = FileStep> {
    prop_oneof![
        2 => (0..CONFIGS.len()).prop_map(FileStep::Configure),
        4 => (0_u32..4).prop_map(FileStep::Toggle),
        6 => (0_usize..3, 0_usize..6).prop_map(|(resource, share)| FileStep::Start(resource, share)),
        3 => (0_usize..4).prop_map(FileStep::End),
        5 => Just(FileStep::Observe),
        1 => Just(FileStep::Restart),
        1 => Just(FileStep::RestartWithoutClaims),
    ]
}

proptest! {
    /// Whatever happens in whatever order, no file is with two containers, unless as shares of one device.
    #[test]
    fn no_file_is_given_to_two_devices(steps in prop::collection::vec(any_file_step(), 1..60)) {
        let mut test = AllocatorTest::of_files(EACH, &[0, 1, 2]);
        let (mut config, mut there) = (EACH, BTreeSet::from([0, 1, 2]));
        // The lists that the kubelet has.
        let mut known: Vec<(String, String)> = test.healthy().into_iter().collect();
        let mut pods: Vec<(ContainerShares, BTreeSet<String>)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            test.now += Duration::from_millis(300);
            match step {
                FileStep::Configure(of) => {
                    config = CONFIGS[of];
                    set(&mut test.allocator, config, &there, test.now);
                }
                FileStep::Toggle(file) => {
                    if !there.remove(&file) {
                        there.insert(file);
                    }
                    set(&mut test.allocator, config, &there, test.now);
                }
                FileStep::Start(resource, share) => {
                    let names: BTreeSet<&String> = known.iter().map(|(name, _)| name).collect();
                    let Some(name) = names.into_iter().nth(resource).cloned() else { continue };
                    let is_held = |id: &String| pods.iter().any(|(of, ..)| of.resource == name && of.ids.contains(id));
                    let free: Vec<String> = known.iter().filter(|(of, id)| *of == name && !is_held(id)).map(|(_, id)| id.clone()).collect();
                    let Some(id) = free.get(share % free.len().max(1)) else { continue };
                    if let Ok(given) = test.allocate(&name, &[id]) {
                        let files: BTreeSet<String> = given.companions.iter().flat_map(|device| device.host_paths().cloned()).collect();
                        prop_assert!(!files.is_empty());
                        let of_device = |other: &ContainerShares| device_of(&other.ids[0]) == device_of(id);
                        for (other, theirs) in &pods {
                            let is_shared = given.sharing != DeviceSharing::Whole && of_device(other);
                            prop_assert!(is_shared || files.is_disjoint(theirs), "{files:?} is with {other:?}, which has {theirs:?}");
                        }
                        pods.push((holding(&format!("pod-{number}"), &name, &[id]), files));
                    }
                }
                FileStep::End(count) => pods = pods.split_off(count.min(pods.len())),
                FileStep::Observe => {
                    known = test.healthy().into_iter().collect();
                    let holders: Vec<ContainerShares> = pods.iter().map(|(pod, ..)| pod.clone()).collect();
                    test.observe(&holders);
                    save(&mut test.allocator);
                }
                FileStep::Restart | FileStep::RestartWithoutClaims => {
                    let claims = test.allocator.claimed_files().clone();
                    let is_lost = matches!(step, FileStep::RestartWithoutClaims);
                    let saved = (test.allocator.assigned().clone(), if is_lost { BTreeMap::new() } else { claims });
                    test.allocator = Allocator::restore(saved.0, saved.1);
                    test.now += Duration::from_secs(6);
                    set(&mut test.allocator, config, &there, test.now);
                }
            }
            for list in test.allocator.advertised() {
                let ids: BTreeSet<&String> = list.shares.iter().map(|share| &share.id).collect();
                prop_assert_eq!(ids.len(), list.shares.len());
            }
        }
        // In the end every file is free again.
        pods.clear();
        set(&mut test.allocator, EACH, &BTreeSet::from([0, 1, 2, 3]), test.now);
        for _ in 0..20 {
            test.now += Duration::from_secs(3);
            test.observe(&[]);
        }
        prop_assert_eq!(test.health("a.b/c"), vec![true; 4]);
        prop_assert_eq!(test.allocator.pending_changes(), vec![]);
    }
}
