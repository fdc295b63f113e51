//! A node in a temporary folder: its host root with sysfs, device nodes and driver, and the kubelet's folder.

use crate::built::built;
use anyhow::{Context as _, Result};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use gpunode_scenario::{DriverState, Gpu, HOOK_PROGRAM, KernelFiles, Scenario, StateFile, Topology};
use serde_json::{Value, json};
use std::{
    fs, io,
    os::unix::{
        fs::{PermissionsExt as _, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};
use tempfile::TempDir;

/// Root of the driver below the host's.
const DRIVER: &str = "run/nvidia/driver";
/// Folder of the driver's library below its root.
const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";
/// The program of NVIDIA's container toolkit below the host's root.
const NVIDIA_CDI_HOOK: &str = "usr/bin/nvidia-cdi-hook";
/// Target of what stands for a device node, which only root can make.
const DEVICE_NODE: &str = "/dev/null";
/// Name of the node in Kubernetes.
pub const NAME: &str = "node";

/// A simulated node.
#[derive(Debug)]
pub struct Node {
    folder: TempDir,
    scenario: Scenario,
    /// Ends what follows the driver.
    exists: Arc<()>,
}

impl Node {
    /// A node with 8 V100 in a DGX-1.
    pub fn with_v100() -> Result<Self> {
        Self::new(Scenario::new("v100", "Tesla V100-SXM2-32GB", 8, Topology::Dgx1Volta))
    }

    /// A node with 4 T4 on PCIe.
    pub fn with_t4() -> Result<Self> {
        Self::new(Scenario::new("t4", "Tesla T4", 4, Topology::Pcie))
    }

    /// A node with the hardware of a scenario and its driver.
    pub fn new(scenario: Scenario) -> Result<Self> {
        let node = Self::without_driver(scenario)?;
        node.install_driver()?;
        Ok(node)
    }

    /// A node on which no driver is installed yet.
    pub fn without_driver(scenario: Scenario) -> Result<Self> {
        let node = Self {
            folder: tempfile::tempdir().context("make a folder for the node")?,
            scenario,
            exists: Arc::default(),
        };
        fs::create_dir_all(node.device_plugins())?;
        let devices = node.host_root().join("dev");
        fs::create_dir_all(&devices)?;
        for control in ["nvidiactl", "nvidia-uvm"] {
            symlink(DEVICE_NODE, devices.join(control))?;
        }
        let gpus = node.scenario.gpus()?;
        gpus.iter().try_for_each(|gpu| node.add_function(gpu))?;
        node.kernel_files().write(&gpus)?;
        if gpus.iter().any(|gpu| gpu.board.max_mig_devices > 0) {
            node.follow_driver();
        }
        node.install_toolkit()?;
        Ok(node)
    }

    /// The files in which the node shows its MIG instances.
    fn kernel_files(&self) -> KernelFiles {
        KernelFiles {
            proc_driver: self.host_root().join("proc/driver"),
            devices: vec![self.host_root().join("dev")],
            make_node: |path, _| symlink(DEVICE_NODE, path),
        }
    }

    /// Shows MIG instances that programs create and destroy, as the kernel module does, as long as the node exists.
    fn follow_driver(&self) {
        let (files, library) = (self.kernel_files(), self.library_folder());
        let node = Arc::downgrade(&self.exists);
        // It ends a second after the node at the latest, for which no test waits.
        thread::spawn(move || files.follow(&library, || node.strong_count() == 0));
    }

    fn add_function(&self, gpu: &Gpu) -> Result<()> {
        let [function, attached] = self.pci_folders(gpu);
        fs::create_dir_all(&function)?;
        fs::write(function.join("vendor"), "0x10de\n")?;
        fs::write(function.join("class"), format!("{:#08x}\n", gpu.board.pci_class()))?;
        fs::write(function.join("numa_node"), format!("{}\n", gpu.numa_node))?;
        Ok(fs::create_dir_all(attached)?)
    }

    /// The folders of a GPU in sysfs and among those that the kernel driver has.
    fn pci_folders(&self, gpu: &Gpu) -> [PathBuf; 2] {
        ["sys/bus/pci/devices", "proc/driver/nvidia/gpus"]
            .map(|folder| self.host_root().join(folder).join(&gpu.pci_bus_id))
    }

    /// Takes a GPU out of the machine: sysfs and new sessions with the driver no longer have it.
    pub fn unplug(&self, index: u32) -> Result<()> {
        for folder in self.pci_folders(&self.gpu(index)?) {
            fs::remove_dir_all(folder)?;
        }
        Ok(self.state()?.update_gpu(index, |gpu| gpu.unlisted = true)?)
    }

    /// Puts a GPU back.
    pub fn plug(&self, index: u32) -> Result<()> {
        self.state()?.update_gpu(index, |gpu| gpu.unlisted = false)?;
        self.add_function(&self.gpu(index)?)
    }

    fn gpu(&self, index: u32) -> Result<Gpu> {
        let mut gpus = self.scenario.gpus()?.into_iter();
        gpus.find(|gpu| gpu.index == index).context("no such GPU")
    }

    /// Puts the driver where a containerised driver puts it, with the socket of its persistence daemon.
    pub fn install_driver(&self) -> Result<()> {
        let (root, folder) = (self.driver_root(), self.library_folder());
        fs::create_dir_all(&folder)?;
        self.scenario.save(&folder)?;
        self.scenario.write_driver(&root).context("write the driver's files")?;
        let socket = root.join("run/nvidia-persistenced/socket");
        if !socket.exists() {
            fs::create_dir_all(socket.parent().context("the folder of the socket")?)?;
            UnixListener::bind(&socket).context("bind the socket of the persistence daemon")?;
        }
        // The library comes last: the agent may be looking for it.
        let installed = self.scenario.install_nvml(&root, &built()?.nvml);
        installed.context("install the simulated NVML")?;
        Ok(())
    }

    /// Moves the driver's library to another folder of the host. It is no longer where the other functions look for it.
    pub fn move_driver(&self, folder: &str) -> Result<()> {
        let folder = self.host_root().join(folder);
        fs::create_dir_all(folder.parent().context("the folder's parent")?)?;
        fs::rename(self.library_folder(), folder).context("move the driver")
    }

    /// Makes a symbolic link on the host.
    pub fn link(&self, path: &str, target: &str) -> Result<()> {
        let path = self.host_root().join(path);
        fs::create_dir_all(path.parent().context("the link's folder")?)?;
        symlink(target, path).with_context(|| format!("make a link to {target}"))
    }

    /// Installs NVIDIA's container toolkit on the host.
    fn install_toolkit(&self) -> Result<()> {
        let program = self.host_root().join(NVIDIA_CDI_HOOK);
        fs::create_dir_all(program.parent().context("the folder of the hook program")?)?;
        fs::write(&program, HOOK_PROGRAM)?;
        Ok(fs::set_permissions(program, fs::Permissions::from_mode(0o755))?)
    }

    /// Removes a library of the driver.
    pub fn remove_library(&self, library: &str) -> Result<()> {
        let name = format!("{library}.so.{}", self.scenario.driver_version);
        Ok(fs::remove_file(self.library_folder().join(name))?)
    }

    /// Takes the device node of a GPU away, or gives it back.
    pub fn set_device_node(&self, index: u32, is_there: bool) -> Result<()> {
        let path = self.host_root().join(format!("dev/nvidia{}", self.gpu(index)?.minor));
        if is_there {
            Ok(symlink(DEVICE_NODE, path)?)
        } else {
            Ok(fs::remove_file(path)?)
        }
    }

    /// Takes the driver's library away.
    pub fn remove_driver(&self) -> Result<()> {
        Ok(fs::remove_file(self.library())?)
    }

    /// Installs another version of the driver.
    pub fn upgrade_driver(&mut self, version: &str) -> Result<()> {
        self.scenario.remove_libraries(&self.driver_root())?;
        version.clone_into(&mut self.scenario.driver_version);
        self.install_driver()
    }

    /// Loads the driver's kernel module anew.
    pub fn load_module(&self) -> Result<()> {
        let module = self.host_root().join("sys/module/nvidia");
        // Made before the old one goes, so that it is another file.
        let new = module.with_file_name("new");
        fs::create_dir_all(&new)?;
        Ok(fs::rename(new, module)?)
    }

    /// Unloads the driver and loads it: with its kernel module go what it and the boards forget, and what the kernel shows of MIG.
    /// Processes of the node are the test's business.
    pub fn reload_driver(&self) -> Result<()> {
        self.state()?.reboot()?;
        self.kernel_files().write(&DriverState::gpus(&self.library_folder())?)?;
        self.load_module()
    }

    /// Reboots the machine: the driver with all of the above, device nodes, and the boot id.
    pub fn power_cycle(&self, boot_id: &str) -> Result<()> {
        self.kernel_files().forget_nodes()?;
        self.reload_driver()?;
        self.reboot(boot_id)
    }

    /// Gives the machine another boot id.
    pub fn reboot(&self, boot_id: &str) -> Result<()> {
        let file = self.host_root().join("proc/sys/kernel/random/boot_id");
        fs::create_dir_all(file.parent().context("the folder of the boot id")?)?;
        Ok(fs::write(file, boot_id)?)
    }

    /// Replaces the driver's library by its first `length` bytes.
    pub fn truncate_driver(&self, length: usize) -> Result<()> {
        let library = fs::read(&built()?.nvml).context("read the simulated NVML")?;
        let new = self.library_folder().join("new");
        fs::write(&new, library.get(..length).context("cut off the simulated NVML")?)?;
        Ok(fs::rename(new, self.library())?)
    }

    /// Returns the state of the GPUs, which tests change.
    pub fn state(&self) -> Result<StateFile> {
        Ok(StateFile::open(self.library_folder())?)
    }

    /// UUIDs of the GPUs, by index.
    pub fn uuids(&self) -> Result<Vec<String>> {
        Ok(self.scenario.gpus()?.into_iter().map(|gpu| gpu.uuid).collect())
    }

    /// UUIDs of the MIG devices that each GPU has now, by index.
    pub fn mig_uuids(&self) -> Result<Vec<Vec<String>>> {
        let gpus = DriverState::gpus(&self.library_folder())?;
        let of_gpu = |gpu: &Gpu| gpu.mig_devices().map(|(_, compute)| compute.uuid.clone()).collect();
        Ok(gpus.iter().map(of_gpu).collect())
    }

    /// The driver's library, to which `libnvidia-ml.so.1` is a link.
    pub fn library(&self) -> PathBuf {
        self.library_folder().join(self.scenario.nvml_name())
    }

    /// The folder of CDI files.
    pub fn cdi_dir(&self) -> PathBuf {
        self.path("cdi")
    }

    /// Returns the content of gpunode's CDI file; none without a file.
    pub fn cdi_file(&self) -> Result<Option<Value>> {
        match fs::read_to_string(self.cdi_dir().join("gpunode.dev-gpu.json")) {
            Ok(text) => Ok(Some(serde_json::from_str(&text).context("parse the CDI file")?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context("read the CDI file"),
        }
    }

    /// Root of the host.
    pub fn host_root(&self) -> PathBuf {
        self.path("host")
    }

    /// The kubelet's folder of device plugin sockets.
    pub fn device_plugins(&self) -> PathBuf {
        self.path("kubelet/device-plugins")
    }

    /// Removes the kubelet's folder of device plugin sockets with all that is in it.
    pub fn remove_device_plugins(&self) -> Result<()> {
        // In one step: an agent that sees its socket go makes a new one at once, and a folder with a file in it stays.
        let removed = self.path("kubelet/removed");
        fs::rename(self.device_plugins(), &removed)?;
        Ok(fs::remove_dir_all(removed)?)
    }

    /// The kubelet's root directory, which is not the usual one.
    pub fn kubelet_root(&self) -> PathBuf {
        self.path("kubelet")
    }

    /// The kubelet's PodResources socket.
    pub fn pod_resources(&self) -> PathBuf {
        self.kubelet_root().join("pod-resources/kubelet.sock")
    }

    /// The folder of MPS daemons.
    pub fn mps_dir(&self) -> PathBuf {
        self.path("mps")
    }

    /// The agent's state.
    pub fn state_dir(&self) -> PathBuf {
        self.path("host/var/lib/gpunode")
    }

    /// Writes the configuration file, of which an agent never reads a part.
    pub fn configure(&self, config: &str) -> Result<()> {
        let new = self.path("config.yaml.new");
        fs::write(&new, config)?;
        Ok(fs::rename(new, self.config())?)
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.path("config.yaml")
    }

    /// Saves an empty configuration, as an agent does that got it from the API server.
    pub fn save_config(&self) -> Result<()> {
        // The first eight bytes of the SHA-256 of `{}`.
        let hash = "44136fa355b3678a";
        let saved = json!({"format": 1, "node": NAME, "version": 1, "hash": hash, "document": "{}", "uid": null});
        fs::create_dir_all(self.state_dir())?;
        Ok(fs::write(self.state_dir().join("config.json"), saved.to_string())?)
    }

    /// Writes where the API server is, and the certificate (PEM) of its authority.
    pub fn kubeconfig(&self, url: &str, certificate: &str) -> Result<PathBuf> {
        let path = self.path("kubeconfig");
        let authority = BASE64_STANDARD.encode(certificate);
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": NAME,
            "clusters": [{"name": NAME, "cluster": {"server": url, "certificate-authority-data": authority}}],
            "users": [{"name": NAME, "user": {"token": NAME}}],
            "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        });
        fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// Names of gpunode's sockets in the kubelet's folder.
    pub fn sockets(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(self.device_plugins())?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names: Vec<String> = names.collect::<Result<_>>()?;
        Ok(names.into_iter().filter(|name| name.starts_with("gpunode-")).collect())
    }

    fn library_folder(&self) -> PathBuf {
        self.driver_root().join(LIBRARY_FOLDER)
    }

    fn driver_root(&self) -> PathBuf {
        self.host_root().join(DRIVER)
    }

    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(path)
    }
}
