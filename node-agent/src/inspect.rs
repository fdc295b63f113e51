//! `gpunode-agent inspect`: examines a node without a cluster, and prints findings with what to do, the worst first.
//!
//! | module | what it does |
//! |---|---|
//! | `neighbours` | finds other device plugins and DRA drivers by their sockets |

mod neighbours;

use crate::{
    cdi::{demand::CdiOptions, state::CdiState, survey::CdiSurvey},
    cli::InspectArgs,
    configuration::saved::last_config,
    container_runtime::node_runtime::{self, with_cdi_file},
    devices::state::DeviceSnapshot,
    driver::{
        hardware::{DriverState, Hardware},
        hardware_probe::DriverRoots,
    },
    health::node_health::NodeHealth,
    runtime::blocking_thread::BlockingThread,
    status::{
        inputs::{AgentIdentity, StatusInputs},
        report::status,
    },
};
use anyhow::{Context as _, Result, bail, ensure};
use gpunode_config::AgentConfig;
use gpunode_crds::RuntimeStatus;
use gpunode_gpu::{InjectionWays, NodeSurroundings, desired_devices, diagnose, findings_table, is_without_gpus};
use neighbours::Neighbours;
use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    time::Duration,
};
use tokio::time::timeout;

/// Maximum time for the driver. A driver that has to load its firmware takes some ten seconds for a GPU.
const DRIVER_TIMEOUT: Duration = Duration::from_mins(2);

/// Maximum time for folders of the host, which may lie on a file system that hangs.
const FOLDERS_TIMEOUT: Duration = Duration::from_secs(5);

/// Columns of the table.
const WIDTH: usize = 80;

/// Prints the findings. Fails afterwards if pods on this node would get no GPU.
pub async fn inspect(args: InspectArgs) -> Result<()> {
    let roots = args.driver.roots();
    ensure!(
        roots.host_root.is_dir(),
        "inspect the node: {} is not a directory; on the node itself, pass --host-root /",
        roots.host_root.display()
    );
    let files = BlockingThread::default();
    let runtime = node_runtime::read(&roots, &files, None).await;
    let read_folders = move || {
        let (kubelet_root, device_plugins) = args.kubelet_folders();
        let neighbours = Neighbours::find(&kubelet_root, &device_plugins);
        (neighbours, last_config(&args.state_dir()))
    };
    let folders = timeout(FOLDERS_TIMEOUT, files.run(read_folders));
    let (neighbours, config) = folders.await.ok().and_then(Result::ok).unwrap_or_default();
    // Without a configuration, that of a policy that sets nothing.
    let config = config.unwrap_or_default();
    let hardware = probe(roots.clone()).await?;
    let runtime = match CdiOptions::of(&config) {
        Some(options) if hardware.driver == DriverState::Answers => {
            let offered = offered(&hardware, &config);
            with_cdi(&runtime, roots, hardware.clone(), options, &files, &offered).await
        }
        _ => runtime,
    };
    let inputs = StatusInputs {
        hardware: &hardware,
        snapshot: &DeviceSnapshot::default(),
        health: &NodeHealth::default(),
        runtime: Some(&runtime),
        plugin: None,
    };
    let gpus = hardware.inventory().map_or(&[][..], |inventory| &inventory.gpus);
    let surroundings = NodeSurroundings {
        ways: InjectionWays::of(&config),
        outside_fabric: gpus.iter().filter(|gpu| gpu.waits_for_fabric()).count(),
        other_plugins: &neighbours.plugins,
        dra_drivers: &neighbours.dra_drivers,
        ..NodeSurroundings::default()
    };
    let findings = diagnose(&status(&AgentIdentity::default(), inputs), &surroundings);
    let table = findings_table(&findings, Some(WIDTH));
    write!(io::stdout(), "{table}").context("print the findings")?;
    if is_without_gpus(&findings) {
        bail!("pods on this node would get no GPU");
    }
    Ok(())
}

/// Returns the UUIDs of the devices that pods can get.
fn offered(hardware: &Hardware, config: &AgentConfig) -> BTreeSet<String> {
    let desired = hardware
        .inventory()
        .and_then(|inventory| desired_devices(inventory, config).ok());
    let devices = desired.into_iter().flat_map(|desired| desired.devices);
    devices.map(|desired| desired.device.uuid).collect()
}

/// Adds to the runtime what the CDI file of an agent would leave out of the devices that pods can get.
async fn with_cdi(
    runtime: &RuntimeStatus,
    roots: DriverRoots,
    hardware: Hardware,
    options: CdiOptions,
    files: &BlockingThread,
    offered: &BTreeSet<String>,
) -> RuntimeStatus {
    let survey = files.run(move || CdiSurvey::without_install(&roots, &hardware, Some(&options)));
    let Ok(Ok(survey)) = timeout(FOLDERS_TIMEOUT, survey).await else {
        return runtime.clone();
    };
    let mut cdi = CdiState {
        problem: survey.problem,
        ..CdiState::default()
    };
    (cdi.described, cdi.left_out) = (survey.description.described, survey.description.left_out);
    with_cdi_file(runtime, Some(&cdi), |uuid| offered.contains(uuid))
}

/// Probes the hardware once.
async fn probe(roots: DriverRoots) -> Result<Hardware> {
    let sysfs = roots.clone();
    let probe = tokio::task::spawn_blocking(move || {
        let call = roots.calls.begin().context("query the driver: the GPUs are released")?;
        Ok(roots.probe(None, false, &call).1)
    });
    match timeout(DRIVER_TIMEOUT, probe).await {
        Ok(probed) => probed.context("query the driver")?,
        Err(_) => Ok(Hardware {
            driver: DriverState::Failed(format!(
                "the driver does not answer within {DRIVER_TIMEOUT:?}; see `dmesg`, and reset the GPU or reboot the node"
            )),
            ..sysfs.read_sysfs()
        }),
    }
}
