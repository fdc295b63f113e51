//! Follows whether the devices of the node work: what the driver reports, what looks at them show, and what people say. It
//! tells the desk, which gives nothing of a broken device out.

mod daemons;
mod devices;
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
        probe::{Look, Target, unanswered},
    },
};
use daemons::Daemons;
use devices::Devices;
use gpunode_config::Health as Rules;
use gpunode_gpu::{Answer, Gpu, HealthObservation as Observation, Inventory, Probe, Transition, Trouble};
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
    daemons: Daemons,
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
            daemons: Daemons::default(),
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
        // A MIG device that is not known is none that is offered: its GPU stands for it.
        let devices = self.devices();
        let part = event.instance.and_then(|instance| devices.part(&gpu, instance)).map(str::to_owned);
        self.observe(Observation::Xid(part.unwrap_or(gpu), xid));
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
            self.known.links.retain(|gpu, _| health.has(gpu, Trouble::NvLinkDown));
        }
        self.observe(Observation::Run(hardware.run.clone()));
        for gpu in &reading.lost {
            let target = Target { gpu: gpu.clone(), ..Target::default() };
            let probe = Probe { answer: Answer::Lost, ..unanswered(&target, 0) };
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
        if let Some(at) = recovered.filter(|_| recovered != self.known.recovered) {
            self.known.recovered = recovered;
            self.recovered(at);
        }
    }

    fn recovered(&mut self, at: Timestamp) {
        info!(%at, "the GPUs are in order again, as a person says");
        let before: Vec<String> = self.known.links.keys().cloned().collect();
        let down: Vec<String> =
            before.into_iter().filter(|gpu| self.known.health.has(gpu, Trouble::NvLinkDown)).collect();
        self.observe(Observation::Recovered(at.min(Timestamp::now())));
        for gpu in down {
            // A link that is still down is not to be there any more.
            self.known.links.remove(&gpu);
            self.linked.remove(&gpu);
        }
        self.looks.hasten(Instant::now());
    }

    fn look_at_daemons(&mut self) {
        let released = self.sources.hardware.borrow().as_ref().is_some_and(|found| found.driver == Driver::Released);
        let daemons = self.sources.desk.daemons();
        for observation in self.daemons.look(&daemons, released, &self.known.health) {
            self.observe(observation);
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
        let processes = instances.iter().chain([&gpu.uuid]).any(|device| health.has(device, Trouble::Xid));
        let links = self.known.links.get(&gpu.uuid).filter(|_| self.linked.contains(&gpu.uuid)).cloned();
        Target { gpu: gpu.uuid.clone(), instances, links, processes }
    }

    fn looked(&mut self, found: Found) {
        match found {
            Found::Recovered(at) => {
                if self.known.touched.replace(at) != Some(at) {
                    self.recovered(at);
                }
            }
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
        for (device, (call, error)) in &failed {
            self.sources.desk.metrics().nvml_error(call);
            let health = &self.known.health;
            if !health.doubts(device)
                && !health.has(device, Trouble::NotAnswering)
                && !health.has(device, Trouble::Lost)
            {
                warn!(device, call, %error, "a call of the driver fails");
            }
        }
        if probe.answer == Answer::Answers {
            if self.linked.insert(gpu.clone()) {
                // What an earlier agent saw counts too.
                let before = self.known.links.entry(gpu.clone()).or_default();
                probe.link_down = Some(before.iter().any(|link| !links.contains(link)));
                before.extend(links);
                before.sort_unstable();
                before.dedup();
            }
            let errors = probe.uncorrected_ecc.unwrap_or_default();
            if self.errors.insert(gpu.clone(), errors).is_some_and(|before| before > errors) {
                let parts = probe.instances.iter().map(|instance| instance.uuid.clone());
                self.observe(Observation::Reset(parts.chain([gpu]).collect()));
            }
            self.count_pods(&mut probe);
        }
        self.observe(Observation::Probe(probe));
        if failed.iter().any(|(device, _)| self.known.health.doubts(device)) {
            self.looks.hasten(Instant::now());
        }
    }

    /// The driver may hide the processes of containers from this one: what a pod holds is not without processes.
    fn count_pods(&self, probe: &mut Probe) {
        let instances = probe.instances.iter_mut().map(|instance| (&instance.uuid, &mut instance.processes));
        let all = instances.chain([(&probe.gpu, &mut probe.processes)]);
        let mut counted = all.filter_map(|(device, processes)| Some((device, (*processes)?, processes))).peekable();
        if counted.peek().is_none() {
            return;
        }
        let (devices, page) = (self.devices(), self.sources.desk.page().0);
        for (device, count, processes) in counted {
            *processes = page.unknown.is_none().then(|| count + devices.pods(device, &page.holders).len());
        }
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
        let devices = self.devices();
        let name = devices.name(device);
        if *began {
            let (action, waits_for) = (fault.action().advice(), fault.waits_for(rules));
            let holders = Vec::from_iter(devices.pods(device, &self.sources.desk.holders())).join(", ");
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

    fn devices(&self) -> Devices {
        Devices(self.sources.hardware.borrow().clone())
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
