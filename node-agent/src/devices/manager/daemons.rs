//! Reads the answers of the MPS control daemons.

use super::DeviceManager;
use crate::mps::answers;
use gpunode_process::OnChange;
use std::{fmt::Display, sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};
use tracing::warn;

/// Pause between two reads while daemons exist.
const BUSY: Duration = Duration::from_secs(1);
/// Pause between two reads without daemons.
const IDLE: Duration = Duration::from_secs(5);
/// Maximum duration of a read; after it the daemons count as silent.
const TIMEOUT: Duration = Duration::from_secs(3);

impl DeviceManager {
    /// Reads the answers of the MPS control daemons again and again. Never returns.
    pub async fn watch_daemons(self: Arc<Self>) {
        let mut errors = OnChange::default();
        loop {
            let pause = if self.state().has_daemons() { BUSY } else { IDLE };
            sleep(pause).await;
            let error = self.look_at_daemons().await.err();
            if let Some(error) = errors.set(error) {
                warn!(
                    error,
                    "cannot read the answers of the MPS control daemons; trying again"
                );
            }
        }
    }

    pub(super) async fn look_at_daemons(&self) -> Result<(), String> {
        let folder = self.parts.mps_dir.clone();
        let of_folder = |error: &dyn Display| format!("{}: {error}", self.parts.mps_dir.display());
        let seen = match timeout(TIMEOUT, self.look.run(move || answers::read(&folder))).await {
            Ok(Ok(Ok(seen))) => Ok(seen),
            Ok(Ok(Err(error))) => Err(of_folder(&error)),
            Ok(Err(error)) => Err(of_folder(&error)),
            Err(_) => Err(of_folder(&format_args!("no answer within {TIMEOUT:?}"))),
        };
        self.change_if(|state| match &seen {
            Ok((answers, now)) => state.see(answers.clone(), *now),
            Err(_) => state.not_seen(),
        });
        seen.map(drop)
    }
}
