//! Files to devices.

use super::*;
use crate::{DeviceProblemKind, DeviceSharing};
use gpunode_config::load;

fn file(path: &str) -> CompanionFile {
    CompanionFile {
        path: path.to_owned(),
        host_path: path.to_owned(),
        is_device: true,
        globs: [0].into(),
        ..CompanionFile::default()
    }
}

fn in_slot(path: &str, slot: &str, numa_node: u32) -> CompanionFile {
    let glob = usize::from(path.starts_with("/dev/dri/"));
    CompanionFile {
        globs: [glob].into(),
        pci_slot: Some(slot.to_owned()),
        numa_node: Some(numa_node),
        ..file(path)
    }
}

fn desired(companion: &str, files: &[CompanionFile], assigned: &[&str]) -> DesiredCompanions {
    let config = load(&format!("companions: [{{resource: a.b/c, {companion}}}]")).unwrap();
    let matched = MatchedFiles {
        files: files.to_vec(),
        refused: Vec::new(),
    };
    desired_companions(&config, &[("a.b/c".to_owned(), matched)].into(), |id| {
        assigned.contains(&id)
    })
}

fn names(desired: &DesiredCompanions) -> Vec<String> {
    desired.devices.iter().map(|of| of.device.name()).collect()
}

fn ids(desired: &DesiredCompanions) -> Vec<&str> {
    desired.devices.iter().map(|of| of.device.id.as_str()).collect()
}

fn problem(desired: &DesiredCompanions) -> String {
    desired.problems.iter().map(|problem| problem.message.clone()).collect()
}

fn kinds(desired: &DesiredCompanions) -> Vec<DeviceProblemKind> {
    desired.problems.iter().map(|problem| problem.kind).collect()
}

#[test]
fn each_file_is_a_device_whose_id_follows_the_file() {
    let files = [file("/dev/x/a"), file("/dev/x/b")];
    let both = desired("paths: ['/dev/x/*']", &files, &[]);
    assert_eq!(names(&both), ["/dev/x/a", "/dev/x/b"]);
    assert!(
        both.devices
            .iter()
            .all(|of| of.assignment.sharing == DeviceSharing::Whole)
    );
    let last = desired("paths: ['/dev/x/*', '/dev/y']", &files[1..], &[]);
    assert_eq!(ids(&last), ids(&both)[1..]);
    assert!(
        ids(&both).iter().all(|id| is_companion(id) && id.len() == 21),
        "{:?}",
        ids(&both)
    );
    // A change of this id would make every device another one.
    assert_eq!(ids(&both)[0], "path-b0c9efdcc08d11b5");
}

#[test]
fn files_together_are_one_device_whose_id_follows_the_resource() {
    let one = desired(
        "paths: ['/dev/x/*'], group: Together, shares: 64",
        &[file("/dev/x/a")],
        &[],
    );
    let two = [file("/dev/x/a"), file("/dev/x/b")];
    let two = desired("paths: ['/dev/x/*'], group: Together, shares: 64", &two, &[]);
    assert_eq!(ids(&one), ids(&two));
    assert_eq!(names(&two), ["/dev/x/a and 1 more file"]);
    assert_eq!(
        two.devices[0].assignment.sharing,
        DeviceSharing::TimeSlicing { replicas: 64 }
    );
    let none = desired("paths: ['/dev/x/*'], group: Together", &[], &[]);
    assert!(none.devices.is_empty());
    assert_eq!(none.order, ["a.b/c"]);
    assert_eq!(problem(&none), "resource a.b/c has no device: no file matches /dev/x/*");
    assert_eq!(
        (kinds(&none), kinds(&none)[0].is_remark()),
        (vec![DeviceProblemKind::FileMissing], true)
    );
}

#[test]
fn files_of_a_pci_slot_are_one_device_with_its_numa_node() {
    let files = [
        in_slot("/dev/dri/renderD128", "0000:03:00", 1),
        in_slot("/dev/dri/renderD129", "0000:82:00", 0),
        // A card of another maker.
        in_slot("/dev/dri/renderD130", "0000:05:00", 0),
        in_slot("/dev/xclmgmt768", "0000:03:00", 1),
        in_slot("/dev/xclmgmt33280", "0000:82:00", 0),
        // The other nodes of this card are still to come.
        in_slot("/dev/xclmgmt1024", "0000:04:00", 0),
        file("/dev/xclmgmt9"),
    ];
    let cards = desired("paths: ['/dev/xclmgmt*', '/dev/dri/*'], group: PciSlot", &files, &[]);
    let both = [
        "/dev/dri/renderD128 and 1 more file",
        "/dev/dri/renderD129 and 1 more file",
    ];
    assert_eq!(names(&cards), both);
    let nodes: Vec<_> = cards.devices.iter().map(|of| of.device.numa_node()).collect();
    assert_eq!(nodes, [Some(1), Some(0)]);
    assert_eq!(
        problem(&cards),
        "resource a.b/c: /dev/xclmgmt9 belongs to no PCI slot in sysfs, which `group: PciSlot` needs"
    );
    let mixed = [
        in_slot("/dev/x/a", "0000:03:00", 1),
        in_slot("/dev/x/b", "0000:04:00", 0),
    ];
    let mixed = desired("paths: ['/dev/x/*'], group: Together", &mixed, &[]);
    assert_eq!(mixed.devices[0].device.numa_node(), None);
    let part = desired(
        "paths: ['/dev/x/*', /dev/y/z], group: Together",
        &[file("/dev/x/a")],
        &[],
    );
    assert!(part.devices.is_empty());
    assert_eq!(problem(&part), "resource a.b/c has no device: no file matches /dev/y/z");
    let apart = [
        in_slot("/dev/dri/card0", "0000:03:00", 0),
        in_slot("/dev/x/a", "0000:04:00", 0),
    ];
    let apart = desired("paths: ['/dev/x/*', '/dev/dri/*'], group: PciSlot", &apart, &[]);
    assert_eq!(
        problem(&apart),
        "resource a.b/c has no device: no PCI slot has a file of each glob"
    );
}

#[test]
fn a_file_that_is_no_device_is_refused_where_one_is_wanted() {
    let plain = CompanionFile {
        is_device: false,
        ..file("/etc/colas/a")
    };
    let refused = desired("paths: ['/etc/colas/*']", std::slice::from_ref(&plain), &[]);
    assert!(refused.devices.is_empty());
    assert_eq!(kinds(&refused), [DeviceProblemKind::EveryFileRefused]);
    let beside = desired("paths: ['/etc/colas/*']", &[plain.clone(), file("/etc/colas/b")], &[]);
    assert_eq!(
        (kinds(&beside), kinds(&beside)[0].is_remark()),
        (vec![DeviceProblemKind::FileRefused], true)
    );
    assert_eq!(
        problem(&refused),
        "resource a.b/c: /etc/colas/a is no device node; to mount it, set `inject.mounts` and leave out `inject.deviceNodes`"
    );
    let named = desired(
        "paths: ['/etc/colas/*'], inject: {env: {name: A, value: Ids}}",
        &[plain],
        &[],
    );
    assert_eq!(names(&named), ["/etc/colas/a"]);
}

#[test]
fn a_file_belongs_to_the_first_companion_that_matches_it() {
    let config =
        load("companions: [{resource: a.b/c, paths: [/dev/x/a]}, {resource: a.b/d, paths: ['/dev/x/*']}]").unwrap();
    let matched = |paths: &[&str]| MatchedFiles {
        files: paths.iter().map(|path| file(path)).collect(),
        refused: vec!["/dev/x/z is a link".to_owned()],
    };
    let files = [
        ("a.b/c", matched(&["/dev/x/a"])),
        ("a.b/d", matched(&["/dev/x/a", "/dev/x/b"])),
    ];
    let files = files.map(|(name, matched)| (name.to_owned(), matched)).into();
    let both = desired_companions(&config, &files, |_| false);
    let of: Vec<_> = both
        .devices
        .iter()
        .map(|of| (of.assignment.resource.as_str(), of.device.name()))
        .collect();
    assert_eq!(of, [("a.b/c", "/dev/x/a".to_owned()), ("a.b/d", "/dev/x/b".to_owned())]);
    assert_eq!(both.problems.len(), 2);
    // A file that makes up no device of the first is left to the next.
    let config = load("companions: [{resource: a.b/c, paths: [/dev/x/a, /dev/z], group: Together}, {resource: a.b/d, paths: ['/dev/x/*']}]").unwrap();
    let left = desired_companions(&config, &files, |_| false);
    assert!(left.devices.iter().all(|of| of.assignment.resource == "a.b/d") && left.devices.len() == 2);
    // Without files nothing is known of a resource but its name.
    let unread = desired_companions(&config, &CompanionFiles::new(), |_| false);
    assert_eq!((unread.devices.len(), unread.order.len()), (0, 2));
}

#[test]
fn of_too_many_devices_those_that_containers_may_have_stay() {
    let files: Vec<CompanionFile> = (0..65).map(|number| file(&format!("/dev/x/{number:03}"))).collect();
    let all = desired("paths: ['/dev/x/*']", &files[1..], &[]);
    assert!(all.problems.is_empty());
    let before: Vec<&str> = ids(&all);
    let more = desired("paths: ['/dev/x/*']", &files, &before);
    assert_eq!(ids(&more), before, "/dev/x/000 comes first and has to wait");
    assert_eq!(
        problem(&more),
        "resource a.b/c: 65 devices match the glob of `paths`, and a resource has at most 64; name fewer in `paths`"
    );
    let shared = desired("paths: ['/dev/x/*'], shares: 8192", &files, &[]);
    assert_eq!(shared.devices.len(), 7, "a list of the kubelet has at most 4 MiB");
    assert!(
        problem(&shared).ends_with("at most 7; lower `shares`"),
        "{}",
        problem(&shared)
    );
    let together = desired("paths: ['/dev/x/*'], group: Together", &files, &[]);
    assert_eq!(together.devices[0].device.files.len(), 64);
    assert!(
        problem(&together).contains("one device has 65 files, of which 64 are handed out"),
        "{}",
        problem(&together)
    );
    let mut last = files;
    last[64].globs = [1].into();
    let whole = desired("paths: ['/dev/x/0*', /dev/x/064], group: Together", &last, &[]);
    assert_eq!(
        whole.devices[0].device.globs(),
        [0, 1].into(),
        "no glob goes without a file"
    );
}

#[test]
fn of_ten_thousand_refusals_a_message_names_three() {
    let refused: Vec<String> = (0..10_000).map(|number| format!("/dev/x/{number} is a link")).collect();
    let config = load("companions: [{resource: a.b/c, paths: ['/dev/x/*']}]").unwrap();
    let files = Vec::new();
    let files = [("a.b/c".to_owned(), MatchedFiles { files, refused })].into();
    let all = desired_companions(&config, &files, |_| false);
    assert_eq!(
        problem(&all),
        "resource a.b/c: /dev/x/0 is a link; /dev/x/1 is a link; /dev/x/2 is a link; and 9997 more"
    );
}
