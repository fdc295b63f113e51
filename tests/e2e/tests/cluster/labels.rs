//! The facts about GPUs as labels of nodes, with no feature discovery installed.

use crate::samples;
use anyhow::{Result, ensure};
use gpunode_e2e::{A100, CPU, Lab, MIXED, T4, V100, condition, eventually, is_fact};
use gpunode_gpu::product_label;
use serde_json::Value;
use std::{collections::BTreeMap, fs, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);

/// On every node with GPUs; the machine is the one that the tests run on.
const EVERYWHERE: &str = "
nvidia.com/cuda.driver.major=580
nvidia.com/cuda.driver.minor=95
nvidia.com/cuda.driver.rev=05
nvidia.com/cuda.driver-version.major=580
nvidia.com/cuda.driver-version.minor=95
nvidia.com/cuda.driver-version.revision=05
nvidia.com/cuda.driver-version.full=580.95.05
nvidia.com/cuda.runtime.major=13
nvidia.com/cuda.runtime.minor=0
nvidia.com/cuda.runtime-version.major=13
nvidia.com/cuda.runtime-version.minor=0
nvidia.com/cuda.runtime-version.full=13.0
nvidia.com/gpu.mode=compute
nvidia.com/vgpu.present=false
";

const OF_V100: &str = "
nvidia.com/gpu.product=Tesla-V100-SXM2-32GB
nvidia.com/gpu.count=8
nvidia.com/gpu.replicas=1
nvidia.com/gpu.sharing-strategy=none
nvidia.com/gpu.memory=32768
nvidia.com/gpu.family=volta
nvidia.com/gpu.compute.major=7
nvidia.com/gpu.compute.minor=0
nvidia.com/mig.capable=false
nvidia.com/mps.capable=false
gpunode.dev/gpus.Tesla-V100-SXM2-32GB=8
";

const OF_T4: &str = "
nvidia.com/gpu.product=Tesla-T4
nvidia.com/gpu.count=4
nvidia.com/gpu.replicas=1
nvidia.com/gpu.sharing-strategy=none
nvidia.com/gpu.memory=15360
nvidia.com/gpu.family=turing
nvidia.com/gpu.compute.major=7
nvidia.com/gpu.compute.minor=5
nvidia.com/mig.capable=false
nvidia.com/mps.capable=false
gpunode.dev/gpus.Tesla-T4=4
";

const OF_A100: &str = "
nvidia.com/gpu.product=NVIDIA-A100-SXM4-80GB
nvidia.com/gpu.count=8
nvidia.com/gpu.replicas=1
nvidia.com/gpu.sharing-strategy=none
nvidia.com/gpu.memory=81920
nvidia.com/gpu.family=ampere
nvidia.com/gpu.compute.major=8
nvidia.com/gpu.compute.minor=0
nvidia.com/mig.capable=true
nvidia.com/mps.capable=false
gpunode.dev/gpus.NVIDIA-A100-SXM4-80GB=8
";

/// Most of its GPUs are A100, of which the first is not divided.
const OF_MIXED: &str = "
nvidia.com/gpu.product=NVIDIA-A100-SXM4-80GB
nvidia.com/gpu.count=3
nvidia.com/gpu.replicas=1
nvidia.com/gpu.sharing-strategy=none
nvidia.com/gpu.memory=81920
nvidia.com/gpu.family=ampere
nvidia.com/gpu.compute.major=8
nvidia.com/gpu.compute.minor=0
nvidia.com/mig.capable=true
nvidia.com/mps.capable=false
gpunode.dev/gpus.NVIDIA-A100-SXM4-80GB=3
gpunode.dev/gpus.Tesla-V100-SXM2-16GB=1
";

const OF_MIXED_WITH_MIG: &str = "
nvidia.com/mig.strategy=mixed
nvidia.com/mig-3g.40gb.product=NVIDIA-A100-SXM4-80GB-MIG-3g.40gb
nvidia.com/mig-3g.40gb.count=3
nvidia.com/mig-3g.40gb.replicas=1
nvidia.com/mig-3g.40gb.sharing-strategy=none
nvidia.com/mig-3g.40gb.memory=40192
nvidia.com/mig-3g.40gb.multiprocessors=42
nvidia.com/mig-3g.40gb.slices.gi=3
nvidia.com/mig-3g.40gb.slices.ci=3
nvidia.com/mig-3g.40gb.engines.copy=3
nvidia.com/mig-3g.40gb.engines.decoder=2
nvidia.com/mig-3g.40gb.engines.encoder=0
nvidia.com/mig-3g.40gb.engines.jpeg=0
nvidia.com/mig-3g.40gb.engines.ofa=0
nvidia.com/mig-1g.10gb.product=NVIDIA-A100-SXM4-80GB-MIG-1g.10gb
nvidia.com/mig-1g.10gb.count=2
nvidia.com/mig-1g.10gb.replicas=1
nvidia.com/mig-1g.10gb.sharing-strategy=none
nvidia.com/mig-1g.10gb.memory=9856
nvidia.com/mig-1g.10gb.multiprocessors=14
nvidia.com/mig-1g.10gb.slices.gi=1
nvidia.com/mig-1g.10gb.slices.ci=1
nvidia.com/mig-1g.10gb.engines.copy=1
nvidia.com/mig-1g.10gb.engines.decoder=0
nvidia.com/mig-1g.10gb.engines.encoder=0
nvidia.com/mig-1g.10gb.engines.jpeg=0
nvidia.com/mig-1g.10gb.engines.ofa=0
";

fn recorded(texts: &[&str]) -> BTreeMap<String, String> {
    let machine = fs::read_to_string("/sys/class/dmi/id/product_name")
        .map(|name| product_label(&name))
        .unwrap_or_default();
    let machine = if machine.is_empty() {
        "unknown".to_owned()
    } else {
        machine
    };
    let lines = texts
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(|line| line.split_once('='));
    let labels = lines.map(|(key, value)| (key.to_owned(), value.to_owned()));
    labels.chain([("nvidia.com/gpu.machine".to_owned(), machine)]).collect()
}

fn facts(lab: &Lab, node: &str) -> Result<BTreeMap<String, String>> {
    let labels = lab.node(node)?["metadata"]["labels"].clone();
    let labels = labels.as_object().into_iter().flatten().filter(|(key, _)| is_fact(key));
    Ok(labels
        .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect())
}

fn await_facts(lab: &Lab, node: &str, texts: &[&str]) -> Result<()> {
    let expected = recorded(texts);
    eventually(&format!("{node} has its labels"), LIMIT, || {
        let seen = facts(lab, node)?;
        ensure!(seen == expected, "it has {seen:#?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn each_node_has_the_labels_of_its_boards_and_no_policy() -> Result<()> {
    let lab = Lab::enter()?;
    for (node, text) in [(V100, OF_V100), (T4, OF_T4), (A100, OF_A100), (MIXED, OF_MIXED)] {
        await_facts(&lab, node, &[EVERYWHERE, text])?;
    }
    assert_eq!(facts(&lab, CPU)?, BTreeMap::new());
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn labels_follow_what_is_in_force_and_come_back() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::sharing("mixed", "{mig: {strategy: Mixed}}"))?;
    await_facts(&lab, MIXED, &[EVERYWHERE, OF_MIXED, OF_MIXED_WITH_MIG])?;
    let sharing = "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 4}}]";
    lab.apply(&samples::sharing("inference", &format!("{{{sharing}}}")))?;
    let shared = OF_T4
        .replace("product=Tesla-T4", "product=Tesla-T4-SHARED")
        .replace("replicas=1", "replicas=4")
        .replace("strategy=none", "strategy=time-slicing");
    await_facts(&lab, T4, &[EVERYWHERE, &shared])?;
    await_facts(&lab, MIXED, &[EVERYWHERE, OF_MIXED])?;
    // An agent that starts anew has to find out who holds what before it says how GPUs are shared.
    let pod = lab.await_plugin(T4)?;
    let audit = lab.audit()?;
    lab.kubectl(&["-n", gpunode_e2e::NAMESPACE, "delete", "pod", &pod, "--timeout=30s"])?;
    eventually("a new plugin pod runs", LIMIT, || {
        ensure!(lab.agent_pod(T4, "device-plugin")? != pod, "it is still {pod}");
        Ok(())
    })?;
    lab.await_plugin(T4)?;
    await_facts(&lab, T4, &[EVERYWHERE, &shared])?;
    let writes = audit.gpunode_writes()?.into_iter();
    let writes: Vec<String> = writes
        .filter(|event| event.resource() == "nodes" && !event.is_of_record_alone())
        .map(|event| format!("{event}: {}", event.request().unwrap_or(&Value::Null)))
        .collect();
    assert_eq!(writes, Vec::<String>::new(), "no label changed meanwhile");
    lab.kubectl(&["delete", "gpunodepolicy", "sharing", "--timeout=30s"])?;
    await_facts(&lab, T4, &[EVERYWHERE, OF_T4])
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn labels_of_somebody_else_stay_and_the_gpunode_says_so() -> Result<()> {
    let lab = Lab::enter()?;
    let said = |status: Value| {
        eventually("the GpuNode says whose the labels are", LIMIT, || {
            let condition = condition(&lab.get(&["gpunode", T4])?, "FactLabels");
            ensure!(condition["status"] == status, "it says {condition}");
            Ok(condition)
        })
    };
    lab.scale_operator(0)?;
    lab.kubectl(&[
        "label",
        "node",
        T4,
        "nvidia.com/gpu.count=1",
        "nvidia.com/gpu.product-",
        "--overwrite",
    ])?;
    lab.kubectl(&["annotate", "node", T4, "gpunode.dev/owned-"])?;
    lab.scale_operator(2)?;
    let condition = said("False".into())?;
    assert_eq!(condition["reason"], "OwnedByAnother");
    assert!(
        condition["message"]
            .as_str()
            .unwrap_or_default()
            .contains("nvidia.com/gpu.count is \"1\", not \"4\"")
    );
    assert_eq!(
        facts(&lab, T4)?.get("nvidia.com/gpu.count").map(String::as_str),
        Some("1")
    );
    assert_eq!(
        facts(&lab, T4)?.get("nvidia.com/gpu.product").map(String::as_str),
        Some("Tesla-T4")
    );
    let foreign: Vec<String> = facts(&lab, T4)?.keys().map(|key| format!("{key}-")).collect();
    let removal: Vec<&str> = ["label", "node", T4]
        .into_iter()
        .chain(foreign.iter().map(String::as_str))
        .collect();
    lab.kubectl(&removal)?;
    said(Value::Null)?;
    await_facts(&lab, T4, &[EVERYWHERE, OF_T4])
}
