//! The file by which an agent learns that the one before it died soon after its start, before it said anything. One that was
//! told to stop did not die.

use std::{
    fs, io,
    path::{Path, PathBuf},
};
use tokio::task::spawn_blocking;
use tracing::warn;

/// File in the state folder that is there during the first seconds of an agent.
const FILE: &str = "starting";

/// Mark of an agent that starts. It stays if the agent dies meanwhile.
#[derive(Debug)]
pub struct StartMark {
    file: PathBuf,
    was_there: bool,
}

impl StartMark {
    /// Sets the mark; blocks.
    pub fn set(state_dir: &Path) -> Self {
        let file = state_dir.join(FILE);
        let was_there = file.exists();
        if let Err(error) = fs::write(&file, "") {
            warn!(%error, file = %file.display(), "cannot mark the start of the agent");
        }
        Self { file, was_there }
    }

    /// Returns true if the agent before this one died in the first seconds after its start.
    pub fn was_there(&self) -> bool {
        self.was_there
    }

    /// Removes the mark: the agent has lived for a while.
    pub async fn remove(self) {
        let removed = spawn_blocking(move || remove(&self.file));
        if let Err(error) = removed.await {
            warn!(%error, "removing the mark of the agent's start failed");
        }
    }

    /// Removes the mark, if it is there, of an agent that was told to stop; blocks.
    pub fn clear(state_dir: &Path) {
        remove(&state_dir.join(FILE));
    }
}

fn remove(file: &Path) {
    if let Err(error) = fs::remove_file(file)
        && error.kind() != io::ErrorKind::NotFound
    {
        warn!(%error, file = %file.display(), "cannot remove the mark of the agent's start; the next start reports early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_an_agent_that_died_early_leaves_its_mark() {
        let folder = tempfile::tempdir().unwrap();
        let start = || StartMark::set(folder.path());
        assert!(!start().was_there());
        let second = start();
        assert!(second.was_there());
        second.remove().await;
        assert!(!start().was_there());
        StartMark::clear(folder.path());
        assert!(!start().was_there(), "it was told to stop");
    }
}
