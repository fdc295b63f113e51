//! Finds the driver's files on the host.
//!
//! The lists are those of NVIDIA's `nvcdi` (nvidia-container-toolkit: `pkg/nvcdi/driver-nvml.go`, `internal/discover/graphics.go`,
//! `internal/discover/ipc.go`). Nearly every library has the driver's version in its name, so that no list of libraries is needed.

use super::{
    demand::CdiOptions,
    device_nodes::{DeviceNodeFinder, is_gds_node},
    driver_folder::DriverFolder,
    soname::soname,
};
use crate::{
    driver::library::{FoundDriver, LIBRARY_FOLDERS, PROGRAM_FOLDERS, join_roots},
    runtime::bounded_file,
};
use gpunode_cdi::{DriverContent, DriverLibrary, HostFile};
use rustix::system::uname;
use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt as _, path::Path};

/// Folder below a folder of libraries that has some more.
const VDPAU: &str = "vdpau";
/// Limit on libraries, above the number that any driver has.
const MAX_LIBRARIES: usize = 1000;

/// Beginnings of the names of libraries that have a version of their own, of at least two numbers.
const OTHER_VERSIONS: [&str; 5] = [
    "libnvidia-egl-gbm.so.",
    "libnvidia-egl-wayland.so.",
    "libnvidia-egl-wayland2.so.",
    "libnvidia-egl-xcb.so.",
    "libnvidia-egl-xlib.so.",
];
/// Beginning of the name of a library that has no version of the driver.
const NVVM: &str = "libnvidia-nvvm70.so.";

const PROGRAMS: [&str; 8] = [
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
];

/// `PATH` of containers whose image sets none (containerd, `pkg/oci/spec.go`).
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Folder in containers for programs of other folders.
const OTHER_PROGRAMS: &str = "/usr/bin";

const SOCKET_FOLDERS: [&str; 2] = ["/run", "/var/run"];
const SOCKETS: [&str; 2] = ["nvidia-persistenced/socket", "nvidia-fabricmanager/socket"];

/// File of the host that names one more folder of firmware.
const FIRMWARE_PATH: &str = "sys/module/firmware_class/parameters/path";
/// Limit on the length of that name, which is that of the kernel (`fw_path_para` of `drivers/base/firmware_loader/main.c`).
const MAX_FIRMWARE_PATH: u64 = 256;

/// Folders of files for loaders; the last one is that of NixOS (nixpkgs, `nixos/modules/hardware/graphics.nix`).
const CONFIG_FOLDERS: [&str; 4] = ["/etc", "/usr/local/share", "/usr/share", "/run/opengl-driver/share"];
/// Files for the loaders of graphics libraries, which look for them below `/usr/share` in containers.
const SHARED_CONFIGS: [&str; 9] = [
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
];
/// Files for loaders that look for them below `/etc` in containers. RPM packages name the file of Vulkan by architecture.
const ETC_CONFIGS: [&str; 6] = [
    "OpenCL/vendors/nvidia.icd",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
];
/// Folder of the files of Vulkan.
const VULKAN: &str = "vulkan/";

/// Folders of modules below a folder of the X server.
const XORG_MODULES: [&str; 4] = [
    "modules/drivers",
    "modules/extensions",
    "modules/updates/drivers",
    "modules/updates/extensions",
];
/// Folders of the X server that are not beside the driver's libraries.
const XORG_FOLDERS: [&str; 4] = ["/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64"];

/// Device nodes without which no container can compute. Where the kernel modules are loaded without NVIDIA's own `nvidia-modprobe`, and
/// after a boot, nobody makes the second one but that program, `nvidia-container-cli`, and CUDA on the host.
const REQUIRED_NODES: [&str; 2] = ["/dev/nvidiactl", "/dev/nvidia-uvm"];

/// Files of GPUDirect Storage, which belong to its device nodes.
const GDS_FILES: [&str; 2] = ["/run/udev", "/etc/cufile.json"];

/// Reason why a driver cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// The driver's files are not complete.
    #[error(
        "find {library} below {root}: not found; install all of the driver's libraries, of the version that is loaded"
    )]
    NoLibrary {
        /// Name of the library.
        library: String,
        /// Root of the driver on the host.
        root: String,
    },
    /// The driver's kernel modules are not loaded, or their device nodes are missing.
    #[error(
        "find {path} below {roots}: no device node; run nvidia-modprobe -u -c 0 on the node, after each boot, or name the folder \
         that has it in --dev-root"
    )]
    NoDeviceNode {
        /// Path of the device node.
        path: String,
        /// Folders of the host that were searched.
        roots: String,
    },
}

/// Finds the files and device nodes of a driver of that version. Blocks.
pub fn read(
    nodes: &DeviceNodeFinder<'_>,
    driver: &FoundDriver,
    version: &str,
    options: &CdiOptions,
) -> Result<DriverContent, ContentError> {
    let root = DriverFolder(driver);
    let (libraries, library_folders) = libraries(&root, version)?;
    let device_nodes = device_nodes(nodes, options)?;
    let has_gds = device_nodes.iter().any(|node| is_gds_node(&node.container));
    let gds_files = GDS_FILES.iter().filter(|_| has_gds);
    let files = programs(&root)
        .chain(firmware(nodes.host_root, &root, version))
        .chain(configs(&root))
        .chain(xorg(&root, version, &library_folders))
        .chain(gds_files.filter_map(|path| root.file(path, path)))
        .collect();
    let sockets = SOCKETS.iter().filter_map(|socket| {
        let paths = SOCKET_FOLDERS.map(|folder| format!("{folder}/{socket}"));
        paths.iter().find_map(|path| root.file(path, path))
    });
    Ok(DriverContent {
        version: version.to_owned(),
        library_folders,
        libraries,
        files,
        sockets: sockets.collect(),
        device_nodes,
    })
}

/// Returns the libraries, and the folders in containers that have those of the driver's version.
fn libraries(root: &DriverFolder<'_>, version: &str) -> Result<(Vec<DriverLibrary>, Vec<String>), ContentError> {
    let end = format!(".so.{version}");
    let beside_nvml = root.0.library.parent().and_then(|folder| root.below(folder));
    let searched: BTreeSet<String> = beside_nvml
        .into_iter()
        .chain(LIBRARY_FOLDERS.map(str::to_owned))
        .filter_map(|folder| root.resolve(&folder))
        .filter_map(|folder| root.below(&folder))
        .collect();
    let of_driver = paths(root, &searched, |name| name.starts_with("lib") && name.ends_with(&end));
    // Distributions with alternatives have links in the folders that were searched.
    let folders: BTreeSet<String> = of_driver
        .iter()
        .filter_map(|path| path.rsplit_once('/'))
        .map(|(folder, _)| folder.to_owned())
        .collect();
    let with_vdpau = folders
        .iter()
        .flat_map(|folder| [folder.clone(), format!("{folder}/{VDPAU}")])
        .collect();
    let mut found = paths(root, &with_vdpau, |name| name.ends_with(&end) || name.starts_with(NVVM));
    found.append(&mut paths(root, &searched, has_other_version));
    let cuda = format!("/libcuda{end}");
    if !found.iter().any(|path| path.ends_with(&cuda)) {
        return Err(ContentError::NoLibrary {
            library: format!("libcuda{end}"),
            root: root.0.root.display().to_string(),
        });
    }
    let libraries = found.iter().take(MAX_LIBRARIES);
    let libraries = libraries.filter_map(|path| library(root, path)).collect();
    Ok((libraries, folders.into_iter().collect()))
}

/// Returns the files in `folders` with accepted names, without links.
fn paths(root: &DriverFolder<'_>, folders: &BTreeSet<String>, accepts: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let of_folder = |folder: &String| {
        let names = root.names(folder).into_iter().filter(|name| accepts(name));
        let resolved = names.filter_map(|name| root.resolve(&format!("{folder}/{name}")));
        let files = resolved.filter(|path| path.is_file());
        files.filter_map(|path| root.below(&path)).collect::<Vec<_>>()
    };
    folders.iter().flat_map(of_folder).collect()
}

fn has_other_version(name: &str) -> bool {
    let mut versions = OTHER_VERSIONS.iter().filter_map(|start| name.strip_prefix(start));
    versions.any(|version| version.contains('.'))
}

fn library(root: &DriverFolder<'_>, path: &str) -> Option<DriverLibrary> {
    let resolved = root.resolve(path)?;
    let name = resolved.file_name()?.to_str()?.to_owned();
    let soname = soname(&resolved);
    let plain = name.split_once(".so.").map(|(library, _)| format!("{library}.so"));
    let is_link = |name: &String| {
        let link = fs::symlink_metadata(resolved.with_file_name(name));
        link.is_ok_and(|link| link.is_symlink())
    };
    Some(DriverLibrary {
        file: root.file(path, path)?,
        links: soname.iter().cloned().chain(plain).filter(is_link).collect(),
        soname,
    })
}

fn programs(root: &DriverFolder<'_>) -> impl Iterator<Item = HostFile> {
    let is_program = |path: &Path| {
        let meta = fs::metadata(path);
        meta.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    PROGRAMS.iter().filter_map(move |program| {
        let paths = PROGRAM_FOLDERS.map(|folder| format!("/{folder}/{program}"));
        let is_there = |path: &&String| root.resolve(path).is_some_and(|resolved| is_program(&resolved));
        let path = paths.iter().find(is_there)?;
        let is_in_path = PATH.split(':').any(|folder| *path == format!("{folder}/{program}"));
        let container = if is_in_path {
            path.clone()
        } else {
            format!("{OTHER_PROGRAMS}/{program}")
        };
        root.file(path, &container)
    })
}

/// Returns the firmware of the GPU's system processor, which the driver's libraries read too.
fn firmware(host_root: &Path, root: &DriverFolder<'_>, version: &str) -> impl Iterator<Item = HostFile> {
    let kernel = uname();
    let kernel = kernel.release().to_string_lossy();
    let folders = [
        format!("/lib/firmware/updates/{kernel}"),
        "/lib/firmware/updates".to_owned(),
        format!("/lib/firmware/{kernel}"),
        "/lib/firmware".to_owned(),
    ];
    let folders = firmware_path(host_root).into_iter().chain(folders);
    folders.flat_map(move |folder| {
        let folder = format!("{folder}/nvidia/{version}");
        let names = root.names(&folder).into_iter();
        let names = names.filter(|name| name.starts_with("gsp") && Path::new(name).extension() == Some("bin".as_ref()));
        names
            .filter_map(|name| {
                let path = format!("{folder}/{name}");
                root.file(&path, &path)
            })
            .collect::<Vec<_>>()
    })
}

/// Returns the folder of firmware that an administrator has set.
fn firmware_path(host_root: &Path) -> Option<String> {
    let text = bounded_file::start(&host_root.join(FIRMWARE_PATH), MAX_FIRMWARE_PATH).ok()?;
    let text = String::from_utf8(text).ok()?;
    let path = text.trim().trim_end_matches('/');
    path.starts_with('/').then(|| path.to_owned())
}

/// Returns the files that loaders of graphics libraries read.
fn configs(root: &DriverFolder<'_>) -> impl Iterator<Item = HostFile> {
    let find = move |config: &str, folder: &str| {
        // GKE has the files of Vulkan in the driver's root itself.
        let own = config.starts_with(VULKAN).then_some("");
        let mut folders = CONFIG_FOLDERS.into_iter().chain(own);
        let container = format!("{folder}/{config}");
        folders.find_map(|folder| root.file(&format!("{folder}/{config}"), &container))
    };
    let shared = SHARED_CONFIGS
        .iter()
        .filter_map(move |config| find(config, "/usr/share"));
    let etc = ETC_CONFIGS.iter().filter_map(move |config| find(config, "/etc"));
    shared.chain(etc)
}

/// Returns the modules of the X server.
fn xorg(root: &DriverFolder<'_>, version: &str, library_folders: &[String]) -> impl Iterator<Item = HostFile> {
    let modules = |folder: &str| XORG_MODULES.map(|modules| format!("{folder}/{modules}"));
    let of_libraries = library_folders.iter().flat_map(|folder| {
        let own = format!("{folder}/nvidia/xorg");
        [own].into_iter().chain(modules(&format!("{folder}/xorg")))
    });
    let others = XORG_FOLDERS.into_iter().flat_map(modules);
    let folders: Vec<String> = of_libraries.chain(others).collect();
    let names = ["nvidia_drv.so".to_owned(), format!("libglxserver_nvidia.so.{version}")];
    names.into_iter().filter_map(move |name| {
        folders.iter().find_map(|folder| {
            let path = format!("{folder}/{name}");
            root.file(&path, &path)
        })
    })
}

/// Returns the device nodes that belong to no single GPU.
fn device_nodes(host: &DeviceNodeFinder<'_>, options: &CdiOptions) -> Result<Vec<HostFile>, ContentError> {
    let nodes = host.common(options);
    for path in REQUIRED_NODES {
        if !nodes.iter().any(|node| node.container == path) {
            return Err(ContentError::NoDeviceNode {
                path: path.to_owned(),
                roots: join_roots(&host.roots.paths()),
            });
        }
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests;
