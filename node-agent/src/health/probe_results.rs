//! Starts rounds of probes, and turns their results into observations.

use super::{HealthMonitor, UNSETTLED, is_unsettled, probe_loop::ProbeEvent};
use crate::driver::{
    hardware::Hardware,
    nvml::probe::{ProbeReport, ProbeTarget},
};
use gpunode_gpu::{FaultReason, Gpu, GpuProbe, HealthObservation, ProbeResult};
use tokio::time::Instant;
use tracing::{debug, warn};

impl HealthMonitor {
    /// Begins a round of probes.
    fn look(&mut self) {
        let hardware = self.sources.hardware.borrow().clone();
        let gpus = hardware
            .as_deref()
            .and_then(Hardware::answering)
            .map_or(&[][..], |inventory| &inventory.gpus);
        let now = Instant::now();
        let targets = gpus.iter().map(|gpu| self.target(gpu, now)).collect();
        self.looks.begin(targets);
        for (at, _) in self
            .unsettled
            .values()
            .flatten()
            .filter(|event| is_unsettled(event, now))
        {
            self.looks.probe_soon(*at + UNSETTLED);
        }
    }

    fn target(&self, gpu: &Gpu, now: Instant) -> ProbeTarget {
        let health = &self.known.health;
        let instances: Vec<String> = gpu.mig_devices.iter().map(|mig| mig.uuid.clone()).collect();
        let processes = instances
            .iter()
            .chain([&gpu.uuid])
            .any(|device| health.has_fault(device, FaultReason::Xid));
        let links = self
            .known
            .links
            .get(&gpu.uuid)
            .filter(|_| self.linked.contains(&gpu.uuid))
            .cloned();
        ProbeTarget {
            gpu: gpu.uuid.clone(),
            ticket: self.ticket(&gpu.uuid, now),
            instances,
            links,
            processes,
        }
    }

    pub(super) fn looked(&mut self, found: ProbeEvent) {
        match found {
            ProbeEvent::Recovered(at) => {
                if self.known.touched.replace(at) != Some(at) {
                    self.recovered(at);
                }
            }
            ProbeEvent::Probed(look) => self.take(*look),
            ProbeEvent::Hangs(probe) => {
                warn!(gpu = probe.gpu, "probe the GPU: the driver does not answer");
                self.observe(HealthObservation::Probe(probe));
            }
            ProbeEvent::Failed => self.sources.look_again.notify_one(),
            ProbeEvent::Done => debug!("all GPUs probed"),
            ProbeEvent::Due => self.look(),
        }
    }

    fn take(&mut self, look: ProbeReport) {
        let ProbeReport {
            mut probe,
            links,
            failed,
        } = look;
        let gpu = probe.gpu.clone();
        for (device, (call, error)) in &failed {
            self.sources.metrics.nvml_error(call);
            let health = &self.known.health;
            if !health.doubts(device)
                && !health.has_fault(device, FaultReason::NotAnswering)
                && !health.has_fault(device, FaultReason::Lost)
            {
                warn!(device, call, %error, "a call to the driver fails");
            }
        }
        if probe.result == ProbeResult::Responds {
            self.take_links(&mut probe, links);
            if let Some(errors) = probe.uncorrected_ecc
                && self
                    .errors
                    .insert(gpu.clone(), errors)
                    .is_some_and(|before| before > errors)
            {
                let parts = probe.instances.iter().map(|instance| instance.uuid.clone());
                self.observe(HealthObservation::Reset(parts.chain([gpu]).collect()));
            }
            self.count_pods(&mut probe);
        }
        self.observe(HealthObservation::Probe(probe));
        if failed.iter().any(|(device, _)| self.known.health.doubts(device)) {
            self.looks.probe_soon(Instant::now());
        }
    }

    /// Compares the NVLinks of a GPU that are up with those before; `None` where links do not count.
    fn take_links(&mut self, probe: &mut GpuProbe, links: Option<Vec<u32>>) {
        let Some(links) = links else {
            // Links that were up before count again once links do.
            self.linked.remove(&probe.gpu);
            return;
        };
        if self.linked.insert(probe.gpu.clone()) {
            // Links that an earlier agent saw count, too.
            let before = self.known.links.entry(probe.gpu.clone()).or_default();
            probe.link_down = Some(before.iter().any(|link| !links.contains(link)));
            before.extend(links);
            before.sort_unstable();
            before.dedup();
        }
    }

    /// Returns whether no process uses the GPU. The driver may hide processes of containers, so a GPU that a pod holds never
    /// counts as idle.
    fn count_pods(&self, probe: &mut GpuProbe) {
        let instances = probe
            .instances
            .iter_mut()
            .map(|instance| (&instance.uuid, &mut instance.processes));
        let all = instances.chain([(&probe.gpu, &mut probe.processes)]);
        let mut counted = all
            .filter_map(|(device, processes)| Some((device, (*processes)?, processes)))
            .peekable();
        if counted.peek().is_none() {
            return;
        }
        let (devices, holders) = (self.devices(), self.sources.manager.known_holders());
        for (device, count, processes) in counted {
            *processes = holders
                .as_ref()
                .map(|holders| count + devices.pods(device, holders).len());
        }
    }
}
