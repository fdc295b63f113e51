use super::*;
use crate::driver::{hardware::DriverState, nvml::DriverReading};
use gpunode_cdi::DevicesInUse;
use gpunode_gpu::{Gpu, Inventory};
use gpunode_scenario::{Scenario, Topology};
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

/// A host with a driver, NVIDIA's hook program and two GPUs.
struct Host {
    folder: tempfile::TempDir,
    hardware: watch::Sender<Option<Arc<Hardware>>>,
    demand: watch::Sender<Option<CdiDemand>>,
    keeper: CdiKeeper,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        Scenario::new("node", "Tesla T4", 2, Topology::Pcie)
            .write_driver(root)
            .unwrap();
        fs::write(root.join("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"), "").unwrap();
        let program = root.join("usr/bin/nvidia-cdi-hook");
        fs::write(&program, gpunode_scenario::HOOK_PROGRAM).unwrap();
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(root.join("dev")).unwrap();
        for node in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"] {
            symlink("/dev/null", root.join("dev").join(node)).unwrap();
        }
        let (hardware, hardware_receiver) = watch::channel(None);
        let (demand, demand_receiver) = watch::channel(None);
        let keeper = CdiKeeper {
            roots: DriverRoots::of_host(root),
            state_dir: root.join("var/lib/gpunode"),
            file: CdiFile::new(&root.join("var/run/cdi")),
            hardware: hardware_receiver,
            demand: demand_receiver,
            state: watch::Sender::default(),
            disk: BlockingThread::default(),
        };
        Self {
            folder,
            hardware,
            demand,
            keeper,
        }
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    /// The driver lists these GPUs; each has the device node with its own number.
    fn find(&self, uuids: &[&str]) {
        let minor = |uuid: &str| uuid.trim_start_matches("GPU-").parse::<u32>().unwrap();
        self.find_at(uuids.iter().map(|uuid| (*uuid, minor(uuid))));
    }

    /// The driver lists these GPUs, each with the number of its device node.
    fn find_at<'a>(&self, gpus: impl IntoIterator<Item = (&'a str, u32)>) {
        let gpu = |(uuid, minor): (&str, u32)| Gpu {
            uuid: uuid.to_owned(),
            minor: Some(minor),
            ..Gpu::default()
        };
        let inventory = Inventory {
            driver_version: Some("580.95.05".to_owned()),
            gpus: gpus.into_iter().map(gpu).collect(),
            ..Inventory::default()
        };
        let reading = DriverReading {
            inventory,
            ..DriverReading::default()
        };
        let hardware = Hardware {
            driver: DriverState::Answers,
            reading: Some(reading),
            ..Hardware::default()
        };
        self.hardware.send_replace(Some(Arc::new(hardware)));
    }

    fn want(&self, assigned: &[&str]) {
        self.demand.send_replace(Some(demand_for(assigned)));
    }

    /// No strategy uses the file any more.
    fn unuse(&self, held: &[&str]) {
        let in_use = DevicesInUse {
            held: held.iter().map(|uuid| (*uuid).to_owned()).collect(),
            ..demand_for(&["GPU-0", "GPU-1"]).in_use
        };
        self.demand.send_replace(Some(CdiDemand {
            in_use,
            ..CdiDemand::default()
        }));
    }

    /// Makes each write fail: the name of the temporary file is taken.
    fn block_writes(&self) {
        fs::create_dir_all(self.root().join("var/run/cdi/gpunode.dev-gpu.json.new")).unwrap();
    }

    /// Has the file of an agent that has ended.
    async fn describe_by_an_earlier_agent(&self, uuid: &str) {
        let task = tokio::spawn(self.keeper.clone().run());
        self.want(&[uuid]);
        self.find(&[uuid]);
        self.reaches(|state| state.described.len() == 1).await;
        task.abort();
        _ = task.await;
        self.keeper.state.send_replace(CdiState::default());
    }

    /// Waits for a state.
    async fn reaches(&self, condition: impl Fn(&CdiState) -> bool) -> CdiState {
        let mut state = self.keeper.state.subscribe();
        let reached = timeout(Duration::from_mins(1), state.wait_for(|state| condition(state))).await;
        reached.unwrap().unwrap().clone()
    }

    /// Names of the devices in the file.
    fn named(&self) -> Vec<String> {
        let devices = self
            .keeper
            .file
            .read()
            .unwrap()
            .map(|spec| spec.devices)
            .unwrap_or_default();
        devices.into_iter().map(|device| device.name).collect()
    }
}

fn demand_for(assigned: &[&str]) -> CdiDemand {
    CdiDemand {
        options: Some(CdiOptions::default()),
        in_use: DevicesInUse {
            assigned: assigned.iter().map(|uuid| (*uuid).to_owned()).collect(),
            is_complete: true,
            ..DevicesInUse::default()
        },
        ..CdiDemand::default()
    }
}

async fn eventually(condition: impl Fn() -> bool) {
    let poll = async {
        while !condition() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_mins(1), poll).await.unwrap();
}

#[tokio::test]
async fn the_file_follows_the_devices_and_keeps_those_in_use() {
    let host = Host::new();
    let _task = tokio::spawn(host.keeper.clone().run());
    host.want(&["GPU-0", "GPU-1"]);
    host.find(&["GPU-0", "GPU-1"]);
    let state = host.reaches(|state| state.described.len() == 2).await;
    assert_eq!(
        (state.problem, host.named()),
        (None, vec!["GPU-0".to_owned(), "GPU-1".to_owned()])
    );
    host.find(&["GPU-0"]);
    let state = host.reaches(|state| state.left_out.contains_key("GPU-1")).await;
    assert!(state.described.contains("GPU-0") && !state.described.contains("GPU-1"));
    assert_eq!(host.named(), ["GPU-0", "GPU-1"], "a container may restart");
    host.want(&["GPU-0"]);
    host.reaches(|state| state.left_out.is_empty()).await;
    assert_eq!(host.named(), ["GPU-0"]);
    host.want(&[]);
    host.find(&[]);
    eventually(|| !host.keeper.file.exists()).await;
    host.reaches(|state| state.described.is_empty() && state.left_out.is_empty() && state.problem.is_none())
        .await;
}

#[tokio::test]
async fn without_a_library_of_the_driver_there_is_no_file_and_the_state_says_why() {
    let host = Host::new();
    let library = host.root().join("usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05");
    fs::rename(&library, host.root().join("aside")).unwrap();
    let _task = tokio::spawn(host.keeper.clone().run());
    host.want(&["GPU-0"]);
    host.find(&["GPU-0"]);
    let state = host.reaches(|state| state.problem.is_some()).await;
    assert!(state.problem.unwrap().contains("libcuda.so.580.95.05"));
    assert!(!host.keeper.file.exists());
    fs::rename(host.root().join("aside"), library).unwrap();
    host.find(&["GPU-0"]);
    host.reaches(|state| state.described.len() == 1).await;
    assert_eq!(host.named(), ["GPU-0"]);
}

#[tokio::test]
async fn a_file_that_cannot_be_written_describes_nothing() {
    let host = Host::new();
    host.block_writes();
    let _task = tokio::spawn(host.keeper.clone().run());
    host.want(&["GPU-0"]);
    host.find(&["GPU-0"]);
    let state = host.reaches(|state| state.problem.is_some()).await;
    assert!(state.described.is_empty());
    assert!(state.problem.unwrap().starts_with("write the CDI file: "));
}

#[tokio::test]
async fn while_the_disk_fails_the_file_on_disk_counts_and_the_keeper_tries_again_soon() {
    let host = Host::new();
    host.describe_by_an_earlier_agent("GPU-0").await;
    host.block_writes();
    // The next agent finds the file, and adds to it.
    let _task = tokio::spawn(host.keeper.clone().run());
    host.find(&["GPU-0", "GPU-1"]);
    host.want(&["GPU-0", "GPU-1"]);
    let state = host.reaches(|state| !state.left_out.is_empty()).await;
    assert_eq!((state.described, state.problem), (["GPU-0".to_owned()].into(), None));
    assert!(state.left_out["GPU-1"].starts_with("write the CDI file: "));
    fs::remove_dir(host.root().join("var/run/cdi/gpunode.dev-gpu.json.new")).unwrap();
    host.reaches(|state| state.described.len() == 2).await;
}

#[tokio::test]
async fn a_survey_that_takes_longer_than_callers_wait_is_used_when_it_ends() {
    let host = Host::new();
    let gpu = (Arc::new(Hardware::default()), Some(CdiOptions::default()));
    let mut last = Some(LastSurvey {
        at: Instant::now(),
        hardware: gpu.0.clone(),
        options: gpu.1.clone(),
        running: JoinSet::new(),
        survey: None,
    });
    let (end, ends) = tokio::sync::oneshot::channel::<()>();
    last.as_mut().unwrap().running.spawn(async move {
        _ = ends.await;
        Ok(CdiSurvey::default())
    });
    tokio::time::pause();
    let slow = host.keeper.survey(&gpu.0, gpu.1.clone(), &mut last).await;
    assert!(matches!(slow, Err(KeepError::NoAnswer { .. })));
    tokio::time::resume();
    end.send(()).unwrap();
    // Another survey would find the driver missing.
    let survey = host.keeper.survey(&gpu.0, gpu.1.clone(), &mut last).await.unwrap();
    assert!(survey.problem.is_none() && last.unwrap().running.is_empty());
}

#[tokio::test]
async fn a_runtime_that_does_not_read_the_file_gets_no_names_and_the_file_stays() {
    let host = Host::new();
    let _task = tokio::spawn(host.keeper.clone().run());
    host.want(&["GPU-0"]);
    host.find(&["GPU-0"]);
    host.reaches(|state| state.described.len() == 1).await;
    host.demand.send_replace(Some(CdiDemand {
        unread: Some("another folder".to_owned()),
        ..demand_for(&["GPU-0"])
    }));
    let state = host.reaches(|state| state.described.is_empty()).await;
    assert_eq!(state.problem.as_deref(), Some("another folder"));
    assert_eq!(host.named(), ["GPU-0"], "a container may restart");
    host.want(&["GPU-0"]);
    host.reaches(|state| state.described.len() == 1).await;
}

#[tokio::test]
async fn without_a_strategy_that_uses_it_the_file_keeps_what_containers_hold_and_then_goes() {
    let host = Host::new();
    let _task = tokio::spawn(host.keeper.clone().run());
    host.want(&["GPU-0", "GPU-1"]);
    host.find(&["GPU-0", "GPU-1"]);
    host.reaches(|state| state.described.len() == 2).await;
    host.unuse(&["GPU-1"]);
    eventually(|| host.named() == ["GPU-1"]).await;
    host.reaches(|state| state.described.is_empty() && state.problem.is_none())
        .await;
    // Its container may restart with another driver.
    let program = host.root().join("usr/bin/nvidia-cdi-hook");
    let other = host.root().join("usr/bin/nvidia-ctk");
    fs::rename(program, other).unwrap();
    host.find(&["GPU-0", "GPU-1"]);
    let has_other = || {
        let spec = host.keeper.file.read().unwrap().unwrap();
        spec.devices.len() == 1
            && spec
                .container_edits
                .hooks
                .iter()
                .all(|hook| hook.path.ends_with("nvidia-ctk"))
    };
    eventually(has_other).await;
    host.unuse(&[]);
    eventually(|| !host.keeper.file.exists()).await;
}

#[tokio::test]
async fn a_device_whose_node_is_missing_is_left_out_and_the_others_are_not() {
    let host = Host::new();
    fs::remove_file(host.root().join("dev/nvidia1")).unwrap();
    let _task = tokio::spawn(host.keeper.clone().run());
    host.want(&["GPU-0", "GPU-1"]);
    host.find(&["GPU-0", "GPU-1"]);
    let state = host.reaches(|state| !state.left_out.is_empty()).await;
    assert_eq!(state.described, ["GPU-0".to_owned()].into());
    assert!(state.left_out["GPU-1"].contains("/dev/nvidia1"));
    assert_eq!(host.named(), ["GPU-0"]);
}

#[tokio::test]
async fn a_file_that_somebody_removed_is_made_again() {
    let host = Host::new();
    let _task = tokio::spawn(host.keeper.clone().run());
    host.want(&["GPU-0"]);
    host.find(&["GPU-0"]);
    host.reaches(|state| state.described.len() == 1).await;
    fs::remove_dir_all(host.root().join("var/run/cdi")).unwrap();
    host.want(&["GPU-0"]);
    eventually(|| host.named() == ["GPU-0"]).await;
}

#[tokio::test]
async fn while_the_disk_hangs_a_gpu_with_another_device_node_than_on_the_file_has_no_name() {
    let host = Host::new();
    let _task = tokio::spawn(host.keeper.clone().run());
    host.want(&["GPU-0", "GPU-1"]);
    host.find(&["GPU-0", "GPU-1"]);
    host.reaches(|state| state.described.len() == 2).await;
    let (tell, begun) = tokio::sync::oneshot::channel::<()>();
    let (release, hangs) = std::sync::mpsc::channel::<()>();
    let disk = host.keeper.disk.clone();
    tokio::spawn(async move { disk.run(move || (tell.send(()), hangs.recv())).await });
    begun.await.unwrap();
    // The driver was loaded again.
    host.find_at([("GPU-0", 0), ("GPU-1", 2)]);
    let state = host.reaches(|state| state.described.len() < 2).await;
    assert_eq!(state.described, ["GPU-0".to_owned()].into());
    drop(release);
}

#[tokio::test]
async fn until_the_driver_answers_the_file_of_an_earlier_agent_counts() {
    let host = Host::new();
    host.describe_by_an_earlier_agent("GPU-0").await;
    let waiting = Hardware {
        driver: DriverState::Waiting("no answer yet".to_owned()),
        ..Hardware::default()
    };
    host.hardware.send_replace(Some(Arc::new(waiting)));
    host.want(&["GPU-0", "GPU-1"]);
    let _task = tokio::spawn(host.keeper.clone().run());
    let state = host.reaches(|state| state.inputs.is_some()).await;
    assert_eq!((state.described, state.problem), (["GPU-0".to_owned()].into(), None));
    assert_eq!(state.left_out["GPU-1"], "no answer yet");
}

#[tokio::test]
async fn without_a_strategy_that_uses_it_the_file_keeps_the_optional_parts_that_containers_have() {
    let host = Host::new();
    let channels = host.root().join("dev/nvidia-caps-imex-channels");
    fs::create_dir(&channels).unwrap();
    symlink("/dev/null", channels.join("channel0")).unwrap();
    let _task = tokio::spawn(host.keeper.clone().run());
    host.demand.send_replace(Some(CdiDemand {
        options: Some(CdiOptions {
            imex_channels: vec![0],
            ..CdiOptions::default()
        }),
        ..demand_for(&["GPU-0", "GPU-1"])
    }));
    host.find(&["GPU-0", "GPU-1"]);
    host.reaches(|state| state.described.len() == 2).await;
    host.unuse(&["GPU-1"]);
    eventually(|| host.named() == ["GPU-1"]).await;
    let file = host.keeper.file.read().unwrap().unwrap();
    let mut nodes = file.container_edits.device_nodes.iter();
    assert!(nodes.any(|node| node.path == "/dev/nvidia-caps-imex-channels/channel0"));
}

#[tokio::test]
async fn without_a_strategy_that_uses_it_a_file_with_what_containers_hold_is_made_again_after_a_boot() {
    let host = Host::new();
    let _task = tokio::spawn(host.keeper.clone().run());
    host.unuse(&["GPU-1", "nic-0"]);
    host.find(&["GPU-0", "GPU-1"]);
    eventually(|| host.named() == ["GPU-1"]).await;
    host.unuse(&[]);
    eventually(|| !host.keeper.file.exists()).await;
}
