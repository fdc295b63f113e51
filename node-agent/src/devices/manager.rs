//! Allocates devices: the device state behind a lock, and the wait that goes with a refusal.
//!
//! | module | what it does |
//! |---|---|
//! | `holders` | asks the kubelet for the holders of devices |
//! | `daemons` | reads the answers of the MPS control daemons |

mod daemons;
mod holders;

use crate::{
    admin::metrics::AgentMetrics,
    api_server::node_allocatable::NodeReader,
    devices::{
        allocation::{control_nodes, response},
        state::{DeviceSnapshot, DeviceState},
    },
    driver::utilisation::Utilisation,
    health::{allocations::Allocations, node_health::NodeHealth},
    kubelet::device_plugin_api::ContainerAllocateResponse,
    runtime::blocking_thread::BlockingThread,
};
use gpunode_crds::MpsDaemon;
use gpunode_gpu::{AllocatedDevices, AllocationRefusal, DeviceHolder};
use gpunode_process::OnChange;
pub use holders::ObservationState;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout_at},
};
use tracing::{info, warn};

/// Maximum duration of a refused call, which delays other admissions on the node too: one and a half updates of node
/// status, which a kubelet writes every 10 s.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause between two reads of the Node.
const NODE_POLL: Duration = Duration::from_millis(500);
/// Wait before a refusal when the agent cannot read the Node.
const NODE_UNSEEN: Duration = Duration::from_secs(11);

/// Parts of the node that a [`DeviceManager`] uses.
pub struct DeviceManagerInputs {
    /// Root of the host.
    pub host_root: PathBuf,
    /// Folder of the MPS control daemons.
    pub mps_dir: PathBuf,
    /// Utilisation of the GPUs.
    pub utilisation: Utilisation,
    /// Reads the Node's allocatable devices; none without API server.
    pub node: Option<NodeReader>,
    /// Metrics of the agent.
    pub metrics: AgentMetrics,
}

/// Allocates devices to containers.
pub struct DeviceManager {
    state: Mutex<DeviceState>,
    parts: DeviceManagerInputs,
    pass_device_specs: AtomicBool,
    /// Number of changes of the state.
    changes: watch::Sender<u64>,
    /// Number of changes that the kubelet has been sent.
    published: watch::Sender<u64>,
    observed: watch::Sender<ObservationState>,
    observe_now: Notify,
    granted: Notify,
    /// Reads the answers of the daemons.
    look: BlockingThread,
}

impl DeviceManager {
    /// Returns a manager without devices, which refuses every allocation.
    pub fn new(parts: DeviceManagerInputs) -> Self {
        Self {
            state: Mutex::default(),
            parts,
            pass_device_specs: AtomicBool::default(),
            changes: watch::Sender::default(),
            published: watch::Sender::default(),
            observed: watch::Sender::default(),
            observe_now: Notify::new(),
            granted: Notify::new(),
            look: BlockingThread::default(),
        }
    }

    /// Starts with `state`, before the first allocation.
    pub async fn open(&self, state: DeviceState) {
        self.change(|mine| mine.reopen(state));
        if let Err(error) = self.look_at_daemons().await {
            warn!(
                error,
                "cannot read the answers of the MPS control daemons; trying again"
            );
        }
    }

    /// Returns the metrics of the agent.
    pub fn metrics(&self) -> &AgentMetrics {
        &self.parts.metrics
    }

    /// Returns the number of changes of the state, which grows with each one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the result of the last observation.
    pub fn observed(&self) -> watch::Receiver<ObservationState> {
        self.observed.subscribe()
    }

    /// Changes the state. Returns the number of the change too.
    pub fn change<T>(&self, change: impl FnOnce(&mut DeviceState) -> T) -> (T, u64) {
        let mut state = self.state();
        let result = change(&mut state);
        self.changes.send_modify(|number| *number += 1);
        let number = *self.changes.borrow();
        (result, number)
    }

    /// Changes the state. `change` returns true if it changed something.
    fn change_if(&self, change: impl FnOnce(&mut DeviceState) -> bool) {
        let mut state = self.state();
        if change(&mut state) {
            self.changes.send_modify(|number| *number += 1);
        }
    }

    /// Returns a snapshot of the state, and the number of the last change in it.
    pub fn snapshot(&self) -> (DeviceSnapshot, u64) {
        let state = self.state();
        let changes = *self.changes.borrow();
        (state.snapshot(), changes)
    }

    /// Notes that the kubelet has been sent the state after this number of changes.
    pub fn published(&self, changes: u64) {
        self.published.send_replace(changes);
    }

    /// Sets if later allocations list device nodes.
    pub fn pass_device_specs(&self, pass: bool) {
        self.pass_device_specs.store(pass, Ordering::Relaxed);
    }

    /// Asks the kubelet for holders now rather than at the next interval.
    pub fn observe_now(&self) {
        self.observe_now.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, DeviceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the best of the `available` ids for a container. Always answers.
    pub async fn preferred(&self, resource: &str, available: &[String], must: &[String], size: usize) -> Vec<String> {
        let preferred = self
            .state()
            .allocator
            .preferred(resource, available, must, size, &BTreeMap::new());
        if !preferred.is_tied {
            return preferred.ids;
        }
        let busy = self.parts.utilisation.ask().await;
        self.state()
            .allocator
            .preferred(resource, available, must, size, &busy)
            .ids
    }

    /// Allocates the shares that the kubelet picked for a container.
    pub async fn allocate(
        &self,
        resource: &str,
        ids: &[String],
    ) -> Result<ContainerAllocateResponse, AllocationRefusal> {
        let deadline = tokio::time::Instant::now() + REFUSAL_TIMEOUT;
        let doubtful = self.state().allocator.is_doubtful(resource, ids);
        let mut unseen = if doubtful {
            self.observe_afresh().await.err()
        } else {
            None
        };
        let mut given = self.give(resource, ids, unseen.as_deref());
        if matches!(given, Err(AllocationRefusal::Split { .. })) && !doubtful {
            // Shares freed since the last observation may make the request fit.
            unseen = self.observe_afresh().await.err();
            given = self.give(resource, ids, unseen.as_deref());
        }
        if matches!(given, Err(AllocationRefusal::Split { .. })) {
            self.withhold(resource, deadline).await;
        }
        self.parts.metrics.allocated(resource, given.is_ok());
        let granted = given?;
        self.granted.notify_one();
        Ok(self.response(&granted))
    }

    /// Allocates without publishing a change: the pod waits for this call, and other pods can wait for the observation
    /// that follows.
    fn give(
        &self,
        resource: &str,
        ids: &[String],
        unseen: Option<&str>,
    ) -> Result<AllocatedDevices, AllocationRefusal> {
        self.state().allocator.allocate(resource, ids, Instant::now(), unseen)
    }

    fn response(&self, granted: &AllocatedDevices) -> ContainerAllocateResponse {
        let control = self
            .pass_device_specs
            .load(Ordering::Relaxed)
            .then(|| control_nodes(&self.parts.host_root));
        response(granted, control.as_deref(), &self.parts.mps_dir)
    }

    /// Withholds free shares before a refusal whose shares are free, but not on one device. The scheduler then sees
    /// fewer shares, and a ReplicaSet does not retry for ever.
    async fn withhold(&self, resource: &str, deadline: tokio::time::Instant) {
        let (limit, change) = self.change(|state| state.allocator.withhold(resource));
        info!(resource, limit, "withholding free units of other GPUs");
        let shown = async {
            self.is_published(change).await;
            let Some(node) = &self.parts.node else {
                sleep(NODE_UNSEEN).await;
                return;
            };
            let mut errors = OnChange::default();
            loop {
                match node.allocatable(resource).await {
                    Ok(allocatable) if allocatable <= limit.into() => return,
                    Ok(_) => {}
                    Err(error) => {
                        if let Some(error) = errors.changed(error) {
                            warn!(error, "cannot read the allocatable devices of the Node; trying again");
                        }
                    }
                }
                sleep(NODE_POLL).await;
            }
        };
        if timeout_at(deadline, shown).await.is_err() {
            warn!(
                resource,
                limit, "the Node does not show the lower number of devices yet; refusing anyway"
            );
        }
    }

    async fn is_published(&self, change: u64) {
        // Cannot fail: this manager owns the sender.
        _ = self
            .published
            .subscribe()
            .wait_for(|published| *published >= change)
            .await;
    }
}

impl Allocations for DeviceManager {
    fn changes(&self) -> watch::Receiver<u64> {
        self.changes()
    }

    fn daemons(&self) -> Vec<MpsDaemon> {
        self.state().daemons()
    }

    fn holders(&self) -> Vec<DeviceHolder> {
        self.state().allocator.holders()
    }

    fn known_holders(&self) -> Option<Vec<DeviceHolder>> {
        let state = self.state();
        state.knows_holders().then(|| state.allocator.holders())
    }

    fn is_assigned(&self, device: &str) -> bool {
        self.state().allocator.assigned().contains_key(device)
    }

    fn set_health(&self, node_health: NodeHealth) {
        self.change_if(|state| state.set_health(node_health));
    }
}

#[cfg(test)]
pub mod tests;
