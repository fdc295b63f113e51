//! Watches the one Lease, so that a standby notices at once that it is free. Without this watch, reads at intervals
//! notice it.

use futures::TryStreamExt;
use gpunode_process::OnChange;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{WatchEvent, WatchParams},
};
use std::{pin::pin, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Seconds after which the API server ends a watch, so that a connection that died silently is not used for long.
const WATCH_SECONDS: u32 = 60;

/// Sends the Lease of this name with each change; `None` when it was deleted. Starts a watch at most once in `pause`.
pub async fn watch_lease(leases: Api<Lease>, name: &str, pause: Duration, sightings: watch::Sender<Option<Lease>>) {
    let params = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(WATCH_SECONDS);
    let mut errors = OnChange::default();
    loop {
        let start = Instant::now();
        let error = watch_once(&leases, &params, &sightings).await.err();
        if let Some(error) = errors.set(error.map(|error| error.to_string())) {
            tracing::warn!(error, "cannot watch lease {name}; reading it every {pause:?}");
        }
        sleep_until(start + pause).await;
    }
}

async fn watch_once(
    leases: &Api<Lease>,
    params: &WatchParams,
    sightings: &watch::Sender<Option<Lease>>,
) -> kube::Result<()> {
    // Begins with the Lease as the API server's cache has it. A stale one leads to one more read.
    let mut events = pin!(leases.watch(params, "0").await?);
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(lease) | WatchEvent::Modified(lease) => drop(sightings.send_replace(Some(lease))),
            WatchEvent::Deleted(_) => drop(sightings.send_replace(None)),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        }
    }
    Ok(())
}
