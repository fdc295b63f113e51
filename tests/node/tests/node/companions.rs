//! Companions: devices that are files of the node, beside GPUs and without any.

use anyhow::{Context as _, Result, ensure};
use gpunode_node_tests::{Agent, FakeKubelet, Node, Stopwatch, node_of, until};
use rustix::{
    fs::{CWD, FileType, Mode, makedev, mknodat},
    process::Signal,
};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::sleep;
use tonic::Code;

const COLA: &str = "myway5.com/cola";
/// The example of the article about a first device plugin: every file is a device, and its id is all that a container gets.
const COLAS: &str =
    "companions: [{resource: myway5.com/cola, paths: [/etc/colas/*], inject: {env: {name: COLA_DEVICES, value: Ids}}}]";
const ROOTS: &str = "/etc/colas,/dev/infiniband,/dev/xclmgmt*,/dev/dri";
/// Longest time from a change of files to the list with it.
const SOON: Duration = Duration::from_secs(1);
const GPU: &str = "nvidia.com/gpu";

/// A node with files, its kubelet, and an agent that may hand out files below [`ROOTS`].
struct CompanionLab {
    agent: Agent,
    kubelet: FakeKubelet,
    node: Node,
}

impl CompanionLab {
    fn start(node: Node, config: &str) -> Result<Self> {
        node.configure(config)?;
        let kubelet = FakeKubelet::start(node.device_plugins())?;
        let agent = run(&node)?;
        Ok(Self { agent, kubelet, node })
    }

    fn with_colas(names: &[&str]) -> Result<Self> {
        let node = node_of(&[])?;
        fs::create_dir_all(node.host_root().join("etc/colas"))?;
        names
            .iter()
            .try_for_each(|name| write(&node, &format!("/etc/colas/{name}")))?;
        Self::start(node, COLAS)
    }

    fn write(&self, path: &str) -> Result<()> {
        write(&self.node, path)
    }

    fn remove(&self, path: &str) -> Result<()> {
        Ok(fs::remove_file(on_host(&self.node, path))?)
    }

    fn apply(&self, config: &str) -> Result<()> {
        self.node.configure(config)?;
        self.agent.signal(Signal::HUP)
    }

    async fn has(&self, resource: &str, shares: usize) -> Result<BTreeSet<String>> {
        let endpoint = self.kubelet.has(resource, |it| it.healthy().len() == shares).await?;
        Ok(endpoint.healthy())
    }
}

fn run(node: &Node) -> Result<Agent> {
    Agent::run_with_arguments(node, &["--companion-roots", ROOTS])
}

fn on_host(node: &Node, path: &str) -> PathBuf {
    node.host_root().join(path.trim_start_matches('/'))
}

fn write(node: &Node, path: &str) -> Result<()> {
    let path = on_host(node, path);
    fs::create_dir_all(path.parent().context("a folder")?)?;
    Ok(fs::write(path, "")?)
}

/// Makes a character device that nobody has, in a PCI slot and on a NUMA node.
fn make_device(node: &Node, path: &str, number: u32, address: &str, numa_node: u32) -> Result<()> {
    let file = on_host(node, path);
    fs::create_dir_all(file.parent().context("a folder")?)?;
    mknodat(
        CWD,
        &file,
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o600),
        makedev(240, number),
    )?;
    let name = file.file_name().context("a name")?.to_string_lossy().into_owned();
    let device = format!("sys/devices/pci0000:00/{address}/class/{name}");
    let sys = node.host_root().join("sys/dev/char");
    fs::create_dir_all(node.host_root().join(&device))?;
    fs::create_dir_all(&sys)?;
    let function = node.host_root().join("sys/devices/pci0000:00").join(address);
    fs::write(function.join("numa_node"), format!("{numa_node}\n"))?;
    Ok(symlink(
        Path::new("../../..").join(device),
        sys.join(format!("240:{number}")),
    )?)
}

#[tokio::test]
async fn a_node_without_gpu_and_driver_gives_containers_its_files() -> Result<()> {
    let lab = CompanionLab::with_colas(&["cocacola", "pepsicola"])?;
    let ids = lab.has(COLA, 2).await?;
    ensure!(ids.iter().all(|id| id.starts_with("path-")), "{ids:?}");
    lab.agent.await_ready().await?;
    let one = lab.kubelet.admit("one", "main", COLA, 1).await?;
    assert_eq!(one.response.envs["COLA_DEVICES"], one.ids[0]);
    assert_eq!(one.response.envs.len(), 1, "nothing of NVIDIA's");
    let again = lab.kubelet.allocate(COLA, &[&one.ids[0]]).await;
    ensure!(
        again.is_err() || again? == one.response,
        "a second answer to the same request"
    );
    lab.kubelet.admit("two", "main", COLA, 1).await?;
    assert_eq!(lab.kubelet.schedulable(COLA), 0);
    let error = lab.kubelet.allocate(COLA, &["path-0", "0"]).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    ensure!(
        error.message().contains("path-0") && error.message().contains('0'),
        "{error}"
    );
    Ok(())
}

#[tokio::test]
async fn a_file_that_comes_or_goes_changes_the_list_within_a_second() -> Result<()> {
    let lab = CompanionLab::with_colas(&["cocacola"])?;
    lab.has(COLA, 1).await?;
    let first = lab.kubelet.admit("one", "main", COLA, 1).await?.ids.remove(0);
    for round in 0..5 {
        let name = format!("/etc/colas/{round}");
        let begun = Stopwatch::start();
        lab.write(&name)?;
        lab.has(COLA, 2).await?;
        ensure!(begun.elapsed() < SOON, "{:?} to a new file", begun.elapsed());
        let begun = Stopwatch::start();
        lab.remove(&name)?;
        lab.has(COLA, 1).await?;
        ensure!(begun.elapsed() < SOON, "{:?} to a file that went", begun.elapsed());
    }
    // That of a container is unhealthy while it is gone, and comes back under its id.
    lab.remove("/etc/colas/cocacola")?;
    lab.kubelet
        .has(COLA, |it| it.healthy().is_empty() && it.ids() == [first.clone()])
        .await?;
    lab.write("/etc/colas/cocacola")?;
    assert_eq!(lab.has(COLA, 1).await?, [first].into());
    Ok(())
}

#[tokio::test]
async fn a_folder_that_comes_later_is_noticed_and_an_empty_list_registers() -> Result<()> {
    let lab = CompanionLab::start(node_of(&[])?, COLAS)?;
    lab.agent.await_ready().await?;
    // The kubelet asks for the list after it has accepted the registration.
    let registered = lab.kubelet.endpoint(COLA);
    ensure!(registered.registrations == 1, "{registered:?}");
    let has_list = || (lab.kubelet.endpoint(COLA).lists > 0).then_some(());
    until("the kubelet has a list", has_list).await?;
    let endpoint = lab.kubelet.endpoint(COLA);
    ensure!(
        endpoint.registrations == 1 && endpoint.lists == 1 && endpoint.devices.is_empty(),
        "{endpoint:?}"
    );
    let begun = Stopwatch::start();
    lab.write("/etc/colas/late")?;
    lab.has(COLA, 1).await?;
    ensure!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    fs::remove_dir_all(on_host(&lab.node, "/etc/colas"))?;
    lab.kubelet.has(COLA, |it| it.healthy().is_empty()).await?;
    lab.write("/etc/colas/again")?;
    lab.has(COLA, 1).await?;
    Ok(())
}

#[tokio::test]
async fn companions_beside_gpus_need_no_driver_and_no_health() -> Result<()> {
    let config = format!("{COLAS}\nresources: [{{name: nvidia.com/gpu}}]");
    let node = Node::with_t4()?;
    write(&node, "/etc/colas/cocacola")?;
    let lab = CompanionLab::start(node, &config)?;
    lab.has(COLA, 1).await?;
    lab.has(GPU, lab.node.uuids()?.len()).await?;
    let gpu = lab.kubelet.admit("gpu", "main", GPU, 1).await?;
    ensure!(
        gpu.response.envs.contains_key("NVIDIA_VISIBLE_DEVICES"),
        "{:?}",
        gpu.response
    );
    lab.node.state()?.lose(0)?;
    lab.kubelet
        .has(GPU, |it| it.healthy().len() + 1 == it.devices.len())
        .await?;
    lab.has(COLA, 1).await?;
    Ok(())
}

#[tokio::test]
async fn companions_are_served_while_the_driver_is_missing() -> Result<()> {
    let config = format!("{COLAS}\nresources: [{{name: nvidia.com/gpu}}]");
    let node = Node::with_t4()?;
    write(&node, "/etc/colas/cocacola")?;
    node.configure(&config)?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let arguments = ["--companion-roots", ROOTS, "--driver-roots", "/nowhere"];
    let _agent = Agent::run_with_arguments(&node, &arguments)?;
    kubelet.has(COLA, |it| it.healthy().len() == 1).await?;
    let admitted = kubelet.admit("one", "main", COLA, 1).await?;
    ensure!(admitted.response.envs.contains_key("COLA_DEVICES"));
    ensure!(kubelet.endpoint(GPU).lists == 0, "the driver is missing");
    Ok(())
}

#[tokio::test]
async fn what_containers_hold_stays_their_own_over_kills_while_files_come_and_go() -> Result<()> {
    let mut lab = CompanionLab::with_colas(&["a", "b", "c"])?;
    lab.has(COLA, 3).await?;
    let held = lab.kubelet.admit("holder", "main", COLA, 1).await?.ids.remove(0);
    for round in 0..6 {
        let name = format!("/etc/colas/{}", ["a", "b", "c"][round % 3]);
        let is_there = on_host(&lab.node, &name).exists();
        let change = |lab: &CompanionLab| if is_there { lab.remove(&name) } else { lab.write(&name) };
        change(&lab)?;
        lab.agent.kill().await?;
        if round % 2 == 0 {
            sleep(Duration::from_millis(50)).await;
        }
        lab.agent = run(&lab.node)?;
        if is_there {
            lab.write(&name)?;
        }
        lab.has(COLA, 3).await?;
        ensure!(lab.kubelet.in_use(COLA) == [held.clone()].into());
        ensure!(lab.kubelet.advertised_twice().is_none());
        lab.kubelet.admit("other", "main", COLA, 2).await?;
        ensure!(
            lab.kubelet.admit("more", "main", COLA, 1).await.is_err(),
            "round {round}"
        );
        lab.kubelet.release("other");
        lab.kubelet.has(COLA, |_| true).await?;
        until("the freed shares", || {
            (lab.kubelet.schedulable(COLA) == 2).then_some(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_device_that_the_configuration_regroups_waits_for_its_pod() -> Result<()> {
    let lab = CompanionLab::with_colas(&["a", "b"])?;
    lab.has(COLA, 2).await?;
    let held = lab.kubelet.admit("holder", "main", COLA, 1).await?.ids.remove(0);
    lab.apply("companions: [{resource: myway5.com/cola, paths: [/etc/colas/*], group: Together, shares: 3, inject: {mounts: {}}}]")?;
    // The group is there, and nobody gets it while its file is with the pod.
    let endpoint = lab
        .kubelet
        .has(COLA, |it| {
            it.devices.len() >= 4 && it.healthy() == [held.clone()].into()
        })
        .await?;
    let group = endpoint
        .ids()
        .into_iter()
        .find(|id| id.contains("::"))
        .context("a share of the group")?;
    let refused = lab.kubelet.allocate(COLA, &[&group]).await.unwrap_err();
    let message = refused.message();
    ensure!(
        message.contains("/etc/colas/") && message.contains("of another device"),
        "{refused}"
    );
    lab.kubelet.release("holder");
    lab.has(COLA, 3).await?;
    let admitted = lab.kubelet.admit("next", "main", COLA, 1).await?;
    let mut mounts: Vec<_> = admitted
        .response
        .mounts
        .iter()
        .map(|mount| mount.host_path.as_str())
        .collect();
    mounts.sort_unstable();
    assert_eq!(mounts, ["/etc/colas/a", "/etc/colas/b"]);
    Ok(())
}

#[tokio::test]
async fn files_outside_of_the_roots_and_links_that_leave_them_are_refused_by_name() -> Result<()> {
    let node = node_of(&[])?;
    write(&node, "/etc/colas/good")?;
    write(&node, "/etc/shadow")?;
    symlink("/etc/shadow", on_host(&node, "/etc/colas/bad"))?;
    let lab = CompanionLab::start(node, COLAS)?;
    lab.has(COLA, 1).await?;
    lab.agent
        .logs("/etc/colas/bad is a link: --companion-roots does not allow /etc/shadow; it allows /etc/colas")
        .await?;
    lab.apply("companions: [{resource: myway5.com/cola, paths: [/etc/shadow], inject: {mounts: {}}}]")?;
    lab.agent
        .logs("--companion-roots does not allow /etc/shadow; it allows /etc/colas")
        .await?;
    let is_empty = || lab.kubelet.endpoint(COLA).devices.is_empty().then_some(());
    until("the list is empty", is_empty).await
}

#[tokio::test]
async fn ten_thousand_files_are_bounded_and_take_nothing_from_containers() -> Result<()> {
    let lab = CompanionLab::with_colas(&["zz"])?;
    lab.has(COLA, 1).await?;
    let held = lab.kubelet.admit("holder", "main", COLA, 1).await?.ids.remove(0);
    for number in 0..10_000 {
        fs::File::create(on_host(&lab.node, &format!("/etc/colas/{number:05}")))?;
    }
    let endpoint = lab.kubelet.has(COLA, |it| it.devices.len() == 64).await?;
    ensure!(
        endpoint.healthy().contains(&held),
        "the file of the container comes last by name"
    );
    lab.agent
        .logs("matches 10001 files of /etc/colas, too many to look at")
        .await?;
    fs::remove_dir_all(on_host(&lab.node, "/etc/colas"))?;
    lab.kubelet.has(COLA, |it| it.healthy().is_empty()).await?;
    Ok(())
}

#[tokio::test]
async fn a_successor_takes_companions_over_without_a_gap() -> Result<()> {
    let node = node_of(&[])?;
    ["a", "b"]
        .iter()
        .try_for_each(|name| write(&node, &format!("/etc/colas/{name}")))?;
    node.configure(COLAS)?;
    let kubelet = FakeKubelet::start(node.device_plugins())?;
    let start = |uid: &str| Agent::run_with_arguments(&node, &["--companion-roots", ROOTS, "--pod-name", uid]);
    let first = start("first")?;
    kubelet.has(COLA, |it| it.healthy().len() == 2).await?;
    let held = kubelet.admit("holder", "main", COLA, 1).await?.ids.remove(0);
    let second = start("second")?;
    second.await_ready().await?;
    first.logs("the successor serves the node").await?;
    kubelet
        .has(COLA, |it| it.registrations == 2 && it.healthy().len() == 2)
        .await?;
    let lists = kubelet.messages(COLA);
    let is_healthy = |list: &gpunode_node_tests::ListMessage| {
        list.devices
            .iter()
            .any(|device| device.id == held && device.health == "Healthy")
    };
    ensure!(lists.iter().all(is_healthy), "{lists:?}");
    drop(second);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn rdma_devices_are_shared_together_as_device_nodes() -> Result<()> {
    let node = node_of(&[])?;
    for (number, name) in ["rdma_cm", "umad0", "uverbs0"].into_iter().enumerate() {
        make_device(
            &node,
            &format!("/dev/infiniband/{name}"),
            number.try_into()?,
            "0000:03:00.0",
            1,
        )?;
    }
    let config = "companions: [{resource: rdma/hca, paths: [/dev/infiniband/*], group: Together, shares: 64}]";
    let lab = CompanionLab::start(node, config)?;
    lab.has("rdma/hca", 64).await?;
    let nodes: BTreeSet<_> = lab
        .kubelet
        .endpoint("rdma/hca")
        .devices
        .iter()
        .map(|device| device.topology.as_ref().map(|topology| topology.nodes[0].id))
        .collect();
    assert_eq!(nodes, [Some(1)].into(), "the NUMA node of sysfs");
    for pod in ["one", "two"] {
        let admitted = lab.kubelet.admit(pod, "main", "rdma/hca", 1).await?;
        let specs: Vec<_> = admitted
            .response
            .devices
            .iter()
            .map(|node| {
                (
                    node.container_path.as_str(),
                    node.host_path.as_str(),
                    node.permissions.as_str(),
                )
            })
            .collect();
        let same = |path| (path, path, "rw");
        assert_eq!(
            specs,
            [
                same("/dev/infiniband/rdma_cm"),
                same("/dev/infiniband/umad0"),
                same("/dev/infiniband/uverbs0")
            ]
        );
    }
    assert_eq!(lab.kubelet.schedulable("rdma/hca"), 62);
    // Another number of shares changes nothing for those that hold one.
    lab.apply("companions: [{resource: rdma/hca, paths: [/dev/infiniband/*], group: Together, shares: 8}]")?;
    lab.has("rdma/hca", 8).await?;
    assert_eq!(lab.kubelet.endpoint("rdma/hca").registrations, 1);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn nodes_of_a_card_belong_together_by_their_pci_slot() -> Result<()> {
    let node = node_of(&[])?;
    for (number, (path, address)) in [
        ("/dev/xclmgmt768", "0000:03:00.0"),
        ("/dev/dri/renderD128", "0000:03:00.1"),
        ("/dev/xclmgmt33280", "0000:82:00.0"),
        ("/dev/dri/renderD129", "0000:82:00.1"),
    ]
    .into_iter()
    .enumerate()
    {
        let number: u32 = number.try_into()?;
        make_device(&node, path, number, address, number / 2)?;
    }
    // A file is no device.
    write(&node, "/dev/dri/renderD130")?;
    let config =
        "companions: [{resource: amd.com/fpga, paths: ['/dev/xclmgmt*', '/dev/dri/renderD*'], group: PciSlot}]";
    let lab = CompanionLab::start(node, config)?;
    lab.has("amd.com/fpga", 2).await?;
    let admitted = lab.kubelet.admit("one", "main", "amd.com/fpga", 1).await?;
    let paths: BTreeSet<_> = admitted
        .response
        .devices
        .iter()
        .map(|node| node.container_path.as_str())
        .collect();
    let cards = [
        BTreeSet::from(["/dev/xclmgmt768", "/dev/dri/renderD128"]),
        BTreeSet::from(["/dev/xclmgmt33280", "/dev/dri/renderD129"]),
    ];
    ensure!(cards.contains(&paths), "{paths:?}");
    lab.agent.logs("/dev/dri/renderD130 is no device").await?;
    let gone = if cards[0] == paths {
        "/dev/dri/renderD128"
    } else {
        "/dev/dri/renderD129"
    };
    lab.remove(gone)?;
    // A card that has lost a node is none, and the other one is free.
    lab.has("amd.com/fpga", 1).await?;
    let other = lab.kubelet.admit("two", "main", "amd.com/fpga", 1).await?;
    ensure!(other.ids != admitted.ids);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root: make test"]
async fn files_of_a_container_stay_its_own_when_the_kubelet_restarts() -> Result<()> {
    let node = node_of(&[])?;
    make_device(&node, "/dev/infiniband/uverbs0", 1, "0000:03:00.0", 0)?;
    node.configure("companions: [{resource: rdma/hca, paths: [/dev/infiniband/*]}]")?;
    let mut kubelet = FakeKubelet::start(node.device_plugins())?;
    let agent = run(&node)?;
    kubelet.has("rdma/hca", |it| it.healthy().len() == 1).await?;
    let held = kubelet.admit("holder", "main", "rdma/hca", 1).await?.ids;
    kubelet.restart()?;
    let endpoint = kubelet
        .has("rdma/hca", |it| it.registrations == 2 && it.healthy().len() == 1)
        .await?;
    assert_eq!(endpoint.ids(), held);
    drop(agent);
    Ok(())
}
