use super::*;
use gpunode_crds::{DeviceHealth, Fabric, ResourceStatus, UntimedCondition};
use jiff::Timestamp;

fn gpu(index: u32, health: Option<&str>) -> GpuDevice {
    GpuDevice {
        index,
        health: health.map(|message| DeviceHealth {
            state: HealthState::Unhealthy,
            message: Some(message.to_owned()),
            action: Some("reset the GPU".to_owned()),
            ..DeviceHealth::default()
        }),
        ..GpuDevice::default()
    }
}

/// A node whose driver answers (or does not, with this reason and message), with a runtime.
fn node(driver: Result<(), (Reason, &str)>, gpus: Vec<GpuDevice>, runtime: Option<RuntimeStatus>) -> GpuNodeStatus {
    let of = ConditionType::DriverAvailable;
    let available = match driver {
        Ok(()) => UntimedCondition::new(of, true, Reason::DriverAnswers, EVERY_GPU_ANSWERS),
        Err((reason, message)) => UntimedCondition::new(of, false, reason, message),
    };
    GpuNodeStatus {
        hardware: Some("2 x Tesla-T4".to_owned()),
        driver_version: Some("580.95.05".to_owned()),
        cuda_version: Some("13.0".to_owned()),
        gpus,
        runtime,
        conditions: vec![available.at(Timestamp::UNIX_EPOCH, &[])],
        ..GpuNodeStatus::default()
    }
}

fn containerd(cdi: CdiMode, handlers: &[&str]) -> RuntimeStatus {
    let handlers: Vec<String> = handlers.iter().map(|handler| (*handler).to_owned()).collect();
    RuntimeStatus {
        name: Some("containerd".to_owned()),
        version: Some("1.7.27".to_owned()),
        cdi: Some(cdi),
        default_handler: Some("runc".to_owned()),
        nvidia_handlers: handlers.iter().filter(|name| *name == "nvidia").cloned().collect(),
        handlers,
        driver_root: Some("/run/nvidia/driver".to_owned()),
        ..RuntimeStatus::default()
    }
}

fn states(findings: &[Finding]) -> Vec<(FindingSeverity, &'static str, &'static str)> {
    findings
        .iter()
        .map(|finding| (finding.severity, finding.subject, finding.reason))
        .collect()
}

use FindingSeverity::{Fine, NoGpu, Unknown, Warning};

#[test]
fn a_healthy_node_has_nothing_to_do() {
    let mut healthy = node(
        Ok(()),
        vec![gpu(0, None), gpu(1, None)],
        Some(containerd(CdiMode::Enabled, &["runc"])),
    );
    healthy.gpus[0].fabric = Some(Fabric {
        cluster_uuid: "u".to_owned(),
        clique_id: 3,
    });
    let findings = diagnose(&healthy, &NodeSurroundings::default());
    assert_eq!(
        states(&findings),
        [
            (Fine, "driver", "DriverAnswers"),
            (Fine, "GPUs", "Healthy"),
            (Fine, "fabric", "FabricComplete"),
            (Fine, "containers", "Cdi"),
            (Fine, "SELinux", "SelinuxOff"),
        ]
    );
    assert!(!is_without_gpus(&findings));
    assert_eq!(findings[0].message, "580.95.05, CUDA 13.0, root /run/nvidia/driver");
}

#[test]
fn the_worst_comes_first() {
    let runtime = RuntimeStatus {
        selinux: Some(SelinuxMode::Enforcing),
        ..containerd(CdiMode::Disabled, &["runc"])
    };
    let faulty = node(Ok(()), vec![gpu(0, Some("XID 79")), gpu(1, None)], Some(runtime));
    let (plugins, drivers) = (["nvidia-gpu.sock".to_owned()], ["gpu.nvidia.com".to_owned()]);
    let surroundings = NodeSurroundings {
        other_plugins: &plugins,
        dra_drivers: &drivers,
        outside_fabric: 1,
        ..NodeSurroundings::default()
    };
    let findings = diagnose(&faulty, &surroundings);
    assert_eq!(
        states(&findings),
        [
            (NoGpu, "containers", "CdiDisabled"),
            (Warning, "GPUs", "GpusUnhealthy"),
            (Warning, "fabric", "FabricIncomplete"),
            (Warning, "plugins", "OtherGpuPlugin"),
            (Warning, "DRA", "GpusServedByDra"),
            (Unknown, "SELinux", "SelinuxEnforcing"),
            (Fine, "driver", "DriverAnswers"),
        ]
    );
    let mut acts = findings.iter().filter(|finding| finding.severity != Fine);
    assert!(acts.all(|finding| finding.action.is_some()), "{findings:?}");
    assert!(is_without_gpus(&findings));
}

#[test]
fn a_node_without_driver_gpu_or_healthy_gpu_gives_pods_none() {
    let worst = |status: &GpuNodeStatus| states(&diagnose(status, &NodeSurroundings::default()))[0];
    let runtime = || Some(containerd(CdiMode::Enabled, &["runc"]));
    let missing = node(Err((Reason::DriverNotFound, "not found")), Vec::new(), runtime());
    assert_eq!(worst(&missing), (NoGpu, "driver", "DriverUnavailable"));
    let released = node(Err((Reason::Released, "released")), Vec::new(), runtime());
    assert_eq!(worst(&released), (Warning, "driver", "Released"));
    let lost = node(Ok(()), vec![gpu(0, Some("XID 79"))], runtime());
    assert_eq!(worst(&lost), (NoGpu, "GPUs", "GpusUnhealthy"));
    assert_eq!(worst(&GpuNodeStatus::default()), (NoGpu, "driver", "NoGpus"));
    let companion = ResourceStatus {
        name: "rdma/hca".to_owned(),
        companion: true,
        ..ResourceStatus::default()
    };
    let with_companion = GpuNodeStatus {
        resources: vec![companion],
        ..GpuNodeStatus::default()
    };
    let findings = diagnose(&with_companion, &NodeSurroundings::default());
    assert!(!is_without_gpus(&findings), "{findings:?}");
}

#[test]
fn a_handler_that_pods_must_name_needs_a_runtime_class() {
    let named = node(
        Ok(()),
        vec![gpu(0, None)],
        Some(containerd(CdiMode::Disabled, &["nvidia", "runc"])),
    );
    let worst = |classes: Option<&[(String, String)]>| {
        let surroundings = NodeSurroundings {
            runtime_classes: classes,
            ..NodeSurroundings::default()
        };
        states(&diagnose(&named, &surroundings))[0]
    };
    let class = |handler: &str| [("gpu".to_owned(), handler.to_owned())];
    assert_eq!(worst(None), (Warning, "containers", "RuntimeClassNeeded"));
    assert_eq!(
        worst(Some(&class("nvidia"))),
        (Warning, "containers", "RuntimeClassNeeded")
    );
    assert_eq!(
        worst(Some(&class("kata"))),
        (NoGpu, "containers", "RuntimeClassMissing")
    );
    assert_eq!(worst(Some(&[])), (NoGpu, "containers", "RuntimeClassMissing"));
}

#[test]
fn devices_that_the_cdi_file_lacks_come_before_what_is_fine() {
    let worst = |problem: Option<&str>, left_out: Option<&str>, handlers: &[&str]| {
        let runtime = RuntimeStatus {
            cdi_problem: problem.map(str::to_owned),
            cdi_left_out: left_out.map(str::to_owned),
            ..containerd(CdiMode::Enabled, handlers)
        };
        let findings = diagnose(
            &node(Ok(()), vec![gpu(0, None)], Some(runtime)),
            &NodeSurroundings::default(),
        );
        (states(&findings)[0], findings[0].message.clone())
    };
    let (state, message) = worst(Some("find libcuda.so.1"), None, &["runc"]);
    assert_eq!(state, (NoGpu, "containers", "CdiFileMissing"));
    assert!(message.contains("find libcuda.so.1"), "{message}");
    let (state, _) = worst(Some("find libcuda.so.1"), None, &["nvidia", "runc"]);
    assert_eq!(state, (Warning, "containers", "RuntimeClassNeeded"));
    let (state, message) = worst(None, Some("GPU-1: no device node"), &["runc"]);
    assert_eq!(state, (Warning, "containers", "CdiFileIncomplete"));
    assert!(message.contains("GPU-1: no device node"), "{message}");
}

#[test]
fn the_default_handler_adds_what_the_cdi_file_lacks_unless_it_refuses_the_variable() {
    let variable = InjectionWays::default();
    let mounts = InjectionWays {
        needs_envvar: false,
        ..variable
    };
    let cdi = InjectionWays {
        nvidia_runtime: false,
        ..mounts
    };
    for (ways, accepts_envvar, is_warned) in [
        (variable, Some(true), false),
        (variable, None, false),
        (variable, Some(false), true),
        (mounts, Some(false), false),
        (cdi, Some(true), true),
    ] {
        let runtime = RuntimeStatus {
            cdi_left_out: Some("GPU-1: no device node".to_owned()),
            default_handler: Some("nvidia".to_owned()),
            accepts_envvar,
            ..containerd(CdiMode::Enabled, &["nvidia", "runc"])
        };
        let surroundings = NodeSurroundings {
            ways,
            ..NodeSurroundings::default()
        };
        let findings = diagnose(&node(Ok(()), vec![gpu(0, None)], Some(runtime)), &surroundings);
        let is_incomplete = findings.iter().any(|finding| finding.reason == "CdiFileIncomplete");
        assert_eq!(is_incomplete, is_warned, "{ways:?} {accepts_envvar:?}");
    }
}

#[test]
fn a_runtime_that_nobody_knows_is_no_failure() {
    let unknown = node(Ok(()), vec![gpu(0, None)], None);
    let findings = diagnose(&unknown, &NodeSurroundings::default());
    assert_eq!(states(&findings)[0], (Unknown, "containers", "RuntimeUnknown"));
    assert!(!is_without_gpus(&findings));
}

#[test]
fn a_node_that_offers_nothing_gives_pods_no_gpu() {
    use ConditionType::{ConfigurationAccepted, DevicesOffered, Registered};
    let worst = |allocatable: i32, of: ConditionType, reason: Reason| {
        let mut status = node(
            Ok(()),
            vec![gpu(0, None)],
            Some(containerd(CdiMode::Enabled, &["runc"])),
        );
        let failing = UntimedCondition::new(of, false, reason, "as the agent says");
        status.conditions.push(failing.at(Timestamp::UNIX_EPOCH, &[]));
        status.resources = vec![ResourceStatus {
            allocatable,
            registered: true,
            ..ResourceStatus::default()
        }];
        states(&diagnose(&status, &NodeSurroundings::default()))[0]
    };
    for (allocatable, severity) in [(0, NoGpu), (3, Warning)] {
        assert_eq!(
            worst(allocatable, DevicesOffered, Reason::CdiNotDescribed),
            (severity, "policy", "DevicesWithheld")
        );
        assert_eq!(
            worst(allocatable, ConfigurationAccepted, Reason::ConfigurationRejected),
            (severity, "policy", "ConfigurationRejected")
        );
    }
    let served = worst(0, Registered, Reason::ServedByAnother);
    assert_eq!(served, (Fine, "driver", "DriverAnswers"), "pods get theirs elsewhere");
}

#[test]
fn gpus_that_do_not_answer_are_seen_from_afar() {
    let mut status = node(
        Ok(()),
        vec![gpu(0, None)],
        Some(containerd(CdiMode::Enabled, &["runc"])),
    );
    status.conditions[0].message = "read GPU 1: Unknown Error".to_owned();
    let findings = diagnose(&status, &NodeSurroundings::default());
    assert_eq!(states(&findings)[0], (Warning, "GPUs", "GpusSilent"));
    assert_eq!(findings[0].message, "read GPU 1: Unknown Error");
}

#[test]
fn a_mode_of_selinux_that_nobody_read_is_not_off() {
    let unread = RuntimeStatus {
        problem: Some("no answer".to_owned()),
        ..RuntimeStatus::default()
    };
    let findings = diagnose(
        &node(Ok(()), vec![gpu(0, None)], Some(unread)),
        &NodeSurroundings::default(),
    );
    assert!(
        findings.iter().all(|finding| finding.subject != "SELinux"),
        "{findings:?}"
    );
}

#[test]
fn commands_stay_whole_in_the_table_and_other_words_do_not_leave_it() {
    let finding = Finding::new(Unknown, "agent", "r", format!("/{} is full", "x".repeat(70)));
    let finding = finding.with_action("see the pod of the agent with `kubectl -n gpunode-system get pods -o wide`");
    let table = findings_table(&[finding], Some(80));
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(
        table.contains("`kubectl -n gpunode-system get pods -o wide`"),
        "{table}"
    );
}

#[test]
fn the_table_fits_eighty_columns() {
    let refused = node(
        Ok(()),
        vec![gpu(0, None)],
        Some(containerd(CdiMode::Disabled, &["runc"])),
    );
    let findings = diagnose(&refused, &NodeSurroundings::default());
    let table = findings_table(&findings, Some(80));
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert_eq!(
        table.lines().take(6).collect::<Vec<_>>(),
        [
            "STATE     WHAT          FINDING",
            "no GPU    containers    CDI is off in containerd 1.7.27, and none of its",
            "                        handlers runs NVIDIA's container runtime: pods get no",
            "                        GPU",
            "                        -> set `enable_cdi = true` for the CRI plugin in",
            "                        containerd's configuration and restart containerd, or",
        ]
    );
    let wide = findings_table(&findings, None);
    assert_eq!(wide.lines().count(), 1 + findings.len() + 1, "{wide}");
}
