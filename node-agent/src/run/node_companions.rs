//! Decides on the companions of the node: the files to look for, and the devices that they make up.

use crate::{
    api_server::events::{EventReason, NodeEventSender},
    companions::scan::{FoundFiles, WantedFiles},
    devices::{manager::DeviceManager, state::DeviceSnapshot},
    runtime::channel::send_if_new,
};
use gpunode_config::{AgentConfig, CompanionConfig};
use gpunode_crds::named;
use gpunode_gpu::{DesiredCompanions, desired_companions};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};
use tokio::sync::watch;
use tracing::info;

/// Most files that an event names.
const MAX_NAMED: usize = 3;

/// Companions of the node.
pub struct NodeCompanions {
    wanted: watch::Sender<WantedFiles>,
    /// Last scan, and the configuration, that the devices follow.
    decided: Option<(Arc<FoundFiles>, AgentConfig)>,
    desired: Arc<DesiredCompanions>,
    /// True until a scan has the files of the configuration.
    are_awaited: bool,
    /// Devices last passed to the device manager.
    passed: Option<PassedCompanions>,
}

/// Devices that were passed to the device manager.
#[derive(Debug, PartialEq)]
struct PassedCompanions {
    desired: Arc<DesiredCompanions>,
    /// The known files that exist.
    existing: BTreeSet<String>,
    /// The configuration of the devices.
    config: Vec<CompanionConfig>,
}

impl NodeCompanions {
    /// Starts without companions.
    pub fn new(wanted: watch::Sender<WantedFiles>) -> Self {
        Self {
            wanted,
            decided: None,
            desired: Arc::default(),
            are_awaited: true,
            passed: None,
        }
    }

    /// Returns the desired companions.
    pub fn desired(&self) -> Arc<DesiredCompanions> {
        self.desired.clone()
    }

    /// Returns true until a scan has the files of the configuration.
    pub fn are_awaited(&self) -> bool {
        self.are_awaited
    }

    /// Decides on the devices of a configuration, and publishes the files to look for: also those that containers may have.
    pub fn decide(&mut self, config: &AgentConfig, found: Option<&Arc<FoundFiles>>, snapshot: &DeviceSnapshot) {
        let wanted = WantedFiles::of(config, snapshot.claimed_files.keys().cloned().collect());
        send_if_new(&self.wanted, wanted.clone());
        let globs = |found: &FoundFiles| found.wanted.globs == wanted.globs;
        self.are_awaited = self.decided.is_none() || !found.is_some_and(|found| globs(found));
        let Some(found) = found.filter(|found| found.wanted == wanted) else {
            return;
        };
        self.are_awaited = false;
        let is_decided = |(of, with): &(Arc<FoundFiles>, AgentConfig)| Arc::ptr_eq(of, found) && with == config;
        if self.decided.as_ref().is_some_and(is_decided) {
            return;
        }
        let is_assigned = |id: &str| snapshot.assignments.contains_key(id);
        let desired = desired_companions(config, &found.files, is_assigned);
        if desired != *self.desired {
            self.desired = desired.into();
        }
        self.decided = Some((found.clone(), config.clone()));
    }

    /// Passes new devices to the device manager, and tells people of files that came and went.
    pub fn pass(&mut self, manager: &DeviceManager, snapshot: &DeviceSnapshot, events: &NodeEventSender) {
        let Some((found, config)) = self.decided.as_ref().filter(|_| !self.are_awaited) else {
            return;
        };
        let next = PassedCompanions {
            desired: self.desired.clone(),
            existing: found.existing.clone(),
            config: config.companions.clone(),
        };
        if self.passed.as_ref() == Some(&next) {
            return;
        }
        // Files that a new configuration selects have neither come nor gone.
        if let Some(before) = self.passed.as_ref().filter(|before| before.config == next.config) {
            announce(&before.desired, &next.desired, snapshot, events);
        }
        manager.change(|state| state.set_companions(&next.desired, &next.existing, Instant::now()));
        manager.observe_now();
        self.passed = Some(next);
    }

    /// Forgets what was passed to the device manager.
    pub fn clear(&mut self) {
        (self.decided, self.passed, self.are_awaited) = (None, None, true);
    }
}

/// Tells people of files that came and went, by resource. A resource that comes or goes itself is no news about its files.
fn announce(before: &DesiredCompanions, now: &DesiredCompanions, snapshot: &DeviceSnapshot, events: &NodeEventSender) {
    let (had, has) = (files_of(before), files_of(now));
    for resource in now.order.iter().filter(|resource| before.order.contains(resource)) {
        let files = |of: &BTreeMap<&str, BTreeSet<String>>| of.get(resource.as_str()).cloned().unwrap_or_default();
        let (had, has) = (files(&had), files(&has));
        let gone: Vec<&str> = had.difference(&has).map(String::as_str).collect();
        let come: Vec<&str> = has.difference(&had).map(String::as_str).collect();
        if !gone.is_empty() {
            let holders = holders_of(before, resource, &gone, snapshot);
            let held = if holders.is_empty() {
                String::new()
            } else {
                format!("; held by {}", holders.join(", "))
            };
            let note = format!("{resource} has lost {}{held}", named(&gone, MAX_NAMED));
            info!(resource, note, "files of a companion are gone");
            events.send(EventReason::CompanionGone, format!("{resource} gone"), note);
        }
        if !come.is_empty() {
            let note = format!("{resource} has got {}", named(&come, MAX_NAMED));
            info!(resource, note, "files of a companion have come");
            events.send(EventReason::CompanionFound, format!("{resource} found"), note);
        }
    }
}

fn files_of(desired: &DesiredCompanions) -> BTreeMap<&str, BTreeSet<String>> {
    let mut files: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for of in &desired.devices {
        let paths = of.device.files.iter().map(|file| file.path.clone());
        files.entry(&of.assignment.resource).or_default().extend(paths);
    }
    files
}

/// Returns the pods that hold a device with one of these files, as `NAMESPACE/NAME`.
fn holders_of(desired: &DesiredCompanions, resource: &str, files: &[&str], snapshot: &DeviceSnapshot) -> Vec<String> {
    let has = |of: &&gpunode_gpu::DesiredCompanion| {
        let mut paths = of.device.files.iter();
        of.assignment.resource == resource && paths.any(|file| files.contains(&file.path.as_str()))
    };
    let devices: BTreeSet<&str> = desired
        .devices
        .iter()
        .filter(has)
        .map(|of| of.device.id.as_str())
        .collect();
    let holders = snapshot
        .holders
        .iter()
        .filter(|holder| devices.contains(holder.device.as_str()));
    let pods: BTreeSet<String> = holders
        .map(|holder| format!("{}/{}", holder.namespace, holder.pod))
        .collect();
    pods.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_gpu::{CompanionFile, DeviceHolder, MatchedFiles};

    const CONFIG: &str = "companions: [{resource: a.b/c, paths: ['/dev/x/*'], inject: {mounts: {}}}]";

    fn found(wanted: &WantedFiles, files: &[&str]) -> Arc<FoundFiles> {
        let file = |path: &&str| CompanionFile {
            path: (*path).to_owned(),
            host_path: (*path).to_owned(),
            ..CompanionFile::default()
        };
        let matched = MatchedFiles {
            files: files.iter().map(file).collect(),
            refused: Vec::new(),
        };
        let files = wanted
            .globs
            .iter()
            .map(|(resource, _)| (resource.clone(), matched.clone()));
        Arc::new(FoundFiles {
            wanted: wanted.clone(),
            files: files.collect(),
            existing: wanted.known.clone(),
        })
    }

    #[test]
    fn devices_follow_a_scan_of_the_same_globs_and_known_files_alone() {
        let wanted = watch::Sender::default();
        let mut companions = NodeCompanions::new(wanted.clone());
        let config = gpunode_config::load(CONFIG).unwrap();
        let mut decide = |config: &AgentConfig, known: &[&str], found: Option<&Arc<FoundFiles>>| {
            let claimed = known.iter().map(|path| ((*path).to_owned(), "path-1".to_owned()));
            let snapshot = DeviceSnapshot {
                claimed_files: claimed.collect(),
                ..DeviceSnapshot::default()
            };
            companions.decide(config, found, &snapshot);
            (companions.are_awaited(), companions.desired().devices.len())
        };
        assert_eq!(decide(&config, &[], None), (true, 0));
        let first = found(&wanted.borrow(), &["/dev/x/a"]);
        assert_eq!(decide(&config, &[], Some(&first)), (false, 1));
        // Containers may have a file that the scan has not looked for: a device of it would count as gone.
        assert_eq!(decide(&config, &["/dev/x/b"], Some(&first)), (false, 1));
        let second = found(&wanted.borrow(), &["/dev/x/a", "/dev/x/b"]);
        assert_eq!(decide(&config, &["/dev/x/b"], Some(&second)), (false, 2));
        let none = AgentConfig::default();
        assert_eq!(decide(&none, &["/dev/x/b"], Some(&second)), (true, 2));
        let third = found(&wanted.borrow(), &[]);
        assert_eq!(decide(&none, &["/dev/x/b"], Some(&third)), (false, 0));
    }

    #[tokio::test]
    async fn people_hear_of_files_that_come_and_go_and_of_the_pods_that_had_them() {
        let config = gpunode_config::load(CONFIG).unwrap();
        let wanted = WantedFiles::of(&config, BTreeSet::new());
        let of = |files: &[&str]| desired_companions(&config, &found(&wanted, files).files, |_| false);
        let (events, mut queue) = NodeEventSender::new();
        let before = of(&["/dev/x/a", "/dev/x/b"]);
        let holder = DeviceHolder {
            namespace: "team".to_owned(),
            pod: "train".to_owned(),
            device: before.devices[0].device.id.clone(),
            ..DeviceHolder::default()
        };
        let snapshot = DeviceSnapshot {
            holders: vec![holder],
            ..DeviceSnapshot::default()
        };
        announce(&before, &of(&["/dev/x/b", "/dev/x/c"]), &snapshot, &events);
        announce(&of(&[]), &DesiredCompanions::default(), &snapshot, &events);
        announce(&before, &before, &snapshot, &events);
        drop(events);
        let mut notes = Vec::new();
        while let Some(event) = queue.recv().await {
            notes.push(format!("{event:?}"));
        }
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(
            notes[0].contains("a.b/c has lost /dev/x/a; held by team/train"),
            "{notes:?}"
        );
        assert!(notes[1].contains("a.b/c has got /dev/x/c"), "{notes:?}");
    }
}
