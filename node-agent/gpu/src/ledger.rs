//! Who holds what, what is offered now, and what waits.
//!
//! A device is offered by one [`Assignment`] at a time. Another one takes its place only on evidence that no container
//! holds anything of the device and that the kubelet can give nothing of it out any more (DESIGN 3.7).

mod allocation;
mod observation;

pub use allocation::{Granted, Refusal};
pub use observation::{Holder, Holding, Observation, Waiting};

use crate::{Assignment, ResourceList, Wanted};
use std::{collections::BTreeMap, time::Instant};

/// What the agent knows of the devices of its node and of what is held.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    assigned: BTreeMap<String, Assignment>,
}

#[allow(clippy::unused_self, clippy::needless_pass_by_value, missing_docs, reason = "the bodies come next")]
impl Ledger {
    pub fn restore(saved: BTreeMap<String, Assignment>) -> Self {
        Self { assigned: saved }
    }
    pub fn saved(&self) -> &BTreeMap<String, Assignment> {
        &self.assigned
    }
    pub fn want(&mut self, _wanted: Wanted) {}
    pub fn observe(&mut self, _observation: Observation) {}
    pub fn hold_back(&mut self, _reasons: BTreeMap<String, String>) {}
    pub fn is_known(&self) -> bool {
        false
    }
    pub fn lists(&self) -> Vec<ResourceList> {
        Vec::new()
    }
    pub fn preferred(
        &self,
        _resource: &str,
        _available: &[String],
        _must_include: &[String],
        _size: usize,
        _busy: &BTreeMap<u32, u32>,
    ) -> Vec<String> {
        Vec::new()
    }
    pub fn has_tie(&self, _resource: &str, _available: &[String], _size: usize) -> bool {
        false
    }
    pub fn allocate(&mut self, resource: &str, _ids: &[String], _now: Instant) -> Result<Granted, Refusal> {
        Err(Refusal::Empty { resource: resource.to_owned() })
    }
    pub fn withhold(&mut self, _resource: &str) -> u32 {
        0
    }
    pub fn waiting(&self) -> Vec<Waiting> {
        Vec::new()
    }
    pub fn holders(&self) -> Vec<Holder> {
        Vec::new()
    }
    pub fn is_busy(&self) -> bool {
        false
    }
    pub fn mps_devices(&self) -> Vec<String> {
        Vec::new()
    }
}
