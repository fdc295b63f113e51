//! Comparisons of answers that match and that differ.

use super::*;
use crate::{
    agent::Granted,
    nvidia_smi,
    table::{Verdict, differences},
};
use std::time::Duration;

const CLUSTER: &str = "0b968a6d-c8aa-45e1-9e07-e1e51be99c31";

fn smi(text: &str) -> SmiLog {
    SmiLog::parse(text).unwrap()
}

/// The row of a question.
fn row<'a>(rows: &'a [Row], what: &str) -> &'a Row {
    rows.iter().find(|row| row.what == what).unwrap()
}

/// Answers of a driver and an agent that say what nvidia-smi says.
fn matching(smi: SmiLog) -> Findings {
    let gpu = &smi.gpus[0];
    let has_rows = gpu.remap_pending.as_deref() == Some("No");
    let field = |is_known: bool| if is_known { Ok(0) } else { Err(NOT_SUPPORTED.to_owned()) };
    let answers = GpuAnswers {
        index: 0,
        uuid: Ok(gpu.uuid.clone()),
        by_uuid: Ok(gpu.uuid.clone()),
        by_bus_id: Ok(gpu.uuid.clone()),
        persistence: Ok(false),
        fabric: if has_rows {
            Ok(FabricAnswer { state: 3, status: 0 })
        } else {
            Err(NOT_SUPPORTED.to_owned())
        },
        fields: [
            (REMAP_PENDING, field(has_rows)),
            (REMAP_FAILED, field(has_rows)),
            (RETIREMENT_PENDING, field(!has_rows)),
            (DOUBLE_BIT_PENDING, field(!has_rows)),
            (RECOVERY_ACTION, Ok(0)),
        ]
        .into(),
    };
    let device = GpuDevice {
        uuid: gpu.uuid.clone(),
        product: gpunode_gpu::product_label(&gpu.name),
        memory_mib: mebibytes(gpu.memory.as_deref().unwrap()).unwrap(),
        pci_bus_id: Some(pci_address(&gpu.bus_id)),
        mig_mode: has_rows.then_some(MigMode::Disabled),
        ..GpuDevice::default()
    };
    let mut inventory = AgentInventory::default();
    inventory.status.driver_version.clone_from(&smi.driver_version);
    inventory.status.cuda_version.clone_from(&smi.cuda_version);
    inventory.status.gpus = vec![device];
    let granted = Granted {
        visible: gpu.uuid.clone(),
        nodes: ["/dev/nvidia0".to_owned()].into(),
        missing: BTreeSet::new(),
    };
    let log = AgentLog {
        followed: 1,
        ..AgentLog::default()
    };
    let times = |gpu| SessionTimes {
        init_ms: 4,
        gpus_ms: vec![gpu],
    };
    let run = AgentRun {
        listed_after: Duration::from_millis(20),
        rounds: ROUNDS,
        log,
        withheld: Vec::new(),
        devices: [(gpu.uuid.clone(), true)].into(),
        allocations: vec![Allocation {
            resource: "nvidia.com/gpu".to_owned(),
            device: gpu.uuid.clone(),
            answer: Ok(granted),
        }],
        end: Some(("exit status: 0".to_owned(), Duration::from_millis(3))),
    };
    Findings {
        driver: Ok(DriverAnswers {
            sessions: vec![times(1200), times(1190)],
            session_with_open_nodes: Ok(times(1)),
            missing_functions: Vec::new(),
            gpus: vec![answers],
        }),
        inventory: Ok(inventory),
        run: Ok(run),
        smi: Ok(smi),
    }
}

/// Changes the answer of the driver for its only GPU.
fn with_answers(change: impl FnOnce(&mut GpuAnswers)) -> Vec<String> {
    let mut findings = matching(smi(nvidia_smi::tests::H200));
    change(&mut findings.driver.as_mut().unwrap().gpus[0]);
    differences(&findings.rows())
}

#[test]
fn answers_that_match_have_no_difference() {
    for text in [nvidia_smi::tests::V100, nvidia_smi::tests::H200] {
        assert_eq!(differences(&matching(smi(text)).rows()), Vec::<String>::new());
    }
}

#[test]
fn each_fact_that_differs_is_named_with_both_answers() {
    for (element, other, expected) in [
        (
            "<total>143771 MiB</total>",
            "<total>143000 MiB</total>",
            "memory: expected 143000 MiB, measured 143771 MiB",
        ),
        (
            "<product_name>NVIDIA H200<",
            "<product_name>NVIDIA H100<",
            "product: expected NVIDIA-H100, measured NVIDIA-H200",
        ),
        (
            "<driver_version>580.95.05<",
            "<driver_version>1<",
            "driver version: expected 1, measured 580.95.05",
        ),
        (
            "<persistence_mode>Disabled<",
            "<persistence_mode>Enabled<",
            "persistence mode: expected Enabled, measured Disabled",
        ),
        (
            "<current_mig>Disabled<",
            "<current_mig>Enabled<",
            "MIG mode: expected Enabled, measured Disabled",
        ),
        (
            "<state>Completed<",
            "<state>In Progress<",
            "fabric state: expected In Progress, measured Completed, status 0",
        ),
        (
            "<status>Success<",
            "<status>Failed<",
            "fabric state: expected Completed, Failed, measured Completed, status 0",
        ),
        (
            "pending>No<",
            "pending>Yes<",
            "field 144, rows to be remapped: expected Yes, measured 0",
        ),
        (
            "failure>No<",
            "failure>Yes<",
            "field 145, failed row remap: expected Yes, measured 0",
        ),
        (
            "action>None<",
            "action>Reset<",
            "field 230, recovery action: expected Reset, measured 0",
        ),
        (
            "retirement>N/A<",
            "retirement>Yes<",
            "field 31, pages to be retired: expected Yes, measured NOT_SUPPORTED",
        ),
        (
            "07:00.0</pci_bus_id>",
            "08:00.0</pci_bus_id>",
            "PCI address: expected 0000:08:00.0, measured 0000:07:00.0",
        ),
    ] {
        let mut findings = matching(smi(nvidia_smi::tests::H200));
        findings.smi = Ok(smi(&nvidia_smi::tests::H200.replace(element, other)));
        assert_eq!(differences(&findings.rows()), [expected]);
    }
}

#[test]
fn what_nvidia_smi_does_not_print_is_not_compared() {
    let mut findings = matching(smi(nvidia_smi::tests::H200));
    let log = findings.smi.as_mut().unwrap();
    (log.driver_version, log.cuda_version) = (None, None);
    let gpu = &mut log.gpus[0];
    for printed in [
        &mut gpu.memory,
        &mut gpu.persistence,
        &mut gpu.mig_mode,
        &mut gpu.fabric_state,
        &mut gpu.fabric_cluster,
        &mut gpu.retirement_pending,
        &mut gpu.remap_pending,
        &mut gpu.remap_failed,
        &mut gpu.recovery_action,
    ] {
        *printed = None;
    }
    let rows = findings.rows();
    let not_printed: Vec<&Row> = rows.iter().filter(|row| row.expected == NOT_PRINTED).collect();
    // The nine, the two versions, and field 93, which nvidia-smi never prints.
    assert_eq!(not_printed.len(), 12);
    assert!(not_printed.iter().all(|row| row.verdict == Verdict::NotCompared));
    assert_eq!(differences(&rows), Vec::<String>::new());
}

#[test]
fn a_gpu_that_is_compared_counts_more_than_one_that_is_not() {
    let pair = |is_same| (String::new(), String::new(), is_same);
    let verdict = |both: [Option<bool>; 2]| {
        let row = row_of_gpus("field", (0..).zip(both.map(pair)));
        row.unwrap().verdict
    };
    assert_eq!(verdict([None, None]), Verdict::NotCompared);
    assert_eq!(verdict([Some(true), None]), Verdict::Same);
    assert_eq!(verdict([Some(true), Some(false)]), Verdict::Differs);
}

#[test]
fn a_warning_and_a_display_board_are_named_and_not_compared() {
    let mut log = smi(nvidia_smi::tests::V100);
    log.remarks = "exit status: 14: WARNING: infoROM is corrupted".to_owned();
    log.displays = vec![SmiGpu {
        name: "NVIDIA DGX Display".to_owned(),
        ..SmiGpu::default()
    }];
    let rows = matching(log).rows();
    assert_eq!(differences(&rows), Vec::<String>::new());
    for (what, measured) in [
        ("nvidia-smi warns", "exit status: 14: WARNING: infoROM is corrupted"),
        ("display boards, which gpunode leaves out", "NVIDIA DGX Display"),
    ] {
        let row = row(&rows, what);
        assert_eq!((row.measured.as_str(), row.verdict), (measured, Verdict::NotCompared));
    }
}

#[test]
fn times_are_shown_by_gpu_with_the_persistence_mode() {
    let mut findings = matching(smi(nvidia_smi::tests::V100));
    let rows = findings.rows();
    assert_eq!(
        row(&rows, "nvmlInit + first call about each GPU, by session").measured,
        "4 + 1200 ms; 4 + 1190 ms (persistence mode: Disabled)"
    );
    let what = "the same while /dev/nvidiaN are open";
    assert_eq!(row(&rows, what).measured, "4 + 1 ms");
    findings.driver.as_mut().unwrap().session_with_open_nodes = Err("open /dev/nvidia0".to_owned());
    assert_eq!(row(&findings.rows(), what).measured, "not measured: open /dev/nvidia0");
}

#[test]
fn bytes_may_be_rounded_either_way() {
    let mut findings = matching(smi(nvidia_smi::tests::V100));
    findings.inventory.as_mut().unwrap().status.gpus[0].memory_mib -= 1;
    assert_eq!(differences(&findings.rows()), Vec::<String>::new());
}

#[test]
fn a_fabric_beyond_the_node_has_to_be_the_agents() {
    let text = nvidia_smi::tests::H200.replace("00000000-0000-0000-0000-000000000000", CLUSTER);
    let mut findings = matching(smi(&text));
    let missing = format!("fabric beyond the node: expected clique 0 of {CLUSTER}, measured none");
    assert_eq!(differences(&findings.rows()), [missing]);
    let fabric = Fabric {
        cluster_uuid: CLUSTER.to_owned(),
        clique_id: 0,
    };
    findings.inventory.as_mut().unwrap().status.gpus[0].fabric = Some(fabric);
    assert_eq!(differences(&findings.rows()), Vec::<String>::new());
}

#[test]
fn a_look_up_has_to_find_its_own_gpu() {
    let found = with_answers(|gpu| gpu.by_bus_id = Ok("GPU-other".to_owned()));
    assert_eq!(found, ["look-up by PCI address: expected its GPU, measured GPU-other"]);
    let found = with_answers(|gpu| gpu.by_uuid = Err(GPU_IS_LOST.to_owned()));
    assert_eq!(found, ["look-up by UUID: expected its GPU, measured GPU_IS_LOST"]);
}

#[test]
fn a_lost_gpu_hides_the_others_from_the_look_up_by_uuid_only() {
    let mut findings = matching(smi(nvidia_smi::tests::H200));
    let other = findings.driver.as_ref().unwrap().gpus[0].clone();
    for code in [GPU_IS_LOST, UNKNOWN] {
        let driver = findings.driver.as_mut().unwrap();
        let (mut own, mut other) = (other.clone(), other.clone());
        let lost = || Err(code.to_owned());
        (other.index, other.uuid, other.by_uuid, other.by_bus_id) = (1, lost(), lost(), lost());
        own.by_uuid = lost();
        driver.gpus = vec![own, other];
        let rows = findings.rows();
        assert_eq!(differences(&rows), Vec::<String>::new());
        assert_eq!(row(&rows, "look-up by UUID").expected, code);
    }
}

#[test]
fn a_field_that_the_driver_lacks_differs_only_from_one_that_nvidia_smi_shows() {
    let lacks = |id| move |gpu: &mut GpuAnswers| drop(gpu.fields.insert(id, Err(INVALID_ARGUMENT.to_owned())));
    let found = with_answers(lacks(REMAP_PENDING));
    assert_eq!(
        found,
        ["field 144, rows to be remapped: expected No, measured INVALID_ARGUMENT"]
    );
    let answer = Err(INVALID_ARGUMENT.to_owned());
    for (printed, is_same) in [(None, None), (Some(NOT_AVAILABLE), Some(true))] {
        assert_eq!(flag_pair(printed, &answer).2, is_same);
        assert_eq!(recovery_pair(printed, &answer).2, is_same);
    }
}

#[test]
fn recovery_actions_are_compared_by_word_where_both_have_one() {
    let is_same = |printed, number| recovery_pair(Some(printed), &Ok(number)).2 == Some(true);
    assert!(is_same("None", 0) && is_same("Drain and Reset", 4) && is_same("Recover IMEX", 5));
    assert!(!is_same("Reset", 2) && !is_same("None", 6) && !is_same("Recover IMEX", 0));
}

#[test]
fn the_agents_list_allocation_and_end_are_judged() {
    let mut findings = matching(smi(nvidia_smi::tests::V100));
    let run = findings.run.as_mut().unwrap();
    let uuid = run.devices.pop_first().unwrap().0;
    run.devices.insert("GPU-other".to_owned(), false);
    run.allocations[0].answer.as_mut().unwrap().nodes = ["/dev/nvidia7".to_owned()].into();
    run.end = None;
    assert_eq!(
        differences(&findings.rows()),
        [
            format!("agent: devices of the list: expected 1, measured 1, without {uuid}, also GPU-other"),
            "agent: unhealthy devices: expected none, measured GPU-other".to_owned(),
            format!(
                "agent: Allocate: expected nvidia.com/gpu: {uuid}, /dev/nvidia0, \
                 measured nvidia.com/gpu: {uuid}, /dev/nvidia7"
            ),
            "agent: end after SIGTERM: expected exit status: 0, measured it did not end".to_owned(),
        ]
    );
}

#[test]
fn a_node_that_the_host_does_not_have_is_no_allocation() {
    let mut findings = matching(smi(nvidia_smi::tests::V100));
    let run = findings.run.as_mut().unwrap();
    let granted = run.allocations[0].answer.as_mut().unwrap();
    granted.missing.clone_from(&granted.nodes);
    let found = differences(&findings.rows()).concat();
    assert!(
        found.ends_with(", /dev/nvidia0, /dev/nvidia0 does not exist"),
        "{found}"
    );
}

#[test]
fn a_mig_device_needs_the_node_of_its_gpu_and_two_capabilities() {
    let mut findings = matching(smi(nvidia_smi::tests::H200));
    let gpu = &mut findings.inventory.as_mut().unwrap().status.gpus[0];
    gpu.mig_devices = vec![gpunode_crds::MigDevice {
        uuid: "MIG-1".to_owned(),
        ..gpunode_crds::MigDevice::default()
    }];
    let verdict = |nodes: &[&str]| {
        let allocation = Allocation {
            resource: "nvidia.com/mig-1g.18gb".to_owned(),
            device: "MIG-1".to_owned(),
            answer: Ok(Granted {
                visible: "MIG-1".to_owned(),
                nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
                missing: BTreeSet::new(),
            }),
        };
        let (smi, inventory) = (findings.smi.as_ref().ok(), findings.inventory.as_ref().ok());
        allocation_row(&allocation, smi, inventory).verdict
    };
    let [gpu, first, second] = [
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps/nvidia-cap2",
    ];
    assert_eq!(verdict(&[gpu, first, second]), Verdict::Same);
    assert_eq!(verdict(&[gpu, first]), Verdict::Differs);
    assert_eq!(verdict(&[first, second]), Verdict::Differs);
}

#[test]
fn a_gpu_without_events_is_no_difference_if_it_supports_none() {
    let row = |log: &AgentLog| {
        let [row, ..] = log_rows(1, ROUNDS, log);
        (row.measured, row.verdict)
    };
    let mut log = AgentLog::default();
    assert_eq!(row(&log), ("0".to_owned(), Verdict::Differs));
    let unsupported = NvmlError::NotSupported.to_string();
    log.without_events.insert("GPU-1".to_owned(), unsupported.clone());
    assert_eq!(row(&log), (format!("0, GPU-1: {unsupported}"), Verdict::NotCompared));
    log.without_events.insert("GPU-1".to_owned(), "unknown".to_owned());
    assert_eq!(row(&log), ("0, GPU-1: unknown".to_owned(), Verdict::Differs));
}

#[test]
fn what_the_probes_find_differs() {
    let mut findings = matching(smi(nvidia_smi::tests::V100));
    let run = findings.run.as_mut().unwrap();
    run.rounds = 1;
    run.log
        .failed_calls
        .insert("nvmlDeviceGetMigMode of GPU-1: unknown".to_owned());
    run.log.faults.insert("GPU-1 NotAnswering: calls fail".to_owned());
    assert_eq!(
        differences(&findings.rows()),
        [
            "agent: rounds of probes: expected 3, measured 1",
            "agent: calls of the probes that fail: expected none, measured nvmlDeviceGetMigMode of GPU-1: unknown",
            "agent: faults: expected none, measured GPU-1 NotAnswering: calls fail",
        ]
    );
}

#[test]
fn a_resource_without_a_healthy_device_is_named() {
    let mut findings = matching(smi(nvidia_smi::tests::V100));
    let run = findings.run.as_mut().unwrap();
    run.allocations.clear();
    run.withheld.push("nvidia.com/gpu".to_owned());
    let rows = findings.rows();
    assert_eq!(row(&rows, ALLOCATE).measured, "nvidia.com/gpu: no device is healthy");
}

#[test]
fn a_part_without_an_answer_leaves_the_others_compared() {
    let mut findings = matching(smi(nvidia_smi::tests::H200));
    findings.driver = Err("silent after nvmlInit_v2".to_owned());
    let rows = findings.rows();
    assert_eq!(
        differences(&rows),
        ["the driver's answers: expected an answer, measured silent after nvmlInit_v2"]
    );
    assert!(rows.iter().any(|row| row.what == "memory") && rows.iter().any(|row| row.what == "agent: Allocate"));
}

#[test]
fn the_title_says_what_was_read() {
    let mut findings = matching(smi(nvidia_smi::tests::V100));
    findings.inventory.as_mut().unwrap().status.hardware = Some("1 x Tesla-V100-SXM2-32GB".to_owned());
    let title = "1 x Tesla-V100-SXM2-32GB, driver 580.95.05, CUDA 13.0, Sun Nov 22 16:00:00 2026";
    assert_eq!(findings.title(), title);
}
