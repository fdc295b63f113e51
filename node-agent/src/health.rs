//! Follows whether the devices of the node work: what the driver reports, what looks at them show, and what people say. It
//! tells the desk, which gives nothing of a broken device out.

pub mod words;

use crate::{books::Ailments, desk::Desk, hardware::Hardware, nvml::events::Event};
use gpunode_config::Health as Rules;
use gpunode_gpu::{Health, HealthObservation as Observation, Transition};
use jiff::Timestamp;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

/// Where it is seen what happens to the devices.
pub struct Sources {
    /// What the driver reports.
    pub events: mpsc::Receiver<Event>,
    /// The hardware that there is.
    pub hardware: watch::Receiver<Option<Arc<Hardware>>>,
    /// What counts, and when it is over.
    pub rules: watch::Receiver<Arc<Rules>>,
    /// Who gives devices out.
    pub desk: Arc<Desk>,
}

/// Keeps track of the health of the node's devices.
pub struct Keeper {
    sources: Sources,
    health: Health,
}

impl Keeper {
    /// Takes over what is known, and tells the desk.
    pub fn open(sources: Sources) -> Self {
        let keeper = Self { sources, health: Health::default() };
        keeper.tell();
        keeper
    }

    /// Follows it. Does not end.
    pub async fn watch(mut self) {
        loop {
            tokio::select! {
                Some(event) = self.sources.events.recv() => self.reported(event),
                Ok(()) = self.sources.hardware.changed() => {}
                Ok(()) = self.sources.rules.changed() => {}
                else => std::future::pending().await,
            }
            self.tell();
        }
    }

    fn reported(&mut self, event: Event) {
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

    fn observe(&mut self, observation: Observation) {
        let rules = self.sources.rules.borrow().clone();
        for transition in self.health.observe(observation, &rules, Timestamp::now()) {
            self.say(&transition, &rules);
        }
    }

    fn say(&self, transition: &Transition, rules: &Rules) {
        let Transition { device, fault, began } = transition;
        let (reason, meaning) = (words::reason(fault.trouble).as_str(), words::meaning(fault));
        if *began {
            let (action, waits_for) = (fault.action().advice(), fault.waits_for(rules));
            warn!(device, reason, xid = fault.xid, meaning, action, waits_for, "a device is broken");
        } else {
            let healthy = self.health.gravest(&[device]).is_none();
            info!(device, reason, xid = fault.xid, meaning, healthy, "what was wrong with a device is over");
        }
    }

    fn tell(&self) {
        let rules = self.sources.rules.borrow().clone();
        self.sources.desk.ail(Ailments { all: None, faults: Some(Arc::new(self.health.clone())), rules });
    }
}
