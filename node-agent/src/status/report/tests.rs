mod labels;

use super::*;
use crate::{
    configuration::in_force::{ConfigCandidate, DesiredConfig, InForce},
    devices::{advertised::AdvertisedList, state::DeviceSnapshot},
    driver::{
        hardware::{DriverState, Hardware},
        nvml::{
            DriverReading,
            probe::{ProbeTarget, unanswered},
        },
    },
    health::node_health::NodeHealth,
    plugin::registration::RegisteredResources,
    status::{conditions::not_registered, inputs::PluginStatus, missing::keep_missing},
};
use gpunode_crds::{
    AdvertisedDevice, Architecture, ConditionType, FaultGrade, FaultReason, HealthState, MigPhase, MigStatus,
    MpsDaemon, MpsDaemonState,
};
use gpunode_gpu::{AdvertisedResource, AdvertisedShare, Gpu, GpuProbe, Inventory, PendingChange, ProbeResult};
use std::sync::Arc;

fn hardware(driver: DriverState) -> Hardware {
    let gpu = |index| Gpu {
        index,
        uuid: format!("GPU-{index}"),
        name: "Tesla T4".to_owned(),
        memory_mib: 15360,
        compute_capability: Some((7, 5)),
        ..Gpu::default()
    };
    let inventory = Inventory {
        gpus: vec![gpu(0), gpu(1)],
        ..Inventory::default()
    };
    Hardware {
        functions: 2,
        driver,
        reading: Some(DriverReading {
            inventory,
            ..DriverReading::default()
        }),
        ..Hardware::default()
    }
}

fn config(document: &str) -> DesiredConfig {
    DesiredConfig::Config(Arc::new(ConfigCandidate::of_file(document.to_owned())))
}

/// Type, status and reason of each condition.
fn verdicts(status: &GpuNodeStatus) -> Vec<String> {
    status
        .conditions
        .iter()
        .map(|c| format!("{}={} {}", c.type_, c.status, c.reason))
        .collect()
}

/// Two shares of a resource, one of them healthy.
fn snapshot() -> DeviceSnapshot {
    let share = |id: &str, healthy| AdvertisedShare {
        id: id.to_owned(),
        healthy,
        numa_node: None,
        surplus: false,
    };
    let shares = vec![share("GPU-0", true), share("GPU-1", false)];
    let list = AdvertisedResource {
        name: "nvidia.com/gpu".to_owned(),
        is_companion: false,
        shares,
    };
    DeviceSnapshot {
        advertised: vec![AdvertisedList {
            resource: list.into(),
            resend: 0,
        }],
        ..DeviceSnapshot::default()
    }
}

fn of_page(snapshot: &DeviceSnapshot, hardware: &Hardware, in_force: &InForce, registered: &[&str]) -> GpuNodeStatus {
    with_health(&NodeHealth::default(), snapshot, hardware, in_force, registered)
}

fn with_health(
    health: &NodeHealth,
    snapshot: &DeviceSnapshot,
    hardware: &Hardware,
    in_force: &InForce,
    registered: &[&str],
) -> GpuNodeStatus {
    let taken = registered.iter().map(|name| (*name).to_owned()).collect();
    let plugin = PluginStatus {
        in_force,
        registered: &RegisteredResources {
            taken,
            ..RegisteredResources::default()
        },
    };
    status(
        &AgentIdentity::default(),
        StatusInputs {
            hardware,
            snapshot,
            health,
            runtime: None,
            plugin: Some(plugin),
        },
    )
}

fn of_plugin(hardware: &Hardware, in_force: &InForce, registered: &[&str]) -> GpuNodeStatus {
    of_page(&snapshot(), hardware, in_force, registered)
}

/// A node with two GPUs that are advertised.
fn advertised() -> (Hardware, InForce) {
    let hardware = hardware(DriverState::Answers);
    let in_force = InForce::default().next(&config(""), hardware.inventory());
    (hardware, in_force)
}

#[test]
fn a_resource_of_another_plugin_is_said_and_not_waited_for() {
    let (hardware, in_force) = advertised();
    let registered = RegisteredResources {
        others: ["nvidia.com/gpu".to_owned()].into(),
        ..RegisteredResources::default()
    };
    let plugin = PluginStatus {
        in_force: &in_force,
        registered: &registered,
    };
    assert_eq!(not_registered(&snapshot(), plugin), None);
    let status = status(
        &AgentIdentity::default(),
        StatusInputs {
            hardware: &hardware,
            snapshot: &snapshot(),
            health: &NodeHealth::default(),
            runtime: None,
            plugin: Some(plugin),
        },
    );
    let verdicts = verdicts(&status);
    assert_eq!(verdicts.first().unwrap(), "Ready=False ServedByAnother");
    let served = "ResourceServedByAnother=True ServedByAnother".to_owned();
    assert!(verdicts.contains(&served), "{verdicts:?}");
    let ready = &status.conditions[0];
    assert!(
        ready
            .message
            .contains("another device plugin on this node serves nvidia.com/gpu"),
        "{}",
        ready.message
    );
    assert!(!status.resources[0].registered);
}

#[test]
fn a_list_that_waits_for_the_disk_or_the_cdi_file_is_not_registered() {
    let (_, in_force) = advertised();
    let registered = RegisteredResources::default();
    let plugin = PluginStatus {
        in_force: &in_force,
        registered: &registered,
    };
    let waiting = snapshot().before_publication(Vec::new());
    assert_eq!(waiting.advertised, Vec::new());
    let expected = "the kubelet has not accepted nvidia.com/gpu yet";
    assert_eq!(not_registered(&waiting, plugin).as_deref(), Some(expected));
    let registered = RegisteredResources {
        taken: ["nvidia.com/gpu".to_owned()].into(),
        ..RegisteredResources::default()
    };
    let plugin = PluginStatus {
        in_force: &in_force,
        registered: &registered,
    };
    let published = snapshot().advertised;
    let replaced = snapshot().before_publication(published);
    assert_eq!(
        not_registered(&replaced, plugin),
        None,
        "the kubelet has the earlier list"
    );
}

/// Returns the condition of MIG layouts of a node whose GPUs are in these phases, each with a message but for applied ones.
fn mig_layout(phases: &[MigPhase]) -> Option<String> {
    let (hardware, mut in_force) = advertised();
    let gpus = hardware.inventory().unwrap().gpus.iter();
    let layout = |(gpu, phase): (&Gpu, &MigPhase)| {
        let message = (*phase != MigPhase::Applied).then(|| format!("is {}", phase.as_str()));
        let progress = MigStatus {
            phase: *phase,
            message,
            ..MigStatus::default()
        };
        (gpu.uuid.clone(), progress)
    };
    in_force.layouts.gpus = gpus.zip(phases).map(layout).collect();
    let status = of_page(&snapshot(), &hardware, &in_force, &["nvidia.com/gpu"]);
    let reported = status.gpus.iter().filter_map(|gpu| Some(gpu.mig.as_ref()?.phase));
    assert_eq!(reported.collect::<Vec<_>>(), phases);
    assert!(
        verdicts(&status).first().unwrap().starts_with("Ready=True"),
        "a layout on its way does not matter"
    );
    let condition = ConditionType::MigLayout.find(&status.conditions)?;
    Some(format!(
        "{} {}: {}",
        condition.status, condition.reason, condition.message
    ))
}

#[test]
fn condition_of_layouts_names_the_gpu_first_that_is_furthest_from_its_own() {
    use MigPhase::{Applied, Failed, Unsupported, Waiting};
    assert_eq!(mig_layout(&[]), None);
    for (phases, expected) in [
        ([Applied, Applied], "True LayoutApplied: every GPU has its layout"),
        ([Unsupported, Applied], "True LayoutApplied: GPU 0: is Unsupported"),
        ([Applied, Waiting], "False LayoutWaiting: GPU 1: is Waiting"),
        (
            [Waiting, Failed],
            "False LayoutFailed: GPU 1: is Failed; GPU 0: is Waiting",
        ),
    ] {
        assert_eq!(mig_layout(&phases).as_deref(), Some(expected));
    }
}

#[test]
fn gpus_of_a_dra_driver_are_said_and_not_waited_for() {
    let (hardware, in_force) = advertised();
    let dra = NodeHealth {
        served_by_dra: true,
        ..NodeHealth::default()
    };
    let nothing = DeviceSnapshot::default();
    let status = with_health(&dra, &nothing, &hardware, &in_force, &[]);
    let verdicts = verdicts(&status);
    assert_eq!(verdicts.first().unwrap(), "Ready=False ServedByAnother");
    let served = "ResourceServedByAnother=True ServedByAnother".to_owned();
    assert!(verdicts.contains(&served), "{verdicts:?}");
    assert_eq!(status.conditions[0].message, gpunode_crds::SERVED_BY_DRA);
    let plugin = PluginStatus {
        in_force: &in_force,
        registered: &RegisteredResources::default(),
    };
    assert_eq!(not_registered(&nothing, plugin), None);
}

#[test]
fn a_registered_node_is_ready() {
    let hardware = hardware(DriverState::Answers);
    let requested = config("");
    let in_force = InForce::default().next(&requested, hardware.inventory());
    let status = of_plugin(&hardware, &in_force, &["nvidia.com/gpu"]);
    assert_eq!(
        verdicts(&status),
        [
            "Ready=True ConfigurationInForce",
            "DriverAvailable=True DriverAnswers",
            "ConfigurationAccepted=True ConfigurationInForce",
            "Registered=True Registered",
            "DevicesOffered=True DevicesOffered",
            "Waiting=False NothingWaits",
        ]
    );
    assert_eq!(status.hardware.as_deref(), Some("2 x Tesla-T4"));
    let [resource] = status.resources.as_slice() else {
        panic!("{:?}", status.resources)
    };
    assert_eq!(
        (resource.capacity, resource.allocatable, resource.registered),
        (2, 1, true)
    );
    assert_eq!(status.config_hash, in_force.accepted.map(|accepted| accepted.hash));
    assert_eq!(status.gpus[1].architecture, Some(Architecture::Turing));
}

#[test]
fn a_rejected_configuration_is_named_and_the_old_one_too() {
    let hardware = hardware(DriverState::Answers);
    let good = InForce::default().next(&config(""), hardware.inventory());
    let bad = config("colour: red");
    let in_force = good.next(&bad, hardware.inventory());
    let status = of_plugin(&hardware, &in_force, &["nvidia.com/gpu"]);
    assert_eq!(verdicts(&status)[0], "Ready=False ConfigurationRejected");
    assert_eq!(
        verdicts(&status)[2],
        "ConfigurationAccepted=False ConfigurationRejected"
    );
    assert!(
        status.conditions[2]
            .message
            .contains("stays in force: read configuration: colour: unknown field")
    );
    assert_eq!(status.config_hash, good.accepted.map(|accepted| accepted.hash));
    assert!(status.rejected_config.unwrap().message.contains("colour"));
}

#[test]
fn what_is_missing_is_the_reason_for_not_being_ready() {
    let missing = hardware(DriverState::Missing("no driver".to_owned()));
    let requested = config("");
    let in_force = InForce::default().next(&requested, missing.inventory());
    assert_eq!(
        verdicts(&of_plugin(&missing, &in_force, &[]))[0],
        "Ready=False DriverNotFound"
    );
    let waiting = hardware(DriverState::Waiting("no answer within 30s".to_owned()));
    assert_eq!(
        verdicts(&of_plugin(&waiting, &in_force, &[]))[0],
        "Ready=False DriverNotReady"
    );
    let answers = hardware(DriverState::Answers);
    assert_eq!(
        verdicts(&of_plugin(&answers, &in_force, &[]))[0],
        "Ready=False Registering"
    );
    let nothing = InForce::default();
    assert_eq!(
        verdicts(&of_plugin(&answers, &nothing, &[]))[0],
        "Ready=False NoConfiguration"
    );
}

#[test]
fn a_node_without_gpu_says_nothing_of_a_driver() {
    let none = Hardware {
        driver: DriverState::NotNeeded,
        ..Hardware::default()
    };
    let requested = config("");
    let in_force = InForce::default().next(&requested, None);
    let status = of_page(&DeviceSnapshot::default(), &none, &in_force, &[]);
    assert_eq!(
        verdicts(&status),
        [
            "Ready=True ConfigurationInForce",
            "ConfigurationAccepted=True ConfigurationInForce",
            "Registered=True Registered",
            "DevicesOffered=True DevicesOffered",
            "Waiting=False NothingWaits",
        ]
    );
    assert!(status.hardware.is_none() && status.gpus.is_empty() && status.resources.is_empty());
}

#[test]
fn discovery_reports_hardware_alone() {
    let hardware = hardware(DriverState::Answers);
    let status = status(
        &AgentIdentity::default(),
        StatusInputs {
            hardware: &hardware,
            snapshot: &DeviceSnapshot::default(),
            health: &NodeHealth::default(),
            runtime: None,
            plugin: None,
        },
    );
    assert_eq!(
        verdicts(&status),
        ["Ready=True DriverAnswers", "DriverAvailable=True DriverAnswers"]
    );
    assert_eq!(status.agent.unwrap().mode, AgentMode::Discovery);
}

#[test]
fn unknown_holders_matter_where_there_is_something_to_offer() {
    let (hardware, in_force) = advertised();
    let unknown = DeviceSnapshot {
        holders_unknown: Some("mount it".to_owned()),
        ..DeviceSnapshot::default()
    };
    let status = of_page(&unknown, &hardware, &in_force, &[]);
    assert_eq!(verdicts(&status)[0], "Ready=False HoldersUnknown");
    assert_eq!(status.conditions[0].message, "mount it");
    let nothing = InForce::default().next(&config(""), None);
    assert_eq!(
        verdicts(&of_page(&unknown, &hardware, &nothing, &[]))[0],
        "Ready=True ConfigurationInForce"
    );
}

#[test]
fn an_mps_daemon_that_keeps_a_device_from_being_given_out_is_named() {
    let (hardware, in_force) = advertised();
    let with = |state, advertised: bool, health: &NodeHealth| {
        let assignment = in_force.desired.devices[1].assignment.clone();
        let assignments = advertised
            .then(|| ("GPU-1".to_owned(), assignment))
            .into_iter()
            .collect();
        let daemons = vec![MpsDaemon {
            device: "GPU-1".to_owned(),
            state,
        }];
        let snapshot = DeviceSnapshot {
            assignments,
            daemons,
            ..snapshot()
        };
        with_health(health, &snapshot, &hardware, &in_force, &["nvidia.com/gpu"])
    };
    let silent = with(MpsDaemonState::NotAnswering, true, &NodeHealth::default());
    assert_eq!(verdicts(&silent)[0], "Ready=False MpsDaemonNotAnswering");
    assert!(
        silent.conditions[0]
            .message
            .contains("of GPU 1 does not answer (normal for some"),
        "{:?}",
        silent.conditions[0]
    );
    let of_broken = with(MpsDaemonState::NotAnswering, true, &broken("GPU-1"));
    assert_eq!(
        verdicts(&of_broken)[0],
        "Ready=True ConfigurationInForce",
        "the GPU's state says it"
    );
    let stopping = with(MpsDaemonState::Stopping, true, &NodeHealth::default());
    assert_eq!(verdicts(&stopping)[0], "Ready=False MpsDaemonNotAnswering");
    assert!(
        stopping.conditions[0].message.contains("of GPU 1 is still stopping"),
        "{:?}",
        stopping.conditions[0]
    );
    let stopping = with(MpsDaemonState::Stopping, false, &NodeHealth::default());
    assert_eq!(verdicts(&stopping)[0], "Ready=True ConfigurationInForce");
    assert_eq!(stopping.mps_daemons.len(), 1);
}

/// Two assigned devices, and reasons why nothing can hand some over.
fn not_injectable(in_force: &InForce, reasons: &[(&str, &str)]) -> DeviceSnapshot {
    let desired = in_force.desired.devices.iter();
    DeviceSnapshot {
        assignments: desired
            .map(|desired| (desired.device.uuid.clone(), desired.assignment.clone()))
            .collect(),
        not_injectable: reasons
            .iter()
            .map(|(uuid, reason)| ((*uuid).to_owned(), (*reason).to_owned()))
            .collect(),
        ..snapshot()
    }
}

#[test]
fn devices_that_no_strategy_can_hand_over_are_named_by_their_reason() {
    let hardware = hardware(DriverState::Answers);
    let reasons = [("GPU-0", "no node"), ("GPU-1", "no node"), ("GPU-9", "left")];
    for (document, remedy) in [
        (
            "deviceListStrategy: [CdiCri]",
            "add Envvar to deviceListStrategy where containers run with NVIDIA's runtime",
        ),
        ("", "install NVIDIA's container toolkit"),
    ] {
        let in_force = InForce::default().next(&config(document), hardware.inventory());
        let snapshot = not_injectable(&in_force, &reasons);
        let status = of_page(&snapshot, &hardware, &in_force, &["nvidia.com/gpu"]);
        assert_eq!(verdicts(&status)[0], "Ready=False CdiNotDescribed");
        assert_eq!(
            status.conditions[0].message,
            format!("no container can get GPU 0, GPU 1: no node; resolve it, or {remedy}"),
            "one that has left the node is reported as such"
        );
        assert_eq!(status.resources[0].withheld, None, "the condition says it");
    }
}

#[test]
fn a_node_with_a_device_that_containers_can_get_stays_ready_without_another() {
    let (hardware, in_force) = advertised();
    let ready = |reasons: &[(&str, &str)], health: &NodeHealth| {
        let snapshot = not_injectable(&in_force, reasons);
        let status = with_health(health, &snapshot, &hardware, &in_force, &["nvidia.com/gpu"]);
        verdicts(&status)[0].clone()
    };
    let (one, both) = ([("GPU-1", "no node")], [("GPU-0", "no node"), ("GPU-1", "no node")]);
    assert_eq!(ready(&one, &NodeHealth::default()), "Ready=True ConfigurationInForce");
    assert_eq!(ready(&both, &broken("GPU-1")), "Ready=False CdiNotDescribed");
    assert_eq!(ready(&one, &broken("GPU-0")), "Ready=False CdiNotDescribed");
    assert_eq!(ready(&one, &broken("GPU-1")), "Ready=True ConfigurationInForce");
}

/// Units of memory of `devices`: UUID, units, and how many of them, from the first on, are healthy.
fn units(devices: &[(&str, u32, u32)]) -> DeviceSnapshot {
    let shares = (0..devices.iter().map(|(_, units, _)| *units).max().unwrap_or_default()).flat_map(|number| {
        let has = devices.iter().filter(move |(_, units, _)| number < *units);
        has.map(move |(uuid, _, healthy)| AdvertisedShare {
            id: format!("{uuid}-_-{number}"),
            healthy: number < *healthy,
            numa_node: None,
            surplus: false,
        })
    });
    let list = AdvertisedResource {
        name: "a.b/mem".to_owned(),
        is_companion: false,
        shares: shares.collect(),
    };
    DeviceSnapshot {
        advertised: vec![AdvertisedList {
            resource: list.into(),
            resend: 0,
        }],
        ..DeviceSnapshot::default()
    }
}

#[test]
fn a_resource_names_its_devices_gpus_first() {
    let (hardware, in_force) = advertised();
    let status = of_page(&units(&[("MIG-a", 2, 2), ("GPU-0", 3, 1)]), &hardware, &in_force, &[]);
    let device = |uuid: &str, shares, healthy| AdvertisedDevice {
        name: None,
        numa_node: None,
        device: uuid.to_owned(),
        shares,
        healthy,
    };
    assert_eq!(
        status.resources[0].devices,
        [device("GPU-0", 3, 1), device("MIG-a", 2, 2)]
    );
}

#[test]
fn unhealthy_shares_that_nothing_else_explains_are_withheld() {
    let (hardware, in_force) = advertised();
    let withheld = |snapshot: &DeviceSnapshot| of_page(snapshot, &hardware, &in_force, &[]).resources[0].withheld;
    assert_eq!(withheld(&units(&[("GPU-0", 3, 3), ("GPU-1", 5, 5)])), None);
    let snapshot = units(&[("GPU-0", 3, 1), ("GPU-1", 5, 5)]);
    assert_eq!(withheld(&snapshot), Some(2));
    let pending_changes = vec![PendingChange {
        device: "GPU-0".to_owned(),
        message: String::new(),
        pods: Vec::new(),
        switches: true,
    }];
    assert_eq!(
        withheld(&DeviceSnapshot {
            pending_changes,
            ..snapshot.clone()
        }),
        None
    );
    let daemons = vec![MpsDaemon {
        device: "GPU-0".to_owned(),
        state: MpsDaemonState::Stopping,
    }];
    assert_eq!(
        withheld(&DeviceSnapshot {
            daemons,
            ..snapshot.clone()
        }),
        None
    );
    let of_health =
        |health: &NodeHealth| with_health(health, &snapshot, &hardware, &in_force, &[]).resources[0].withheld;
    assert_eq!(of_health(&broken("GPU-0")), None, "it is broken");
    assert_eq!(of_health(&broken("GPU-1")), Some(2));
    let released = NodeHealth {
        unavailable: Some("the GPUs of the node are released".to_owned()),
        ..NodeHealth::default()
    };
    assert_eq!(of_health(&released), None);
}

#[test]
fn the_last_xid_of_a_gpu_is_in_status_also_if_it_is_no_fault() {
    let (hardware, in_force) = advertised();
    let at = Timestamp::from_second(7).unwrap();
    let mut health = NodeHealth::default();
    for xid in [13, 99_999] {
        health.last_xids.observe("GPU-1", xid, at);
        let status = with_health(&health, &snapshot(), &hardware, &in_force, &[]);
        assert_eq!(status.gpus[0].last_xid, None);
        let last = status.gpus[1].last_xid.clone().unwrap();
        assert_eq!((last.xid, last.time.map(|time| time.0)), (xid, Some(at)));
        let meaning = (xid == 13).then_some("graphics engine exception");
        assert_eq!(last.message.as_deref(), meaning);
    }
}

fn broken(device: &str) -> NodeHealth {
    let mut health = gpunode_gpu::DeviceFaults::default();
    let xid = gpunode_gpu::HealthObservation::Xid(device.to_owned(), 79);
    health.observe(
        xid,
        &gpunode_config::HealthRules::default(),
        Timestamp::from_second(7).unwrap(),
    );
    NodeHealth {
        faults: Some(health),
        ..NodeHealth::default()
    }
}

#[test]
fn a_device_that_waits_is_told_and_leaves_the_node_ready() {
    let (hardware, in_force) = advertised();
    let pods: Vec<String> = (10..40).map(|pod| format!("team/{pod}")).collect();
    let pending_changes = vec![PendingChange {
        device: "GPU-1".to_owned(),
        message: "ü".repeat(600),
        pods,
        switches: false,
    }];
    let holder = |number| gpu::DeviceHolder {
        pod: format!("pod-{number}"),
        count: 3,
        ..gpu::DeviceHolder::default()
    };
    let snapshot = DeviceSnapshot {
        pending_changes,
        holders: (0..300).map(holder).collect(),
        ..snapshot()
    };
    let status = of_page(&snapshot, &hardware, &in_force, &["nvidia.com/gpu"]);
    assert_eq!(verdicts(&status)[0], "Ready=True ConfigurationInForce");
    let [waiting] = status.waiting.as_slice() else {
        panic!("{:?}", status.waiting)
    };
    assert_eq!(
        (waiting.message.chars().count(), waiting.pods.len()),
        (MAX_WAITING_MESSAGE, MAX_WAITING_PODS)
    );
    assert_eq!(
        (status.holders.len(), status.holders_truncated, status.holders[0].count),
        (MAX_HOLDERS, true, 3)
    );
}

#[test]
fn a_condition_keeps_its_time_while_its_status_stays() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let after = |before: &GpuNodeStatus, driver, second| {
        let hardware = hardware(driver);
        let mut status = status(
            &AgentIdentity::default(),
            StatusInputs {
                hardware: &hardware,
                snapshot: &DeviceSnapshot::default(),
                health: &NodeHealth::default(),
                runtime: None,
                plugin: None,
            },
        );
        set_times(&mut status, before, at(second));
        status
    };
    let times = |status: &GpuNodeStatus| {
        status
            .conditions
            .iter()
            .map(|c| c.last_transition_time.0)
            .collect::<Vec<_>>()
    };
    let first = after(&GpuNodeStatus::default(), DriverState::Answers, 1);
    assert_eq!(times(&first), [at(1), at(1)]);
    assert_eq!(after(&first, DriverState::Answers, 2), first);
    let changed = after(&first, DriverState::Failed("gone".to_owned()), 3);
    assert_eq!(times(&changed), [at(3), at(3)]);
    let other_reason = after(&changed, DriverState::Missing("gone".to_owned()), 4);
    assert_eq!(times(&other_reason), [at(3), at(3)]);
}

#[test]
fn a_broken_device_says_what_is_wrong_what_to_do_and_what_it_waits_for() {
    let (hardware, in_force) = advertised();
    let at = Timestamp::from_second(7).unwrap();
    let status = with_health(&broken("GPU-1"), &snapshot(), &hardware, &in_force, &["nvidia.com/gpu"]);
    let state = |gpu: usize| status.gpus[gpu].health.as_ref().map(|health| health.state);
    assert_eq!(
        [state(0), state(1)],
        [Some(HealthState::Healthy), Some(HealthState::Unhealthy)]
    );
    let health = status.gpus[1].health.clone().unwrap();
    assert_eq!(
        (health.reason, health.xid, health.since),
        (Some(FaultReason::Xid), Some(79), Some(Time(at)))
    );
    assert_eq!(health.message.as_deref(), Some("XID 79: GPU has fallen off the bus"));
    assert!(
        health
            .action
            .is_some_and(|action| action.starts_with("reboot the node"))
    );
    assert!(health.waits_for.is_some_and(|waits| waits.contains("node reboot")));
    let unknown = of_page(&snapshot(), &hardware, &in_force, &["nvidia.com/gpu"]);
    assert_eq!(unknown.gpus[1].health, None, "nobody has looked");
}

#[test]
fn a_device_has_the_grade_of_its_faults_and_a_degraded_one_is_healthy() {
    let (hardware, in_force) = advertised();
    let rules = gpunode_config::HealthRules::default();
    let mut faults = gpunode_gpu::DeviceFaults::default();
    let mut probe = GpuProbe {
        result: ProbeResult::Responds,
        remap_pending: Some(true),
        ..unanswered(&ProbeTarget {
            gpu: "GPU-1".to_owned(),
            ..ProbeTarget::default()
        })
    };
    for (second, link_down, action, expected) in [
        (1, false, 0, (HealthState::Healthy, FaultGrade::Degraded, Some(1), None)),
        (
            2,
            true,
            0,
            (HealthState::Unhealthy, FaultGrade::NoNewWork, Some(2), None),
        ),
        (
            3,
            true,
            6,
            (HealthState::Unhealthy, FaultGrade::Broken, Some(2), Some(3)),
        ),
    ] {
        (probe.link_down, probe.recovery_action) = (Some(link_down), Some(action));
        let at = Timestamp::from_second(second).unwrap();
        faults.observe(gpunode_gpu::HealthObservation::Probe(probe.clone()), &rules, at);
        let health = NodeHealth {
            faults: Some(faults.clone()),
            ..NodeHealth::default()
        };
        assert_eq!(health.reasons().count(), usize::from(second > 1));
        let status = with_health(&health, &snapshot(), &hardware, &in_force, &[]);
        let health = status.gpus[1].health.clone().unwrap();
        let seconds = |time: Option<Time>| time.map(|time| time.0.as_second());
        let found = (
            health.state,
            health.grade.unwrap(),
            seconds(health.since),
            seconds(health.broken_since),
        );
        assert_eq!(found, expected);
    }
}

#[test]
fn a_gpu_that_waits_for_its_fabric_gets_no_new_work_and_its_pods_stay() {
    let (hardware, in_force) = advertised();
    let mut faults = gpunode_gpu::DeviceFaults::default();
    faults.observe(
        gpunode_gpu::HealthObservation::Fabric("GPU-1".to_owned(), false),
        &gpunode_config::HealthRules::default(),
        Timestamp::UNIX_EPOCH,
    );
    let health = NodeHealth {
        faults: Some(faults),
        ..NodeHealth::default()
    };
    let status = with_health(&health, &snapshot(), &hardware, &in_force, &[]);
    let health = status.gpus[1].health.clone().unwrap();
    assert_eq!(
        (health.state, health.grade, health.reason),
        (
            HealthState::Unhealthy,
            Some(FaultGrade::NoNewWork),
            Some(FaultReason::FabricNotReady)
        )
    );
    assert!(!health.is_broken());
}

#[test]
fn a_node_whose_driver_is_released_or_awaited_says_so_and_keeps_what_it_has() {
    let (mut hardware, in_force) = advertised();
    let report = |hardware: &Hardware| {
        let snapshot = snapshot();
        with_health(&broken("GPU-1"), &snapshot, hardware, &in_force, &["nvidia.com/gpu"])
    };
    let before = report(&hardware);
    for (driver, reason) in [
        (DriverState::Released, "Released"),
        (
            DriverState::Waiting("no answer within 30s".to_owned()),
            "DriverNotReady",
        ),
    ] {
        hardware.driver = driver;
        let mut status = report(&hardware);
        assert_eq!(
            verdicts(&status)[..2],
            [
                format!("Ready=False {reason}"),
                format!("DriverAvailable=False {reason}")
            ]
        );
        keep_missing(&mut status, &before, Timestamp::from_second(9).unwrap());
        assert_eq!((&status.gpus, &status.hardware), (&before.gpus, &before.hardware));
        let health = status.gpus[1].health.as_ref().unwrap();
        assert_eq!(health.state, HealthState::Unhealthy, "faults of this time are reported");
    }
}
