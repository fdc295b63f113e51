//! Asks the kubelet for the holders of devices.

use super::{served_resources::RegistrationWatches, shared_state::SharedState};
use crate::kubelet::podresources::{PodResources, PodResourcesError};
use gpunode_process::OnChange;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};
use tracing::{info, warn};

/// Pause between two observations while a change waits for their result.
const BUSY: Duration = Duration::from_millis(500);
/// Pause between two observations while another plugin may serve a resource.
const DOUBTFUL: Duration = Duration::from_secs(1);
/// Pause between two observations otherwise.
const IDLE: Duration = Duration::from_secs(10);
/// Minimum pause: the kubelet takes 100 calls a second from all its clients together, and an observation is two.
const LEAST: Duration = Duration::from_millis(100);
/// Pause between an allocation and the observation that follows: before it saves the allocation, a kubelet that is asked
/// may lose it.
const GRANT_PAUSE: Duration = Duration::from_millis(200);
/// Maximum wait of an allocation for a fresh observation.
const FRESH_TIMEOUT: Duration = Duration::from_secs(3);

/// Result of the last observation.
#[derive(Debug, Default)]
pub struct ObservationState {
    /// Start of the last successful observation.
    pub started: Option<Instant>,
    /// Error of the observation after that.
    pub error: Option<String>,
    /// Resources with healthy devices in the kubelet, also of an observation that has then failed; none if the kubelet did not
    /// answer.
    pub allocatable: Option<AllocatableResources>,
}

/// Resources with healthy devices in the kubelet.
#[derive(Debug)]
pub struct AllocatableResources {
    /// Start of the observation.
    pub started: Instant,
    /// Names of the resources.
    pub names: BTreeSet<String>,
}

/// Error of waiting for a fresh observation.
#[derive(Debug, thiserror::Error)]
pub enum FreshObservationError {
    /// The observation failed.
    #[error("{0}")]
    Failed(String),
    /// The kubelet does not answer.
    #[error("no answer within {FRESH_TIMEOUT:?}")]
    NoAnswer,
}

/// Keeps the holders in the device state up to date.
#[derive(Debug, Default)]
pub struct HolderWatch {
    observed: watch::Sender<ObservationState>,
    observe_now: Notify,
    allocated: Notify,
}

impl HolderWatch {
    /// Returns the result of the last observation.
    pub fn observed(&self) -> watch::Receiver<ObservationState> {
        self.observed.subscribe()
    }

    /// Asks the kubelet for holders now rather than at the next interval.
    pub fn observe_now(&self) {
        self.observe_now.notify_one();
    }

    /// Asks the kubelet soon after an allocation.
    pub fn observe_allocation(&self) {
        self.allocated.notify_one();
    }

    /// Waits for the next allocation.
    pub async fn allocated(&self) {
        self.allocated.notified().await;
    }

    /// Asks the kubelet again and again. Never returns.
    pub async fn run(&self, state: &SharedState, served: &RegistrationWatches, kubelet: PodResources) {
        let mut errors = OnChange::default();
        loop {
            let error = self.observe(state, served, &kubelet).await;
            if error.is_none() && errors.clear() {
                info!("the kubelet answers again which pod holds which device");
            } else if let Some(error) = errors.set(error) {
                warn!(error, "cannot read which pod holds which device; retrying");
            }
            sleep(LEAST).await;
            let pause = if state.lock().is_busy() {
                BUSY
            } else if served.are_doubtful() {
                DOUBTFUL
            } else {
                IDLE
            };
            tokio::select! {
                () = sleep(pause.saturating_sub(LEAST)) => {}
                () = self.observe_now.notified() => {}
                () = self.allocated() => sleep(GRANT_PAUSE).await,
            }
        }
    }

    /// Asks the kubelet once, and publishes the result. Returns the error.
    async fn observe(
        &self,
        state: &SharedState,
        served: &RegistrationWatches,
        kubelet: &PodResources,
    ) -> Option<String> {
        let devices = match kubelet.allocatable().await {
            Ok(devices) => devices,
            Err(error) => return Some(self.fail(state, &error, None)),
        };
        let allocatable = AllocatableResources {
            started: devices.started,
            names: devices.devices.iter().map(|(resource, _)| resource.clone()).collect(),
        };
        // A resource that the kubelet has forgotten is noticed also while nothing says who holds what.
        served.observe_allocatable(allocatable.started, &allocatable.names);
        match kubelet.holders(devices).await {
            Ok(observation) => {
                served.observe(&observation);
                state.change(|state| state.observe(observation));
                self.observed.send_replace(ObservationState {
                    started: Some(allocatable.started),
                    error: None,
                    allocatable: Some(allocatable),
                });
                None
            }
            Err(error) => Some(self.fail(state, &error, Some(allocatable))),
        }
    }

    /// Publishes a failed observation. Returns the error.
    fn fail(
        &self,
        state: &SharedState,
        error: &PodResourcesError,
        allocatable: Option<AllocatableResources>,
    ) -> String {
        let error = error.to_string();
        state.change_if(|state| state.not_observed(&error, Instant::now()));
        self.observed.send_modify(|observed| {
            observed.error = Some(error.clone());
            observed.allocatable = allocatable;
        });
        error
    }

    /// Waits for an observation that starts after this call. On an error the earlier observation stands.
    pub async fn observe_afresh(&self) -> Result<(), FreshObservationError> {
        let now = Instant::now();
        let mut observed = self.observed.subscribe();
        self.observe_now();
        let fresh = observed.wait_for(|observed| observed.started >= Some(now));
        if timeout(FRESH_TIMEOUT, fresh).await.is_ok() {
            return Ok(());
        }
        let error = observed.borrow().error.clone();
        Err(error.map_or(FreshObservationError::NoAnswer, FreshObservationError::Failed))
    }
}
