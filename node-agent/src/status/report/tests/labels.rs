//! From the hardware of simulated nodes to their labels: what the agent reports is all that the operator needs.

use super::*;
use crate::driver::machine::MachineInfo;
use crate::{
    devices::state::{DeviceState, tests::nothing_held},
    driver::{
        nvml::{self, tests::FakeDriver as Library},
        pci::PciFunction,
    },
    mps::answers::DaemonAnswers,
};
use gpunode_crds::{GpuNode, GpuNodeSpec};
use gpunode_gpu::GpuMode;
use gpunode_plan::GpuNodeFacts;
use serde::Deserialize;
use serde_yaml::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

#[derive(Deserialize)]
struct Expected {
    everywhere: BTreeMap<String, String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    /// A scenario of the simulated library.
    hardware: Value,
    /// Document of the agent's configuration; none where there is no device plugin.
    config: Option<String>,
    labels: BTreeMap<String, String>,
}

fn expected() -> Expected {
    serde_yaml::from_str(include_str!("../../../../testdata/labels.yaml")).unwrap()
}

fn reported(hardware: &Value, document: Option<&str>) -> GpuNodeStatus {
    reported_at(hardware, document, |snapshot| snapshot)
}

/// Returns the report after `moment` has changed the snapshot of the devices.
fn reported_at(
    hardware: &Value,
    document: Option<&str>,
    moment: impl Fn(DeviceSnapshot) -> DeviceSnapshot,
) -> GpuNodeStatus {
    let library = Library::new(&serde_yaml::to_string(hardware).unwrap());
    let function = |_: &str| PciFunction {
        numa_node: None,
        mode: Some(GpuMode::Compute),
        is_attached: true,
    };
    let reading = nvml::read(
        &library.folder().join("libnvidia-ml.so.1"),
        Path::new("/nowhere"),
        &[],
        false,
        function,
        |_| (),
    )
    .unwrap();
    let machine = MachineInfo {
        product: Some("PowerEdge-XE9680".to_owned()),
        vgpu: None,
    };
    let functions = reading.inventory.gpus.len();
    let hardware = Hardware {
        functions,
        machine,
        driver: DriverState::Answers,
        reading: Some(reading),
        ..Hardware::default()
    };
    let in_force = InForce::default().next(&config(document.unwrap_or_default()), hardware.inventory());
    assert_eq!(in_force.rejected, None);
    let mut state = DeviceState::default();
    state.set_daemon_answers(DaemonAnswers::new(), Duration::ZERO);
    state.set_desired((*in_force.desired).clone(), Instant::now());
    state.observe(nothing_held(Instant::now()));
    let registered = document.map(|_| RegisteredResources::default());
    let plugin = registered.as_ref().map(|registered| PluginStatus {
        in_force: &in_force,
        registered,
    });
    let snapshot = if plugin.is_some() {
        moment(state.snapshot())
    } else {
        DeviceSnapshot::default()
    };
    status(
        &AgentIdentity::default(),
        StatusInputs {
            hardware: &hardware,
            snapshot: &snapshot,
            health: &NodeHealth::default(),
            runtime: None,
            plugin,
        },
    )
}

fn labels(status: GpuNodeStatus) -> BTreeMap<String, String> {
    labels_after(status, &BTreeMap::new())
}

fn labels_after(status: GpuNodeStatus, owned: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut gpu_node = GpuNode::new("n", GpuNodeSpec::default());
    gpu_node.status = Some(status);
    gpunode_plan::gpu_labels(Some(&GpuNodeFacts::of(gpu_node)), owned).labels
}

fn in_full(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let key = |key: &String| {
        if key.contains('/') {
            key.clone()
        } else {
            format!("nvidia.com/{key}")
        }
    };
    labels.iter().map(|(name, value)| (key(name), value.clone())).collect()
}

#[test]
fn the_labels_of_each_board_are_those_that_are_written_down() {
    let Expected { everywhere, cases } = expected();
    for case in cases {
        let mut wanted = in_full(&everywhere);
        wanted.extend(in_full(&case.labels));
        assert_eq!(
            labels(reported(&case.hardware, case.config.as_deref())),
            wanted,
            "{}",
            case.name
        );
    }
}

#[test]
fn labels_stay_while_an_agent_that_starts_has_not_published_its_lists() {
    let cases = expected().cases;
    let case = cases
        .iter()
        .find(|case| case.labels.get("gpu.replicas").is_some_and(|count| count != "1"))
        .unwrap();
    let report = || reported(&case.hardware, case.config.as_deref());
    let before = labels(report());
    // The kubelet was asked for holders, and the CDI file is not written yet.
    let unpublished = reported_at(&case.hardware, case.config.as_deref(), |snapshot| {
        snapshot.before_publication(Vec::new())
    });
    assert_eq!(unpublished.resources, []);
    assert_eq!(labels_after(unpublished, &before), before);
    assert_eq!(labels_after(report(), &before), before);
}

#[test]
fn every_board_that_can_be_simulated_is_written_down() {
    let boards: BTreeSet<String> = gpunode_scenario::Board::all()
        .iter()
        .map(|board| board.name.to_owned())
        .collect();
    let named: BTreeSet<String> = expected().cases.into_iter().map(|case| case.name).collect();
    assert_eq!(boards.difference(&named).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn a_label_is_one_that_kubernetes_takes() {
    for case in expected().cases {
        for (key, value) in labels(reported(&case.hardware, case.config.as_deref())) {
            let name = key.split_once('/').unwrap().1;
            let ends = |text: &str| {
                text.chars()
                    .next()
                    .into_iter()
                    .chain(text.chars().last())
                    .all(|c| c.is_ascii_alphanumeric())
            };
            let is_valid = |text: &str| {
                text.len() <= 63 && ends(text) && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            };
            assert!(
                !name.is_empty() && is_valid(name) && is_valid(&value),
                "{}: {key}={value}",
                case.name
            );
        }
    }
}
