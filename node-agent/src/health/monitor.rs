//! Follows the health of the node's devices.

use super::{
    allocations::Allocations,
    announce,
    daemons::AnsweringDaemons,
    devices::KnownDevices,
    node_health::NodeHealth,
    probe_loop::{ProbeEvent, ProbeLoop},
    probe_results::{compare_links, count_pods, save_link_ends, target},
    recent_xids::{RecentXids, UNSETTLED},
    store::{self, SavedHealth},
};
use crate::{
    admin::metrics::AgentMetrics,
    api_server::{events::NodeEventSender, gpu_node::GpuNodeState, release::ReleaseRequest},
    driver::{
        hardware::{DriverState, Hardware},
        hardware_probe::DriverRoots,
        nvml::{
            events::DriverEvent,
            probe::{ProbeReport, ProbeTarget, unanswered},
        },
    },
    runtime::channel::send_if_new,
};
use gpunode_config::HealthRules as Rules;
use gpunode_gpu::{
    FabricRegistration, Fault, FaultReason, FaultTransition, GpuProbe, HealthObservation, Inventory, LastXids,
    ProbeResult,
};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{Notify, OwnedMutexGuard, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

/// Time without a driver after which no device is healthy. A driver that is replaced within it fails no pod that was just
/// admitted.
const DRIVER_GRACE: Duration = Duration::from_secs(5);

/// Inputs of the monitor.
pub struct MonitorInputs {
    /// Roots below which the driver's library is looked for.
    pub driver_roots: DriverRoots,
    /// Folder of files that outlive the agent.
    pub state_dir: PathBuf,
    /// XIDs and other events of the driver.
    pub events: mpsc::Receiver<DriverEvent>,
    /// The last reading of the hardware; none before the first.
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    /// Wakes the task that reads the hardware.
    pub probe_now: Arc<Notify>,
    /// The policy's rules: which faults count, what clears them.
    pub rules: watch::Receiver<Arc<Rules>>,
    /// This node's GpuNode, with the time of the recovery annotation; unknown without API server.
    pub gpu_node: watch::Receiver<GpuNodeState>,
    /// Request to leave the driver alone, for which the MPS daemons end.
    pub release: ReleaseRequest,
    /// The device manager.
    pub manager: Arc<dyn Allocations>,
    /// Counters of XIDs and gauges of faults.
    pub metrics: AgentMetrics,
    /// Events of the Node.
    pub node_events: NodeEventSender,
    /// Publishes the health of the node's devices. The device manager allocates by the value that is published last.
    pub node_health: watch::Sender<Arc<NodeHealth>>,
}

/// Follows the health of the node's devices.
pub struct HealthMonitor {
    inputs: OwnedMutexGuard<MonitorInputs>,
    saved: SavedHealth,
    probes: ProbeLoop,
    recent_xids: RecentXids,
    /// XIDs of each GPU and MIG device that made none unhealthy, with an event each.
    announced_xids: LastXids,
    /// Time from which no device is healthy because the driver does not answer.
    unhealthy_from: Option<Instant>,
    /// GPUs whose NVLinks this process has read.
    links_read: BTreeSet<String>,
    /// Count of uncorrected memory errors by GPU; a reset sets it to zero.
    ecc_errors: BTreeMap<String, u64>,
    daemons: AnsweringDaemons,
}

impl HealthMonitor {
    /// Loads the faults that an earlier agent saved, and publishes the health.
    pub async fn open(inputs: OwnedMutexGuard<MonitorInputs>) -> Self {
        let saved = store::load(&inputs.state_dir).await;
        let gpus = saved.health.devices().map(|(device, _)| device);
        let silent = gpus
            .filter(|gpu| !gpu.starts_with("MIG-") && saved.health.has_fault(gpu, FaultReason::NotAnswering))
            .map(str::to_owned)
            .collect();
        let mut monitor = Self {
            probes: ProbeLoop::new(inputs.driver_roots.clone(), inputs.state_dir.clone(), silent),
            inputs,
            saved,
            recent_xids: RecentXids::default(),
            announced_xids: LastXids::default(),
            // The predecessor has waited already.
            unhealthy_from: Some(Instant::now()),
            links_read: BTreeSet::new(),
            ecc_errors: BTreeMap::new(),
            daemons: AnsweringDaemons::default(),
        };
        monitor.observe_dra();
        monitor.handle_hardware();
        // Events from before the hand-over were the predecessor's; the last ones may have come between the two agents.
        while let Ok(event) = monitor.inputs.events.try_recv() {
            if event.at.elapsed() < UNSETTLED {
                monitor.handle_driver_event(event);
            }
        }
        monitor.publish();
        monitor
    }

    /// Runs until `end`. The faults known then are on disk when it returns.
    pub async fn watch(self, end: oneshot::Receiver<()>) {
        let (save, to_save) = watch::channel(self.saved.clone());
        let write = store::write(self.inputs.state_dir.clone(), self.saved.clone(), to_save);
        let follow = async {
            tokio::select! {
                () = self.follow(save) => {}
                _ = end => {}
            }
        };
        tokio::join!(follow, write);
    }

    async fn follow(mut self, save: watch::Sender<SavedHealth>) {
        let mut changes = self.inputs.manager.changes();
        loop {
            let unhealthy_from = self.unhealthy_from.filter(|at| *at > Instant::now());
            let inputs = &mut *self.inputs;
            tokio::select! {
                Some(event) = inputs.events.recv() => self.handle_driver_event(event),
                Ok(()) = inputs.hardware.changed() => self.handle_hardware(),
                Ok(()) = inputs.rules.changed() => {
                    self.observe_fabrics();
                    self.probes.probe_soon(Instant::now());
                }
                Ok(()) = inputs.gpu_node.changed() => self.handle_gpu_node(),
                _ = changes.changed() => self.check_daemons(),
                event = self.probes.next() => self.handle_probe_event(event),
                () = sleep_until(unhealthy_from.unwrap_or_else(Instant::now)), if unhealthy_from.is_some() => {}
            }
            self.publish();
            send_if_new(&save, self.saved.clone());
        }
    }

    /// Handles an event of the driver.
    fn handle_driver_event(&mut self, event: DriverEvent) {
        let now = Instant::now();
        self.probes.probe_soon(now);
        if let Some(xid) = event.xid {
            self.inputs.metrics.xid(xid.unsigned_abs().into());
        }
        let Some(gpu) = event.gpu else {
            warn!(xid = event.xid, "the driver reports an event of an unknown GPU");
            return;
        };
        let Some(xid) = event.xid else { return };
        // An event of an unknown MIG device counts for its GPU; so does one of a GPU that is advertised whole though MIG is on.
        let devices = self.devices();
        let is_whole = self.inputs.manager.is_assigned(&gpu);
        let instance = event.instance.filter(|_| !is_whole);
        let part = instance
            .and_then(|instance| devices.part(&gpu, instance))
            .map(str::to_owned);
        let before = self.saved.health.ticket();
        let device = part.unwrap_or_else(|| gpu.clone());
        let at = Timestamp::now();
        self.saved.last_xids.observe(&gpu, xid, at);
        self.observe(HealthObservation::Xid(device.clone(), xid));
        // An XID that does not count has no consequences to wait for.
        if self.saved.health.ticket() != before {
            self.recent_xids.add(gpu, now, before);
        } else if self.announced_xids.observe(&device, xid, at) {
            let holders = self.inputs.manager.holders();
            announce::xid_does_not_count(&device, xid, &self.devices(), &holders, &self.inputs.node_events);
        }
    }

    /// Returns the ticket of a probe that begins now: it is no evidence against later events, nor against XIDs whose
    /// consequences may not show yet.
    fn ticket(&self, gpu: &str, now: Instant) -> u64 {
        self.recent_xids
            .ticket(gpu, now)
            .unwrap_or_else(|| self.saved.health.ticket())
    }

    /// Handles a new reading of the hardware.
    fn handle_hardware(&mut self) {
        let Some(hardware) = self.inputs.hardware.borrow_and_update().clone() else {
            return;
        };
        if matches!(hardware.driver, DriverState::Released | DriverState::Waiting(_)) {
            // A driver that is missing when the release or the wait ends gets no grace: it has been away for long.
            self.unhealthy_from = Some(Instant::now());
        } else if hardware.driver.problem().is_none() {
            self.unhealthy_from = None;
        } else {
            self.unhealthy_from.get_or_insert_with(|| Instant::now() + DRIVER_GRACE);
        }
        let (DriverState::Answers, Some(reading)) = (&hardware.driver, &hardware.reading) else {
            return;
        };
        if self.saved.health.is_other_boot(&hardware.run) {
            // Links may have been rewired while the machine was off.
            let health = &self.saved.health;
            self.saved
                .links
                .retain(|gpu, _| health.has_fault(gpu, FaultReason::NvLinkDown));
        }
        self.observe(HealthObservation::Run(hardware.run.clone()));
        self.observe_fabrics();
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
            let devices = self.devices();
            self.saved.last_xids.forget(|gpu| !devices.has(gpu));
            self.announced_xids.forget(|device| !devices.has(device));
        }
        self.probes.probe_soon(Instant::now());
    }

    /// Takes in which GPUs have joined their NVLink fabric, by the last reading of the hardware.
    fn observe_fabrics(&mut self) {
        let hardware = self.inputs.hardware.borrow().clone();
        let inventory = hardware.as_deref().and_then(Hardware::answering);
        for gpu in inventory.map_or(&[][..], |inventory| &inventory.gpus) {
            let is_ready = !gpu.waits_for_fabric();
            self.observe(HealthObservation::Fabric(gpu.uuid.clone(), is_ready));
        }
    }

    /// Reads the hardware again if a probe shows another fabric than the last reading: links and clique have changed, too.
    fn compare_fabric(&self, gpu: &str, fabric: Option<&FabricRegistration>) {
        let hardware = self.inputs.hardware.borrow().clone();
        let inventory = hardware.as_deref().and_then(Hardware::answering);
        let known = inventory.and_then(|inventory| inventory.gpus.iter().find(|known| known.uuid == gpu));
        if known.is_some_and(|known| known.fabric.as_ref() != fabric) {
            self.inputs.probe_now.notify_one();
        }
    }

    /// Drops the faults of MIG devices that no longer exist.
    fn forget_instances(&mut self, inventory: &Inventory) {
        let present: BTreeSet<&str> = inventory
            .gpus
            .iter()
            .flat_map(|gpu| &gpu.mig_devices)
            .map(|mig| mig.facts.uuid.as_str())
            .collect();
        let gone = |device: &str| device.starts_with("MIG-") && !present.contains(device);
        let forgotten = self.saved.health.forget(gone);
        if forgotten > 0 {
            info!(
                devices = forgotten,
                "faulty MIG devices no longer exist; their faults are dropped"
            );
        }
    }

    fn observe_dra(&mut self) {
        let has_api_server = self.inputs.gpu_node.has_changed().is_ok();
        self.saved.observe_dra(&self.inputs.gpu_node.borrow(), has_api_server);
    }

    /// Handles a change of the GpuNode: the recovery annotation, and a DRA driver of the same GPUs.
    fn handle_gpu_node(&mut self) {
        self.observe_dra();
        self.check_daemons();
        let recovered = match &*self.inputs.gpu_node.borrow_and_update() {
            GpuNodeState::Present(object) => object.spec.recovered.as_ref().map(|time| time.0),
            GpuNodeState::Unknown | GpuNodeState::Absent => None,
        };
        if let Some(at) = recovered.filter(|_| recovered != self.saved.recovered) {
            self.saved.recovered = recovered;
            self.declare_recovered(at);
        }
    }

    fn declare_recovered(&mut self, at: Timestamp) {
        info!(%at, "a person declared the GPUs recovered");
        let before: Vec<String> = self.saved.links.keys().cloned().collect();
        let down: Vec<String> = before
            .into_iter()
            .filter(|gpu| self.saved.health.has_fault(gpu, FaultReason::NvLinkDown))
            .collect();
        self.observe(HealthObservation::Recovered(at.min(Timestamp::now())));
        // A GPU without an answer is not probed again, so its fault is observed anew here.
        for probe in self.probes.unanswered() {
            self.observe(HealthObservation::Probe(probe));
        }
        for gpu in down {
            // A link that is still down is now expected to be down.
            self.saved.links.remove(&gpu);
            self.links_read.remove(&gpu);
        }
        self.probes.probe_soon(Instant::now());
    }

    fn check_daemons(&mut self) {
        // The supervisor ends the daemons before the agent says that the GPUs are released.
        let released = self.inputs.release.is_on();
        let daemons = self.inputs.manager.daemons();
        for observation in self
            .daemons
            .compare(&daemons, released, &self.saved.health, Instant::now().into_std())
        {
            self.observe(observation);
        }
    }

    fn observe(&mut self, observation: HealthObservation) {
        let rules = self.inputs.rules.borrow().clone();
        for transition in self.saved.health.observe(observation, &rules, Timestamp::now()) {
            self.announce(&transition, &rules);
        }
    }

    fn announce(&self, transition: &FaultTransition, rules: &Rules) {
        let FaultTransition { device, fault, began } = transition;
        let (devices, events) = (self.devices(), &self.inputs.node_events);
        if *began {
            let holders = self.inputs.manager.holders();
            announce::fault_began(device, fault, rules, &devices, &holders, events);
        } else {
            let healthy = !self.saved.health.gravest(&[device]).is_some_and(Fault::withholds);
            announce::fault_cleared(device, fault, healthy, &devices, events);
        }
    }

    fn devices(&self) -> KnownDevices {
        KnownDevices(self.inputs.hardware.borrow().clone())
    }

    /// Publishes the health of the node's devices.
    fn publish(&self) {
        let hardware = self.inputs.hardware.borrow().clone();
        let grace_is_over = self.unhealthy_from.is_some_and(|at| at <= Instant::now());
        let text = |problem: &str| format!("the driver does not answer: {problem}");
        let (unavailable, paused) = match hardware.as_deref().map(|hardware| &hardware.driver) {
            Some(DriverState::Released) => (Some("the GPUs of the node are released".to_owned()), None),
            Some(DriverState::Waiting(problem)) => (None, Some(problem.clone())),
            driver => {
                let problem = driver.and_then(DriverState::problem).filter(|_| grace_is_over);
                (problem.map(text), None)
            }
        };
        let devices = self.devices();
        let health = &self.saved.health;
        let present = health.devices().filter(|(device, _)| devices.has(device));
        let gravest = present.filter_map(|(device, _)| Some((devices.index(device), health.gravest(&[device])?)));
        self.inputs
            .metrics
            .set_faults(gravest.map(|(index, fault)| (index, fault.reason.as_str(), fault.grade().as_str())));
        let rules = self.inputs.rules.borrow().clone();
        let faults = Some(self.saved.health.clone());
        let served_by_dra = self.saved.served_by_dra;
        let health = NodeHealth {
            unavailable,
            paused,
            served_by_dra,
            faults,
            last_xids: self.saved.last_xids.clone(),
            rules,
        };
        send_if_new(&self.inputs.node_health, Arc::new(health));
    }

    /// Begins a round of probes.
    fn begin_probes(&mut self) {
        let hardware = self.inputs.hardware.borrow().clone();
        let gpus = hardware
            .as_deref()
            .and_then(Hardware::answering)
            .map_or(&[][..], |inventory| &inventory.gpus);
        let now = Instant::now();
        let targets = gpus
            .iter()
            .map(|gpu| target(gpu, self.ticket(&gpu.uuid, now), &self.saved, &self.links_read))
            .collect();
        self.probes.begin(targets);
        for at in self.recent_xids.settle_times(now) {
            self.probes.probe_soon(at);
        }
    }

    fn handle_probe_event(&mut self, event: ProbeEvent) {
        match event {
            ProbeEvent::Recovered(at) => {
                if self.saved.touched.replace(at) != Some(at) {
                    self.declare_recovered(at);
                }
            }
            ProbeEvent::Probed(report) => self.handle_probe_report(*report),
            ProbeEvent::NoAnswer(probe) => self.handle_no_answer(probe),
            ProbeEvent::Failed => self.inputs.probe_now.notify_one(),
            ProbeEvent::Done => debug!("all GPUs probed"),
            ProbeEvent::Due => self.begin_probes(),
        }
    }

    /// Handles a GPU for which the driver does not answer.
    fn handle_no_answer(&mut self, probe: GpuProbe) {
        let reason = match probe.result {
            ProbeResult::Blocked => FaultReason::DriverBlocked,
            _ => FaultReason::NotAnswering,
        };
        // One observation says it all, however long it lasts.
        if !self.saved.health.has_fault(&probe.gpu, reason) {
            warn!(gpu = probe.gpu, result = ?probe.result, "cannot probe the GPU: the driver does not answer");
            self.observe(HealthObservation::Probe(probe));
        }
    }

    fn handle_probe_report(&mut self, report: ProbeReport) {
        let ProbeReport {
            mut probe,
            links,
            fabric,
            link_ends,
            failed,
        } = report;
        let gpu = probe.gpu.clone();
        for (device, (call, error)) in &failed {
            self.inputs.metrics.nvml_error(call);
            let health = &self.saved.health;
            if !health.doubts(device)
                && !health.has_fault(device, FaultReason::NotAnswering)
                && !health.has_fault(device, FaultReason::Lost)
            {
                warn!(device, call, %error, "a call to the driver fails");
            }
        }
        if probe.result == ProbeResult::Responds {
            self.compare_fabric(&gpu, fabric.as_ref());
            save_link_ends(&gpu, link_ends, &mut self.saved);
            compare_links(&mut probe, links, &mut self.saved, &mut self.links_read);
            if let Some(errors) = probe.uncorrected_ecc
                && self
                    .ecc_errors
                    .insert(gpu.clone(), errors)
                    .is_some_and(|before| before > errors)
            {
                let parts = probe.instances.iter().map(|instance| instance.uuid.clone());
                self.observe(HealthObservation::Reset(parts.chain([gpu]).collect()));
            }
            count_pods(&mut probe, &self.devices(), || self.inputs.manager.known_holders());
        }
        self.observe(HealthObservation::Probe(probe));
        if failed.iter().any(|(device, _)| self.saved.health.doubts(device)) {
            self.probes.probe_soon(Instant::now());
        }
    }
}
