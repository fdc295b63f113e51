//! Prometheus metrics. Label values are constants, except indexes of devices, resource names, XID numbers and containers that hold
//! devices, whose count is bounded.

use gpunode_crds::{ContainerUsage, UsageReport};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};

/// Most resources with metrics of their own; further ones count as [`OTHER`]. Only a configuration that keeps changing
/// reaches the limit.
const MAX_RESOURCES: usize = 64;
/// Greatest XID with a counter of its own. NVIDIA documents XIDs below 200.
const MAX_XID: u64 = 255;
/// Upper bounds of the buckets of MIG changes, in seconds. A call takes tenths of a second, the reset of a GPU some seconds.
const CHANGE_BUCKETS: [f64; 9] = [0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
const OTHER: &str = "other";
/// Index of a device that the driver does not list now.
const UNKNOWN: &str = "unknown";
/// Upper bounds of the buckets, in seconds. Most calls take 0.1 ms; a refused one takes up to 15 s.
const BUCKETS: [f64; 13] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.3, 1.0, 5.0, 20.0,
];

/// Metrics of this process. Clones are cheap and share the counters.
#[derive(Clone, Debug)]
pub struct AgentMetrics(Arc<MetricFamilies>);

#[derive(Debug)]
struct MetricFamilies {
    registry: Registry,
    resources: Mutex<BTreeSet<String>>,
    devices: Family<ByHealth, Gauge>,
    allocations: Family<ByAllocation, Counter>,
    calls: Family<ByMethod, Histogram, fn() -> Histogram>,
    registrations: Family<ByRegistration, Counter>,
    xids: Family<ByXid, Counter>,
    nvml_errors: Family<ByCall, Counter>,
    config: Family<ByHash, Gauge>,
    faults: Family<ByFault, Gauge>,
    held_shares: Family<ByResource, Gauge>,
    unaccounted_processes: Family<ByGpu, Gauge>,
    usage: UsageFamilies,
    mig_gpus: Family<ByPhase, Gauge>,
    mig_instances: Family<ByProfile, Gauge>,
    mig_largest_free: Family<BySlices, Gauge>,
    mig_attempts: Family<ByAttempt, Counter>,
    mig_changes: Histogram,
}

/// Use of devices by the containers that hold them, beside what they were given.
#[derive(Clone, Debug, Default)]
struct UsageFamilies {
    memory_used: Family<ByContainer, Gauge>,
    memory_given: Family<ByContainer, Gauge>,
    sm_used: Family<ByContainer, Gauge<f64, AtomicU64>>,
    sm_given: Family<ByContainer, Gauge<f64, AtomicU64>>,
    idle: Family<ByContainer, Gauge>,
    omitted: Gauge,
}

/// Call between the agent and the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum PluginMethod {
    /// The agent registers a resource.
    Register,
    /// The agent builds one list of the stream.
    ListAndWatch,
    /// The kubelet asks for the preferred devices.
    GetPreferredAllocation,
    /// The kubelet allocates devices to a container.
    Allocate,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByHealth {
    /// Empty on discovery agents.
    resource: String,
    /// `healthy` or `unhealthy`.
    health: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByAllocation {
    resource: String,
    /// `granted` or `refused`.
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByRegistration {
    resource: String,
    /// `accepted` or `failed`.
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByMethod {
    /// `Allocate`, `GetPreferredAllocation`, `ListAndWatch` or `Register`.
    method: PluginMethod,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByXid {
    /// Number up to 255, or `other`.
    xid: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCall {
    /// Name of the C function.
    call: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByFault {
    /// Index such as `3`, or `3:1` for a MIG device.
    gpu: String,
    /// Reason of the most serious fault, as in `GpuNode.status.gpus[].health`.
    reason: &'static str,
    /// Its grade: `Degraded`, `NoNewWork` or `Broken`.
    grade: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByResource {
    resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByContainer {
    /// Namespace of the pod.
    namespace: String,
    /// Name of the pod.
    pod: String,
    /// Name of the container.
    container: String,
    /// Index such as `3`, or `3:1` for a MIG device.
    gpu: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByGpu {
    /// Index.
    gpu: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPhase {
    /// Phase, as in `GpuNode.status.gpus[].mig`.
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByProfile {
    /// Profile such as `1g.10gb`.
    profile: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BySlices {
    /// Index.
    gpu: u32,
    /// `compute` or `memory`.
    slices: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByAttempt {
    /// `done`, `blocked`, `failed` or `reboot_required`.
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByHash {
    hash: String,
}

/// Measures a call until dropped.
#[derive(Debug)]
pub struct Timer {
    metrics: AgentMetrics,
    method: PluginMethod,
    start: Instant,
}

impl Drop for Timer {
    fn drop(&mut self) {
        let labels = ByMethod { method: self.method };
        self.metrics
            .0
            .calls
            .get_or_create(&labels)
            .observe(self.start.elapsed().as_secs_f64());
    }
}

impl UsageFamilies {
    fn add_to(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "container_memory_used",
            "Memory of a GPU that the processes of a container use",
            Unit::Bytes,
            self.memory_used.clone(),
        );
        registry.register_with_unit(
            "container_memory_given",
            "Memory of a GPU that a container was given",
            Unit::Bytes,
            self.memory_given.clone(),
        );
        registry.register_with_unit(
            "container_sm_used",
            "Part of the time in which the processes of a container used the SMs of a GPU",
            Unit::Other("ratio".to_owned()),
            self.sm_used.clone(),
        );
        registry.register_with_unit(
            "container_sm_given",
            "Part of the SMs of a GPU, or of their time, that a container was given",
            Unit::Other("ratio".to_owned()),
            self.sm_given.clone(),
        );
        registry.register_with_unit(
            "container_idle",
            "Time since a container was last seen to use a GPU that it holds",
            Unit::Seconds,
            self.idle.clone(),
        );
        registry.register(
            "containers_without_usage",
            "Containers on GPUs beyond the number that have figures of their use",
            self.omitted.clone(),
        );
    }

    fn set(&self, report: &UsageReport) {
        for family in [&self.memory_used, &self.memory_given, &self.idle] {
            family.clear();
        }
        for family in [&self.sm_used, &self.sm_given] {
            family.clear();
        }
        for of in &report.containers {
            let labels = ByContainer::of(of);
            for (family, value) in [
                (&self.memory_used, of.memory_used_bytes),
                (&self.memory_given, of.memory_given_bytes),
                (&self.idle, of.idle_seconds),
            ] {
                if let Some(value) = value {
                    let value = i64::try_from(value).unwrap_or(i64::MAX);
                    family.get_or_create(&labels).set(value);
                }
            }
            for (family, value) in [(&self.sm_used, of.sm_used_ratio), (&self.sm_given, of.sm_given_ratio)] {
                if let Some(value) = value {
                    family.get_or_create(&labels).set(value);
                }
            }
        }
        self.omitted.set(i64::try_from(report.omitted).unwrap_or(i64::MAX));
    }
}

impl ByContainer {
    fn of(usage: &ContainerUsage) -> Self {
        Self {
            namespace: usage.namespace.clone(),
            pod: usage.pod.clone(),
            container: usage.container.clone(),
            gpu: usage.gpu.clone(),
        }
    }
}

impl AgentMetrics {
    /// Creates the metrics, all zero.
    pub fn new() -> Self {
        let devices = Family::<ByHealth, Gauge>::default();
        let allocations = Family::<ByAllocation, Counter>::default();
        let calls = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let registrations = Family::<ByRegistration, Counter>::default();
        let xids = Family::<ByXid, Counter>::default();
        let nvml_errors = Family::<ByCall, Counter>::default();
        let config = Family::<ByHash, Gauge>::default();
        let faults = Family::<ByFault, Gauge>::default();
        let held_shares = Family::<ByResource, Gauge>::default();
        let unaccounted_processes = Family::<ByGpu, Gauge>::default();
        let usage = UsageFamilies::default();
        let mig_gpus = Family::<ByPhase, Gauge>::default();
        let mig_instances = Family::<ByProfile, Gauge>::default();
        let mig_largest_free = Family::<BySlices, Gauge>::default();
        let mig_attempts = Family::<ByAttempt, Counter>::default();
        let mig_changes = Histogram::new(CHANGE_BUCKETS);
        let mut registry = Registry::with_prefix("gpunode_agent");
        registry.register(
            "build",
            "Version of the program",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        registry.register(
            "devices",
            "Device ids that the agent advertises to the kubelet; on discovery agents, GPUs that answer or do not, without regard to XIDs",
            devices.clone(),
        );
        registry.register("allocations", "Containers that requested devices", allocations.clone());
        registry.register_with_unit(
            "rpc_duration",
            "Duration of calls from and to the kubelet; of ListAndWatch, the time to build one list",
            Unit::Seconds,
            calls.clone(),
        );
        registry.register(
            "registrations",
            "Attempts to register with the kubelet",
            registrations.clone(),
        );
        registry.register("xids", "XID events from the driver", xids.clone());
        registry.register(
            "nvml_errors",
            "Failed NVML calls while probing devices or waiting for them",
            nvml_errors.clone(),
        );
        registry.register(
            "faults",
            "1 for each faulty GPU or MIG device, whatever the number of its faults; absent if there are none",
            faults.clone(),
        );
        registry.register(
            "held_shares",
            "Shares that containers hold; of a whole GPU that is one",
            held_shares.clone(),
        );
        registry.register(
            "unaccounted_processes",
            "Processes on a GPU that belong to no container that holds it",
            unaccounted_processes.clone(),
        );
        usage.add_to(&mut registry);
        registry.register(
            "mig_gpus",
            "GPUs with a MIG layout; absent without layouts",
            mig_gpus.clone(),
        );
        registry.register(
            "mig_instances",
            "MIG devices of the GPUs with a MIG layout",
            mig_instances.clone(),
        );
        registry.register(
            "mig_largest_free_slices",
            "Slices of the largest GPU instance that could be created now beside those of the GPU, 0 if none fits; of GPUs with a MIG layout on which MIG is on",
            mig_largest_free.clone(),
        );
        registry.register("mig_attempts", "Attempts to change MIG on a GPU", mig_attempts.clone());
        registry.register_with_unit(
            "mig_change_duration",
            "Time from the approval of a change of MIG until the GPU has its layout",
            Unit::Seconds,
            mig_changes.clone(),
        );
        registry.register(
            "config_info",
            "1 for the configuration that is in force",
            config.clone(),
        );
        let resources = Mutex::default();
        Self(
            MetricFamilies {
                registry,
                resources,
                devices,
                allocations,
                calls,
                registrations,
                xids,
                nvml_errors,
                config,
                faults,
                held_shares,
                unaccounted_processes,
                usage,
                mig_gpus,
                mig_instances,
                mig_largest_free,
                mig_attempts,
                mig_changes,
            }
            .into(),
        )
    }

    /// Sets the numbers of healthy and unhealthy devices of each resource. Removes resources that are not listed.
    pub fn set_devices<'a>(&self, resources: impl Iterator<Item = (&'a str, usize, usize)>) {
        self.0.devices.clear();
        for (resource, healthy, unhealthy) in resources {
            self.add_devices(resource, healthy, unhealthy);
        }
    }

    /// Sets the numbers of answering GPUs and of silent GPUs and MIG devices on a node that advertises none, with an empty
    /// resource name.
    pub fn set_found(&self, answering: usize, silent: usize) {
        self.0.devices.clear();
        self.add_devices("", answering, silent);
    }

    fn add_devices(&self, resource: &str, healthy: usize, unhealthy: usize) {
        let resource = self.resource(resource);
        for (health, count) in [("healthy", healthy), ("unhealthy", unhealthy)] {
            let labels = ByHealth {
                resource: resource.clone(),
                health,
            };
            self.0
                .devices
                .get_or_create(&labels)
                .inc_by(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Sets the faulty devices: the index of each, such as `3` or `3:1`, with reason and grade of its most serious fault. The
    /// index is unknown while the driver does not list the device.
    pub fn set_faults(&self, devices: impl Iterator<Item = (Option<String>, &'static str, &'static str)>) {
        self.0.faults.clear();
        for (gpu, reason, grade) in devices {
            let gpu = gpu.unwrap_or_else(|| UNKNOWN.to_owned());
            self.0.faults.get_or_create(&ByFault { gpu, reason, grade }).inc();
        }
    }

    /// Sets the numbers of held shares by resource. Removes resources that are not listed.
    pub fn set_held_shares<'a>(&self, resources: impl Iterator<Item = (&'a str, u32)>) {
        self.0.held_shares.clear();
        for (resource, shares) in resources {
            let resource = self.resource(resource);
            self.0
                .held_shares
                .get_or_create(&ByResource { resource })
                .inc_by(shares.into());
        }
    }

    /// Sets the number of processes that no container accounts for, by the index of the GPU. Removes GPUs that are not listed.
    pub fn set_unaccounted_processes(&self, gpus: impl Iterator<Item = (u32, usize)>) {
        self.0.unaccounted_processes.clear();
        for (gpu, count) in gpus {
            self.0
                .unaccounted_processes
                .get_or_create(&ByGpu { gpu })
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Sets what containers use. Removes containers that are not in the report, and figures that it does not have.
    pub fn set_usage(&self, report: &UsageReport) {
        self.0.usage.set(report);
    }

    /// Sets the phases of the GPUs with a MIG layout, one each, and the profiles of their MIG devices. Removes those that are not
    /// listed.
    pub fn set_mig<'a>(&self, phases: impl Iterator<Item = &'static str>, profiles: impl Iterator<Item = &'a str>) {
        self.0.mig_gpus.clear();
        for phase in phases {
            self.0.mig_gpus.get_or_create(&ByPhase { phase }).inc();
        }
        self.0.mig_instances.clear();
        for profile in profiles {
            let profile = profile.to_owned();
            self.0.mig_instances.get_or_create(&ByProfile { profile }).inc();
        }
    }

    /// Sets the compute and memory slices of the largest GPU instance that still fits, by the index of the GPU. Removes GPUs that
    /// are not listed.
    pub fn set_mig_largest_free(&self, gpus: impl Iterator<Item = (u32, (u32, u32))>) {
        self.0.mig_largest_free.clear();
        for (gpu, (compute, memory)) in gpus {
            for (slices, count) in [("compute", compute), ("memory", memory)] {
                let labels = BySlices { gpu, slices };
                self.0.mig_largest_free.get_or_create(&labels).set(count.into());
            }
        }
    }

    /// Counts an attempt to change MIG on a GPU.
    pub fn mig_attempt(&self, result: &'static str) {
        self.0.mig_attempts.get_or_create(&ByAttempt { result }).inc();
    }

    /// Notes the time in which a GPU got its MIG layout.
    pub fn mig_changed(&self, time: Duration) {
        self.0.mig_changes.observe(time.as_secs_f64());
    }

    /// Sets the hash of the configuration in force.
    pub fn set_config(&self, hash: Option<&str>) {
        self.0.config.clear();
        if let Some(hash) = hash {
            self.0.config.get_or_create(&ByHash { hash: hash.to_owned() }).set(1);
        }
    }

    /// Counts an allocation to a container, granted or refused.
    pub fn allocated(&self, resource: &str, given: bool) {
        let labels = ByAllocation {
            resource: self.resource(resource),
            result: if given { "granted" } else { "refused" },
        };
        self.0.allocations.get_or_create(&labels).inc();
    }

    /// Counts a registration, accepted or failed.
    pub fn registered(&self, resource: &str, taken: bool) {
        for (result, counts) in [("accepted", taken), ("failed", !taken)] {
            let resource = self.resource(resource);
            // Both begin at zero: Prometheus sees no increase in the first value of a series.
            let counter = self
                .0
                .registrations
                .get_or_create_owned(&ByRegistration { resource, result });
            if counts {
                counter.inc();
            }
        }
    }

    /// Starts to measure a call; the drop of the timer ends it.
    pub fn timer(&self, method: PluginMethod) -> Timer {
        Timer {
            metrics: self.clone(),
            method,
            start: Instant::now(),
        }
    }

    /// Counts an XID event.
    pub fn xid(&self, xid: u64) {
        let xid = if xid <= MAX_XID {
            xid.to_string()
        } else {
            OTHER.to_owned()
        };
        self.0.xids.get_or_create(&ByXid { xid }).inc();
    }

    /// Counts a failed NVML call; `call` is the C function's name.
    pub fn nvml_error(&self, call: &'static str) {
        self.0.nvml_errors.get_or_create(&ByCall { call }).inc();
    }

    /// Renders the metrics in the OpenMetrics text format.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        _ = encode(&mut text, &self.0.registry);
        text
    }

    /// Returns the label value of a resource.
    fn resource(&self, name: &str) -> String {
        let mut known = self.0.resources.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < MAX_RESOURCES {
            known.insert(name.to_owned());
        }
        if known.contains(name) { name } else { OTHER }.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_docs::{documented_metrics, exposed_metrics};

    #[test]
    fn devices_of_a_resource_that_goes_go_with_it() {
        let metrics = AgentMetrics::new();
        metrics.set_devices([("a.b/c", 3, 1), ("a.b/d", 1, 0)].into_iter());
        metrics.set_devices([("a.b/c", 4, 0)].into_iter());
        let text = metrics.render();
        assert!(
            text.contains(r#"gpunode_agent_devices{resource="a.b/c",health="healthy"} 4"#),
            "{text}"
        );
        assert!(!text.contains("a.b/d"), "{text}");
    }

    #[test]
    fn a_gpu_with_a_fault_is_one_series_with_its_index_and_held_shares_are_summed() {
        let metrics = AgentMetrics::new();
        let faults = [
            (Some("1".to_owned()), "Xid", "NoNewWork"),
            (Some("3:0".to_owned()), "Lost", "Broken"),
            (None, "Xid", "Broken"),
        ];
        metrics.set_faults(faults.into_iter());
        metrics.set_held_shares([("a.b/c", 0), ("a.b/c", 2), ("a.b/d", 0), ("a.b/c", 1)].into_iter());
        let text = metrics.render();
        for series in [
            r#"gpunode_agent_faults{gpu="1",reason="Xid",grade="NoNewWork"} 1"#,
            r#"gpunode_agent_faults{gpu="3:0",reason="Lost",grade="Broken"} 1"#,
            r#"gpunode_agent_faults{gpu="unknown",reason="Xid",grade="Broken"} 1"#,
            r#"gpunode_agent_held_shares{resource="a.b/c"} 3"#,
            r#"gpunode_agent_held_shares{resource="a.b/d"} 0"#,
        ] {
            assert!(text.contains(series), "{series} in {text}");
        }
    }

    #[test]
    fn gpu_with_mig_has_the_slices_of_the_largest_instance_that_fits_until_it_goes() {
        let metrics = AgentMetrics::new();
        metrics.set_mig_largest_free([(0, (3, 4)), (1, (0, 0))].into_iter());
        let text = metrics.render();
        for series in [
            r#"gpunode_agent_mig_largest_free_slices{gpu="0",slices="compute"} 3"#,
            r#"gpunode_agent_mig_largest_free_slices{gpu="0",slices="memory"} 4"#,
            r#"gpunode_agent_mig_largest_free_slices{gpu="1",slices="compute"} 0"#,
            r#"gpunode_agent_mig_largest_free_slices{gpu="1",slices="memory"} 0"#,
        ] {
            assert!(text.contains(series), "{series} in {text}");
        }
        metrics.set_mig_largest_free([].into_iter());
        assert!(!metrics.render().contains("gpunode_agent_mig_largest_free_slices{"));
    }

    fn usage(pod: &str, sm_used_ratio: Option<f64>) -> ContainerUsage {
        ContainerUsage {
            namespace: "ml".to_owned(),
            pod: pod.to_owned(),
            container: "main".to_owned(),
            gpu: "0:1".to_owned(),
            memory_used_bytes: Some(1 << 20),
            memory_given_bytes: Some(1 << 30),
            sm_used_ratio,
            sm_given_ratio: Some(0.25),
            idle_seconds: Some(90),
            ..ContainerUsage::default()
        }
    }

    #[test]
    fn what_a_container_uses_goes_with_its_figure_and_with_the_container() {
        let metrics = AgentMetrics::new();
        let shows = |containers: Vec<ContainerUsage>| {
            metrics.set_usage(&UsageReport {
                containers,
                omitted: 7,
                ..UsageReport::default()
            });
            metrics.render()
        };
        let text = shows(vec![usage("a", Some(0.5)), usage("b", None)]);
        let labels = |pod: &str| format!(r#"namespace="ml",pod="{pod}",container="main",gpu="0:1""#);
        for series in [
            format!("gpunode_agent_container_memory_used_bytes{{{}}} 1048576", labels("a")),
            format!(
                "gpunode_agent_container_memory_given_bytes{{{}}} 1073741824",
                labels("a")
            ),
            format!("gpunode_agent_container_sm_used_ratio{{{}}} 0.5", labels("a")),
            format!("gpunode_agent_container_sm_given_ratio{{{}}} 0.25", labels("b")),
            format!("gpunode_agent_container_idle_seconds{{{}}} 90", labels("b")),
            "gpunode_agent_containers_without_usage 7".to_owned(),
        ] {
            assert!(text.contains(&series), "{series} in {text}");
        }
        assert!(!text.contains(&format!("sm_used_ratio{{{}", labels("b"))), "{text}");
        let text = shows(vec![usage("b", None)]);
        assert!(!text.contains(&labels("a")), "{text}");
        assert!(!text.contains("gpunode_agent_container_sm_used_ratio{"), "{text}");
    }

    #[test]
    fn one_configuration_is_in_force() {
        let metrics = AgentMetrics::new();
        metrics.set_config(Some("old"));
        metrics.set_config(Some("new"));
        let text = metrics.render();
        assert!(
            text.contains(r#"gpunode_agent_config_info{hash="new"} 1"#) && !text.contains("old"),
            "{text}"
        );
    }

    #[test]
    fn whatever_comes_the_number_of_series_is_bounded() {
        let metrics = AgentMetrics::new();
        for number in 0..10_000 {
            metrics.allocated(&format!("a.b/c{number}"), true);
            metrics.xid(number);
        }
        metrics.nvml_error("nvmlDeviceGetMemoryInfo");
        let text = metrics.render();
        let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(series("gpunode_agent_allocations_total{"), MAX_RESOURCES + 1);
        assert_eq!(series("gpunode_agent_xids_total{"), 257);
        assert!(
            text.contains(r#"gpunode_agent_nvml_errors_total{call="nvmlDeviceGetMemoryInfo"} 1"#),
            "{text}"
        );
    }

    /// The generated list of all metrics.
    const DOCUMENT: &str = include_str!("../../../docs/reference/metrics.md");

    /// Metrics of which each has a value.
    fn complete() -> AgentMetrics {
        let metrics = AgentMetrics::new();
        metrics.set_devices([("a.b/c", 1, 0)].into_iter());
        metrics.set_faults([(None, "Xid", "Broken")].into_iter());
        metrics.set_held_shares([("a.b/c", 1)].into_iter());
        metrics.set_unaccounted_processes([(0, 1)].into_iter());
        metrics.set_mig(["Applied"].into_iter(), ["1g.10gb"].into_iter());
        metrics.set_mig_largest_free([(0, (3, 4))].into_iter());
        metrics.mig_attempt("done");
        metrics.mig_changed(Duration::from_secs(1));
        metrics.set_config(Some("hash"));
        metrics.allocated("a.b/c", true);
        metrics.registered("a.b/c", true);
        drop(metrics.timer(PluginMethod::Allocate));
        metrics.xid(79);
        metrics.nvml_error("nvmlDeviceGetMemoryInfo");
        metrics.set_usage(&UsageReport {
            containers: vec![usage("a", Some(0.5))],
            ..UsageReport::default()
        });
        // One that is new belongs above: a family without a series is not exposed.
        let MetricFamilies {
            registry: _,
            resources: _,
            devices: _,
            allocations: _,
            calls: _,
            registrations: _,
            xids: _,
            nvml_errors: _,
            config: _,
            faults: _,
            held_shares: _,
            usage: _,
            unaccounted_processes: _,
            mig_gpus: _,
            mig_instances: _,
            mig_largest_free: _,
            mig_attempts: _,
            mig_changes: _,
        } = &*metrics.0;
        metrics
    }

    #[test]
    fn each_metric_is_documented_with_its_type_and_labels_and_each_documented_one_exists() {
        let documented = documented_metrics(DOCUMENT, "gpunode_agent_");
        assert_eq!(documented, exposed_metrics(&complete().render()));
    }
}
