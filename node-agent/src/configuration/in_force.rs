//! The configuration in force and the devices that it asks for. Pure.
//!
//! A rejected configuration never replaces the one in force.

use gpunode_config::{AgentConfig, CONFIG_VERSION, ConfigDocument, LoadError, load};
use gpunode_crds::MigStatus;
use gpunode_gpu::{
    DesiredCompanions, DesiredDevices, DesiredDevicesError, Inventory, LayoutHolds, desired_devices,
    desired_devices_beside,
};
use std::{collections::BTreeMap, sync::Arc};

/// Maximum bytes of the message in `GpuNode.status.rejectedConfig`.
const MAX_MESSAGE: usize = 1024;

/// A configuration from the operator or a file, not checked yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigCandidate {
    /// Version of the document's format.
    pub version: i32,
    /// Hash of the document.
    pub hash: String,
    /// The document.
    pub document: String,
    /// UID of its GpuNode; none for a file.
    pub uid: Option<String>,
}

/// The request of the operator or the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DesiredConfig {
    /// No request yet: the configuration in force stays.
    #[default]
    Unknown,
    /// No configuration: the agent advertises no device.
    Nothing,
    /// A configuration to put in force.
    Config(Arc<ConfigCandidate>),
}

/// A configuration that was rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RejectedConfig {
    /// Hash of its document.
    pub hash: String,
    /// Error, with the path of the field.
    pub message: String,
}

/// A configuration that was accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptedConfig {
    /// Hash of its document.
    pub hash: String,
    /// Its parsed document.
    pub config: AgentConfig,
}

/// Cause of a rejected configuration.
#[derive(Debug, thiserror::Error)]
enum RejectionCause {
    #[error(
        "read configuration: version {0} is not {CONFIG_VERSION}, the version that this agent reads; use an agent of the \
         operator's version"
    )]
    Version(i32),
    #[error("read configuration: the document has the hash {actual}, not {declared}")]
    Hash { actual: String, declared: String },
    #[error(transparent)]
    Document(#[from] LoadError),
    #[error(transparent)]
    Devices(#[from] DesiredDevicesError),
}

/// The configuration in force and the devices that it asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    /// The last accepted configuration.
    pub accepted: Option<AcceptedConfig>,
    /// The newest configuration, if it was rejected.
    pub rejected: Option<RejectedConfig>,
    /// GPUs and MIG devices to advertise, and their resources.
    pub desired: Arc<DesiredDevices>,
    /// Companions to advertise.
    pub companions: Arc<DesiredCompanions>,
    /// True until the files of the configuration have been looked for.
    pub are_files_awaited: bool,
    /// Progress of the GPUs towards their MIG layouts.
    pub layouts: LayoutProgress,
}

/// Progress of the GPUs towards their MIG layouts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutProgress {
    /// GPUs with a layout, by UUID.
    pub gpus: BTreeMap<String, MigStatus>,
    /// True while no device is advertised anew, because the GPUs' instances or their records are not read yet.
    pub are_awaited: bool,
}

impl ConfigCandidate {
    /// Returns the candidate for a file's text, with the hash computed.
    pub fn of_file(document: String) -> Self {
        Self {
            version: CONFIG_VERSION,
            hash: ConfigDocument::hash_of(&document),
            document,
            uid: None,
        }
    }

    /// Returns true if the document is a configuration with MIG layouts.
    pub fn has_layouts(&self) -> bool {
        let mig = self.parse().ok().and_then(|config| config.mig);
        mig.is_some_and(|mig| !mig.layout.is_empty())
    }

    fn parse(&self) -> Result<AgentConfig, RejectionCause> {
        if self.version != CONFIG_VERSION {
            return Err(RejectionCause::Version(self.version));
        }
        let actual = ConfigDocument::hash_of(&self.document);
        if actual != self.hash {
            let declared = self.hash.clone();
            return Err(RejectionCause::Hash { actual, declared });
        }
        Ok(load(&self.document)?)
    }
}

impl InForce {
    /// Returns the configuration in force after `requested`, for the GPUs of `inventory`; none means no GPUs.
    pub fn next(&self, requested: &DesiredConfig, inventory: Option<&Inventory>) -> Self {
        let none = Inventory::default();
        let inventory = inventory.unwrap_or(&none);
        match requested {
            DesiredConfig::Unknown => self.with(inventory),
            DesiredConfig::Nothing => Self {
                desired: DesiredDevices::nothing(inventory).into(),
                ..Self::default()
            },
            DesiredConfig::Config(candidate) => match accept(candidate, inventory) {
                Ok(accepted) => accepted,
                Err(cause) => {
                    let rejected = RejectedConfig {
                        hash: candidate.hash.clone(),
                        message: bounded(cause.to_string()),
                    };
                    Self {
                        rejected: Some(rejected),
                        ..self.with(inventory)
                    }
                }
            },
        }
    }

    /// Like [`Self::next`], but falls back to the `saved` configuration when `requested` is rejected and no earlier
    /// configuration fitted this hardware.
    pub fn next_or_saved(
        &self,
        requested: &DesiredConfig,
        saved: Option<Arc<ConfigCandidate>>,
        inventory: Option<&Inventory>,
    ) -> Self {
        let next = self.next(requested, inventory);
        let Some(rejected) = &next.rejected else { return next };
        let nothing_fitted = next
            .accepted
            .as_ref()
            .is_none_or(|accepted| accepted.hash == rejected.hash);
        match saved.filter(|saved| nothing_fitted && saved.hash != rejected.hash) {
            Some(saved) => Self::default()
                .next(&DesiredConfig::Config(saved), inventory)
                .next(requested, inventory),
            None => next,
        }
    }

    /// Applies the same configuration to other hardware. If it does not fit, the desired devices stay as they are.
    fn with(&self, inventory: &Inventory) -> Self {
        let desired = match &self.accepted {
            Some(accepted) => {
                desired_devices(inventory, &accepted.config).map_or_else(|_| self.desired.clone(), Arc::new)
            }
            None => DesiredDevices::nothing(inventory).into(),
        };
        Self {
            desired,
            ..self.clone()
        }
    }

    /// Takes the progress of the GPUs towards their MIG layouts, and the devices that no container may get meanwhile.
    pub fn lay_out(&mut self, inventory: &Inventory, holds: &LayoutHolds, layouts: LayoutProgress) {
        if let Some(accepted) = &self.accepted
            && let Ok(desired) = desired_devices_beside(inventory, &accepted.config, holds)
        {
            self.desired = desired.into();
        }
        self.layouts = layouts;
    }

    /// Returns true if the agent exits when it cannot initialise the driver.
    pub fn fail_on_init_error(&self) -> bool {
        self.accepted
            .as_ref()
            .is_some_and(|accepted| accepted.config.fail_on_init_error())
    }
}

fn accept(candidate: &ConfigCandidate, inventory: &Inventory) -> Result<InForce, RejectionCause> {
    let config = candidate.parse()?;
    let desired = desired_devices(inventory, &config)?.into();
    let accepted = AcceptedConfig {
        hash: candidate.hash.clone(),
        config,
    };
    Ok(InForce {
        accepted: Some(accepted),
        rejected: None,
        desired,
        companions: Arc::default(),
        are_files_awaited: false,
        layouts: LayoutProgress::default(),
    })
}

fn bounded(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(MAX_MESSAGE));
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_gpu::Gpu;

    fn config(document: &str) -> DesiredConfig {
        DesiredConfig::Config(Arc::new(ConfigCandidate::of_file(document.to_owned())))
    }

    fn gpus(count: u32) -> Inventory {
        let gpu = |index| Gpu {
            index,
            uuid: format!("GPU-{index}"),
            ..Gpu::default()
        };
        Inventory {
            gpus: (0..count).map(gpu).collect(),
            ..Inventory::default()
        }
    }

    /// Resources and how many shares they have.
    fn names(state: &InForce) -> Vec<(&str, u32)> {
        let mut names: Vec<(&str, u32)> = Vec::new();
        for device in &state.desired.devices {
            let (name, shares) = (device.assignment.resource.as_str(), device.assignment.sharing.shares());
            match names.last_mut().filter(|(last, _)| *last == name) {
                Some((_, sum)) => *sum += shares,
                None => names.push((name, shares)),
            }
        }
        names
    }

    const SHARED: &str = "resources: [{name: a.b/c, sharing: {strategy: TimeSlicing, replicas: 8192}}]";

    #[test]
    fn a_bad_configuration_never_replaces_a_good_one() {
        let good = InForce::default().next(&config("passDeviceSpecs: true"), Some(&gpus(2)));
        let after = good.next(&config("passDeviceSpec: true"), Some(&gpus(2)));
        assert_eq!(after.accepted, good.accepted);
        assert_eq!(after.desired, good.desired);
        let rejected = after.rejected.clone().unwrap();
        assert!(
            rejected.message.contains("did you mean `passDeviceSpecs`"),
            "{}",
            rejected.message
        );
        assert_eq!(after.next(&config("passDeviceSpecs: true"), Some(&gpus(2))), good);
    }

    #[test]
    fn a_wrong_hash_or_version_is_rejected() {
        let candidate = |version, hash: &str| {
            let document = "{}".to_owned();
            DesiredConfig::Config(Arc::new(ConfigCandidate {
                version,
                hash: hash.to_owned(),
                document,
                uid: None,
            }))
        };
        let message = |requested| InForce::default().next(&requested, None).rejected.unwrap().message;
        assert!(message(candidate(1, "0000")).contains("not 0000"));
        assert!(message(candidate(7, &ConfigDocument::hash_of("{}"))).contains("version 7 is not 1"));
    }

    #[test]
    fn a_list_that_is_too_long_for_the_gpus_that_appear_keeps_the_old_lists() {
        let one = InForce::default().next(&config(SHARED), Some(&gpus(4)));
        assert_eq!(names(&one), [("a.b/c", 4 * 8192)]);
        let more = one.next(&config(SHARED), Some(&gpus(16)));
        assert_eq!(names(&more), [("a.b/c", 4 * 8192)]);
        assert!(
            more.rejected
                .unwrap()
                .message
                .starts_with("resource a.b/c: the list of")
        );
    }

    #[test]
    fn without_an_answer_from_the_source_what_is_in_force_stays_and_follows_the_hardware() {
        let one = InForce::default().next(&config(""), None);
        assert_eq!(names(&one), []);
        let two = one.next(&DesiredConfig::Unknown, Some(&gpus(2)));
        assert_eq!(names(&two), [("nvidia.com/gpu", 2)]);
        let nothing = two.next(&DesiredConfig::Nothing, Some(&gpus(2)));
        assert_eq!(names(&nothing), []);
        assert_eq!(nothing.desired.present.len(), 2, "the devices are still there");
    }

    #[test]
    fn a_configuration_that_is_rejected_at_the_start_leaves_the_saved_one_in_force() {
        let saved = Arc::new(ConfigCandidate::of_file("passDeviceSpecs: true".to_owned()));
        let start =
            |before: &InForce, document| before.next_or_saved(&config(document), Some(saved.clone()), Some(&gpus(16)));
        for document in ["passDeviceSpec: true", SHARED] {
            let after = start(&InForce::default(), document);
            assert!(after.rejected.is_some());
            assert_eq!(names(&after), [("nvidia.com/gpu", 16)]);
            assert_eq!(after.accepted.map(|accepted| accepted.hash), Some(saved.hash.clone()));
        }
        let before_the_driver_came = InForce::default().next(&config(SHARED), None);
        assert_eq!(names(&start(&before_the_driver_came, SHARED)), [("nvidia.com/gpu", 16)]);
    }

    #[test]
    fn a_message_fits_its_field() {
        let long = format!("{}: 1", "ü".repeat(3000));
        let rejected = InForce::default().next(&config(&long), None).rejected.unwrap();
        assert!(rejected.message.len() <= MAX_MESSAGE);
    }
}
