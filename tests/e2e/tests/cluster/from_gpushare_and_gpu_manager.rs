//! The moves from gpushare and from gpu-manager and back, step by step as `docs/from-gpushare-and-gpu-manager.md` has them, with the
//! commands of that page. Device plugins of the tests serve while the pods of theirs run.

use crate::{
    samples,
    staying_up::{device_plugins, runtime},
};
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{Lab, T4, condition, eventually, idle_daemonset, page_commands, page_file};
use gpunode_node_tests::OtherPlugin;
use serde_json::json;
use std::{fs, time::Duration};
use tempfile::TempDir;

const PAGE: &str = "from-gpushare-and-gpu-manager.md";
const LIMIT: Duration = Duration::from_mins(3);
const GPU: &str = "nvidia.com/gpu";
const MEMORY: &str = "aliyun.com/gpu-mem";
/// Units of 1 GiB on the four T4s.
const UNITS: u64 = 4 * 15;
const CORE: &str = "tencent.com/vcuda-core";
const TENTH: &str = "example.com/gpu-tenth";
/// Namespace of both programs.
const SYSTEM: &str = "kube-system";

const APPLY_GPUSHARE: &str = "kubectl apply -f gpu-mem.yaml";
const MOVE_GPUSHARE: &str = "kubectl label node gpu-t4 gpushare- sharing=memory";
const DOCTOR: &str = "kubectl gpunode doctor gpu-t4";
const FORGET: &str = "kubectl label node gpu-t4 sharing-";
const AWAIT_END: &str =
    r"kubectl wait node/gpu-t4 --for=jsonpath='{.status.allocatable.aliyun\.com/gpu-mem}'=0 --timeout=3m";
const MOVE_BACK: &str = "kubectl label node gpu-t4 gpushare=true";
const APPLY_MPS: &str = "kubectl apply -f mps.yaml";
const DRAIN: &str = "kubectl drain gpu-t4 --ignore-daemonsets --delete-emptydir-data";
const TAKE_OFF: &str = "kubectl label node gpu-t4 nvidia-device-enable-";
const SELECT: &str = "kubectl label node gpu-t4 sharing=mps";
const UNCORDON: &str = "kubectl uncordon gpu-t4";
const AWAIT_NO_TENTHS: &str =
    r"kubectl wait node/gpu-t4 --for=jsonpath='{.status.allocatable.example\.com/gpu-tenth}'=0 --timeout=3m";
const AWAIT_NO_GPUS: &str =
    r"kubectl wait node/gpu-t4 --for=jsonpath='{.status.allocatable.nvidia\.com/gpu}'=0 --timeout=3m";
const AWAIT_NO_DAEMONS: &str = "kubectl -n gpunode-system wait --for=delete pod -l app.kubernetes.io/component=mps \
                                --field-selector spec.nodeName=gpu-t4 --timeout=3m";
const LABEL_BACK: &str = "kubectl label node gpu-t4 nvidia-device-enable=enable";

const ANY_DOCTOR: &str = "kubectl gpunode doctor";
const INSPECT: &str = "kubectl inspect gpushare";
const STATUS: &str = "kubectl gpunode status";
const STATUS_OF_NODE: &str = "kubectl gpunode status NODE";
const TOPO: &str = "kubectl gpunode topo NODE";

/// Every command of the page, in its order. The tests below run each of them but the one of gpushare.
const COMMANDS: [&str; 26] = [
    ANY_DOCTOR,
    STATUS_OF_NODE,
    INSPECT,
    STATUS,
    APPLY_GPUSHARE,
    MOVE_GPUSHARE,
    DOCTOR,
    DRAIN,
    FORGET,
    AWAIT_END,
    MOVE_BACK,
    UNCORDON,
    STATUS_OF_NODE,
    TOPO,
    APPLY_MPS,
    DRAIN,
    TAKE_OFF,
    SELECT,
    UNCORDON,
    DRAIN,
    FORGET,
    AWAIT_NO_TENTHS,
    AWAIT_NO_GPUS,
    AWAIT_NO_DAEMONS,
    LABEL_BACK,
    UNCORDON,
];

/// A program with a device plugin on the nodes that have its label; its DaemonSet is removed when this is dropped.
struct OtherProgram<'a> {
    lab: &'a Lab,
    daemonset: &'static str,
}

impl<'a> OtherProgram<'a> {
    fn install(lab: &'a Lab, daemonset: &'static str, key: &str, value: &str) -> Result<Self> {
        let program = Self { lab, daemonset };
        lab.kubectl(&["label", "node", T4, &format!("{key}={value}")])?;
        lab.apply(&idle_daemonset(SYSTEM, daemonset, &json!({key: value})).to_string())?;
        program.await_pods(1)?;
        Ok(program)
    }

    fn await_pods(&self, count: usize) -> Result<()> {
        self.lab.await_pods(SYSTEM, self.daemonset, count)
    }
}

impl Drop for OtherProgram<'_> {
    fn drop(&mut self) {
        self.lab.remove_after_test(&["daemonset", "-n", SYSTEM, self.daemonset]);
    }
}

/// Somebody who follows the page, with a folder for files.
struct Person<'a> {
    lab: &'a Lab,
    folder: TempDir,
}

impl<'a> Person<'a> {
    fn new(lab: &'a Lab) -> Result<Self> {
        let folder = tempfile::tempdir().context("create a folder")?;
        Ok(Self { lab, folder })
    }

    fn run(&self, command: &str) -> Result<String> {
        self.lab
            .shell(self.folder.path(), &command.replace("gpu-t4", T4).replace("NODE", T4))
    }

    /// Saves a file of the page and applies it. Its policy selects no node yet.
    fn apply(&self, file: &str, command: &str, policy: &str) -> Result<()> {
        fs::write(self.folder.path().join(file), page_file(PAGE, file)?).with_context(|| format!("write {file}"))?;
        self.lab.unplanned(policy, || self.run(command)).map(drop)
    }
}

/// Returns a Deployment whose pods stay away from a node that is drained.
fn without_tolerations(deployment: &str) -> String {
    deployment.replace("      tolerations: [{operator: Exists}]\n", "")
}

#[test]
fn every_command_of_the_page_is_run() -> Result<()> {
    assert_eq!(page_commands(PAGE)?, COMMANDS);
    Ok(())
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_moves_from_gpushare_with_its_pods_and_back() -> Result<()> {
    let lab = Lab::enter()?;
    let person = Person::new(&lab)?;
    let program = OtherProgram::install(&lab, "gpushare-device-plugin-ds", "gpushare", "true")?;
    let (runtime, plugins, gpus) = (runtime()?, device_plugins(&lab)?, lab.gpu_uuids(T4)?);
    let of_gpu = |gpu: &String| (0..15).map(|unit| format!("{gpu}-_-{unit}")).collect::<Vec<_>>();
    let ids: Vec<String> = gpus.iter().flat_map(of_gpu).collect();
    let serve = || runtime.block_on(OtherPlugin::register_ids(&plugins, MEMORY, &ids));
    let serving = serve()?;
    lab.await_allocatable(T4, MEMORY, UNITS)?;
    lab.apply(&without_tolerations(&samples::holding(
        "held",
        "inference",
        2,
        MEMORY,
        3,
    )))?;
    let held = lab.await_running("held", 2)?;

    // The page drains a node with several GPUs; these pods stay, to show that they keep their GPUs and that gpunode counts them.
    person.apply("gpu-mem.yaml", APPLY_GPUSHARE, "gpu-mem")?;
    person.run(MOVE_GPUSHARE)?;
    program.await_pods(0)?;
    // The agent waits for the end of the other program.
    eventually("the GpuNode says who serves the resource", LIMIT, || {
        let served = condition(&lab.get(&["gpunode", T4])?, "ResourceServedByAnother");
        ensure!(served["message"].to_string().contains(MEMORY), "it says {served}");
        Ok(())
    })?;
    drop(serving);
    lab.await_ready("gpu-mem")?;
    lab.await_allocatable(T4, MEMORY, UNITS)?;
    assert_eq!(lab.await_running("held", 2)?, held, "running pods keep their units");
    eventually("the status counts their units", LIMIT, || {
        let status = person.run(STATUS)?;
        let of_node = status.lines().find(|line| line.starts_with(T4)).unwrap_or_default();
        ensure!(of_node.contains("aliyun.com/gpu-mem 60/60 (6 held"), "{status}");
        Ok(())
    })?;
    lab.apply(&samples::holding("new", "inference", 1, MEMORY, 3))?;
    lab.await_running("new", 1)?;
    for (doctor, finding) in [(DOCTOR, "with CDI"), (ANY_DOCTOR, "examined")] {
        // Exit code 1 says that there is something to mend, and also that the command failed.
        let found = lab.try_shell(person.folder.path(), &doctor.replace("gpu-t4", T4))?;
        ensure!(String::from_utf8_lossy(&found.stdout).contains(finding), "{found:?}");
    }

    lab.kubectl(&["delete", "deployment", "new", "--timeout=60s"])?;
    for command in [DRAIN, FORGET, AWAIT_END, MOVE_BACK] {
        person.run(command)?;
    }
    program.await_pods(1)?;
    let _serving = serve()?;
    lab.await_allocatable(T4, MEMORY, UNITS)?;
    person.run(UNCORDON)?;
    lab.await_running("held", 2).map(drop)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_node_moves_from_gpu_manager_and_back() -> Result<()> {
    let lab = Lab::enter()?;
    let person = Person::new(&lab)?;
    let program = OtherProgram::install(&lab, "gpu-manager-daemonset", "nvidia-device-enable", "enable")?;
    let (runtime, plugins) = (runtime()?, device_plugins(&lab)?);
    let ids: Vec<String> = (0..400).map(|core| format!("{CORE}-{core}")).collect();
    let serve = || runtime.block_on(OtherPlugin::register_ids(&plugins, CORE, &ids));
    let serving = serve()?;
    lab.await_allocatable(T4, CORE, 400)?;
    lab.apply(&without_tolerations(&samples::holding(
        "before",
        "inference",
        1,
        CORE,
        30,
    )))?;
    lab.await_running("before", 1)?;

    person.apply("mps.yaml", APPLY_MPS, "mps")?;
    person.run(DRAIN)?;
    lab.await_running("before", 0)?;
    person.run(TAKE_OFF)?;
    program.await_pods(0)?;
    drop(serving);
    person.run(SELECT)?;
    person.run(UNCORDON)?;
    lab.await_ready("mps")?;
    lab.await_allocatable(T4, TENTH, 20)?;
    lab.await_allocatable(T4, GPU, 2)?;
    lab.kubectl(&["delete", "deployment", "before", "--timeout=60s"])?;
    for (app, resource, count) in [("part", TENTH, 3), ("whole", GPU, 2)] {
        lab.apply(&without_tolerations(&samples::holding(
            app,
            "inference",
            1,
            resource,
            count,
        )))?;
        lab.await_running(app, 1)?;
    }
    eventually("the status shows the shares of the pod", LIMIT, || {
        let status = person.run(STATUS_OF_NODE)?;
        ensure!(status.contains("part-") && status.contains("3/10"), "{status}");
        Ok(())
    })?;
    let topology = person.run(TOPO)?;
    ensure!(topology.contains("GPU3"), "{topology}");

    for command in [
        DRAIN,
        FORGET,
        AWAIT_NO_TENTHS,
        AWAIT_NO_GPUS,
        AWAIT_NO_DAEMONS,
        LABEL_BACK,
    ] {
        person.run(command)?;
    }
    program.await_pods(1)?;
    let _serving = serve()?;
    lab.await_allocatable(T4, CORE, 400)?;
    person.run(UNCORDON)?;
    lab.kubectl(&["delete", "deployment", "part", "whole", "--timeout=60s"])?;
    lab.apply(&samples::holding("after", "inference", 1, CORE, 30))?;
    lab.await_running("after", 1).map(drop)
}
