//! Allocates devices: the device state behind a lock, and the wait that goes with a refusal.
//!
//! | module | what it does |
//! |---|---|
//! | `shared_state` | the device state behind its lock, with the health and the state of the CDI file published last |
//! | `served_resources` | the registered resources behind their lock |
//! | `holders` | asks the kubelet for the holders of devices |
//! | `daemons` | reads the answers of the MPS control daemons |

mod daemons;
mod holders;
mod served_resources;
mod shared_state;

use crate::{
    admin::metrics::AgentMetrics,
    api_server::node_allocatable::NodeReader,
    cdi::state::CdiState,
    devices::{
        allocation::{HostDeviceNodes, ResponseInputs, response},
        companion_injection::companion_response,
        injection::InjectionRules,
        served::{ListHold, OtherPluginEvidence},
        state::{DeviceSnapshot, DeviceState},
    },
    driver::{hardware_probe::DriverRoots, utilisation::Utilisation},
    health::{allocations::Allocations, node_health::NodeHealth},
    kubelet::{device_plugin_api::ContainerAllocateResponse, podresources::PodResources},
    store::assignments::{Assignments, ClaimedFiles},
};
use daemons::DaemonWatch;
use gpunode_crds::MpsDaemon;
use gpunode_gpu::{AdvertisedResource, AllocatedDevices, AllocationRefusal, ContainerShares, DeviceHolder};
use gpunode_process::OnChange;
use holders::HolderWatch;
pub use holders::ObservationState;
use served_resources::RegistrationWatches;
use shared_state::SharedState;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::watch,
    time::{sleep, timeout_at},
};
use tracing::{info, warn};

/// Maximum duration of a refused call, which delays other admissions on the node too: one and a half updates of node
/// status, which a kubelet writes every 10 s.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause between two reads of the Node.
const NODE_POLL: Duration = Duration::from_millis(500);
/// Wait before a refusal when the agent cannot read the Node.
const NODE_UNREADABLE_PAUSE: Duration = Duration::from_secs(11);

/// Parts of the node that a [`DeviceManager`] uses.
pub struct DeviceManagerInputs {
    /// Folders of the driver and of device nodes.
    pub roots: DriverRoots,
    /// Folder of the MPS control daemons.
    pub mps_dir: PathBuf,
    /// Utilisation of the GPUs.
    pub utilisation: Utilisation,
    /// Reads the Node's allocatable devices; none without API server.
    pub node: Option<NodeReader>,
    /// Health of the node's devices.
    pub health: watch::Receiver<Arc<NodeHealth>>,
    /// State of the CDI file.
    pub cdi: watch::Receiver<CdiState>,
    /// Metrics of the agent.
    pub metrics: AgentMetrics,
}

/// Allocates devices to containers.
pub struct DeviceManager {
    state: SharedState,
    inputs: DeviceManagerInputs,
    /// Number of changes that the kubelet has been sent.
    published: watch::Sender<u64>,
    holders: HolderWatch,
    served: RegistrationWatches,
    daemons: DaemonWatch,
}

impl DeviceManager {
    /// Returns a manager without devices, which refuses every allocation.
    pub fn new(inputs: DeviceManagerInputs) -> Self {
        Self {
            state: SharedState::new(inputs.health.clone(), inputs.cdi.clone()),
            published: watch::Sender::default(),
            holders: HolderWatch::default(),
            served: RegistrationWatches::default(),
            daemons: DaemonWatch::new(inputs.mps_dir.clone()),
            inputs,
        }
    }

    /// Starts with `state`, before the first allocation.
    pub async fn open(&self, state: DeviceState) {
        self.change(|current| *current = state);
        if let Err(error) = self.daemons.read(&self.state).await {
            warn!(
                %error,
                "cannot read the answers of the MPS control daemons; retrying"
            );
        }
    }

    /// Returns the metrics of the agent.
    pub fn metrics(&self) -> &AgentMetrics {
        &self.inputs.metrics
    }

    /// Returns the number of changes of the state, which grows with each one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.state.changes()
    }

    /// Returns the result of the last observation.
    pub fn observed(&self) -> watch::Receiver<ObservationState> {
        self.holders.observed()
    }

    /// Changes the state. Returns the number of the change too.
    pub fn change<T>(&self, change: impl FnOnce(&mut DeviceState) -> T) -> (T, u64) {
        self.state.change(change)
    }

    /// Returns a snapshot of the state, and the number of the last change in it.
    pub fn snapshot(&self) -> (DeviceSnapshot, u64) {
        self.state.snapshot()
    }

    /// Returns the shares of all containers, and the assignments of devices; none while the kubelet does not tell the holders.
    pub fn observed_shares(&self) -> Option<(Vec<ContainerShares>, Assignments)> {
        let state = self.state.lock();
        let (shares, assigned) = (state.allocator.observed_shares(), state.allocator.assigned());
        state.knows_holders().then(|| (shares.to_vec(), assigned.clone()))
    }

    /// Keeps the holders of devices up to date. Never returns.
    pub async fn watch_holders(self: Arc<Self>, kubelet: PodResources) {
        self.holders.run(&self.state, &self.served, kubelet).await;
    }

    /// Keeps the answers of the MPS control daemons up to date. Never returns.
    pub async fn watch_daemons(self: Arc<Self>) {
        self.daemons.run(&self.state).await;
    }

    /// Counts each newly published health and state of the CDI file as a change at once. Never returns.
    pub async fn watch_inputs(self: Arc<Self>) {
        self.state.watch_inputs().await;
    }

    /// Notes that the kubelet has been sent the state after this number of changes.
    pub fn published(&self, changes: u64) {
        self.published.send_replace(changes);
    }

    /// Sets the ways in which later containers get their devices; returns true if they are other ones than before. Those of earlier
    /// containers stay.
    pub fn set_injection(&self, rules: &InjectionRules) -> bool {
        self.state.change_if(|state| state.set_injection(rules))
    }

    /// Notes the files of companions that are on disk: only these are given to containers.
    pub fn files_saved(&self, files: &ClaimedFiles) {
        self.state.lock().allocator.set_saved_files(files);
    }

    /// Sets whether the pods on devices that switch are evicted.
    pub fn withdraw_switching(&self, withdraws: bool) {
        self.state.change_if(|state| state.withdraw_switching(withdraws));
    }

    /// Asks the kubelet for holders now rather than at the next interval.
    pub fn observe_now(&self) {
        self.holders.observe_now();
    }

    /// Notes that a resource is about to be registered. `hold` makes its server hold lists back while the kubelet may have the
    /// resource from another plugin.
    pub fn begin_serving(&self, resource: &str, hold: watch::Sender<Option<ListHold>>) {
        self.served.begin(resource, hold);
    }

    /// Notes that a resource is no longer registered.
    pub fn end_serving(&self, resource: &str) {
        self.served.end(resource);
    }

    /// Notes a list that the kubelet is sent.
    pub fn list_sent(&self, list: &Arc<AdvertisedResource>) {
        self.served.send(list);
    }

    /// Returns the evidence that another plugin serves a registered resource.
    pub fn other_plugin(&self, resource: &str) -> Option<OtherPluginEvidence> {
        self.served.other(resource)
    }

    /// Returns true if the kubelet has nothing of a registered resource, though it had the time to take the list in.
    pub fn is_missing(&self, resource: &str) -> bool {
        self.served.is_missing(resource)
    }

    /// Notes that another plugin may have registered any of the resources.
    pub fn doubt_registrations(&self) {
        self.served.doubt();
    }

    /// Returns the best of the `available` ids for a container. Always answers.
    pub async fn preferred(&self, resource: &str, available: &[String], must: &[String], size: usize) -> Vec<String> {
        let preferred = self
            .state
            .lock()
            .allocator
            .preferred(resource, available, must, size, &BTreeMap::new());
        if !preferred.is_tied {
            return preferred.ids;
        }
        let busy = self.inputs.utilisation.read().await;
        self.state
            .lock()
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
        let requested = Instant::now();
        self.served.request(resource, ids);
        let deadline = tokio::time::Instant::now() + REFUSAL_TIMEOUT;
        let is_doubtful = self.state.lock().allocator.is_doubtful(resource, ids);
        let mut stale = if is_doubtful {
            self.holders.observe_afresh().await.err().map(|error| error.to_string())
        } else {
            None
        };
        let mut result = self.try_allocate(resource, ids, requested, stale.as_deref());
        if matches!(result, Err(AllocationRefusal::Split { .. })) && !is_doubtful {
            // Shares freed since the last observation may make the request fit.
            stale = self.holders.observe_afresh().await.err().map(|error| error.to_string());
            result = self.try_allocate(resource, ids, requested, stale.as_deref());
        }
        if matches!(result, Err(AllocationRefusal::Split { .. })) {
            self.withhold(resource, deadline).await;
        }
        self.inputs.metrics.allocated(resource, result.is_ok());
        let (granted, rules, cdi) = result?;
        self.holders.observe_allocation();
        if !granted.companions.is_empty() {
            return Ok(companion_response(&granted.companions, ids));
        }
        Ok(self.response(&granted, &rules, &cdi))
    }

    /// Allocates without publishing a change: the pod waits for this call, and other pods can wait for the observation
    /// that follows. Also returns the ways in which the container gets the devices at that moment.
    fn try_allocate(
        &self,
        resource: &str,
        ids: &[String],
        requested: Instant,
        stale: Option<&str>,
    ) -> Result<(AllocatedDevices, Arc<InjectionRules>, Arc<CdiState>), AllocationRefusal> {
        let mut locked = self.state.lock();
        let now = Instant::now();
        let granted = locked.allocator.allocate(resource, ids, requested, now, stale)?;
        let (rules, cdi) = locked.injection();
        Ok((granted, rules, cdi))
    }

    fn response(
        &self,
        granted: &AllocatedDevices,
        rules: &InjectionRules,
        cdi: &CdiState,
    ) -> ContainerAllocateResponse {
        let inputs = ResponseInputs {
            rules,
            described: &cdi.described,
            nodes: &HostDeviceNodes::of_host(&self.inputs.roots, rules, granted),
            mps_dir: &self.inputs.mps_dir,
        };
        response(granted, inputs)
    }

    /// Withholds free shares before a refusal whose shares are free, but not on one device. The scheduler then sees
    /// fewer shares, and a ReplicaSet does not retry for ever.
    async fn withhold(&self, resource: &str, deadline: tokio::time::Instant) {
        let (limit, change) = self.change(|state| state.allocator.withhold(resource));
        info!(resource, limit, "withholding free units of other GPUs");
        let is_visible = async {
            self.is_published(change).await;
            let Some(node) = &self.inputs.node else {
                sleep(NODE_UNREADABLE_PAUSE).await;
                return;
            };
            let mut errors = OnChange::default();
            loop {
                match node.allocatable(resource).await {
                    Ok(allocatable) if allocatable <= limit.into() => return,
                    Ok(_) => {}
                    Err(error) => {
                        if let Some(error) = errors.changed(error) {
                            warn!(error, "cannot read the allocatable devices of the Node; retrying");
                        }
                    }
                }
                sleep(NODE_POLL).await;
            }
        };
        if timeout_at(deadline, is_visible).await.is_err() {
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
        self.state.lock().daemons()
    }

    fn holders(&self) -> Vec<DeviceHolder> {
        self.state.lock().allocator.holders()
    }

    fn known_holders(&self) -> Option<Vec<DeviceHolder>> {
        let state = self.state.lock();
        state.knows_holders().then(|| state.allocator.holders())
    }

    fn is_assigned(&self, device: &str) -> bool {
        self.state.lock().allocator.assigned().contains_key(device)
    }
}

#[cfg(test)]
pub mod tests;
