//! Containers get the GPUs that `kubectl gpunode topo` foretells.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{Lab, V100, eventually};
use serde_json::Value;
use std::{collections::BTreeSet, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);

/// Indices and UUIDs of the GPUs that a request for `count` would get now.
fn predicted(lab: &Lab, count: usize) -> Result<(Vec<u64>, BTreeSet<String>)> {
    let answer = lab.gpunode(&["topo", V100, "--request", &count.to_string(), "-o", "json"])?;
    let answer: Value = serde_json::from_str(&answer)?;
    let picked = answer["request"]["choices"][0]["devices"]
        .as_array()
        .with_context(|| format!("nothing: {answer}"))?;
    let gpus = picked.iter().filter_map(|device| device["gpu"].as_u64()).collect();
    Ok((
        gpus,
        picked
            .iter()
            .filter_map(|device| device["device"].as_str())
            .map(str::to_owned)
            .collect(),
    ))
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn pods_get_linked_gpus_as_topo_foretells() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::sharing("training", "{}"))?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)?;
    for (name, count, expected) in [
        ("pair", 2, vec![2, 3]),
        ("half", 4, vec![4, 5, 6, 7]),
        ("one", 1, vec![0]),
    ] {
        let (gpus, uuids) = predicted(&lab, count)?;
        assert_eq!(gpus, expected, "{name}");
        lab.apply(&samples::holding(name, "training", 1, "nvidia.com/gpu", count))?;
        let pods = lab.await_running(name, 1)?;
        let pod = pods.first().context("a pod")?;
        assert_eq!(lab.visible(pod)?, uuids, "{name}");
        eventually("topo names who holds them", LIMIT, || {
            let table = lab.gpunode(&["topo", V100])?;
            let holds = table
                .lines()
                .filter(|line| line.ends_with(&format!("default/{pod}")))
                .count();
            ensure!(holds == count, "{table}");
            Ok(())
        })?;
    }
    let refused = lab.gpunode(&["topo", V100, "--request", "2"])?;
    ensure!(refused.contains("nothing would be chosen: 1 is free"), "{refused}");
    Ok(())
}
