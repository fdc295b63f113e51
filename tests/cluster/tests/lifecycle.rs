//! Clusters start, run pods, survive being killed, and leave nothing behind.

#![allow(clippy::unwrap_used, reason = "functions of a test fail the test")]

mod snapshot;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use gpunode_cluster::{BUSYBOX, Cluster, ClusterFile, Options, Signal, default_root};
use serde_json::Value;
use snapshot::Snapshot;

const GPU_NODE: &str = "
nodes:
- name: gpu
  labels: {pool: inference}
  registerWithTaints: ['dedicated=gpu:NoSchedule']
  gpus: {board: NVIDIA A30, count: 2, topology: Pcie, mig: [{gpus: [1], instances: [2g.12gb]}]}
";
const CPU_NODE: &str = "nodes: [{name: cpu}]";

/// A folder of clusters of its own, with the programs of the usual one.
fn root() -> PathBuf {
    let usual = default_root().unwrap();
    let root = usual.with_file_name("cluster-lifecycle");
    // A test that was killed left clusters here: starting them again cleans up.
    fs::create_dir_all(&root).unwrap();
    let bin = root.join("bin");
    if !bin.is_symlink() {
        std::os::unix::fs::symlink(usual.join("bin"), bin).unwrap();
    }
    root
}

fn options(root: &Path, name: &str, nodes: &str) -> Options {
    // Nothing here loads the library or starts the programs.
    let driver = root.join("driver");
    fs::create_dir_all(&driver).unwrap();
    for file in ["library.so", "nvidia-cuda-mps-control", "mps-client"] {
        fs::write(driver.join(file), "").unwrap();
    }
    Options {
        nodes: ClusterFile::parse(nodes).unwrap(),
        nvml_library: driver.join("library.so"),
        mps_programs: driver,
        ..Options::in_root(root, name).unwrap()
    }
}

/// Waits until `check` holds.
fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < Duration::from_mins(3), "waited 3 minutes for {what}");
        thread::sleep(Duration::from_millis(100));
    }
}

fn run_pod(cluster: &Cluster, node: &str) {
    let pod = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: probe}}, spec: {{
           nodeName: {node}, terminationGracePeriodSeconds: 0, tolerations: [{{operator: Exists}}],
           volumes: [{{name: host, hostPath: {{path: /}}}}],
           containers: [{{name: main, image: {BUSYBOX}, command: [sleep, infinity],
             volumeMounts: [{{name: host, mountPath: /host, readOnly: true}}]}}]}}}}"
    );
    let file = cluster.folder().join("pod.yaml");
    fs::write(&file, pod).unwrap();
    let file = file.to_str().unwrap();
    cluster.kubectl_output(["apply", "-f", file]).unwrap();
    cluster
        .kubectl_output(["wait", "--for=condition=Ready", "pod/probe", "--timeout=180s"])
        .unwrap();
}

fn in_pod(cluster: &Cluster, script: &str) -> String {
    cluster
        .kubectl_output(["exec", "probe", "--", "sh", "-c", script])
        .unwrap()
}

fn restarts(cluster: &Cluster) -> u64 {
    let pod = cluster.kubectl_output(["get", "pod", "probe", "-o", "json"]).unwrap();
    let pod: Value = serde_json::from_str(&pod).unwrap();
    pod["status"]["containerStatuses"][0]["restartCount"]
        .as_u64()
        .unwrap_or_default()
}

/// The hardware that a container with the host's file system sees is the simulated one.
fn check_hardware(cluster: &Cluster) {
    let devices = in_pod(cluster, "cat /host/sys/bus/pci/devices/*/vendor | sort | uniq -c");
    assert!(devices.contains("2 0x10de"), "{devices}");
    let nodes = in_pod(cluster, "ls /host/dev | grep nvidia");
    assert_eq!(
        nodes,
        "nvidia-caps\nnvidia-modeset\nnvidia-uvm\nnvidia-uvm-tools\nnvidia0\nnvidia1\nnvidiactl\n"
    );
    let every_capability = "cd /host/dev/nvidia-caps && for node in *; do
        grep \" ${node#nvidia-cap}$\" /host/proc/driver/nvidia-caps/mig-minors | cut -d ' ' -f 1; done";
    let capabilities = in_pod(cluster, every_capability);
    assert_eq!(capabilities, "config\ngpu1/gi1/access\ngpu1/gi1/ci0/access\nmonitor\n");
    let driver = in_pod(cluster, "ls /host/run/nvidia/driver/usr/lib/x86_64-linux-gnu");
    for file in ["gpunode-scenario.yaml", "libnvidia-ml.so.1", "libcuda.so.1"] {
        assert!(driver.lines().any(|line| line == file), "{file}: {driver}");
    }
    let write = "touch /host/run/nvidia/driver/x 2>/dev/null || echo refused";
    assert_eq!(in_pod(cluster, write), "refused\n");
    // What a test writes outside is seen inside at once.
    let dir = cluster.node("gpu").unwrap().driver_dir().unwrap();
    fs::write(dir.join("written-by-test"), "").unwrap();
    let driver = in_pod(cluster, "ls /host/run/nvidia/driver/usr/lib/x86_64-linux-gnu");
    assert!(driver.contains("written-by-test"), "{driver}");
}

fn check_node_access(cluster: &Cluster) {
    let node = cluster.node("gpu").unwrap();
    let hostname = node
        .command("cat")
        .unwrap()
        .arg("/proc/sys/kernel/hostname")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&hostname.stdout), "gpu\n");

    let before = restarts(cluster);
    cluster
        .container_process("default", "probe", "main")
        .unwrap()
        .kill()
        .unwrap();
    eventually("the container to be restarted", || restarts(cluster) > before);

    let old = node.process("kubelet").unwrap().unwrap().pid();
    node.restart_kubelet().unwrap();
    assert_ne!(node.process("kubelet").unwrap().unwrap().pid(), old);

    let process = node.container_process("default", "probe", "main").unwrap();
    process.signal(Signal::STOP).unwrap();
    process.signal(Signal::CONT).unwrap();
    assert_eq!(node.container_processes("default", "probe", "main").unwrap().len(), 1);

    // The node's own credential may read its node, and not write another's.
    let node_user = |arguments: &[&str]| {
        let mut command = Command::new(default_root().unwrap().join("bin/kubectl"));
        let kubeconfig = node.kubelet_kubeconfig();
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--cache-dir")
            .arg(cluster.folder().join("cache"));
        command.env("KUBERC", "off").args(arguments).output().unwrap()
    };
    assert!(node_user(&["get", "node", "gpu"]).status.success());
    let refused = node_user(&["create", "namespace", "x"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("\"system:node:gpu\" cannot create"), "{said}");
}

/// A node that is switched off is noticed by nobody at first; one that is switched on comes back with its pods.
fn check_power(cluster: &Cluster) {
    let boot_id = || {
        let path = "jsonpath={.status.nodeInfo.bootID}";
        cluster.kubectl_output(["get", "node", "gpu", "-o", path]).unwrap()
    };
    let node = cluster.node("gpu").unwrap();
    let (old, before) = (boot_id(), restarts(cluster));
    node.power_off().unwrap();
    assert!(node.process("kubelet").unwrap().is_none());
    node.power_on().unwrap();
    eventually("the node to report its boot", || boot_id() != old);
    eventually("the container to run again", || {
        restarts(cluster) > before && node.container_process("default", "probe", "main").is_ok()
    });
    assert_eq!(in_pod(cluster, "echo back"), "back\n");
}

fn check_registration(cluster: &Cluster) {
    let node = cluster.kubectl_output(["get", "node", "gpu", "-o", "json"]).unwrap();
    let node: Value = serde_json::from_str(&node).unwrap();
    assert_eq!(node["metadata"]["labels"]["pool"], "inference");
    assert_eq!(node["spec"]["taints"][0]["key"], "dedicated");
    // Who wrote what can be read from the audit log.
    let audit = fs::read_to_string(cluster.audit_log()).unwrap();
    let created = audit
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|event| event["verb"] == "create" && event["objectRef"]["resource"] == "nodes")
        .unwrap();
    assert_eq!(created["user"]["username"], "system:node:gpu");
    assert_eq!(created["requestObject"]["metadata"]["name"], "gpu");
}

/// Starts a cluster by the command and kills that when it has started the first parts.
fn kill_half_way(root: &Path, name: &str, cluster_file: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpunode-cluster"))
        .args(["up", "--name", name, "--root"])
        .arg(root)
        .arg("--cluster")
        .arg(cluster_file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(command.stdout.take().unwrap()).lines();
    let line = lines.find(|line| line.as_ref().unwrap().contains("containerd is ready"));
    assert!(line.is_some(), "the start ended before it was killed");
    command.kill().unwrap();
    command.wait().unwrap();
}

#[test]
#[ignore = "needs root and built programs: make test"]
fn two_clusters_side_by_side_leave_nothing_behind() {
    let root = root();
    for name in ["one", "two"] {
        Cluster::stop(&root, name).unwrap();
    }
    let before = Snapshot::take(&root);

    let (one, two) = thread::scope(|scope| {
        let one = scope.spawn(|| Cluster::up(&options(&root, "one", GPU_NODE)).unwrap());
        let two = scope.spawn(|| Cluster::up(&options(&root, "two", CPU_NODE)).unwrap());
        (one.join().unwrap(), two.join().unwrap())
    });
    run_pod(&one, "gpu");
    run_pod(&two, "cpu");
    check_registration(&one);
    check_hardware(&one);
    assert_eq!(
        in_pod(&two, "ls /host/dev | grep -c nvidia; ls /host/run/nvidia 2>&1 | wc -l"),
        "0\n1\n"
    );
    check_node_access(&one);
    check_power(&one);

    // The second one loses processes, is started anew, and that start is killed as well.
    for program in ["etcd", "kube-apiserver"] {
        two.control_plane_process(program).unwrap().unwrap().kill().unwrap();
    }
    two.node("cpu")
        .unwrap()
        .process("containerd")
        .unwrap()
        .unwrap()
        .kill()
        .unwrap();
    let file = root.join("two.yaml");
    fs::write(&file, CPU_NODE).unwrap();
    kill_half_way(&root, "two", &file);
    let two = Cluster::up(&options(&root, "two", CPU_NODE)).unwrap();
    run_pod(&two, "cpu");

    // The first one has not noticed.
    let one = {
        drop(one);
        Cluster::attach_in(&root, "one").unwrap()
    };
    assert_eq!(in_pod(&one, "echo still here"), "still here\n");

    // 10.88.N.0/24 comes over the link gpnN.
    let mut ours = vec!["gpunode-one-".to_owned(), "gpunode-two-".to_owned()];
    ours.extend([&one, &two].map(|cluster| format!("gpn{}", cluster.nodes()[0].address().octets()[2])));
    let logs = one.logs();
    one.down().unwrap();
    two.down().unwrap();
    assert!(logs.join("nodes/gpu/kubelet.log").exists());
    assert!(Cluster::attach_in(&root, "one").is_err());

    let mut difference = String::new();
    let start = Instant::now();
    while start.elapsed() < Duration::from_mins(1) {
        difference = before.difference(&Snapshot::take(&root), &ours);
        if difference.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(200));
    }
    assert!(difference.is_empty(), "left behind or gone:\n{difference}");
}
