//! Follows whether the devices of the node work: what the driver reports, what looks at them show, and what people say. It
//! tells the desk, which gives nothing of a broken device out.

mod looks;
mod store;
pub mod words;

use crate::{
    books::Ailments,
    channel::send_if_new,
    desk::Desk,
    events::{Kind, Notices},
    gpu_node::Seen,
    hardware::{Driver, Hardware, Place},
    nvml::{
        events::Event,
        probe::{Look, Target},
    },
};
use gpunode_config::Health as Rules;
use gpunode_crds::MpsDaemonState;
use gpunode_gpu::{Answer, Device, Gpu, HealthObservation as Observation, Inventory, Transition, Trouble};
use jiff::Timestamp;
use looks::{Found, Looks, SETTLE};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use store::Content;
use tokio::{
    sync::{Notify, OwnedMutexGuard, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

/// How long a driver may be away before nothing is given out: where it is replaced in a moment, pods that were admitted just
/// before start after all.
const DRIVER_GRACE: Duration = Duration::from_secs(5);

/// Where it is seen what happens to the devices.
pub struct Sources {
    /// Where the driver is.
    pub place: Place,
    /// Folder of what outlives the agent.
    pub state_dir: PathBuf,
    /// What the driver reports.
    pub events: mpsc::Receiver<Event>,
    /// The hardware that there is.
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    /// Asks for a look at the hardware.
    pub look_again: Arc<Notify>,
    /// What counts, and when it is over.
    pub rules: watch::Receiver<Arc<Rules>>,
    /// What people say, where there is an API server.
    pub gpu_node: watch::Receiver<Seen>,
    /// Who gives devices out.
    pub desk: Arc<Desk>,
    /// Who is told.
    pub notices: Notices,
}

/// Keeps track of the health of the node's devices.
pub struct Keeper {
    sources: OwnedMutexGuard<Sources>,
    known: Content,
    looks: Looks,
    /// Of the last event: when it came, and the ticket from before it.
    unsettled: Option<(Instant, u64)>,
    /// Since when the driver does not answer.
    silent: Option<Instant>,
    /// GPUs whose NVLinks this process has looked for.
    linked: BTreeSet<String>,
    /// Uncorrected memory errors of each GPU: a reset sets them to zero.
    errors: BTreeMap<String, u64>,
    /// Devices whose MPS control daemon has answered.
    answered: BTreeSet<String>,
}

impl Keeper {
    /// Takes over what an earlier agent knew, and tells the desk.
    pub async fn open(sources: OwnedMutexGuard<Sources>) -> Self {
        let (known, problem) = store::load(&sources.state_dir).await;
        if let Some(problem) = problem {
            sources.notices.tell(Kind::StateFileCorrupt, &problem);
        }
        let mut keeper = Self {
            looks: Looks::new(sources.place.clone(), sources.state_dir.clone()),
            sources,
            known,
            unsettled: None,
            silent: None,
            linked: BTreeSet::new(),
            errors: BTreeMap::new(),
            answered: BTreeSet::new(),
        };
        keeper.found();
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

    async fn follow(mut self, keep: watch::Sender<Content>) {
        let mut changes = self.sources.desk.changes();
        loop {
            let given_up = self.silent.map(|since| since + DRIVER_GRACE).filter(|at| *at > Instant::now());
            let sources = &mut *self.sources;
            tokio::select! {
                Some(event) = sources.events.recv() => self.reported(event),
                Ok(()) = sources.hardware.changed() => self.found(),
                Ok(()) = sources.rules.changed() => self.looks.hasten(Instant::now()),
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
    fn reported(&mut self, event: Event) {
        let now = Instant::now();
        self.unsettled = Some((now, self.ticket(now)));
        self.looks.hasten(now);
        let Some(xid) = event.xid else { return };
        self.sources.desk.metrics().xid(xid.unsigned_abs().into());
        let Some(gpu) = event.gpu else {
            warn!(xid, "the driver reports an XID of a GPU that is not known");
            return;
        };
        let device = self.instance(&gpu, event.instance).unwrap_or(gpu);
        self.observe(Observation::Xid(device, xid));
    }

    /// UUID of the MIG device. One that is not known is no device that is offered: its GPU stands for it.
    fn instance(&self, gpu: &str, instance: Option<(u32, u32)>) -> Option<String> {
        let hardware = self.sources.hardware.borrow().clone()?;
        let gpu = hardware.inventory()?.gpus.iter().find(|of| of.uuid == gpu)?;
        let found = gpu.mig_devices.iter().find(|mig| Some((mig.gpu_instance, mig.compute_instance)) == instance)?;
        Some(found.uuid.clone())
    }

    /// What a look that begins now proves nothing against: events that the driver may not have followed up yet.
    fn ticket(&self, now: Instant) -> u64 {
        match self.unsettled {
            Some((at, ticket)) if now.duration_since(at) < SETTLE => ticket,
            _ => self.known.health.ticket(),
        }
    }

    /// The hardware was looked at.
    fn found(&mut self) {
        let Some(hardware) = self.sources.hardware.borrow_and_update().clone() else { return };
        if hardware.driver.problem().is_none() {
            self.silent = None;
        } else {
            self.silent.get_or_insert_with(Instant::now);
        }
        let (Driver::Answers, Some(reading)) = (&hardware.driver, &hardware.reading) else { return };
        if self.known.health.is_other_boot(&hardware.run) {
            // What is linked may have been changed while the machine was off.
            let health = &self.known.health;
            self.known.links.retain(|gpu, _| has(health, gpu, Trouble::NvLinkDown));
        }
        self.observe(Observation::Run(hardware.run.clone()));
        for gpu in &reading.lost {
            let target = Target { gpu: gpu.clone(), ..Target::default() };
            let probe = gpunode_gpu::Probe { answer: Answer::Lost, ..crate::nvml::probe::unanswered(&target, 0) };
            self.observe(Observation::Probe(probe));
        }
        if reading.unreadable.is_empty() {
            self.forget_instances(&reading.inventory);
        }
        self.looks.hasten(Instant::now());
    }

    /// MIG devices that are no more took their faults with them.
    fn forget_instances(&mut self, inventory: &Inventory) {
        let there: BTreeSet<&str> =
            inventory.gpus.iter().flat_map(|gpu| &gpu.mig_devices).map(|mig| mig.uuid.as_str()).collect();
        let gone = |device: &str| device.starts_with("MIG-") && !there.contains(device);
        let forgotten = self.known.health.forget(gone);
        if forgotten > 0 {
            info!(devices = forgotten, "MIG devices that were broken are no more");
        }
    }

    /// A person says something.
    fn said(&mut self) {
        let recovered = match &*self.sources.gpu_node.borrow_and_update() {
            Seen::Present(object) => object.spec.recovered.as_ref().map(|time| time.0),
            Seen::Unknown | Seen::Absent => None,
        };
        if let Some(recovered) = recovered {
            self.recovered(recovered);
        }
    }

    fn recovered(&mut self, at: Timestamp) {
        if self.known.recovered == Some(at) {
            return;
        }
        self.known.recovered = Some(at);
        info!(%at, "the GPUs are in order again, as a person says");
        let before: Vec<String> = self.known.links.keys().cloned().collect();
        let down: Vec<String> =
            before.into_iter().filter(|gpu| has(&self.known.health, gpu, Trouble::NvLinkDown)).collect();
        self.observe(Observation::Recovered(at.min(Timestamp::now())));
        for gpu in down {
            // A link that is still down is not to be there any more.
            self.known.links.remove(&gpu);
            self.linked.remove(&gpu);
        }
        self.looks.hasten(Instant::now());
    }

    /// A daemon that answered and ceased to has died.
    fn look_at_daemons(&mut self) {
        let daemons = self.sources.desk.daemons();
        let silent = |device: &str| {
            daemons.iter().any(|daemon| daemon.device == device && daemon.state == MpsDaemonState::NotAnswering)
        };
        // One that ends as the GPUs are released has not died.
        let released = self.sources.hardware.borrow().as_ref().is_some_and(|found| found.driver == Driver::Released);
        let died: Vec<String> = self.answered.iter().filter(|device| silent(device) && !released).cloned().collect();
        let over: Vec<String> = self
            .known
            .health
            .devices()
            .filter(|(device, faults)| {
                !silent(device) && faults.iter().any(|fault| fault.trouble == Trouble::MpsDaemonDied)
            })
            .map(|(device, _)| device.to_owned())
            .collect();
        let answering = daemons.into_iter().filter(|daemon| daemon.state == MpsDaemonState::Answering);
        self.answered = answering.map(|daemon| daemon.device).collect();
        for (devices, runs) in [(died, false), (over, true)] {
            for device in devices {
                self.observe(Observation::MpsDaemon(device, runs));
            }
        }
    }

    /// Begins to look at the GPUs.
    fn look(&mut self) {
        let hardware = self.sources.hardware.borrow().clone();
        let answering = hardware.as_deref().filter(|found| found.driver == Driver::Answers);
        let gpus = answering.and_then(Hardware::inventory).map_or(&[][..], |inventory| &inventory.gpus);
        let targets = gpus.iter().map(|gpu| self.target(gpu)).collect();
        let now = Instant::now();
        let ticket = self.ticket(now);
        self.looks.begin(targets, ticket);
        if let Some((at, _)) = self.unsettled.filter(|(at, _)| now.duration_since(*at) < SETTLE) {
            self.looks.hasten(at + SETTLE);
        }
    }

    fn target(&self, gpu: &Gpu) -> Target {
        let health = &self.known.health;
        let instances: Vec<String> = gpu.mig_devices.iter().map(|mig| mig.uuid.clone()).collect();
        let processes = instances.iter().chain([&gpu.uuid]).any(|device| has(health, device, Trouble::Xid));
        let links = self.known.links.get(&gpu.uuid).filter(|_| self.linked.contains(&gpu.uuid)).cloned();
        Target { gpu: gpu.uuid.clone(), instances, links, processes }
    }

    fn looked(&mut self, found: Found) {
        match found {
            Found::Recovered(at) => self.recovered(at),
            Found::Look(look) => self.take(*look),
            Found::Hangs(probe) => {
                warn!(gpu = probe.gpu, "look at the GPU: the driver does not answer");
                self.observe(Observation::Probe(probe));
            }
            Found::Failed => self.sources.look_again.notify_one(),
            Found::Done => debug!("the GPUs were looked at"),
            Found::Due => self.look(),
        }
    }

    fn take(&mut self, look: Look) {
        let Look { mut probe, links, failed } = look;
        let gpu = probe.gpu.clone();
        if let Some((call, error)) = failed {
            self.sources.desk.metrics().nvml_error(call);
            if !has(&self.known.health, &gpu, Trouble::NotAnswering) && !has(&self.known.health, &gpu, Trouble::Lost) {
                warn!(gpu, call, %error, "a call of the driver fails");
            }
        } else if self.linked.insert(gpu.clone()) {
            // What an earlier agent saw counts too.
            let before = self.known.links.entry(gpu.clone()).or_default();
            probe.link_down = Some(before.iter().any(|link| !links.contains(link)));
            before.extend(links);
            before.sort_unstable();
            before.dedup();
        }
        let errors = probe.uncorrected_ecc.unwrap_or_default();
        if self.errors.insert(gpu.clone(), errors).is_some_and(|before| before > errors)
            && probe.answer == Answer::Answers
        {
            self.observe(Observation::Reset(gpu));
        }
        self.observe(Observation::Probe(probe));
    }

    fn observe(&mut self, observation: Observation) {
        let rules = self.sources.rules.borrow().clone();
        for transition in self.known.health.observe(observation, &rules, Timestamp::now()) {
            self.say(&transition, &rules);
        }
    }

    fn say(&self, transition: &Transition, rules: &Rules) {
        let Transition { device, fault, began } = transition;
        let (reason, meaning) = (words::reason(fault.trouble).as_str(), words::meaning(fault));
        let name = self.name(device);
        if *began {
            let (action, waits_for) = (fault.action().advice(), fault.waits_for(rules));
            let holders = self.holders(device).join(", ");
            warn!(device, name, reason, xid = fault.xid, meaning, action, waits_for, holders, "a device is broken");
            let held = if holders.is_empty() { String::new() } else { format!("; held by {holders}") };
            let note = format!("{name} ({device}): {meaning}; {action}; it waits for: {waits_for}{held}");
            self.sources.notices.tell(Kind::GpuUnhealthy, &note);
        } else {
            let healthy = self.known.health.gravest(&[device]).is_none();
            info!(device, name, reason, xid = fault.xid, meaning, healthy, "what was wrong with a device is over");
            if healthy {
                self.sources.notices.tell(Kind::GpuHealthy, &format!("{name} ({device}) is whole again: {meaning}"));
            }
        }
    }

    /// What people call a device: `GPU 3`, or `GPU 3:1` for a MIG device of it.
    fn name(&self, device: &str) -> String {
        let hardware = self.sources.hardware.borrow().clone();
        let devices = hardware.as_deref().and_then(Hardware::inventory).map(Device::all).unwrap_or_default();
        let known = devices.iter().find(|known| known.uuid == device);
        known.map_or_else(|| "a GPU that has left the node".to_owned(), |known| format!("GPU {}", known.index()))
    }

    /// Pods that hold something of a device, or of a MIG device of it.
    fn holders(&self, device: &str) -> Vec<String> {
        let hardware = self.sources.hardware.borrow().clone();
        let gpus = hardware.as_deref().and_then(Hardware::inventory).map_or(&[][..], |inventory| &inventory.gpus);
        let parts = gpus.iter().filter(|gpu| gpu.uuid == device).flat_map(|gpu| &gpu.mig_devices);
        let hit: BTreeSet<&str> = parts.map(|mig| mig.uuid.as_str()).chain([device]).collect();
        let holders = self.sources.desk.holders().into_iter().filter(|holder| hit.contains(holder.device.as_str()));
        let pods: BTreeSet<String> = holders.map(|holder| format!("{}/{}", holder.namespace, holder.pod)).collect();
        pods.into_iter().collect()
    }

    fn tell(&self) {
        let hardware = self.sources.hardware.borrow().clone();
        let given_up = self.silent.is_some_and(|since| since.elapsed() >= DRIVER_GRACE);
        let all = hardware.and_then(|hardware| match &hardware.driver {
            Driver::Released => Some("the GPUs of the node are released".to_owned()),
            driver => {
                driver.problem().filter(|_| given_up).map(|problem| format!("the driver does not answer: {problem}"))
            }
        });
        let rules = self.sources.rules.borrow().clone();
        self.sources.desk.ail(Ailments { all, faults: Some(Arc::new(self.known.health.clone())), rules });
    }
}

fn has(health: &gpunode_gpu::Health, device: &str, trouble: Trouble) -> bool {
    health.devices().any(|(of, faults)| of == device && faults.iter().any(|fault| fault.trouble == trouble))
}
