//! Reads the answers of the MPS control daemons.

use super::shared_state::SharedState;
use crate::{mps::answers, runtime::blocking_thread::BlockingThread};
use gpunode_process::OnChange;
use std::{io, path::PathBuf, time::Duration};
use tokio::{
    task::JoinError,
    time::{sleep, timeout},
};
use tracing::warn;

/// Pause between two reads while daemons exist.
const BUSY: Duration = Duration::from_secs(1);
/// Pause between two reads without daemons.
const IDLE: Duration = Duration::from_secs(5);
/// Maximum duration of a read; after it the daemons count as silent.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Error of reading the answers.
#[derive(Debug, thiserror::Error)]
pub enum DaemonAnswersError {
    /// The folder cannot be read.
    #[error("{folder}: {source}")]
    Read {
        /// Folder of the daemons.
        folder: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The thread that reads ended.
    #[error("{folder}: {source}")]
    Thread {
        /// Folder of the daemons.
        folder: PathBuf,
        /// The cause.
        source: JoinError,
    },
    /// The file system hangs.
    #[error("{folder}: no answer within {TIMEOUT:?}")]
    NoAnswer {
        /// Folder of the daemons.
        folder: PathBuf,
    },
}

/// Keeps the daemons' answers in the device state up to date.
pub struct DaemonWatch {
    mps_dir: PathBuf,
    thread: BlockingThread,
}

impl DaemonWatch {
    /// Returns a watch of the daemons with folders in `mps_dir`.
    pub fn new(mps_dir: PathBuf) -> Self {
        Self {
            mps_dir,
            thread: BlockingThread::default(),
        }
    }

    /// Reads the answers again and again. Never returns.
    pub async fn run(&self, state: &SharedState) {
        let mut errors = OnChange::default();
        loop {
            let pause = if state.lock().has_daemons() { BUSY } else { IDLE };
            sleep(pause).await;
            let error = self.read(state).await.err();
            if let Some(error) = errors.set(error.map(|error| error.to_string())) {
                warn!(error, "cannot read the answers of the MPS control daemons; retrying");
            }
        }
    }

    /// Reads the answers once. On an error the daemons count as silent.
    pub async fn read(&self, state: &SharedState) -> Result<(), DaemonAnswersError> {
        let mps_dir = self.mps_dir.clone();
        let folder = || self.mps_dir.clone();
        let answers = match timeout(TIMEOUT, self.thread.run(move || answers::read(&mps_dir))).await {
            Ok(Ok(answers)) => answers.map_err(|source| DaemonAnswersError::Read {
                folder: folder(),
                source,
            }),
            Ok(Err(source)) => Err(DaemonAnswersError::Thread {
                folder: folder(),
                source,
            }),
            Err(_) => Err(DaemonAnswersError::NoAnswer { folder: folder() }),
        };
        state.change_if(|state| match &answers {
            Ok((answers, now)) => state.set_daemon_answers(answers.clone(), *now),
            Err(_) => state.set_daemons_silent(),
        });
        answers.map(drop)
    }
}
