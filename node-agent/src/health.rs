//! Follows the health of the node's devices: events of the driver, probes, MPS daemons and the recovery annotation. Publishes
//! the result; the device manager allocates nothing of a faulty device, and status reports it.
//!
//! | module | what it does |
//! |---|---|
//! | `node_health` | the published health of all devices of the node |
//! | `allocations` | what the monitor needs from the device manager, as a trait |
//! | `probe_loop` | probes the GPUs on a thread of its own |
//! | `probe_results` | turns the results of probes into observations |
//! | `devices` | names of devices, and the pods that hold them |
//! | `daemons` | finds MPS control daemons that died |
//! | `store` | saves faults on disk |
//! | `announce` | sends log lines, events and metrics, publishes the health |
//! | `fault_text` | text of each fault |

pub mod allocations;
mod announce;
mod daemons;
mod devices;
pub mod fault_text;
pub mod node_health;
mod probe_loop;
mod probe_results;
mod store;

use crate::{
    admin::metrics::AgentMetrics,
    api_server::{events::EventSender, gpu_node::GpuNodeState},
    driver::{
        hardware::{DriverState, Hardware},
        hardware_probe::DriverRoots,
        nvml::{
            events::DriverEvent,
            probe::{ProbeTarget, unanswered},
        },
    },
    runtime::channel::send_if_new,
};
use allocations::Allocations;
use daemons::AnsweringDaemons;
use gpunode_config::HealthRules as Rules;
use gpunode_gpu::{FaultReason, GpuProbe, HealthObservation, Inventory, ProbeResult};
use jiff::Timestamp;
use probe_loop::{ProbeLoop, SETTLE};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use store::SavedHealth;
use tokio::{
    sync::{Notify, OwnedMutexGuard, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

/// Time without a driver after which no device is healthy. A driver that is replaced within it fails no pod that was just
/// admitted.
const DRIVER_GRACE: Duration = Duration::from_secs(5);

/// XIDs within this window count as one, so that a storm of them costs no memory.
const STORM: Duration = Duration::from_secs(1);
/// Time after an XID during which a probe may not show its consequences yet.
const UNSETTLED: Duration = SETTLE.saturating_add(STORM);

/// Inputs of the monitor.
pub struct MonitorInputs {
    /// Roots below which the driver's library is looked for.
    pub place: DriverRoots,
    /// Folder of files that outlive the agent.
    pub state_dir: PathBuf,
    /// XIDs and other events of the driver.
    pub events: mpsc::Receiver<DriverEvent>,
    /// The last reading of the hardware; none before the first.
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    /// Wakes the task that reads the hardware.
    pub look_again: Arc<Notify>,
    /// The policy's rules: which faults count, what clears them.
    pub rules: watch::Receiver<Arc<Rules>>,
    /// This node's GpuNode, with the time of the recovery annotation; unknown without API server.
    pub gpu_node: watch::Receiver<GpuNodeState>,
    /// The device manager.
    pub manager: Arc<dyn Allocations>,
    /// Counters of XIDs and gauges of faults.
    pub metrics: AgentMetrics,
    /// Events of the Node.
    pub notices: EventSender,
}

/// Follows the health of the node's devices.
pub struct HealthMonitor {
    sources: OwnedMutexGuard<MonitorInputs>,
    known: SavedHealth,
    looks: ProbeLoop,
    /// Recent XIDs that count, by GPU: arrival time and the ticket from before, oldest first.
    unsettled: BTreeMap<String, VecDeque<(Instant, u64)>>,
    /// Time from which no device is healthy because the driver does not answer.
    given_up: Option<Instant>,
    /// GPUs whose NVLinks this process has read.
    linked: BTreeSet<String>,
    /// Count of uncorrected memory errors by GPU; a reset sets it to zero.
    errors: BTreeMap<String, u64>,
    daemons: AnsweringDaemons,
}

impl HealthMonitor {
    /// Loads the faults that an earlier agent saved, and publishes the health.
    pub async fn open(sources: OwnedMutexGuard<MonitorInputs>) -> Self {
        let known = store::load(&sources.state_dir).await;
        let mut keeper = Self {
            looks: ProbeLoop::new(sources.place.clone(), sources.state_dir.clone()),
            sources,
            known,
            unsettled: BTreeMap::new(),
            // The predecessor has waited already.
            given_up: Some(Instant::now()),
            linked: BTreeSet::new(),
            errors: BTreeMap::new(),
            daemons: AnsweringDaemons::default(),
        };
        keeper.found();
        // Events from before the hand-over were the predecessor's; the last ones may have come between the two agents.
        while let Ok(event) = keeper.sources.events.try_recv() {
            if event.at.elapsed() < UNSETTLED {
                keeper.reported(event);
            }
        }
        keeper.tell();
        keeper
    }

    /// Runs until `end`. The faults known then are on disk when it returns.
    pub async fn watch(self, end: oneshot::Receiver<()>) {
        let (keep, kept) = watch::channel(self.known.clone());
        let write = store::write(self.sources.state_dir.clone(), self.known.clone(), kept);
        let follow = async {
            tokio::select! {
                () = self.follow(keep) => {}
                _ = end => {}
            }
        };
        tokio::join!(follow, write);
    }

    async fn follow(mut self, keep: watch::Sender<SavedHealth>) {
        let mut changes = self.sources.manager.changes();
        loop {
            let given_up = self.given_up.filter(|at| *at > Instant::now());
            let sources = &mut *self.sources;
            tokio::select! {
                Some(event) = sources.events.recv() => self.reported(event),
                Ok(()) = sources.hardware.changed() => self.found(),
                Ok(()) = sources.rules.changed() => self.looks.probe_soon(Instant::now()),
                Ok(()) = sources.gpu_node.changed() => self.said(),
                _ = changes.changed() => self.look_at_daemons(),
                found = self.looks.next() => self.looked(found),
                () = sleep_until(given_up.unwrap_or_else(Instant::now)), if given_up.is_some() => {}
            }
            self.tell();
            send_if_new(&keep, self.known.clone());
        }
    }

    /// Handles an event of the driver.
    fn reported(&mut self, event: DriverEvent) {
        let now = Instant::now();
        self.looks.probe_soon(now);
        if let Some(xid) = event.xid {
            self.sources.metrics.xid(xid.unsigned_abs().into());
        }
        let Some(gpu) = event.gpu else {
            warn!(xid = event.xid, "the driver reports an event of an unknown GPU");
            return;
        };
        let Some(xid) = event.xid else { return };
        // An event of an unknown MIG device counts for its GPU; so does one of a GPU that is advertised whole though MIG is on.
        let devices = self.devices();
        let is_whole = self.sources.manager.is_assigned(&gpu);
        let instance = event.instance.filter(|_| !is_whole);
        let part = instance
            .and_then(|instance| devices.part(&gpu, instance))
            .map(str::to_owned);
        let before = self.known.health.ticket();
        self.observe(HealthObservation::Xid(part.unwrap_or_else(|| gpu.clone()), xid));
        // An XID that does not count has no consequences to wait for.
        if self.known.health.ticket() != before {
            let lately = self.unsettled.entry(gpu).or_default();
            lately.retain(|event| is_unsettled(event, now));
            if lately.back().is_none_or(|(at, _)| now.duration_since(*at) >= STORM) {
                lately.push_back((now, before));
            }
        }
    }

    /// Returns the ticket of a probe that begins now: it is no evidence against later events, nor against XIDs whose
    /// consequences may not show yet.
    fn ticket(&self, gpu: &str, now: Instant) -> u64 {
        let mut lately = self.unsettled.get(gpu).into_iter().flatten();
        let oldest = lately.find(|event| is_unsettled(event, now));
        oldest.map_or_else(|| self.known.health.ticket(), |(_, ticket)| *ticket)
    }

    /// Handles a new reading of the hardware.
    fn found(&mut self) {
        let Some(hardware) = self.sources.hardware.borrow_and_update().clone() else {
            return;
        };
        if hardware.driver == DriverState::Released {
            // A driver that is missing when the release ends gets no grace: it has been away for long.
            self.given_up = Some(Instant::now());
        } else if hardware.driver.problem().is_none() {
            self.given_up = None;
        } else {
            self.given_up.get_or_insert_with(|| Instant::now() + DRIVER_GRACE);
        }
        let (DriverState::Answers, Some(reading)) = (&hardware.driver, &hardware.reading) else {
            return;
        };
        if self.known.health.is_other_boot(&hardware.run) {
            // Links may have been rewired while the machine was off.
            let health = &self.known.health;
            self.known
                .links
                .retain(|gpu, _| health.has_fault(gpu, FaultReason::NvLinkDown));
        }
        self.observe(HealthObservation::Run(hardware.run.clone()));
        for gpu in &reading.lost {
            let target = ProbeTarget {
                gpu: gpu.clone(),
                ..ProbeTarget::default()
            };
            let probe = GpuProbe {
                result: ProbeResult::Lost,
                ..unanswered(&target)
            };
            self.observe(HealthObservation::Probe(probe));
        }
        if reading.unreadable.is_empty() {
            self.forget_instances(&reading.inventory);
        }
        self.looks.probe_soon(Instant::now());
    }

    /// Drops the faults of MIG devices that no longer exist.
    fn forget_instances(&mut self, inventory: &Inventory) {
        let there: BTreeSet<&str> = inventory
            .gpus
            .iter()
            .flat_map(|gpu| &gpu.mig_devices)
            .map(|mig| mig.uuid.as_str())
            .collect();
        let gone = |device: &str| device.starts_with("MIG-") && !there.contains(device);
        let forgotten = self.known.health.forget(gone);
        if forgotten > 0 {
            info!(
                devices = forgotten,
                "faulty MIG devices no longer exist; their faults are dropped"
            );
        }
    }

    /// Handles a change of the GpuNode: the recovery annotation.
    fn said(&mut self) {
        let recovered = match &*self.sources.gpu_node.borrow_and_update() {
            GpuNodeState::Present(object) => object.spec.recovered.as_ref().map(|time| time.0),
            GpuNodeState::Unknown | GpuNodeState::Absent => None,
        };
        if let Some(at) = recovered.filter(|_| recovered != self.known.recovered) {
            self.known.recovered = recovered;
            self.recovered(at);
        }
    }

    fn recovered(&mut self, at: Timestamp) {
        info!(%at, "a person declared the GPUs recovered");
        let before: Vec<String> = self.known.links.keys().cloned().collect();
        let down: Vec<String> = before
            .into_iter()
            .filter(|gpu| self.known.health.has_fault(gpu, FaultReason::NvLinkDown))
            .collect();
        self.observe(HealthObservation::Recovered(at.min(Timestamp::now())));
        // A GPU that hangs is not probed again, so its fault is observed anew here.
        for probe in self.looks.hanging() {
            self.observe(HealthObservation::Probe(probe));
        }
        for gpu in down {
            // A link that is still down is now expected to be down.
            self.known.links.remove(&gpu);
            self.linked.remove(&gpu);
        }
        self.looks.probe_soon(Instant::now());
    }

    fn look_at_daemons(&mut self) {
        let released = self
            .sources
            .hardware
            .borrow()
            .as_ref()
            .is_some_and(|found| found.driver == DriverState::Released);
        let daemons = self.sources.manager.daemons();
        for observation in self.daemons.look(&daemons, released, &self.known.health) {
            self.observe(observation);
        }
    }

    fn observe(&mut self, observation: HealthObservation) {
        let rules = self.sources.rules.borrow().clone();
        for transition in self.known.health.observe(observation, &rules, Timestamp::now()) {
            self.say(&transition, &rules);
        }
    }
}

fn is_unsettled((at, _): &(Instant, u64), now: Instant) -> bool {
    now.duration_since(*at) < UNSETTLED
}
