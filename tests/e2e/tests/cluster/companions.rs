//! Companions on real kubelets and container runtimes: files of nodes as devices, beside GPUs and without any.
//!
//! Device nodes here have a number that no driver has: the kernel answers an open with ENXIO where the control group of a container
//! allows the device, and with EPERM where it does not.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{CPU, Lab, Opened, OperatorVariable, T4, condition, eventually, taints};
use std::{collections::BTreeSet, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);
const RDMA: &str = "rdma/hca_shared_devices_a";
const COLA: &str = "myway5.com/cola";
/// Folders of `manifests/samples/companions`.
const ROOTS: &str = "/dev/infiniband,/dev/xclmgmt*,/dev/dri,/dev/video*,/dev/snd,/etc/colas";

/// The pod of cola-device-plugin, with another image.
const COLA_POD: &str = "apiVersion: v1
kind: Pod
metadata:
  name: cola-pod
  labels:
    name: cola-pod
spec:
  containers:
  - name: cola-pod
    image: gpunode.test/pause:1
    resources:
      requests:
        memory: \"128Mi\"
        cpu: \"500m\"
        myway5.com/cola: 1
      limits:
        memory: \"128Mi\"
        cpu: \"500m\"
        myway5.com/cola: 1
    ports:
      - containerPort: 80
";

/// Files on a node, until this is dropped.
struct NodeFiles<'a> {
    lab: &'a Lab,
    node: &'static str,
}

impl<'a> NodeFiles<'a> {
    fn make(lab: &'a Lab, node: &'static str, script: &str) -> Result<Self> {
        let files = Self { lab, node };
        files.run(script)?;
        Ok(files)
    }

    fn run(&self, script: &str) -> Result<()> {
        let mut command = self.lab.cluster().node(self.node)?.command("sh")?;
        let output = command.args(["-ec", script]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{script} on {}: {said}", self.node);
        Ok(())
    }
}

impl Drop for NodeFiles<'_> {
    fn drop(&mut self) {
        // Where that fails, the next test says so.
        let _ = self.run("rm -rf /dev/infiniband /etc/colas");
    }
}

fn label(lab: &Lab, node: &str, value: &str) -> Result<()> {
    lab.kubectl(&["label", "node", node, &format!("companions={value}"), "--overwrite"])
        .map(drop)
}

/// A pod on a node with one device of a resource.
fn pod(name: &str, node: &str, resource: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  tolerations: [{{operator: Exists}}]
  containers:
  - name: main
    image: gpunode.test/cuda:1
    command: [sleep, infinity]
    resources: {{limits: {{{resource}: 1}}}}
"
    )
}

fn start(lab: &Lab, name: &str, node: &str, resource: &str) -> Result<()> {
    lab.apply(&pod(name, node, resource))?;
    lab.await_pod(name, "Running").map(drop)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn containers_open_the_devices_that_they_got_and_no_others() -> Result<()> {
    let lab = Lab::enter()?;
    let _roots = OperatorVariable::set(&lab, "COMPANION_ROOTS", ROOTS)?;
    let nodes = "mkdir -p /dev/infiniband; for n in 0 1; do mknod /dev/infiniband/uverbs$n c 240 $n; done";
    let files = NodeFiles::make(&lab, T4, nodes)?;
    label(&lab, T4, "rdma")?;
    // One each, beside the GPUs of the node.
    let each = samples::policy("companions/rdma")?
        .replace("group: Together", "group: Each")
        .replace("      shares: 64\n", "");
    lab.apply(&each)?;
    lab.await_ready("rdma")?;
    lab.await_allocatable(T4, RDMA, 2)?;
    lab.await_allocatable(T4, "nvidia.com/gpu", 4)?;
    let mut own = BTreeSet::new();
    for name in ["one", "two"] {
        start(&lab, name, T4, RDMA)?;
        let listed = lab.kubectl(&["exec", name, "--", "ls", "/dev/infiniband"])?;
        let names: Vec<&str> = listed.split_whitespace().collect();
        ensure!(names.len() == 1, "{name} has {names:?}");
        let path = format!("/dev/infiniband/{}", names[0]);
        ensure!(
            lab.open_in_container(name, &path)? == Opened::Allowed,
            "{name} may not open {path}"
        );
        // A node that the container makes itself for its neighbour's device.
        let other = u32::from(names[0] == "uverbs0");
        let opened = lab.open_device_in_container(name, 240, other)?;
        ensure!(opened == Opened::Refused, "{name} opened the other device: {opened:?}");
        own.insert(path);
    }
    ensure!(own.len() == 2, "both have {own:?}");
    // Together, each container gets all of them; nobody does while a container has one for itself.
    lab.apply(&samples::policy("companions/rdma")?)?;
    eventually("status names what waits", LIMIT, || {
        let waiting = lab.get(&["gpunode", T4])?["status"]["waiting"].to_string();
        ensure!(
            waiting.contains("default/one") && waiting.contains("/dev/infiniband/uverbs"),
            "{waiting}"
        );
        Ok(())
    })?;
    lab.await_allocatable(T4, RDMA, 2)?;
    lab.kubectl(&["delete", "pod", "one", "two", "--wait"])?;
    lab.await_allocatable(T4, RDMA, 64)?;
    for name in ["one", "two"] {
        start(&lab, name, T4, RDMA)?;
        for number in 0..2 {
            let path = format!("/dev/infiniband/uverbs{number}");
            ensure!(
                lab.open_in_container(name, &path)? == Opened::Allowed,
                "{name} may not open {path}"
            );
        }
    }
    let status = lab.gpunode(&["status", T4])?;
    ensure!(
        status.contains("/dev/infiniband/uverbs0 and 1 more file") && status.contains("default/one"),
        "{status}"
    );
    let topology = lab.gpunode(&["topo", T4])?;
    ensure!(topology.contains(RDMA), "{topology}");
    let explanation = lab.gpunode(&["explain", T4])?;
    ensure!(
        explanation.contains("files /dev/infiniband/* together, 64 shares, as device nodes (rw)"),
        "{explanation}"
    );
    drop(files);
    lab.await_allocatable(T4, RDMA, 0)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_without_gpu_runs_the_cola_sample() -> Result<()> {
    let lab = Lab::enter()?;
    let _roots = OperatorVariable::set(&lab, "COMPANION_ROOTS", ROOTS)?;
    let files = NodeFiles::make(
        &lab,
        CPU,
        "mkdir -p /etc/colas; touch /etc/colas/cocacola /etc/colas/pepsicola",
    )?;
    label(&lab, CPU, "cola")?;
    // The startup taint goes with the list.
    let policy = samples::policy("companions/cola")?.replace("  devicePlugin:", "  startupTaint: {}\n  devicePlugin:");
    lab.apply(&policy)?;
    lab.await_ready("cola")?;
    lab.await_allocatable(CPU, COLA, 2)?;
    eventually("the startup taint is gone", LIMIT, || {
        let taints = taints(&lab.node(CPU)?);
        ensure!(
            !taints.iter().any(|taint| taint.starts_with("gpunode.dev/not-ready")),
            "{taints:?}"
        );
        Ok(())
    })?;
    eventually("the node is labelled", LIMIT, || {
        let count = lab.node(CPU)?["metadata"]["labels"]["gpunode.dev/companions.myway5.com.cola"].clone();
        ensure!(count == "2", "{count}");
        Ok(())
    })?;
    lab.apply(COLA_POD)?;
    lab.await_pod("cola-pod", "Running")?;
    start(&lab, "second", CPU, COLA)?;
    let id = lab
        .environment("second")?
        .remove("COLA_DEVICES")
        .context("COLA_DEVICES")?;
    ensure!(id.starts_with("path-"), "{id}");
    eventually("status names the holders", LIMIT, || {
        let holders = lab.get(&["gpunode", CPU])?["status"]["holders"].to_string();
        ensure!(holders.contains("cola-pod") && holders.contains(&id), "{holders}");
        Ok(())
    })?;
    // A third file is there for the next pod within seconds, and a file that goes is withdrawn.
    files.run("touch /etc/colas/third")?;
    lab.await_allocatable(CPU, COLA, 3)?;
    files.run("rm /etc/colas/third")?;
    lab.await_allocatable(CPU, COLA, 2)?;
    let events = lab.kubectl(&[
        "get",
        "events",
        "-A",
        "--field-selector",
        &format!("involvedObject.name={CPU}"),
    ])?;
    ensure!(
        events.contains("CompanionFound") && events.contains("CompanionGone"),
        "{events}"
    );
    let findings = lab.gpunode(&["doctor", CPU])?;
    ensure!(!findings.contains("no GPU"), "{findings}");
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_policy_with_files_outside_of_the_roots_is_refused_and_the_one_in_force_stays() -> Result<()> {
    let lab = Lab::enter()?;
    label(&lab, CPU, "cola")?;
    let policy = samples::policy("companions/cola")?;
    let refusal = |flag: &str| {
        eventually("the policy is refused", LIMIT, || {
            let object = lab.get(&["gpunodepolicy", "cola"])?;
            let stalled = condition(&object, "Stalled");
            let message = stalled["message"].as_str().unwrap_or_default();
            ensure!(
                stalled["status"] == "True" && stalled["reason"] == "InvalidSpec" && message.contains(flag),
                "{stalled}"
            );
            Ok(())
        })
    };
    lab.unplanned("cola", || {
        lab.kubectl_with_input(&["apply", "-f", "-"], &policy).map(drop)
    })?;
    refusal("--companion-roots does not allow /etc/colas/*; it allows nothing; an administrator can add its folder")?;
    ensure!(lab.allocatable(CPU, COLA)? == 0, "the node has colas");
    let _roots = OperatorVariable::set(&lab, "COMPANION_ROOTS", ROOTS)?;
    let _files = NodeFiles::make(&lab, CPU, "mkdir -p /etc/colas; touch /etc/colas/cocacola")?;
    lab.await_ready("cola")?;
    lab.await_allocatable(CPU, COLA, 1)?;
    let patch = r#"{"spec":{"devicePlugin":{"companions":[{"resource":"myway5.com/cola","paths":["/dev/sda"]}]}}}"#;
    lab.unplanned("cola", || {
        lab.kubectl(&["patch", "gpunodepolicy", "cola", "--type=merge", "-p", patch])
            .map(drop)
    })?;
    refusal("spec.devicePlugin.companions[0].paths[0]: --companion-roots does not allow /dev/sda")?;
    lab.await_allocatable(CPU, COLA, 1)?;
    // The API server itself refuses what no folder could allow.
    let refused = lab.refusal(&policy.replace("/etc/colas/*", "/etc/../dev/sda"))?;
    ensure!(
        refused.contains("paths must be absolute paths such as /dev/infiniband/*"),
        "{refused}"
    );
    Ok(())
}
