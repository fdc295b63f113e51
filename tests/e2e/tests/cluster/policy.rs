//! A policy reaches exactly the matching nodes.

use crate::samples;
use anyhow::{Context, Result, bail, ensure};
use gpunode_e2e::{CPU, GPU_NODES, Lab, NAMESPACE, V100, eventually, node_snapshot, owned, taints};
use serde_json::json;
use std::time::Duration;

const LIMIT: Duration = Duration::from_mins(3);

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_policy_labels_and_taints_exactly_the_matching_nodes_by_one_patch_each() -> Result<()> {
    let lab = Lab::enter()?;
    let before = lab.snapshot()?;
    let audit = lab.audit()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_ready("v100-reserved")?;

    let node = lab.node(V100)?;
    assert_eq!(node["metadata"]["labels"]["accelerator"], "nvidia-tesla-v100");
    assert_eq!(taints(&node), ["dedicated=v100:NoSchedule"]);
    assert_eq!(node["metadata"]["labels"]["gpunode.dev/governed"], "true");

    for (name, snapshot) in before.iter().filter(|(name, _)| name != V100) {
        assert_eq!(
            node_snapshot(&lab.node(name)?),
            *snapshot,
            "node {name} does not match and stays as it was"
        );
    }
    // Stale resources of earlier tests go from the record meanwhile.
    let mut writes = audit.gpunode_writes()?;
    writes.retain(|event| event.resource() == "nodes" && !event.is_of_record_alone());
    let [patch] = writes.as_slice() else {
        bail!("labels, taints and the record come in one write, and not in {writes:?}")
    };
    assert_eq!((patch.verb(), patch.name()), ("patch", V100));
    let record = patch.record().context("find the record in the patch")?;
    let patched = json!({"metadata": {"annotations": {"gpunode.dev/owned": record}}});
    assert_eq!(owned(&patched), owned(&node), "the record is whole at once");
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn the_plugin_runs_only_on_matching_nodes_and_offers_their_gpus() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_plugin(V100)?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)?;
    let pods = lab.get(&[
        "pods",
        "-n",
        NAMESPACE,
        "-l",
        "app.kubernetes.io/component=device-plugin",
    ])?;
    let nodes: Vec<&str> = pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pod| pod["spec"]["nodeName"].as_str())
        .collect();
    assert_eq!(nodes, [V100], "plugin pods run on the matching node alone");
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn every_gpu_node_reports_its_hardware_without_any_policy() -> Result<()> {
    let lab = Lab::enter()?;
    let expected = [
        ("gpu-a100", "8 x NVIDIA-A100-SXM4-80GB", 81920),
        (
            "gpu-mixed",
            "1 x Tesla-V100-SXM2-16GB, 3 x NVIDIA-A100-SXM4-80GB",
            16384,
        ),
        ("gpu-t4", "4 x Tesla-T4", 15360),
        ("gpu-v100", "8 x Tesla-V100-SXM2-32GB", 32768),
    ];
    for (node, hardware, memory) in expected {
        let object = eventually(&format!("{node} is discovered"), LIMIT, || {
            let object = lab.get(&["gpunode", node])?;
            ensure!(
                object["status"]["agent"]["mode"] == "Discovery",
                "its agent is {}",
                object["status"]["agent"]
            );
            Ok(object)
        })?;
        assert_eq!(object["status"]["hardware"], hardware);
        assert_eq!(object["status"]["gpus"][0]["memoryMiB"], memory);
        assert_eq!(object["metadata"]["ownerReferences"][0]["kind"], "Node");
    }
    assert_eq!(
        gpunode_e2e::names(&lab.get(&["gpunodes"])?),
        GPU_NODES,
        "a node without GPU has no GpuNode"
    );
    ensure!(!lab.try_kubectl(&["get", "gpunode", CPU])?.status.success());
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_removed_label_and_taint_come_back_and_foreign_ones_stay() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_ready("v100-reserved")?;
    lab.kubectl(&["label", "node", V100, "team=research", "accelerator-"])?;
    lab.kubectl(&["taint", "node", V100, "maintenance=soon:PreferNoSchedule"])?;
    lab.kubectl(&["taint", "node", V100, "dedicated-"])?;
    let repaired = eventually("the label and the taint are back", LIMIT, || {
        let node = lab.node(V100)?;
        ensure!(
            node["metadata"]["labels"]["accelerator"] == "nvidia-tesla-v100"
                && taints(&node).contains(&"dedicated=v100:NoSchedule".to_owned()),
            "it is {}",
            node_snapshot(&node)
        );
        Ok(node)
    });
    let foreign = repaired
        .as_ref()
        .map(|node| (node["metadata"]["labels"]["team"].clone(), taints(node)));
    lab.kubectl(&["label", "node", V100, "team-"])?;
    lab.kubectl(&["taint", "node", V100, "maintenance-"])?;
    let (team, taints) = foreign.map_err(|error| anyhow::anyhow!("{error:#}"))?;
    assert_eq!(team, "research");
    assert!(
        taints.contains(&"maintenance=soon:PreferNoSchedule".to_owned()),
        "{taints:?}"
    );
    Ok(())
}

/// Waits until the DaemonSet's controller has made and removed all pods of it. One that is deleted before may come back and
/// get none for five minutes: the controller knows it by its name, and still waits for the pods of the first
/// (`ExpectationsTimeout` of `pkg/controller/controller_utils.go` in Kubernetes).
fn await_at_rest(lab: &Lab, daemonset: &str) -> Result<()> {
    eventually(&format!("{daemonset} has its one pod"), LIMIT, || {
        let pod = lab.agent_pod(V100, "device-plugin")?;
        let object = lab.get(&["-n", NAMESPACE, daemonset])?;
        let (generation, status) = (&object["metadata"]["generation"], &object["status"]);
        let counts = ["desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"];
        ensure!(
            status["observedGeneration"] == *generation && counts.iter().all(|count| status[*count] == 1),
            "{pod} is there, and the status is {status} in generation {generation}"
        );
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn an_edited_or_deleted_daemonset_comes_back() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.await_plugin(V100)?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)?;
    let name = "daemonset/gpunode-agent-v100-reserved";
    let spec = lab.get(&["-n", NAMESPACE, name])?["spec"]["template"]["spec"].clone();
    lab.kubectl(&[
        "-n",
        NAMESPACE,
        "patch",
        name,
        "--type=json",
        "-p",
        r#"[{"op":"replace","path":"/spec/template/spec/containers/0/args","value":["discover"]}]"#,
    ])?;
    let restored = |what: &str| {
        eventually(what, LIMIT, || {
            let seen = lab.get(&["-n", NAMESPACE, name])?["spec"]["template"]["spec"].clone();
            ensure!(seen == spec, "its pods are {seen}");
            Ok(())
        })
    };
    restored("the edited DaemonSet is back")?;
    await_at_rest(&lab, name)?;
    lab.kubectl(&["-n", NAMESPACE, "delete", name, "--timeout=30s"])?;
    restored("the deleted DaemonSet is back")?;
    lab.await_plugin(V100)?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_previewed_policy_reports_and_writes_nothing() -> Result<()> {
    let lab = Lab::enter()?;
    let before = lab.snapshot()?;
    let audit = lab.audit()?;
    let policy =
        samples::policy("v100-reserved")?.replace("spec:\n  nodeSelector", "spec:\n  mode: Preview\n  nodeSelector");
    lab.apply(&policy)?;
    let object = lab.await_ready("v100-reserved")?;
    let preview = &object["status"]["preview"][0];
    assert_eq!(preview["node"], V100);
    assert_eq!(preview["setLabels"]["accelerator"], "nvidia-tesla-v100");
    assert_eq!(preview["setTaints"][0]["key"], "dedicated");
    assert_eq!(lab.snapshot()?, before);
    let writes: Vec<String> = audit
        .gpunode_writes()?
        .iter()
        // An agent may still have to say that the pods of an earlier test are gone.
        .filter(|event| event.user().ends_with(":gpunode-operator") && !event.is_of_record_alone())
        .map(gpunode_e2e::AuditEvent::resource)
        .filter(|resource| resource != "events" && resource != "gpunodepolicies/status")
        .collect();
    assert_eq!(writes, Vec::<String>::new());
    Ok(())
}
