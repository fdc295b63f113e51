//! Starting a node: its sandbox, containerd, kubelet and kube-proxy.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::fs::statfs;
use serde_json::json;

use crate::{
    hardware::{self, Driver, KERNEL_PROGRAM},
    image::PAUSE,
    kubeconfig,
    node::Node,
    pki::Authority,
    run,
    sandbox::{BIN, Bind},
    wait,
};

const CONTAINERD_CONFIG: &str = include_str!("containerd.toml");
/// Settings of NVIDIA's container runtime, which pods of the RuntimeClass handler `nvidia` get.
const TOOLKIT_CONFIG: &str = include_str!("nvidia-container-runtime.toml");
const CONTAINERD_TIMEOUT: Duration = Duration::from_mins(2);
/// `OVERLAYFS_SUPER_MAGIC` of `linux/magic.h`.
const OVERLAYFS: i64 = 0x794c_7630;

/// Root of the driver on a node.
const DRIVER: &str = "/run/nvidia/driver";
/// Writable views of `/proc/driver` and of the driver's `dev`, for the program that shows MIG instances.
const KERNEL_PROC_DRIVER: &str = "/opt/cluster/proc-driver";
const KERNEL_DRIVER_DEV: &str = "/opt/cluster/driver-dev";

/// Lays out the hardware of a node.
pub(crate) fn write_hardware(node: &Node, driver: Option<&Driver>) -> Result<()> {
    hardware::write_sys_bus(&node.sys_bus(), node.spec())?;
    match (&node.spec().gpus, driver) {
        (Some(gpus), Some(driver)) => {
            hardware::write_proc_driver(&node.proc_driver(), gpus)?;
            driver.write(&node.driver(), gpus)?;
            hardware::write_nvidia_smi(&node.driver())?;
            hardware::write_driver_devices(&node.driver())?;
            let gpus = gpus.gpus().context("simulated GPUs")?;
            node.kernel_files().write(&gpus).context("show GPUs and MIG instances")
        }
        _ => Ok(()),
    }
}

/// Starts the namespaces of a node whose hardware is laid out.
pub(crate) fn start_sandbox(node: &Node) -> Result<()> {
    let read_only = |source: PathBuf, target| Bind {
        source,
        target,
        writable: false,
    };
    let mut binds = vec![
        read_only(node.layout().bin(), BIN),
        read_only(node.sys_bus(), "/sys/bus"),
    ];
    let mut devices = None;
    if let Some(gpus) = &node.spec().gpus {
        binds.push(read_only(node.driver(), DRIVER));
        binds.push(read_only(node.proc_driver(), "/proc/driver"));
        let writable = |source, target| Bind {
            source,
            target,
            writable: true,
        };
        binds.push(writable(node.proc_driver(), KERNEL_PROC_DRIVER));
        binds.push(writable(node.driver().join("dev"), KERNEL_DRIVER_DEV));
        devices = Some(gpus.gpus().context("simulated GPUs")?.len());
    }
    node.sandbox().start(node.name(), devices, &binds)?;
    if devices.is_none() {
        return Ok(());
    }
    let library = hardware::library_folder(Path::new(DRIVER));
    let arguments = [
        library.as_path(),
        Path::new(KERNEL_PROC_DRIVER),
        Path::new("/dev"),
        Path::new(KERNEL_DRIVER_DEV),
    ];
    let arguments = arguments.map(|path| path.display().to_string());
    node.sandbox().daemon(KERNEL_PROGRAM, &arguments)
}

/// Starts containerd and waits until it takes requests.
pub(crate) fn start_containerd(node: &Node) -> Result<()> {
    let sandbox = node.sandbox();
    let root = sandbox.root();
    let on = statfs(&root).with_context(|| format!("ask for the file system of {}", root.display()))?;
    // An overlay cannot be the upper layer of another one.
    let snapshotter = if on.f_type == OVERLAYFS { "native" } else { "overlayfs" };
    sandbox.write(
        "/etc/containerd/config.toml",
        CONTAINERD_CONFIG
            .replace("SNAPSHOTTER", snapshotter)
            .replace("PAUSE_IMAGE", PAUSE),
    )?;
    sandbox.write("/etc/nvidia-container-runtime/config.toml", TOOLKIT_CONFIG)?;
    let pods = node.subnet().node_pods(node.index());
    let cni = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": "/var/lib/cni",
                "ranges": [[{"subnet": pods.to_string()}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    });
    sandbox.write("/etc/cni/net.d/10-pods.conflist", cni.to_string())?;
    for folder in [
        "etc/cdi",
        "run/cdi",
        "var/lib/gpunode",
        "var/lib/kubelet",
        "var/log/pods",
    ] {
        let path = root.join(folder);
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
    }
    sandbox.daemon("containerd", &["--config=/etc/containerd/config.toml".to_owned()])?;
    wait::until("containerd to answer", CONTAINERD_TIMEOUT, || {
        if sandbox.process("containerd")?.is_none() {
            bail!("it ended; {}", sandbox.log_tail("containerd"));
        }
        Ok(node.ctr(["version"]).is_ok().then_some(()))
    })
    .with_context(|| format!("start containerd of node {}", node.name()))
}

/// Brings an image archive into containerd of a node.
pub(crate) fn import_image(node: &Node, archive: &Path) -> Result<()> {
    let file = File::open(archive).with_context(|| format!("open image archive {}", archive.display()))?;
    let mut command = node.ctr_command()?;
    command.args(["images", "import", "-"]).stdin(Stdio::from(file));
    run::finished(&mut command)
        .map(drop)
        .with_context(|| format!("import {} on node {}", archive.display(), node.name()))
}

/// Writes what kubelet and kube-proxy need.
pub(crate) fn write_kubelet_files(node: &Node, authority: &Authority, cgroup: &str) -> Result<()> {
    let sandbox = node.sandbox();
    let name = node.name();
    let api = node.subnet().control_plane();
    sandbox.write("/etc/kubernetes/ca.crt", authority.certificate())?;
    let server = authority.server(&[name], &[node.address()])?;
    sandbox.write("/etc/kubernetes/kubelet.crt", &server.certificate)?;
    sandbox.write("/etc/kubernetes/kubelet.key", &server.key)?;
    sandbox.write(
        "/etc/kubernetes/kubelet.yaml",
        kubelet_configuration(cgroup).to_string(),
    )?;

    let user = format!("system:node:{name}");
    let credential = authority.client(&user, Some("system:nodes"))?;
    let document = kubeconfig::document(api, authority, &user, &credential)?;
    sandbox.write("/etc/kubernetes/kubelet.kubeconfig", document)?;
    let user = "system:kube-proxy";
    let credential = authority.client(user, None)?;
    let document = kubeconfig::document(api, authority, user, &credential)?;
    sandbox.write("/etc/kubernetes/kube-proxy.kubeconfig", document)
}

fn kubelet_configuration(cgroup: &str) -> serde_json::Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": "/etc/kubernetes/kubelet.crt",
        "tlsPrivateKeyFile": "/etc/kubernetes/kubelet.key",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": false,
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "resolvConf": "",
        // The default is below /usr, which is the machine's.
        "volumePluginDir": "/var/lib/kubelet/volumeplugins",
        // The machine is shared by all nodes and its other users: none of them is short of anything.
        "evictionHard": {"memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        // Tests wait for what the kubelet reports and for restarted containers.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        // Off by default before 1.35 (pkg/features/kube_features.go).
        "featureGates": {"KubeletCrashLoopBackOffMax": true},
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "5m",
    })
}

/// Starts the kubelet; the rest of the node runs.
pub(crate) fn start_kubelet(node: &Node) -> Result<()> {
    let spec = node.spec();
    let mut flags = vec![
        "--config=/etc/kubernetes/kubelet.yaml".to_owned(),
        "--kubeconfig=/etc/kubernetes/kubelet.kubeconfig".to_owned(),
        format!("--hostname-override={}", spec.name),
        format!("--node-ip={}", node.address()),
        "--v=2".to_owned(),
    ];
    if !spec.labels.is_empty() {
        flags.push(format!("--node-labels={}", pairs(&spec.labels)));
    }
    if !spec.register_with_taints.is_empty() {
        flags.push(format!(
            "--register-with-taints={}",
            spec.register_with_taints.join(",")
        ));
    }
    if let Some(frequency) = spec.status_update_frequency {
        flags.push(format!("--node-status-update-frequency={}s", frequency.as_secs()));
    }
    node.sandbox().daemon("kubelet", &flags)
}

/// Starts kube-proxy.
pub(crate) fn start_kube_proxy(node: &Node) -> Result<()> {
    node.sandbox().daemon(
        "kube-proxy",
        &[
            "--kubeconfig=/etc/kubernetes/kube-proxy.kubeconfig".to_owned(),
            format!("--hostname-override={}", node.name()),
            "--proxy-mode=nftables".to_owned(),
            format!("--cluster-cidr={}", node.subnet().pods()),
            // These settings are the machine's, a namespace cannot change them.
            "--conntrack-max-per-core=0".to_owned(),
            "--conntrack-tcp-timeout-established=0".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0".to_owned(),
        ],
    )
}

fn pairs(labels: &BTreeMap<String, String>) -> String {
    let pairs: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}
