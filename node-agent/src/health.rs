//! Follows whether the devices of the node work: what the driver reports, what looks at them show, and what people say. It
//! tells the desk, which gives nothing of a broken device out.
//!
//! | module | what it does |
//! |---|---|
//! | `node_health` | which devices are broken, for who gives them out and for status |
//! | `allocations` | what health asks of who gives devices out |
//! | `probe_loop` | looks at the GPUs on a thread |
//! | `probe_results` | what a look tells of a GPU |
//! | `devices` | what devices are called, and which pods hold them |
//! | `daemons` | what the MPS control daemons tell of their devices |
//! | `store` | keeps what is known on disk |
//! | `announce` | tells people and who gives devices out |
//! | `fault_text` | what faults are called |

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
        hardware::{DriverRoots, DriverState, Hardware},
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

/// How long a driver may be away before nothing is given out: where it is replaced in a moment, pods that were admitted just
/// before start after all.
const DRIVER_GRACE: Duration = Duration::from_secs(5);

/// XIDs of so long count as one, so that a storm of them costs no memory.
const STORM: Duration = Duration::from_secs(1);
/// How long after an XID a look may show less than it will.
const UNSETTLED: Duration = SETTLE.saturating_add(STORM);

/// Where it is seen what happens to the devices.
pub struct MonitorInputs {
    /// Where the driver is.
    pub place: DriverRoots,
    /// Folder of what outlives the agent.
    pub state_dir: PathBuf,
    /// What the driver reports.
    pub events: mpsc::Receiver<DriverEvent>,
    /// The hardware that there is.
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    /// Asks for a look at the hardware.
    pub look_again: Arc<Notify>,
    /// What counts, and when it is over.
    pub rules: watch::Receiver<Arc<Rules>>,
    /// What people say, where there is an API server.
    pub gpu_node: watch::Receiver<GpuNodeState>,
    /// Who gives devices out.
    pub manager: Arc<dyn Allocations>,
    /// Where it is counted.
    pub metrics: AgentMetrics,
    /// Who is told.
    pub notices: EventSender,
}

/// Keeps track of the health of the node's devices.
pub struct HealthMonitor {
    sources: OwnedMutexGuard<MonitorInputs>,
    known: SavedHealth,
    looks: ProbeLoop,
    /// Of the XIDs of each GPU that count and came lately: when, and the ticket from before it; the oldest first.
    unsettled: BTreeMap<String, VecDeque<(Instant, u64)>>,
    /// From when on nothing is given out, since the driver does not answer.
    given_up: Option<Instant>,
    /// GPUs whose NVLinks this process has looked for.
    linked: BTreeSet<String>,
    /// Uncorrected memory errors of each GPU: a reset sets them to zero.
    errors: BTreeMap<String, u64>,
    daemons: AnsweringDaemons,
}

impl HealthMonitor {
    /// Takes over what an earlier agent knew, and tells the desk.
    pub async fn open(sources: OwnedMutexGuard<MonitorInputs>) -> Self {
        let known = store::load(&sources.state_dir).await;
        let mut keeper = Self {
            looks: ProbeLoop::new(sources.place.clone(), sources.state_dir.clone()),
            sources,
            known,
            unsettled: BTreeMap::new(),
            // Whoever was before has waited already.
            given_up: Some(Instant::now()),
            linked: BTreeSet::new(),
            errors: BTreeMap::new(),
            daemons: AnsweringDaemons::default(),
        };
        keeper.found();
        // What came while this agent stood by was the other one's. The last of it may be of the time between the two.
        while let Ok(event) = keeper.sources.events.try_recv() {
            if event.at.elapsed() < UNSETTLED {
                keeper.reported(event);
            }
        }
        keeper.tell();
        keeper
    }

    /// Follows it until the `end`; what is known then is on the disk.
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

    /// The driver reports something.
    fn reported(&mut self, event: DriverEvent) {
        let now = Instant::now();
        self.looks.probe_soon(now);
        if let Some(xid) = event.xid {
            self.sources.metrics.xid(xid.unsigned_abs().into());
        }
        let Some(gpu) = event.gpu else {
            warn!(
                xid = event.xid,
                "the driver reports something of a GPU that is not known"
            );
            return;
        };
        let Some(xid) = event.xid else { return };
        // The GPU stands for a MIG device that is not known, and where it is offered whole though it is divided.
        let devices = self.devices();
        let is_whole = self.sources.manager.is_assigned(&gpu);
        let instance = event.instance.filter(|_| !is_whole);
        let part = instance
            .and_then(|instance| devices.part(&gpu, instance))
            .map(str::to_owned);
        let before = self.known.health.ticket();
        self.observe(HealthObservation::Xid(part.unwrap_or_else(|| gpu.clone()), xid));
        // What counts for nothing is followed by nothing.
        if self.known.health.ticket() != before {
            let lately = self.unsettled.entry(gpu).or_default();
            lately.retain(|event| is_unsettled(event, now));
            if lately.back().is_none_or(|(at, _)| now.duration_since(*at) >= STORM) {
                lately.push_back((now, before));
            }
        }
    }

    /// What a look at a GPU that begins now proves nothing against: events that the driver may not have followed up yet.
    fn ticket(&self, gpu: &str, now: Instant) -> u64 {
        let mut lately = self.unsettled.get(gpu).into_iter().flatten();
        let oldest = lately.find(|event| is_unsettled(event, now));
        oldest.map_or_else(|| self.known.health.ticket(), |(_, ticket)| *ticket)
    }

    /// The hardware was looked at.
    fn found(&mut self) {
        let Some(hardware) = self.sources.hardware.borrow_and_update().clone() else {
            return;
        };
        if hardware.driver == DriverState::Released {
            // A driver that is not back when the release ends has been away for long.
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
            // What is linked may have been changed while the machine was off.
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

    /// MIG devices that are no more took their faults with them.
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
            info!(devices = forgotten, "MIG devices that were broken are no more");
        }
    }

    /// A person says something.
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
        info!(%at, "the GPUs are in order again, as a person says");
        let before: Vec<String> = self.known.links.keys().cloned().collect();
        let down: Vec<String> = before
            .into_iter()
            .filter(|gpu| self.known.health.has_fault(gpu, FaultReason::NvLinkDown))
            .collect();
        self.observe(HealthObservation::Recovered(at.min(Timestamp::now())));
        // Nobody looks at them again as long as they do.
        for probe in self.looks.hanging() {
            self.observe(HealthObservation::Probe(probe));
        }
        for gpu in down {
            // A link that is still down is not to be there any more.
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
