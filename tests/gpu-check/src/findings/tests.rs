//! Comparisons of answers that match and that differ.

use super::*;
use crate::{agent::Allocation, nvidia_smi, table::differences};
use std::time::Duration;

const CLUSTER: &str = "0b968a6d-c8aa-45e1-9e07-e1e51be99c31";

fn smi(text: &str) -> SmiLog {
    SmiLog::parse(text).unwrap()
}

/// Answers of a driver and an agent that say what nvidia-smi says.
fn matching(smi: SmiLog) -> Findings {
    let gpu = &smi.gpus[0];
    let has_rows = gpu.remap_pending.as_deref() == Some("No");
    let field = || if has_rows { Ok(0) } else { Err(NOT_SUPPORTED.to_owned()) };
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
            (REMAP_PENDING, field()),
            (REMAP_FAILED, field()),
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
    };
    let run = AgentRun {
        listed_after: Duration::from_millis(20),
        devices: [(gpu.uuid.clone(), true)].into(),
        allocations: vec![Allocation {
            device: gpu.uuid.clone(),
            answer: Ok(granted),
        }],
        end: Some(("exit status: 0".to_owned(), Duration::from_millis(3))),
    };
    Findings {
        driver: Ok(DriverAnswers {
            sessions_ms: vec![4, 5, 6],
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
    ] {
        let mut findings = matching(smi(nvidia_smi::tests::H200));
        findings.smi = Ok(smi(&nvidia_smi::tests::H200.replace(element, other)));
        assert_eq!(differences(&findings.rows()), [expected]);
    }
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
    assert_eq!(found, ["look-up by bus id: expected its GPU, measured GPU-other"]);
    let found = with_answers(|gpu| gpu.by_uuid = Err(GPU_IS_LOST.to_owned()));
    assert_eq!(found, ["look-up by UUID: expected its GPU, measured GPU_IS_LOST"]);
}

#[test]
fn a_lost_gpu_hides_the_others_from_the_look_up_by_uuid_only() {
    let mut findings = matching(smi(nvidia_smi::tests::H200));
    let driver = findings.driver.as_mut().unwrap();
    let lost = || Err(GPU_IS_LOST.to_owned());
    let mut other = driver.gpus[0].clone();
    (other.index, other.uuid, other.by_uuid, other.by_bus_id) = (1, lost(), lost(), lost());
    driver.gpus[0].by_uuid = lost();
    driver.gpus.push(other);
    assert_eq!(differences(&findings.rows()), Vec::<String>::new());
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
    for expected in [None, Some(NOT_AVAILABLE)] {
        assert!(flag_pair(expected, &answer).2 && recovery_pair(expected, &answer).2);
    }
}

#[test]
fn recovery_actions_are_compared_by_word_where_both_have_one() {
    let is_same = |expected, number| recovery_pair(Some(expected), &Ok(number)).2;
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
                "agent: Allocate: expected the device and its node, measured /dev/nvidia7 for {uuid}, \
                 without /dev/nvidia0"
            ),
            "agent: end after SIGTERM: expected exit status: 0, measured it did not end".to_owned(),
        ]
    );
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
