//! Units of memory, on GPUs of unequal size and in the manifests that gpushare's users have.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{HeldRecorder, Lab, MIXED, Recording, device_of, eventually};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const LIMIT: Duration = Duration::from_mins(3);
const UNITS: &str = "nvidia.com/gpu-mem";
/// The V100 of 16 GiB and the A100 of 80 GiB.
const UNEQUAL: &str =
    "{resources: [{name: nvidia.com/gpu-mem, devices: {indices: [0, 1]}, sharing: {strategy: Memory}}]}";

/// Index of the GPU whose units a pod of an app has.
fn gpu_index(lab: &Lab, app: &str) -> Result<String> {
    let pod = lab.await_running(app, 1)?.pop().context("find the pod")?;
    lab.environment(&pod)?
        .remove("ALIYUN_COM_GPU_MEM_IDX")
        .context("find the index in its environment")
}

/// Units of one container never came from two GPUs, no unit was held twice, and no GPU had more units held than it has.
fn check_units(recording: &Recording, units_of: &BTreeMap<String, usize>) -> Result<()> {
    for held in &recording.held {
        let mut ids = BTreeSet::new();
        for (pod, of_pod) in held {
            let devices: BTreeSet<&str> = of_pod.iter().map(|id| device_of(id)).collect();
            ensure!(devices.len() == 1, "{pod} has units of {devices:?}");
            for id in of_pod {
                ensure!(ids.insert(id), "{id} is held twice: {held:?}");
            }
        }
        for (device, units) in units_of {
            let of_device = ids.iter().filter(|id| device_of(id) == device).count();
            ensure!(of_device <= *units, "{of_device} of {units} units of {device} are held");
        }
    }
    Ok(())
}

fn unequal_gpus(lab: &Lab) -> Result<BTreeMap<String, usize>> {
    lab.apply(&samples::sharing("mixed", UNEQUAL))?;
    lab.await_allocatable(MIXED, UNITS, 16 + 80)?;
    Ok(lab.gpu_uuids(MIXED)?.into_iter().zip([16, 80]).collect())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn unequal_gpus_are_filled_exactly_with_all_units_of_a_pod_on_one_gpu() -> Result<()> {
    let lab = Lab::enter()?;
    let units_of = unequal_gpus(&lab)?;
    let recorder = HeldRecorder::start(&lab, MIXED)?;
    // Packed: the fullest GPU on which they fit.
    for (app, units, gpu) in [
        ("large", 70, "1"),
        ("small", 6, "1"),
        ("whole-v100", 16, "0"),
        ("last", 4, "1"),
    ] {
        lab.apply(&samples::holding(app, "mixed", 1, UNITS, units))?;
        assert_eq!(gpu_index(&lab, app)?, gpu, "{units} units of {app}");
    }
    lab.apply(&samples::holding("too-many", "mixed", 1, UNITS, 1))?;
    eventually("a pod for which no unit is left is Pending", LIMIT, || {
        let pods = lab.get(&["pods", "-l", "app=too-many"])?;
        let scheduled = gpunode_e2e::condition(&pods["items"][0], "PodScheduled");
        ensure!(scheduled["message"].to_string().contains(UNITS), "it is {scheduled}");
        Ok(())
    })?;
    check_units(&recorder.finish()?, &units_of)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_deployment_that_fits_the_node_but_no_gpu_fails_at_most_twice_and_runs_when_units_are_freed() -> Result<()> {
    let lab = Lab::enter()?;
    let units_of = unequal_gpus(&lab)?;
    let recorder = HeldRecorder::start(&lab, MIXED)?;
    for (app, units, gpu) in [("large", 70, "1"), ("small", 11, "0")] {
        lab.apply(&samples::holding(app, "mixed", 1, UNITS, units))?;
        assert_eq!(gpu_index(&lab, app)?, gpu);
    }

    // 5 units are free on GPU 0 and 10 on GPU 1.
    lab.apply(&samples::holding("unfit", "mixed", 1, UNITS, 12))?;
    let failed = |pods: &Value| -> Vec<Value> {
        let items = pods["items"].as_array().into_iter().flatten();
        items
            .filter(|pod| pod["status"]["phase"] == "Failed")
            .cloned()
            .collect()
    };
    let pods = eventually("a pod failed and the next one waits in the scheduler", LIMIT, || {
        let pods = lab.get(&["pods", "-l", "app=unfit"])?;
        let pending = pods["items"].as_array().into_iter().flatten().any(|pod| {
            pod["status"]["phase"] == "Pending"
                && gpunode_e2e::condition(pod, "PodScheduled")["message"]
                    .to_string()
                    .contains(UNITS)
        });
        ensure!(
            pending && !failed(&pods).is_empty(),
            "they are {}",
            crate::sharing::phases(&pods)
        );
        Ok(pods)
    })?;
    let failed_pods = failed(&pods);
    ensure!(failed_pods.len() <= 2, "{} pods failed", failed_pods.len());
    for pod in &failed_pods {
        assert_eq!(pod["status"]["reason"], "UnexpectedAdmissionError");
        let message = pod["status"]["message"].as_str().unwrap_or_default();
        for part in [UNITS, "12", "15", "10", "GPU 1", "do not fit on one GPU"] {
            ensure!(message.contains(part), "{message:?} does not say {part:?}");
        }
    }
    // Held, and the most that is free on one GPU.
    lab.await_allocatable(MIXED, UNITS, 70 + 11 + 10)?;
    let fits = samples::holding("fits", "mixed", 1, UNITS, 10);
    lab.apply(&fits)?;
    assert_eq!(
        gpu_index(&lab, "fits")?,
        "1",
        "what is left over serves others meanwhile"
    );

    lab.kubectl(&["delete", "deployment", "small", "--timeout=90s"])?;
    assert_eq!(gpu_index(&lab, "unfit")?, "0");
    lab.await_allocatable(MIXED, UNITS, 96)?;
    let still = failed(&lab.get(&["pods", "-l", "app=unfit"])?).len();
    assert_eq!(still, failed_pods.len(), "no further pod failed");
    check_units(&recorder.finish()?, &units_of)
}
