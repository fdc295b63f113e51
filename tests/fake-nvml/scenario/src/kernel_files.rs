//! Files in which a node shows its GPUs and MIG instances: those of the kernel module in `/proc/driver`, and device nodes.
//!
//! The library changes MIG in a file of its own and cannot write these, as NVML cannot: on a real node the kernel module shows an
//! instance, and `nvidia-modprobe` makes the device nodes, both a moment after the call. Whoever keeps a simulated node does the same
//! with [`KernelFiles`].

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::{
    DriverState, FolderWatch, Gpu, Scenario, State, StateError,
    capabilities::{capabilities, mig_minors},
    shared_file::file_error,
};

/// Table of the device nodes of capabilities, below `/proc/driver`.
const MIG_MINORS: &str = "nvidia-caps/mig-minors";
/// Folder of the files of existing capabilities, below `/proc/driver`.
const CAPABILITIES: &str = "nvidia/capabilities";
/// Folder of the device nodes of capabilities, below a `dev`.
const CAPABILITY_NODES: &str = "nvidia-caps";
/// Time from a change to the files, unless [`State::kernel_ms`] says another.
const DELAY: Duration = Duration::from_millis(5);
/// Interval between looks for a driver.
const RETRY: Duration = Duration::from_millis(20);
/// Interval between looks at whether somebody still wants to follow.
const RECHECK: Duration = Duration::from_secs(1);

/// A device node of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceNode {
    /// `/dev/nvidiaN`.
    Gpu(u32),
    /// `/dev/nvidia-caps/nvidia-capN`.
    Capability(u32),
}

/// Makes a device node at a path.
pub type MakeNode = fn(&Path, DeviceNode) -> io::Result<()>;

/// Places of the files of a node.
#[derive(Debug, Clone)]
pub struct KernelFiles {
    /// Folder that the node sees as `/proc/driver`.
    pub proc_driver: PathBuf,
    /// Folders that get device nodes: its `/dev`, and that of a driver container.
    pub devices: Vec<PathBuf>,
    /// Makes them: real ones take root.
    pub make_node: MakeNode,
}

impl KernelFiles {
    /// Shows these GPUs and their MIG instances. Files of instances that are gone go; device nodes stay, as `nvidia-modprobe` removes
    /// none.
    pub fn write(&self, gpus: &[Gpu]) -> Result<(), StateError> {
        let table = self.proc_driver.join(MIG_MINORS);
        let text = mig_minors(gpus);
        if fs::read_to_string(&table).ok().as_ref() != Some(&text) {
            replace(&table, &text)?;
        }
        let root = self.proc_driver.join(CAPABILITIES);
        let existing = capabilities(gpus);
        remove_others(&root, &folders(gpus, &existing))?;
        for gpu in gpus.iter().filter(|gpu| gpu.board.max_mig_devices > 0) {
            create(&root.join(mig_folder(gpu)))?;
        }
        for (path, minor) in &existing {
            let path = root.join(path);
            if !path.exists() {
                let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n");
                replace(&path, &text)?;
            }
        }
        let gpus = gpus.iter().map(|gpu| DeviceNode::Gpu(gpu.minor));
        let capabilities = existing.values().map(|minor| DeviceNode::Capability(*minor));
        gpus.chain(capabilities).try_for_each(|node| self.make(node))
    }

    /// Removes the device nodes of MIG instances, as a boot does.
    pub fn forget_nodes(&self) -> Result<(), StateError> {
        self.devices.iter().try_for_each(|folder| {
            let folder = folder.join(CAPABILITY_NODES);
            match fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error("remove", &folder)(error)),
                _ => Ok(()),
            }
        })
    }

    /// Shows what programs change through the library in `dir`, until `is_over` is true a second later. A node whose files cannot be
    /// read or written now is tried again with the next change.
    pub fn follow(&self, dir: &Path, is_over: impl Fn() -> bool) {
        // A driver that is installed later.
        while !dir.is_dir() && !is_over() {
            thread::sleep(RETRY);
        }
        let watch = FolderWatch::new(dir);
        let mut shown = None;
        while !is_over() {
            let now = DriverState::load(dir).ok().map(|state| state.mig);
            if now.is_some() && now != shown {
                let state = State::load(dir).unwrap_or_default();
                thread::sleep(state.kernel_ms.map_or(DELAY, Duration::from_millis));
                // A node that is taken away meanwhile gets no new folder.
                if let Ok(settings) = DriverState::load(dir)
                    && let Ok(gpus) = present(dir, &settings)
                    && !is_over()
                    && self.write(&gpus).is_ok()
                {
                    shown = Some(settings.mig);
                }
            }
            watch.wait_until(Instant::now() + RECHECK);
        }
    }

    fn make(&self, node: DeviceNode) -> Result<(), StateError> {
        for folder in &self.devices {
            let path = match node {
                DeviceNode::Gpu(minor) => folder.join(format!("nvidia{minor}")),
                DeviceNode::Capability(minor) => folder.join(CAPABILITY_NODES).join(format!("nvidia-cap{minor}")),
            };
            if path.symlink_metadata().is_err() {
                create(path.parent().unwrap_or(folder))?;
                match (self.make_node)(&path, node) {
                    // Who follows the node has made it meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    made => made.map_err(file_error("make the device node", &path))?,
                }
            }
        }
        Ok(())
    }
}

impl DriverState {
    /// Returns the GPUs of the node whose library is in `dir`, with the MIG instances that they have now.
    pub fn gpus(dir: &Path) -> Result<Vec<Gpu>, StateError> {
        present(dir, &Self::load(dir)?)
    }
}

fn present(dir: &Path, settings: &DriverState) -> Result<Vec<Gpu>, StateError> {
    let gpus = Scenario::load(dir)?.gpus()?;
    Ok(gpus.iter().map(|gpu| settings.divided(gpu)).collect())
}

/// Folder of the instances of a GPU, which is there while it has none, too.
fn mig_folder(gpu: &Gpu) -> String {
    format!("gpu{}/mig", gpu.minor)
}

/// Folders that capabilities and GPUs have below that of all capabilities.
fn folders(gpus: &[Gpu], existing: &BTreeMap<String, u32>) -> Vec<PathBuf> {
    let of_gpus = gpus.iter().map(|gpu| PathBuf::from(mig_folder(gpu)));
    let of_capabilities = existing.keys().filter_map(|path| Path::new(path).parent());
    of_gpus.chain(of_capabilities.map(Path::to_owned)).collect()
}

/// Removes folders below `root` of which none of `kept` is a part.
fn remove_others(root: &Path, kept: &[PathBuf]) -> Result<(), StateError> {
    let mut left = vec![PathBuf::new()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(root.join(&folder)).into_iter().flatten().flatten() {
            let path = folder.join(entry.file_name());
            if !root.join(&path).is_dir() {
                continue;
            }
            if kept.iter().any(|kept| kept.starts_with(&path)) {
                left.push(path);
            } else {
                let path = root.join(path);
                match fs::remove_dir_all(&path) {
                    // Who follows the node has removed it meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed.map_err(file_error("remove", &path))?,
                }
            }
        }
    }
    Ok(())
}

fn create(folder: &Path) -> Result<(), StateError> {
    fs::create_dir_all(folder).map_err(file_error("create", folder))
}

/// Writes a file that a reader finds whole, in a folder that it makes.
fn replace(path: &Path, text: &str) -> Result<(), StateError> {
    create(path.parent().unwrap_or(path))?;
    let new = path.with_extension("new");
    fs::write(&new, text).map_err(file_error("write", &new))?;
    fs::rename(&new, path).map_err(file_error("replace", path))
}
