//! Fields of sharing by strategy, and their bounds.

use super::{
    devices::{self, validate_memory},
    list_length::validate_length,
    problem::FieldProblem,
};
use crate::{
    DeviceReplicas, MemoryMiB, Sharing, SharingStrategy,
    sharing::{MAX_MPS_REPLICAS, MAX_REPLICAS},
};

/// Minimum unit of memory sharing; smaller units make more shares than the kubelet accepts.
const MIN_UNIT: MemoryMiB = MemoryMiB(64);

/// Adds the problems of the sharing at `path`.
pub fn validate(path: &str, sharing: &Sharing, problems: &mut Vec<FieldProblem>) {
    let has_replicas = matches!(sharing.strategy, SharingStrategy::TimeSlicing | SharingStrategy::Mps);
    let replicas = (has_replicas, "TimeSlicing or Mps");
    let units = (sharing.strategy == SharingStrategy::Memory, "Memory");
    let is_strict = sharing.fail_requests_greater_than_one.is_some();
    for (field, is_given, (has_meaning, strategies)) in [
        ("replicas", sharing.replicas.is_some(), replicas),
        ("replicasPerDevice", sharing.replicas_per_device.is_some(), replicas),
        ("renameByDefault", sharing.rename_by_default.is_some(), replicas),
        ("failRequestsGreaterThanOne", is_strict, replicas),
        ("unit", sharing.unit.is_some(), units),
        ("placement", sharing.placement.is_some(), units),
    ] {
        if is_given && !has_meaning {
            problems.push(FieldProblem::new(
                format!("{path}.{field}"),
                format!("applies only when sharing.strategy is {strategies}; remove it or change the strategy"),
            ));
        }
    }
    if !has_replicas {
        validate_memory(&format!("{path}.unit"), sharing.unit.as_deref(), problems);
        if let Some(unit) = sharing
            .unit
            .as_deref()
            .and_then(MemoryMiB::parse)
            .filter(|unit| *unit < MIN_UNIT)
        {
            problems.push(FieldProblem::new(
                format!("{path}.unit"),
                format!("{unit} is less than {MIN_UNIT}; smaller units make more shares than the kubelet accepts"),
            ));
        }
        return;
    }
    match sharing.replicas {
        Some(replicas) => validate_replicas(&format!("{path}.replicas"), sharing.strategy, replicas, problems),
        None => problems.push(FieldProblem::new(
            format!("{path}.replicas"),
            "is required when sharing.strategy is TimeSlicing or Mps",
        )),
    }
    let length = sharing.replicas_per_device.as_ref().map(Vec::len);
    validate_length(format!("{path}.replicasPerDevice"), length, 1..=16, problems);
    for (index, DeviceReplicas { devices, replicas }) in sharing.replicas_per_device.iter().flatten().enumerate() {
        let path = format!("{path}.replicasPerDevice[{index}]");
        devices::validate(&format!("{path}.devices"), devices, problems);
        validate_replicas(&format!("{path}.replicas"), sharing.strategy, *replicas, problems);
    }
}

fn validate_replicas(path: &str, strategy: SharingStrategy, replicas: i32, problems: &mut Vec<FieldProblem>) {
    let most = if strategy == SharingStrategy::Mps {
        MAX_MPS_REPLICAS
    } else {
        MAX_REPLICAS
    };
    if !(2..=most).contains(&replicas) {
        problems.push(FieldProblem::new(
            path,
            format!("{replicas} is not between 2 and {most}"),
        ));
    }
}
