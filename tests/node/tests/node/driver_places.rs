//! Drivers where distributions have them: the agent finds each without a flag, and others with one.

use anyhow::{Context as _, Result, ensure};
use gpunode_node_tests::{Agent, FakeKubelet, MpsNode, Node};
use std::fs;

const GPU: &str = "nvidia.com/gpu";
const LIBRARY: &str = "libnvidia-ml.so.1";

/// A folder of the driver's library, and symbolic links on the host.
type Place = (&'static str, &'static [(&'static str, &'static str)]);

/// Distributions with the driver in a place of their own.
const PLACES: [(&str, Place); 9] = [
    ("GKE", ("home/kubernetes/bin/nvidia/lib64", &[])),
    ("Talos", ("usr/local/glibc/usr/lib64", &[])),
    ("Talos before 1.13", ("usr/local/glibc/usr/lib", &[])),
    ("Talos with container toolkit", ("usr/local/lib", &[])),
    (
        "Bottlerocket",
        (
            "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
            &[("usr", "./x86_64-bottlerocket-linux-gnu/sys-root/usr")],
        ),
    ),
    (
        "NixOS",
        (
            "nix/store/a-nvidia-x11/lib",
            &[
                (
                    "nix/store/b-graphics-drivers/lib/libnvidia-ml.so.1",
                    "/nix/store/a-nvidia-x11/lib/libnvidia-ml.so.1",
                ),
                ("run/opengl-driver", "/nix/store/b-graphics-drivers"),
            ],
        ),
    ),
    ("JetPack 6", ("usr/lib/aarch64-linux-gnu/nvidia", &[])),
    ("JetPack 5", ("usr/lib/aarch64-linux-gnu/tegra", &[])),
    (
        "Fedora with /home elsewhere",
        ("var/home/kubernetes/bin/nvidia/lib64", &[("home", "/var/home")]),
    ),
];

#[test]
fn the_driver_is_found_where_each_distribution_has_it() -> Result<()> {
    for (name, (folder, links)) in PLACES {
        let node = Node::with_t4()?;
        // Distributions differ in what it is, and the programs in it are of no use here.
        fs::remove_dir_all(node.host_root().join("usr"))?;
        node.move_driver(folder)?;
        for (path, target) in links {
            node.link(path, target)?;
        }
        let inventory = Agent::inventory(&node, &[]).context(name)?;
        let gpus = inventory["gpus"].as_array().context(name)?;
        ensure!(gpus.len() == 4, "{name}: {inventory}");
    }
    Ok(())
}

#[test]
fn a_driver_elsewhere_is_found_by_the_flag_alone() -> Result<()> {
    let node = Node::with_t4()?;
    node.move_driver("srv/driver/usr/lib64")?;
    let error = Agent::inventory(&node, &[]).unwrap_err().to_string();
    let searched = "below /run/nvidia/driver, / and /home/kubernetes/bin/nvidia: not found";
    assert!(error.contains(searched) && error.contains("--driver-roots"), "{error}");
    let inventory = Agent::inventory(&node, &["--driver-roots", "/nowhere,/srv/driver/"])?;
    assert_eq!(inventory["gpus"].as_array().map(Vec::len), Some(4));
    Ok(())
}

#[tokio::test]
async fn device_nodes_of_a_driver_container_are_those_below_its_root_without_a_flag() -> Result<()> {
    let node = Node::with_t4()?;
    node.configure("passDeviceSpecs: true")?;
    fs::rename(
        node.host_root().join("dev"),
        node.host_root().join("run/nvidia/driver/dev"),
    )?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let _agent = Agent::run(&node)?;
    let endpoint = kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
    let file = node.cdi_file()?.context("the CDI file")?;
    assert_eq!(file["cdiVersion"], "0.5.0");
    let described = &file["devices"][2]["containerEdits"]["deviceNodes"][0];
    assert_eq!(
        (&described["path"], &described["hostPath"]),
        (&"/dev/nvidia2".into(), &"/run/nvidia/driver/dev/nvidia2".into())
    );
    let device = endpoint.healthy().pop_first().context("a device")?;
    let answer = kubelet.allocate(GPU, &[&device]).await?;
    ensure!(answer.devices.len() == 3, "{:?}", answer.devices);
    for node in answer.devices {
        assert_eq!(node.host_path, format!("/run/nvidia/driver{}", node.container_path));
    }
    Ok(())
}

#[tokio::test]
async fn device_nodes_of_the_flags_folder_come_before_those_of_the_host() -> Result<()> {
    let node = Node::with_t4()?;
    node.configure("passDeviceSpecs: true")?;
    let devices = node.host_root().join("srv/dev");
    fs::create_dir_all(&devices)?;
    fs::write(devices.join("nvidiactl"), "")?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let _agent = Agent::run_with_arguments(&node, &["--dev-root", "/srv"])?;
    let endpoint = kubelet.has(GPU, |endpoint| endpoint.healthy().len() == 4).await?;
    let device = endpoint.healthy().pop_first().context("a device")?;
    let answer = kubelet.allocate(GPU, &[&device]).await?;
    let nodes: Vec<_> = answer.devices.iter().map(|node| node.host_path.as_str()).collect();
    ensure!(nodes[..2] == ["/srv/dev/nvidiactl", "/dev/nvidia-uvm"], "{nodes:?}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn mps_programs_beside_a_driver_without_a_root_of_its_own_run_in_the_hosts() -> Result<()> {
    let mps = MpsNode::new()?;
    let gpu = mps.gpu(0)?;
    let (from, to) = (
        mps.node.host_root().join("run/nvidia/driver/usr"),
        mps.node.host_root().join("home/kubernetes/bin/nvidia"),
    );
    mps.node.move_driver("home/kubernetes/bin/nvidia/lib64")?;
    fs::rename(from.join("bin"), to.join("bin"))?;
    assert!(to.join("lib64").join(LIBRARY).is_file());
    mps.assign(&[&gpu])?;
    let _agent = mps.supervisor()?;
    let daemon = mps.answers(&gpu).await?;
    let command = fs::read(format!("/proc/{}/cmdline", daemon.as_raw_nonzero()))?;
    let program = b"/home/kubernetes/bin/nvidia/bin/nvidia-cuda-mps-control\0";
    assert!(command.starts_with(program), "{}", String::from_utf8_lossy(&command));
    Ok(())
}
