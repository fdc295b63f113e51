//! The one place where devices are given out: the books behind a lock, and the waiting that goes with a refusal.
//!
//! | module | what it does |
//! |---|---|
//! | `holders` | follows who holds what |
//! | `daemons` | follows which MPS control daemons answer |

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

/// How long a call that is refused takes at most, and other admissions on the node with it: one and a half updates of node
/// status, which a kubelet writes every 10 s.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause between two looks at the Node.
const NODE_POLL: Duration = Duration::from_millis(500);
/// How long a refusal waits where the Node cannot be looked at.
const NODE_UNSEEN: Duration = Duration::from_secs(11);

/// What the desk works with.
pub struct DeviceManagerInputs {
    /// Root of the host.
    pub host_root: PathBuf,
    /// Where the MPS control daemons have their folders.
    pub mps_dir: PathBuf,
    /// How busy the GPUs are.
    pub utilisation: Utilisation,
    /// What the scheduler sees; none without API server.
    pub node: Option<NodeReader>,
    /// Where it is counted.
    pub metrics: AgentMetrics,
}

/// Gives devices out.
pub struct DeviceManager {
    state: Mutex<DeviceState>,
    parts: DeviceManagerInputs,
    pass_device_specs: AtomicBool,
    /// Number of changes of the books.
    changes: watch::Sender<u64>,
    /// Number of changes that the kubelet has been told of.
    published: watch::Sender<u64>,
    observed: watch::Sender<ObservationState>,
    observe_now: Notify,
    granted: Notify,
    /// Looks at the daemons.
    look: BlockingThread,
}

impl DeviceManager {
    /// A desk that knows nothing and gives nothing.
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

    /// Takes over `state`, before anything is given out.
    pub async fn open(&self, state: DeviceState) {
        self.change(|mine| mine.reopen(state));
        if let Err(error) = self.look_at_daemons().await {
            warn!(error, "look at the MPS control daemons; trying again");
        }
    }

    /// Where it is counted.
    pub fn metrics(&self) -> &AgentMetrics {
        &self.parts.metrics
    }

    /// Changes with the books.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// What the kubelet said last, and when.
    pub fn observed(&self) -> watch::Receiver<ObservationState> {
        self.observed.subscribe()
    }

    /// Changes the books. Returns the number of the change too.
    pub fn change<T>(&self, change: impl FnOnce(&mut DeviceState) -> T) -> (T, u64) {
        let mut state = self.state();
        let result = change(&mut state);
        self.changes.send_modify(|number| *number += 1);
        let number = *self.changes.borrow();
        (result, number)
    }

    /// Changes the books where `change` says that it does.
    fn change_if(&self, change: impl FnOnce(&mut DeviceState) -> bool) {
        let mut state = self.state();
        if change(&mut state) {
            self.changes.send_modify(|number| *number += 1);
        }
    }

    /// What the books say, and the number of the change up to which they say it.
    pub fn snapshot(&self) -> (DeviceSnapshot, u64) {
        let state = self.state();
        let changes = *self.changes.borrow();
        (state.snapshot(), changes)
    }

    /// The kubelet is told what the books said after so many changes.
    pub fn published(&self, changes: u64) {
        self.published.send_replace(changes);
    }

    /// Whether allocations from now on name device nodes.
    pub fn pass_device_specs(&self, pass: bool) {
        self.pass_device_specs.store(pass, Ordering::Relaxed);
    }

    /// Asks the kubelet soon, and not when it is due.
    pub fn observe_now(&self) {
        self.observe_now.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, DeviceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of the `available` ids a container had best get. There is always an answer.
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

    /// Gives a container the shares that the kubelet picked.
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
            // What was freed since the last observation changes what there is to say.
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

    /// No change that is told at once: the pod waits for this, and what it changes for others can wait for the observation
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

    /// Before a container is refused whose shares are free, though not on one device: makes the scheduler see that, so
    /// that a ReplicaSet does not try for ever.
    async fn withhold(&self, resource: &str, deadline: tokio::time::Instant) {
        let (limit, change) = self.change(|state| state.allocator.withhold(resource));
        info!(resource, limit, "free units of other GPUs are withheld");
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
                            warn!(error, "see what the scheduler sees; trying again");
                        }
                    }
                }
                sleep(NODE_POLL).await;
            }
        };
        if timeout_at(deadline, shown).await.is_err() {
            warn!(
                resource,
                limit, "the Node does not show yet what can be given out; refusing all the same"
            );
        }
    }

    async fn is_published(&self, change: u64) {
        // Cannot fail: the sender is in this desk.
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
