//! GPUs as a container finds them: device nodes that it can open, libraries that its loader finds, and an environment that keeps
//! NVIDIA's container runtime from adding others.
//!
//! The nodes of the local cluster have device nodes with the number of NVIDIA's driver and no driver behind them: the kernel answers
//! an open with ENXIO where the container's control group allows the device, and with EPERM where it does not.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_cdi_tests::{Comparison, KNOWN_DIFFERENCES};
use gpunode_e2e::{A100, GPU_NODES, Lab, MIXED, NAMESPACE, Opened, T4, eventually};
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);
const GPU: &str = "nvidia.com/gpu";
/// Folder of the driver's libraries, below its root and in containers.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// Puts a policy for the four T4 in force, and runs two pods with one of them each.
fn two_pods(lab: &Lab) -> Result<Vec<String>> {
    samples::advertise_four_t4(lab, "")?;
    lab.apply(&samples::deployment("holder", "inference", 2))?;
    lab.await_running("holder", 2)
}

/// A Deployment of a pod that names all GPUs itself.
fn greedy(name: &str) -> String {
    samples::deployment(name, "inference", 1).replace(
        "        env:\n",
        "        env:\n        - {name: NVIDIA_VISIBLE_DEVICES, value: all}\n",
    )
}

/// Checks that the first process of a container has the variable that keeps NVIDIA's container runtime from adding GPUs.
fn ensure_void(lab: &Lab, pod: &str) -> Result<()> {
    let environment = lab.workload_environment(pod)?;
    let variable = environment.get("NVIDIA_VISIBLE_DEVICES").map(String::as_str);
    ensure!(
        variable == Some("void"),
        "NVIDIA_VISIBLE_DEVICES of {pod} is {variable:?}"
    );
    Ok(())
}

/// Checks that each pod opens its own GPU and no other, and gives the number of each.
fn each_opens_its_own(lab: &Lab, pods: &[String]) -> Result<Vec<u32>> {
    let minors: Vec<u32> = pods.iter().map(|pod| lab.gpu_minor(pod)).collect::<Result<_>>()?;
    let distinct: BTreeSet<u32> = minors.iter().copied().collect();
    ensure!(distinct.len() == pods.len(), "{pods:?} have {minors:?}");
    for (pod, own) in pods.iter().zip(&minors) {
        for path in [
            format!("/dev/nvidia{own}"),
            "/dev/nvidiactl".into(),
            "/dev/nvidia-uvm".into(),
        ] {
            let opened = lab.open_in_container(pod, &path)?;
            ensure!(opened == Opened::Allowed, "{pod} may not open {path}");
        }
        for minor in 0..4 {
            let opened = lab.open_gpu_in_container(pod, minor)?;
            let expected = if minor == *own {
                Opened::Allowed
            } else {
                Opened::Refused
            };
            ensure!(
                opened == expected,
                "{pod} has GPU {own}; an open of GPU {minor} is {opened:?}"
            );
        }
    }
    Ok(minors)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn pods_open_their_own_gpu_and_are_refused_the_others() -> Result<()> {
    let lab = Lab::enter()?;
    let mut pods = two_pods(&lab)?;
    // The CDI file's variable comes after the pod's own.
    lab.apply(&greedy("greedy"))?;
    pods.extend(lab.await_running("greedy", 1)?);
    each_opens_its_own(&lab, &pods)?;
    let of_node: BTreeSet<String> = lab.gpu_uuids(T4)?.into_iter().collect();
    for pod in &pods {
        let visible = lab.visible(pod)?;
        ensure!(
            visible.len() == 1 && visible.is_subset(&of_node),
            "{pod} has {visible:?}"
        );
        ensure_void(&lab, pod)?;
    }
    the_loader_finds_the_drivers_libraries(&lab, &pods[0])
}

fn the_loader_finds_the_drivers_libraries(lab: &Lab, pod: &str) -> Result<()> {
    let cache = lab.kubectl(&["exec", pod, "--", "/sbin/ldconfig", "-p"])?;
    // Programs that ask for the library without a number, and files of the driver that are no libraries.
    let mut files = vec![
        format!("{LIBRARIES}/libcuda.so"),
        "/usr/bin/nvidia-smi".to_owned(),
        "/etc/OpenCL/vendors/nvidia.icd".to_owned(),
    ];
    for library in ["libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"] {
        let path = format!("{LIBRARIES}/{library}");
        let line = cache.lines().find(|line| line.trim_start().starts_with(library));
        ensure!(line.is_some_and(|line| line.ends_with(&path)), "{library}: {cache}");
        files.push(path);
    }
    // A link leads to the file of the driver's version, and that has content.
    for path in files {
        lab.kubectl(&["exec", pod, "--", "test", "-s", &path])?;
    }
    let write = format!("echo x >> {LIBRARIES}/libcuda.so.1");
    let output = lab.try_kubectl(&["exec", pod, "--", "sh", "-c", &write])?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(said.contains("Read-only file system"), "{said}");
    Ok(())
}

/// NVIDIA's hook program on a node, until this is dropped.
struct NvidiaHookProgram(PathBuf);

impl NvidiaHookProgram {
    /// The place of NixOS: of those that gpunode searches, the one that is not the machine's.
    const PATH: &str = "/run/current-system/sw/bin/nvidia-cdi-hook";

    fn install(lab: &Lab, node: &str) -> Result<Self> {
        let path = lab.cluster().node(node)?.path(Self::PATH);
        fs::create_dir_all(path.parent().context("the folder of the program")?)?;
        let program = Lab::repository().join("target/cluster/bin/nvidia-cdi-hook");
        fs::copy(&program, &path).with_context(|| format!("copy {}", program.display()))?;
        Ok(Self(path))
    }
}

impl Drop for NvidiaHookProgram {
    fn drop(&mut self) {
        // Where that fails, the tests after it run with this program, which changes nothing for them.
        let _ = fs::remove_file(&self.0);
    }
}

/// Waits until the CDI file of a node calls a program.
fn await_hook_program(lab: &Lab, node: &str, program: &str) -> Result<()> {
    eventually(&format!("the CDI file of {node} calls {program}"), LIMIT, || {
        let path = lab.cdi_file(node)?["containerEdits"]["hooks"][0]["path"].clone();
        ensure!(path == program, "it calls {path}");
        Ok(())
    })
}

/// The driver's libraries as a container's loader has them, `name => path`, and the links beside them.
fn libraries_of(lab: &Lab, pod: &str) -> Result<BTreeSet<String>> {
    let cache = lab.kubectl(&["exec", pod, "--", "/sbin/ldconfig", "-p"])?;
    let cached = cache.lines().filter_map(|line| {
        let (name, path) = line.trim().split_once(" => ")?;
        let name = name.split_once(" (").map_or(name, |(name, _)| name);
        path.starts_with(LIBRARIES).then(|| format!("{name} => {path}"))
    });
    let script = format!("for link in $(find {LIBRARIES} -type l); do echo \"$link -> $(readlink $link)\"; done");
    let links = lab.kubectl(&["exec", pod, "--", "sh", "-c", &script])?;
    Ok(cached.chain(links.lines().map(str::to_owned)).collect())
}

/// Ends the container of a pod, and waits for the next one, for which the kubelet uses the answer that it remembers.
fn restart_container(lab: &Lab, pod: &str) -> Result<()> {
    let restarts = |object: &Value| object["status"]["containerStatuses"][0]["restartCount"].clone();
    let before = restarts(&lab.get(&["pod", pod])?);
    lab.cluster().container_process("default", pod, "main")?.kill()?;
    eventually(&format!("the container of {pod} was restarted"), LIMIT, || {
        let object = lab.get(&["pod", pod])?;
        let is_running = !object["status"]["containerStatuses"][0]["state"]["running"].is_null();
        ensure!(
            is_running && restarts(&object) != before,
            "its status is {}",
            object["status"]
        );
        Ok(())
    })
}

/// Names of the devices in the CDI file of a node.
fn described(lab: &Lab, node: &str) -> Result<BTreeSet<String>> {
    let file = lab.cdi_file(node)?;
    let devices = file["devices"].as_array().context("find the devices")?;
    let names = devices.iter().filter_map(|device| device["name"].as_str());
    Ok(names.map(str::to_owned).collect())
}

/// gpunode's hook program leaves in a container what NVIDIA's leaves. A started agent looks for the program, so that NVIDIA's has its
/// turn here without a wait.
#[test]
#[ignore = "needs the local cluster: make test"]
fn containers_keep_their_gpus_when_agent_kubelet_and_node_are_restarted() -> Result<()> {
    let lab = Lab::enter()?;
    lab.move_operator_off(T4)?;
    let pods = two_pods(&lab)?;
    let before = each_opens_its_own(&lab, &pods)?;
    let described_before = described(&lab, T4)?;
    await_hook_program(&lab, T4, "/var/lib/gpunode/bin/gpunode-hook")?;
    let own = libraries_of(&lab, &pods[1])?;
    let cuda = format!("libcuda.so.1 => {LIBRARIES}/libcuda.so.1");
    ensure!(own.contains(&cuda), "{own:?}");
    let node = lab.cluster().node(T4)?;

    let program = NvidiaHookProgram::install(&lab, T4)?;
    let agent = lab.await_plugin(T4)?;
    node.container_process(NAMESPACE, &agent, "agent")?.kill()?;
    restart_container(&lab, &pods[0])?;
    lab.await_plugin(T4)?;
    assert_eq!(each_opens_its_own(&lab, &pods)?, before, "after the agent's death");

    await_hook_program(&lab, T4, NvidiaHookProgram::PATH)?;
    node.restart_kubelet()?;
    lab.await_allocatable(T4, GPU, 4)?;
    restart_container(&lab, &pods[1])?;
    assert_eq!(each_opens_its_own(&lab, &pods)?, before, "after the kubelet's restart");
    let nvidias = libraries_of(&lab, &pods[1])?;
    let differences: Vec<&String> = own.symmetric_difference(&nvidias).collect();
    assert!(differences.is_empty(), "{differences:?}");
    drop(program);

    // A boot empties /run. The kubelet rejects the pods that it remembers if it is faster than the agent; others come in their place.
    node.reboot()?;
    lab.await_allocatable(T4, GPU, 4)?;
    eventually("the pods run after the boot", LIMIT, || {
        let pods = lab.await_running("holder", 2)?;
        each_opens_its_own(&lab, &pods)
    })?;
    assert_eq!(
        described(&lab, T4)?,
        described_before,
        "the file was made again, with the same names"
    );

    lab.kubectl(&["delete", "gpunodepolicy", "sharing", "--timeout=60s"])?;
    lab.kubectl(&[
        "delete",
        "deployment",
        "holder",
        "--cascade=foreground",
        "--timeout=90s",
    ])?;
    eventually("the CDI file goes with the last pod", LIMIT, || {
        ensure!(!lab.has_cdi_file(T4)?, "it is there");
        Ok(())
    })
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_mig_device_is_its_own_nodes_and_no_others() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::sharing("mixed", "{mig: {strategy: Mixed}}"))?;
    lab.await_allocatable(MIXED, "nvidia.com/mig-3g.40gb", 3)?;
    lab.apply(&samples::holding("half", "mixed", 2, "nvidia.com/mig-3g.40gb", 1))?;
    let pods = lab.await_running("half", 2)?;
    let mut capabilities = BTreeSet::new();
    for pod in &pods {
        let nodes = lab.device_nodes(pod)?;
        let own: Vec<&String> = nodes.iter().filter(|path| path.contains("nvidia-cap")).collect();
        assert_eq!(own.len(), 2, "a GPU instance and a compute instance: {nodes:?}");
        for path in own {
            let opened = lab.open_in_container(pod, path)?;
            assert_eq!(opened, Opened::Allowed, "{path}");
            assert!(capabilities.insert(path.clone()), "{path} is in two containers");
        }
        lab.gpu_minor(pod)?;
    }
    Ok(())
}

/// A RuntimeClass for NVIDIA's container runtime, until this is dropped.
struct NvidiaRuntime<'a>(&'a Lab);

impl<'a> NvidiaRuntime<'a> {
    fn new(lab: &'a Lab) -> Result<Self> {
        let class = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: nvidia}\nhandler: nvidia\n";
        lab.apply(class)?;
        Ok(Self(lab))
    }
}

impl Drop for NvidiaRuntime<'_> {
    fn drop(&mut self) {
        // Where that fails, the next test applies it again.
        let _ = self
            .0
            .try_kubectl(&["delete", "runtimeclass", "nvidia", "--ignore-not-found"]);
    }
}

/// The same pods with NVIDIA's container runtime.
fn with_nvidias_runtime(pods: &str) -> String {
    pods.replace(
        "      nodeSelector: ",
        "      runtimeClassName: nvidia\n      nodeSelector: ",
    )
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn under_nvidias_runtime_every_strategy_gives_a_pod_its_gpu_once() -> Result<()> {
    let lab = Lab::enter()?;
    let _class = NvidiaRuntime::new(&lab)?;
    let plain = samples::deployment("other", "inference", 1);
    for (strategies, other) in [
        // By CDI and by the variable at once, also where a pod asks NVIDIA's runtime for all GPUs.
        ("[CdiCri, Envvar]", with_nvidias_runtime(&greedy("other"))),
        // containerd alone, with either runtime.
        ("[CdiAnnotations]", plain.clone()),
        // NVIDIA's runtime describes the GPU itself, and says `void` as gpunode's file does.
        ("[Envvar]", with_nvidias_runtime(&plain)),
        ("[VolumeMounts]", with_nvidias_runtime(&plain)),
    ] {
        let device_plugin = format!("{{deviceListStrategy: {strategies}}}");
        lab.apply(&samples::sharing("inference", &device_plugin))?;
        lab.await_allocatable(T4, GPU, 4)?;
        lab.await_ready("sharing")?;
        let holder = with_nvidias_runtime(&samples::deployment("holder", "inference", 1));
        lab.apply(&(holder + &other))?;
        one_gpu_each(&lab).with_context(|| format!("pods with {strategies}"))?;
        // The pods go before the Deployments do: nobody takes them for those of the next round.
        let deletion = ["delete", "deployment", "holder", "other", "--cascade=foreground"];
        lab.kubectl(&[&deletion[..], &["--timeout=90s"]].concat())?;
    }
    Ok(())
}

/// Checks that the pods of `holder` and `other` have one GPU each, and the driver's library once.
fn one_gpu_each(lab: &Lab) -> Result<()> {
    let mut pods = lab.await_running("holder", 1)?;
    pods.extend(lab.await_running("other", 1)?);
    each_opens_its_own(lab, &pods)?;
    for pod in &pods {
        ensure_void(lab, pod)?;
        let mounts = lab.kubectl(&["exec", pod, "--", "cat", "/proc/self/mounts"])?;
        let cuda = format!(" {LIBRARIES}/libcuda.so.");
        ensure!(mounts.matches(&cuda).count() == 1, "{pod}: {mounts}");
    }
    Ok(())
}

/// The node's own view of its driver, by NVIDIA's generator.
fn nvidias_spec(lab: &Lab, node: &str) -> Result<Value> {
    let program = lab.cdi_file(node)?["containerEdits"]["hooks"][0]["path"]
        .as_str()
        .context("find the hook program")?
        .to_owned();
    let library = format!("/run/nvidia/driver{LIBRARIES}/libnvidia-ml.so.1");
    let output = lab
        .cluster()
        .node(node)?
        .command("/opt/cluster/bin/nvcdi")?
        .args(["/run/nvidia/driver", "/run/nvidia/driver", &program, &library])
        .output()
        .context("run nvcdi")?;
    ensure!(
        output.status.success(),
        "nvcdi on {node}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("parse the spec of nvcdi")
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn the_cdi_file_is_nvidias_but_for_the_differences_that_are_known() -> Result<()> {
    let lab = Lab::enter()?;
    let policy = "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: everywhere}
spec:
  gpuSelector: {minCount: 1}
  devicePlugin: {mig: {strategy: Mixed}}
";
    lab.apply(policy)?;
    lab.await_allocatable(A100, GPU, 8)?;
    lab.await_ready("everywhere")?;
    let mut comparison = Comparison::default();
    for node in GPU_NODES {
        let (gpunode, nvidia) = (lab.cdi_file(node)?, nvidias_spec(&lab, node)?);
        comparison.add(KNOWN_DIFFERENCES, &gpunode, &nvidia);
    }
    let complaints = comparison.complaints(KNOWN_DIFFERENCES);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}
