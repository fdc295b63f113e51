//! The last good configuration, saved on the node for a start without the API server.

use crate::{
    configuration::in_force::{ConfigCandidate, DesiredConfig},
    runtime::blocking_thread::BlockingThread,
    store::atomic_file::{self, DISK_TIMEOUT},
};
use gpunode_config::AgentConfig;
use gpunode_process::OnChange;
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::time::timeout;
use tracing::warn;

const FILE: &str = "config.json";
/// Version of the file format.
const FORMAT: u32 = 1;

#[derive(Deserialize, Serialize)]
struct SavedConfigFile {
    format: u32,
    node: String,
    version: i32,
    hash: String,
    document: String,
    uid: Option<String>,
}

/// The saved configuration of this node.
#[derive(Debug)]
pub struct SavedConfig {
    state_dir: PathBuf,
    node: String,
    content: Option<Arc<ConfigCandidate>>,
    failed: bool,
    errors: OnChange,
    disk: BlockingThread,
}

impl SavedConfig {
    /// Reads the file. A damaged file is set aside and counts as none: the API server has the configuration too.
    pub fn load(state_dir: &Path, node: &str) -> Self {
        let content = load(state_dir, node).map(Arc::new);
        Self {
            state_dir: state_dir.to_owned(),
            node: node.to_owned(),
            content,
            failed: false,
            errors: OnChange::default(),
            disk: BlockingThread::default(),
        }
    }

    /// Returns the saved configuration.
    pub fn content(&self) -> Option<Arc<ConfigCandidate>> {
        self.content.clone()
    }

    /// Returns true if the last save failed: call [`Self::keep`] again.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// Saves an accepted configuration. Removes the saved one when the operator has none for this node: a later start
    /// must not bring back a configuration that was withdrawn while no agent ran. The next call retries a write that
    /// failed or timed out.
    pub async fn keep(&mut self, requested: &DesiredConfig, accepted: bool) {
        let content = match requested {
            DesiredConfig::Config(candidate) if accepted => Some(candidate.clone()),
            DesiredConfig::Nothing => None,
            DesiredConfig::Config(_) | DesiredConfig::Unknown => return,
        };
        // The file is in an unknown state after a write that timed out.
        self.failed |= content != self.content;
        if !self.failed {
            return;
        }
        let (state_dir, node, candidate) = (self.state_dir.clone(), self.node.clone(), content.clone());
        let work = self.disk.run(move || save(&state_dir, &node, candidate.as_deref()));
        let error = match timeout(DISK_TIMEOUT, work).await {
            Ok(Ok(Ok(()))) => {
                (self.content, self.failed) = (content, false);
                self.errors.clear();
                return;
            }
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {DISK_TIMEOUT:?}"),
        };
        if let Some(error) = self.errors.changed(error) {
            warn!(error, folder = %self.state_dir.display(), "cannot save the configuration; retrying");
        }
    }
}

/// Returns the configuration that the last agent of a host saved, whatever the node's name; changes nothing. Blocks.
pub fn last_config(state_dir: &Path) -> Option<AgentConfig> {
    let text = atomic_file::read(&state_dir.join(FILE)).ok()?;
    let saved: SavedConfigFile = serde_json::from_slice(&text).ok()?;
    gpunode_config::load(&saved.document).ok()
}

fn load(state_dir: &Path, node: &str) -> Option<ConfigCandidate> {
    let saved: SavedConfigFile = atomic_file::load(&state_dir.join(FILE), FORMAT)?;
    (saved.node == node).then_some(ConfigCandidate {
        version: saved.version,
        hash: saved.hash,
        document: saved.document,
        uid: saved.uid,
    })
}

/// Replaces the saved configuration; `None` removes it.
fn save(state_dir: &Path, node: &str, candidate: Option<&ConfigCandidate>) -> io::Result<()> {
    let path = state_dir.join(FILE);
    let Some(candidate) = candidate else {
        return fs::remove_file(&path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        });
    };
    let saved = SavedConfigFile {
        format: FORMAT,
        node: node.to_owned(),
        version: candidate.version,
        hash: candidate.hash.clone(),
        document: candidate.document.clone(),
        uid: candidate.uid.clone(),
    };
    atomic_file::replace(&path, &serde_json::to_vec(&saved)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_read_again_for_the_same_node() {
        let folder = tempfile::tempdir().unwrap();
        let candidate = ConfigCandidate {
            uid: Some("1".to_owned()),
            ..ConfigCandidate::of_file("{}\n".to_owned())
        };
        assert_eq!(load(folder.path(), "a"), None);
        save(folder.path(), "a", Some(&candidate)).unwrap();
        assert_eq!(load(folder.path(), "a"), Some(candidate));
        assert_eq!(load(folder.path(), "b"), None);
        save(folder.path(), "a", None).unwrap();
        save(folder.path(), "a", None).unwrap();
        assert_eq!(load(folder.path(), "a"), None);
    }

    #[test]
    fn last_configuration_is_read_without_a_change_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(last_config(folder.path()), None);
        let text = "passDeviceSpecs: true\n".to_owned();
        save(folder.path(), "a", Some(&ConfigCandidate::of_file(text))).unwrap();
        assert!(last_config(folder.path()).is_some_and(|config| config.pass_device_specs()));
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert_eq!(last_config(folder.path()), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_configuration_that_was_withdrawn_while_no_agent_ran_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), "a", Some(&ConfigCandidate::of_file("old: 1".to_owned()))).unwrap();
        let mut saved = SavedConfig::load(folder.path(), "a");
        saved.keep(&DesiredConfig::Unknown, true).await;
        assert!(load(folder.path(), "a").is_some());
        saved.keep(&DesiredConfig::Nothing, true).await;
        assert_eq!(load(folder.path(), "a"), None);
        assert_eq!(saved.content(), None);
    }

    #[tokio::test]
    async fn only_an_accepted_configuration_replaces_the_saved_one() {
        let folder = tempfile::tempdir().unwrap();
        let [good, bad, better] =
            ["good", "bad", "better"].map(|document| Arc::new(ConfigCandidate::of_file(document.to_owned())));
        let mut saved = SavedConfig::load(folder.path(), "a");
        saved.keep(&DesiredConfig::Config(good.clone()), true).await;
        saved.keep(&DesiredConfig::Config(bad), false).await;
        assert_eq!(SavedConfig::load(folder.path(), "a").content(), Some(good));
        saved.keep(&DesiredConfig::Config(better.clone()), true).await;
        assert_eq!(SavedConfig::load(folder.path(), "a").content(), Some(better));
    }

    #[tokio::test]
    async fn what_could_not_be_saved_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let state_dir = folder.path().join("later");
        let requested = DesiredConfig::Config(Arc::new(ConfigCandidate::of_file("{}".to_owned())));
        let mut saved = SavedConfig::load(&state_dir, "a");
        saved.keep(&requested, true).await;
        assert!(saved.failed());
        fs::create_dir(&state_dir).unwrap();
        saved.keep(&requested, true).await;
        assert!(!saved.failed() && load(&state_dir, "a").is_some());
    }

    #[test]
    fn a_file_that_tells_nothing_counts_as_none_and_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let other_format = r#"{"format":2,"node":"a","version":1,"hash":"","document":"","uid":null}"#;
        for text in ["{\"format\":1,", other_format] {
            fs::write(folder.path().join(FILE), text).unwrap();
            assert_eq!(load(folder.path(), "a"), None);
            assert_eq!(
                fs::read_to_string(folder.path().join("config.json.corrupt")).unwrap(),
                text
            );
        }
    }
}
