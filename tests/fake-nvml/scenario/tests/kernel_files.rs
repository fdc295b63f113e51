//! Files of the kernel module and device nodes, as MIG instances come and go.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    fmt, fs,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use gpunode_scenario::{
    AdditionalBoards, DriverState, Gpu, KernelFiles, MigGroup, MigState, ReturnCode, Scenario, StateFile, Topology,
};

const LIMIT: Duration = Duration::from_secs(10);

/// A node with an A100 that has MIG on, one that has not, and a T4.
struct Node {
    folder: tempfile::TempDir,
    files: KernelFiles,
}

impl Node {
    fn new(instances: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut scenario = Scenario::new("n", "NVIDIA A100-SXM4-80GB", 2, Topology::NvSwitch);
        scenario.additional = vec![AdditionalBoards {
            board: "Tesla T4".to_owned(),
            count: 1,
            topology: Topology::Pcie,
        }];
        scenario.mig = vec![MigGroup {
            gpus: vec![0],
            instances: instances.iter().map(|name| (*name).to_owned()).collect(),
        }];
        scenario.save(folder.path()).unwrap();
        let files = KernelFiles {
            proc_driver: folder.path().join("proc/driver"),
            devices: vec![folder.path().join("dev"), folder.path().join("run/nvidia/driver/dev")],
            make_node: |path, _| symlink("/dev/null", path),
        };
        let node = Node { folder, files };
        node.files.write(&node.gpus()).unwrap();
        node
    }

    fn dir(&self) -> &Path {
        self.folder.path()
    }

    fn gpus(&self) -> Vec<Gpu> {
        DriverState::gpus(self.dir()).unwrap()
    }

    fn change<T>(&self, change: impl FnOnce(&Gpu, &mut MigState) -> Result<T, ReturnCode>) -> T {
        let gpu = Scenario::load(self.dir()).unwrap().gpus().unwrap().remove(0);
        let changed = DriverState::update_mig(self.dir(), &gpu, |mig| change(&gpu, mig));
        changed.unwrap().unwrap()
    }

    /// Creates a GPU instance of a profile with the compute instance that fills it.
    fn create(&self, name: &str) {
        let scenario = Scenario::load(self.dir()).unwrap();
        self.change(|gpu, mig| {
            let mut profiles = gpu.board.mig_profiles().into_iter();
            let profile = profiles.find(|profile| profile.name == name).unwrap();
            let key = mig.create_instance(gpu.board, &profile, None)?;
            let whole = profile.compute_profiles().pop().unwrap();
            mig.create_compute_instance(&scenario, gpu, key, &whole, None)
        });
    }

    /// Folders below that of all capabilities, `gpu0/mig/gi7/ci0`, that have a file `access`, or are empty.
    fn shown(&self) -> BTreeSet<String> {
        let root = self.files.proc_driver.join("nvidia/capabilities");
        let mut shown = BTreeSet::new();
        let mut left = vec![root.clone()];
        while let Some(folder) = left.pop() {
            // It may go meanwhile.
            let Ok(entries) = fs::read_dir(&folder) else {
                continue;
            };
            let entries: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            if entries.is_empty() || folder.join("access").exists() {
                shown.insert(folder.strip_prefix(&root).unwrap().to_string_lossy().into_owned());
            }
            left.extend(entries.into_iter().filter(|path| path.is_dir()));
        }
        shown
    }

    /// The N of each `nvidia-capN` in each `dev`.
    fn nodes(&self) -> [BTreeSet<u32>; 2] {
        [0, 1].map(|dev| {
            let folder = self.files.devices[dev].join("nvidia-caps");
            let entries = fs::read_dir(folder).into_iter().flatten();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.map(|name| name["nvidia-cap".len()..].parse().unwrap()).collect()
        })
    }

    fn await_shown(&self, expected: &[&str]) {
        let expected: BTreeSet<String> = expected.iter().map(|path| (*path).to_owned()).collect();
        await_equal(|| self.shown(), &expected);
    }

    /// Whoever follows a node makes the nodes after the files, and those of one `dev` after those of the other.
    fn await_nodes(&self, expected: &[u32]) {
        let expected: BTreeSet<u32> = expected.iter().copied().collect();
        await_equal(|| self.nodes(), &[expected.clone(), expected]);
    }
}

/// Waits until what is seen is `expected`. A look that finds it is enough: the next one may come while a file is being written.
fn await_equal<T: PartialEq + fmt::Debug>(seen: impl Fn() -> T, expected: &T) {
    let end = Instant::now() + LIMIT;
    loop {
        let now = seen();
        if now == *expected {
            return;
        }
        assert!(Instant::now() < end, "expected {expected:?}, seen last {now:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Ends the thread that follows a node also when a check fails: its scope waits for it.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn files_come_a_moment_after_instances_and_go_with_them_while_nodes_stay_until_a_boot() {
    let node = Node::new(&["3g.40gb"]);
    let half = ["gpu0/mig/gi1", "gpu0/mig/gi1/ci0"];
    node.await_shown(&[half[0], half[1], "gpu1/mig"]);
    node.await_nodes(&[1, 2, 12, 13]);
    let state = StateFile::open(node.dir()).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| node.files.follow(node.dir(), || is_over.load(Ordering::Relaxed)));
        let _end = End(&is_over);
        node.create("1g.10gb");
        let small = ["gpu0/mig/gi13", "gpu0/mig/gi13/ci0"];
        node.await_shown(&[half[0], half[1], small[0], small[1], "gpu1/mig"]);
        node.change(|_, mig| {
            let large = mig.instances[0].clone();
            let compute = &large.compute_instances[0];
            let key = (large.id, large.serial);
            mig.destroy_compute_instance(key, (compute.id, compute.serial))?;
            mig.destroy_instance(key)
        });
        node.await_shown(&[small[0], small[1], "gpu1/mig"]);

        // The file comes later than somebody who looks at once.
        state.delay_kernel_files(300).unwrap();
        let start = Instant::now();
        node.create("2g.20gb");
        let id = node.gpus()[0].mig.as_ref().unwrap()[0].id;
        let two = [format!("gpu0/mig/gi{id}"), format!("gpu0/mig/gi{id}/ci0")];
        node.await_shown(&[&two[0], &two[1], small[0], small[1], "gpu1/mig"]);
        assert!(start.elapsed() >= Duration::from_millis(300));
        // Those of the instances that are gone stay.
        let access = 3 + 9 * id;
        node.await_nodes(&[1, 2, 12, 13, 120, 121, access, access + 1]);
    });
    state.reboot().unwrap();
    node.files.forget_nodes().unwrap();
    node.files.write(&node.gpus()).unwrap();
    node.await_shown(&["gpu0/mig", "gpu1/mig"]);
    node.await_nodes(&[1, 2]);
}

#[test]
fn processes_work_on_the_device_with_a_uuid() {
    let node = Node::new(&["3g.40gb"]);
    let state = StateFile::open(node.dir()).unwrap();
    let gpus = node.gpus();
    let (half, compute) = gpus[0].mig_devices().next().unwrap();
    state.start_process(&compute.uuid, 7).unwrap();
    state.start_process(&gpus[1].uuid, 8).unwrap();
    let now = state.read().unwrap();
    let instances = [0, 1].map(|gpu| now.gpu(gpu).processes[0].instance);
    assert_eq!(instances, [Some((half.id, 0)), None]);
    assert!(now.gpu(0).uses_instance(half.id, Some(0)));
    let unknown = state.start_process("MIG-0", 9).unwrap_err();
    assert_eq!(unknown.to_string(), "the node has neither a GPU nor a MIG device MIG-0");
    state.end_process(7).unwrap();
    let now = state.read().unwrap();
    assert_eq!((now.gpu(0).processes.len(), now.gpu(1).processes.len()), (0, 1));
}

#[test]
fn another_minor_number_moves_the_files_of_a_gpu_until_a_boot() {
    let node = Node::new(&["7g.80gb"]);
    node.change(|_, mig| {
        mig.minor = Some(9);
        Ok(())
    });
    assert_eq!(node.gpus().iter().map(|gpu| gpu.minor).collect::<Vec<_>>(), [9, 1, 2]);
    node.files.write(&node.gpus()).unwrap();
    node.await_shown(&["gpu9/mig/gi0", "gpu9/mig/gi0/ci0", "gpu1/mig"]);
    let table = fs::read_to_string(node.files.proc_driver.join("nvidia-caps/mig-minors")).unwrap();
    assert!(table.contains("\ngpu9/gi0/ci0/access "), "{table}");
    assert!(node.files.devices[0].join("nvidia9").is_symlink());
    StateFile::open(node.dir()).unwrap().reboot().unwrap();
    node.files.write(&node.gpus()).unwrap();
    node.await_shown(&["gpu0/mig", "gpu1/mig"]);
}
