use super::*;
use crate::driver::hardware_probe::DriverRoots;
use gpunode_scenario::{Scenario, Topology};
use std::{os::unix::fs::symlink, os::unix::net::UnixListener, path::PathBuf};

const VERSION: &str = "580.95.05";
const FOLDER: &str = "/usr/lib/x86_64-linux-gnu";

/// A host with a driver in a folder of its own, as its packages install it.
struct Host {
    folder: tempfile::TempDir,
    root: &'static str,
}

impl Host {
    fn new(root: &'static str) -> Self {
        let host = Self {
            folder: tempfile::tempdir().unwrap(),
            root,
        };
        let scenario = Scenario::new("node", "Tesla T4", 1, Topology::Pcie);
        scenario.write_driver(&host.driver()).unwrap();
        fs::write(host.driver().join(&FOLDER[1..]).join("libnvidia-ml.so.1"), "").unwrap();
        for path in ["/run/nvidia-persistenced", "/run/udev"] {
            fs::create_dir_all(host.at(path)).unwrap();
        }
        UnixListener::bind(host.at("/run/nvidia-persistenced/socket")).unwrap();
        fs::create_dir(host.folder.path().join("dev")).unwrap();
        for node in ["nvidiactl", "nvidia-uvm"] {
            host.add_node(node);
        }
        host
    }

    fn add_node(&self, name: &str) {
        symlink("/dev/null", self.folder.path().join("dev").join(name)).unwrap();
    }

    /// The driver's root in this container.
    fn driver(&self) -> PathBuf {
        self.folder.path().join(self.root.trim_start_matches('/'))
    }

    fn at(&self, path: &str) -> PathBuf {
        self.driver().join(path.trim_start_matches('/'))
    }

    fn read(&self, options: &CdiOptions) -> Result<DriverContent, ContentError> {
        let roots = DriverRoots::of_host(self.folder.path());
        let driver = FoundDriver {
            root: self.root.into(),
            mounted: self.driver(),
            library: self.at(FOLDER).join("libnvidia-ml.so.1"),
        };
        read(&DeviceNodeFinder::of(&roots), &driver, VERSION, options)
    }

    fn content(&self) -> DriverContent {
        self.read(&CdiOptions::default()).unwrap()
    }
}

fn names(content: &DriverContent) -> Vec<&str> {
    let paths = content.libraries.iter().map(|library| library.file.container.as_str());
    paths.map(|path| path.rsplit_once('/').unwrap().1).collect()
}

fn paths(files: &[HostFile]) -> Vec<&str> {
    files.iter().map(|file| file.container.as_str()).collect()
}

#[test]
fn libraries_are_those_of_the_version_in_their_own_folder() {
    let content = Host::new("/run/nvidia/driver").content();
    let names = names(&content);
    assert_eq!(content.library_folders, [FOLDER]);
    for name in [
        "libcuda.so.580.95.05",
        "libnvidia-ptxjitcompiler.so.580.95.05",
        "libvdpau_nvidia.so.580.95.05",
        "libnvidia-egl-gbm.so.1.1.2",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    assert!(
        !names
            .iter()
            .any(|name| name.contains("535") || name.starts_with("libc."))
    );
    let files = content.libraries.iter().map(|library| &library.file);
    assert!(
        files
            .clone()
            .all(|file| file.host == format!("/run/nvidia/driver{}", file.container))
    );
    let unique: BTreeSet<_> = files.map(|file| &file.container).collect();
    assert_eq!(unique.len(), content.libraries.len(), "/lib is a link to /usr/lib");
}

#[test]
fn a_library_has_its_soname_and_the_links_of_the_host() {
    let content = Host::new("/").content();
    let library = |name: &str| {
        let end = format!("/{name}.so.{VERSION}");
        let mut libraries = content.libraries.iter();
        libraries
            .find(|library| library.file.container.ends_with(&end))
            .unwrap()
    };
    let cuda = library("libcuda");
    assert_eq!(cuda.soname.as_deref(), Some("libcuda.so.1"));
    assert_eq!(cuda.links, ["libcuda.so", "libcuda.so.1"].map(str::to_owned).into());
    assert_eq!(cuda.file.host, cuda.file.container);
    let core = library("libnvidia-glcore");
    assert_eq!(core.soname.as_deref(), Some("libnvidia-glcore.so.580.95.05"));
    assert!(core.links.is_empty());
}

#[test]
fn programs_firmware_sockets_and_files_of_loaders_are_where_containers_look_for_them() {
    let host = Host::new("/run/nvidia/driver");
    let content = host.content();
    let files = paths(&content.files);
    for path in [
        "/usr/bin/nvidia-smi",
        "/usr/bin/nvidia-xconfig",
        "/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin",
        "/lib/firmware/nvidia/580.95.05/gsp_tu10x.bin",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/usr/share/nvidia/nvoptix.bin",
        "/etc/OpenCL/vendors/nvidia.icd",
        "/etc/vulkan/icd.d/nvidia_icd.json",
        "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
        "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.580.95.05",
    ] {
        assert!(files.contains(&path), "{path}: {files:?}");
    }
    assert!(
        !files.contains(&"/usr/bin/nvidia-modprobe"),
        "it is of no use in a container"
    );
    let layers = content
        .files
        .iter()
        .find(|file| file.container.contains("nvidia_layers"));
    assert_eq!(
        layers.unwrap().host,
        "/run/nvidia/driver/usr/share/vulkan/implicit_layer.d/nvidia_layers.json"
    );
    let firmware = content.files.iter().find(|file| file.container.contains("gsp_ga10x"));
    assert_eq!(
        firmware.unwrap().host,
        "/run/nvidia/driver/usr/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin",
        "without the link /lib"
    );
    assert_eq!(paths(&content.sockets), ["/run/nvidia-persistenced/socket"]);
    fs::remove_file(host.at("/run/nvidia-persistenced/socket")).unwrap();
    assert!(host.content().sockets.is_empty());
}

#[test]
fn firmware_is_also_where_an_administrator_has_put_it() {
    let host = Host::new("/");
    let parameter = host.folder.path().join(FIRMWARE_PATH);
    fs::create_dir_all(parameter.parent().unwrap()).unwrap();
    fs::write(parameter, "/opt/firmware/\n").unwrap();
    fs::create_dir_all(host.at("/opt/firmware/nvidia/580.95.05")).unwrap();
    fs::write(host.at("/opt/firmware/nvidia/580.95.05/gsp_gb20x.bin"), "").unwrap();
    let content = host.content();
    assert!(paths(&content.files).contains(&"/opt/firmware/nvidia/580.95.05/gsp_gb20x.bin"));
}

#[test]
fn a_program_that_nobody_can_execute_is_none() {
    let host = Host::new("/");
    fs::set_permissions(host.at("/usr/bin/nvidia-smi"), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(!paths(&host.content().files).contains(&"/usr/bin/nvidia-smi"));
}

#[test]
fn links_of_alternatives_lead_to_the_folder_of_the_driver() {
    let host = Host::new("/");
    let current = host.at("/usr/lib/nvidia/current");
    fs::create_dir_all(&current).unwrap();
    let entries: Vec<_> = fs::read_dir(host.at(FOLDER)).unwrap().collect();
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(VERSION) {
            fs::rename(&path, current.join(name)).unwrap();
            symlink(format!("/usr/lib/nvidia/current/{name}"), &path).unwrap();
        }
    }
    let content = host.content();
    assert_eq!(content.library_folders, ["/usr/lib/nvidia/current"]);
    assert!(names(&content).contains(&"libcuda.so.580.95.05"));
}

#[test]
fn libraries_and_programs_are_found_in_the_folders_of_distributions() {
    let host = Host::new("/");
    let library = format!("/libcuda.so.{VERSION}");
    for (from, to, name) in [
        (FOLDER, "/usr/local/glibc/usr/lib", library.as_str()),
        ("/usr/bin", "/usr/libexec/nvidia/tesla/bin", "/nvidia-smi"),
        (
            "/usr/share",
            "/run/opengl-driver/share",
            "/glvnd/egl_vendor.d/10_nvidia.json",
        ),
    ] {
        let to = host.at(&format!("{to}{name}"));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::rename(host.at(&format!("{from}{name}")), to).unwrap();
    }
    let content = host.content();
    assert!(content.library_folders.contains(&"/usr/local/glibc/usr/lib".to_owned()));
    let host_of = |container: &str| {
        let mut files = content.files.iter();
        let file = files.find(|file| file.container == container).unwrap();
        file.host.as_str()
    };
    assert_eq!(
        host_of("/usr/bin/nvidia-smi"),
        "/usr/libexec/nvidia/tesla/bin/nvidia-smi"
    );
    assert_eq!(
        host_of("/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
        "/run/opengl-driver/share/glvnd/egl_vendor.d/10_nvidia.json"
    );
}

#[test]
fn without_libcuda_or_the_nodes_of_the_driver_there_is_nothing_and_the_reason_names_the_file() {
    let host = Host::new("/run/nvidia/driver");
    let reason = || host.read(&CdiOptions::default()).unwrap_err().to_string();
    fs::remove_file(host.folder.path().join("dev/nvidia-uvm")).unwrap();
    assert!(
        reason().starts_with("find /dev/nvidia-uvm below /run/nvidia/driver and /: no device node"),
        "{}",
        reason()
    );
    fs::remove_file(host.at(&format!("{FOLDER}/libcuda.so.{VERSION}"))).unwrap();
    assert!(
        reason().starts_with("find libcuda.so.580.95.05 below /run/nvidia/driver: not found"),
        "{}",
        reason()
    );
}

#[test]
fn files_of_gpudirect_storage_come_with_its_device_nodes() {
    let host = Host::new("/");
    fs::write(host.at("/etc/cufile.json"), "{}").unwrap();
    let gds = CdiOptions {
        gds: true,
        ..CdiOptions::default()
    };
    let has_files = |options: &CdiOptions| {
        let content = host.read(options).unwrap();
        let files = paths(&content.files);
        files.contains(&"/run/udev") && files.contains(&"/etc/cufile.json")
    };
    assert!(!has_files(&gds), "without a device node");
    host.add_node("nvidia-fs0");
    assert!(has_files(&gds) && !has_files(&CdiOptions::default()));
}
