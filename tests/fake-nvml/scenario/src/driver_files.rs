//! Files of a driver of R580 as its packages install them on Debian: libraries with their links, programs, firmware, and files of
//! graphics loaders. NVML is another file, which is simulated.

use crate::{Scenario, elf_library::shared_library};
use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

/// Link to NVML, by which programs ask for it.
const NVML_LINK: &str = "libnvidia-ml.so.1";

/// Content of what stands for `nvidia-cdi-hook` of 1.18.0 and newer: the names of its hooks, by which it can be recognised.
pub const HOOK_PROGRAM: &[u8] =
    b"\x7fELF create-symlinks update-ldcache enable-cuda-compat disable-device-node-modification\n";

/// Folder of libraries below the driver's root.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Libraries with the driver's version in their names: path below the folder of libraries, the number of the `soname`, and true for
/// a link without a number. Without that number the `soname` is the name of the file.
const VERSIONED: [(&str, &str, bool); 27] = [
    ("libcuda", "1", true),
    ("libcudadebugger", "1", false),
    ("libnvcuvid", "1", true),
    ("libnvidia-allocator", "1", true),
    ("libnvidia-cfg", "1", true),
    ("libnvidia-encode", "1", true),
    ("libnvidia-eglcore", "", false),
    ("libnvidia-fbc", "1", true),
    ("libnvidia-glcore", "", false),
    ("libnvidia-glsi", "", false),
    ("libnvidia-glvkspirv", "", false),
    ("libnvidia-gpucomp", "", false),
    ("libnvidia-ngx", "1", false),
    ("libnvidia-nvvm", "4", true),
    ("libnvidia-opencl", "1", false),
    ("libnvidia-opticalflow", "1", false),
    ("libnvidia-pkcs11-openssl3", "", false),
    ("libnvidia-ptxjitcompiler", "1", true),
    ("libnvidia-rtcore", "", false),
    ("libnvidia-sandboxutils", "1", true),
    ("libnvidia-tls", "", false),
    ("libnvoptix", "1", false),
    ("libEGL_nvidia", "0", false),
    ("libGLESv1_CM_nvidia", "1", false),
    ("libGLESv2_nvidia", "2", false),
    ("libGLX_nvidia", "0", false),
    ("vdpau/libvdpau_nvidia", "1", false),
];
/// Libraries with another version, and their `soname`.
const OTHERS: [(&str, &str); 2] = [
    ("libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-gbm.so.1"),
    ("libnvidia-egl-wayland.so.1.1.19", "libnvidia-egl-wayland.so.1"),
];
/// Libraries that no container should get: of the distribution, and of a driver that was removed incompletely.
const FOREIGN: [&str; 3] = ["libc.so.6", "libGL.so.1.7.0", "libnvidia-glcore.so.535.86.05"];
const PROGRAMS: [&str; 5] = [
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-modprobe",
    "nvidia-persistenced",
    "nvidia-xconfig",
];
const CONFIGS: [&str; 6] = [
    "etc/OpenCL/vendors/nvidia.icd",
    "etc/vulkan/icd.d/nvidia_icd.json",
    "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "usr/share/nvidia/nvoptix.bin",
    "usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
];
const FIRMWARE: [&str; 2] = ["gsp_ga10x.bin", "gsp_tu10x.bin"];

impl Scenario {
    /// Writes the files of the driver below `root`, except NVML. Files that are there are replaced.
    pub fn write_driver(&self, root: &Path) -> io::Result<()> {
        let (version, libraries) = (&self.driver_version, root.join(LIBRARIES));
        fs::create_dir_all(root.join("usr/lib"))?;
        link("usr/lib", &root.join("lib"))?;
        for (library, number, has_plain) in VERSIONED {
            let file = format!("{library}.so.{version}");
            let name = file.rsplit('/').next().unwrap_or(&file);
            let plain = library.rsplit('/').next().unwrap_or(library);
            let soname = if number.is_empty() {
                name.to_owned()
            } else {
                format!("{plain}.so.{number}")
            };
            let path = libraries.join(&file);
            write(&path, &shared_library(&soname))?;
            if soname != name {
                link(name, &path.with_file_name(&soname))?;
            }
            if has_plain {
                link(&soname, &path.with_file_name(format!("{plain}.so")))?;
            }
        }
        for (file, soname) in OTHERS {
            write(&libraries.join(file), &shared_library(soname))?;
            link(file, &libraries.join(soname))?;
        }
        for file in FOREIGN {
            write(&libraries.join(file), &shared_library(file))?;
        }
        fs::create_dir_all(libraries.join("gbm"))?;
        link("../libnvidia-allocator.so.1", &libraries.join("gbm/nvidia-drm_gbm.so"))?;
        for program in PROGRAMS {
            let path = root.join("usr/bin").join(program);
            write(&path, b"#!/bin/sh\n")?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        for config in CONFIGS {
            write(&root.join(config), b"{}\n")?;
        }
        for file in FIRMWARE {
            let folder = root.join("usr/lib/firmware/nvidia").join(version);
            write(&folder.join(file), b"firmware\n")?;
        }
        let xorg = root.join("usr/lib/xorg/modules");
        write(&xorg.join("drivers/nvidia_drv.so"), &shared_library("nvidia_drv.so"))?;
        let server = format!("libglxserver_nvidia.so.{version}");
        write(
            &xorg.join("extensions").join(&server),
            &shared_library("libglxserver_nvidia.so"),
        )
    }

    /// Installs the simulated NVML at `library` below `root`: a file with the driver's version in its name, and the link that programs
    /// ask for. Each comes whole, as somebody may be looking for it. Returns the path of the file.
    pub fn install_nvml(&self, root: &Path, library: &Path) -> io::Result<PathBuf> {
        let folder = root.join(LIBRARIES);
        fs::create_dir_all(&folder)?;
        let path = folder.join(self.nvml_name());
        let new = folder.join("new");
        fs::copy(library, &new)?;
        fs::rename(new, &path)?;
        link(&self.nvml_name(), &folder.join(NVML_LINK))?;
        Ok(path)
    }

    /// Returns the name of the file of NVML.
    pub fn nvml_name(&self) -> String {
        format!("libnvidia-ml.so.{}", self.driver_version)
    }

    /// Removes the libraries of the driver below `root`, NVML among them, as its package does before an upgrade.
    pub fn remove_libraries(&self, root: &Path) -> io::Result<()> {
        let end = format!(".so.{}", self.driver_version);
        for folder in [root.join(LIBRARIES), root.join(LIBRARIES).join("vdpau")] {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().ends_with(&end) {
                    fs::remove_file(entry.path())?;
                }
            }
        }
        Ok(())
    }
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content)
}

/// Replaces the link at `path` in one step.
fn link(target: &str, path: &Path) -> io::Result<()> {
    let new = path.with_file_name("new-link");
    symlink(target, &new)?;
    fs::rename(new, path)
}
