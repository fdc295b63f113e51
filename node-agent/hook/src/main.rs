//! Hooks that a container runtime runs while it creates a container with GPUs: `gpunode-hook HOOK [OPTION...] [then HOOK...]`.
//!
//! The CDI file of a node names NVIDIA's `nvidia-cdi-hook` where the node has one, else this program. Hooks and options have the same
//! names, so that what a container gets does not depend on the program (source: NVIDIA/nvidia-container-toolkit,
//! `cmd/nvidia-cdi-hook`).
//!
//! The hooks run as root of the host, in the mount namespace of a container whose image nobody has checked, before the runtime changes
//! the root. Four rules keep an image from using that:
//! - Every path of the container is resolved by the kernel below the container's root (`openat2` with `RESOLVE_IN_ROOT`), in
//!   `container_root` alone. Nothing is checked first and opened by name afterwards (CVE-2024-0132, CVE-2025-23359).
//! - The program is linked statically, reads no environment variable and starts no program: `LD_PRELOAD` of an image has no effect
//!   (CVE-2025-23266), and no `ldconfig` reads the files of the container.
//! - Files and links are made in the container's root file system and in the `/dev` that the runtime made for it, never in a volume:
//!   it may be a folder of the host. They copy nothing from a volume either.
//! - Everything that is read has a size limit and is a regular file, none of `/proc`, `/sys` and other file systems of the kernel, and
//!   the program ends after 20 seconds.
//!
//! | module | what it does |
//! |---|---|
//! | `command_line` | the hooks and their options |
//! | `confinement` | environment, file mode mask, folder and time limit of the process |
//! | `container_state` | finds the container's root file system and its mounts |
//! | `container_root` | reads and changes files below the container's root |
//! | `create_symlinks` | the hook `create-symlinks` |
//! | `update_ldcache` | the hook `update-ldcache` |
//! | `ld_so_conf` | folders of `/etc/ld.so.conf` |
//! | `library_scan` | shared libraries of a folder |
//! | `elf` | type, name and notes of a shared library |
//! | `ld_so_cache` | the format of `/etc/ld.so.cache` |
//! | `driver_params` | the hook `disable-device-node-modification` |
//! | `cuda_compat` | the hook `enable-cuda-compat` |
//! | `bounded_read` | reads with a size limit |
//! | `hook_error` | errors and their texts |

mod bounded_read;
mod command_line;
mod confinement;
mod container_root;
mod container_state;
mod create_symlinks;
mod cuda_compat;
mod driver_params;
mod elf;
mod hook_error;
mod ld_so_cache;
mod ld_so_conf;
mod library_scan;
mod update_ldcache;

use crate::{
    command_line::HookCommand,
    container_root::ContainerRoot,
    hook_error::{HookError, say},
};
use std::{env, fs::File, io, path::Path, process::ExitCode};

/// Parameters of the loaded driver, on the host and in a container.
const PARAMS: &str = "/proc/driver/nvidia/params";
/// Limit on their size in bytes; drivers have 1 or 2 KiB of them.
const MAX_PARAMS: u64 = 1024 * 1024;

fn main() -> ExitCode {
    match confinement::confine().and_then(|()| run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), HookError> {
    let commands = command_line::parse(env::args_os().skip(1))?;
    let (path, mounts) = container_state::root_and_mounts(io::stdin().lock())?;
    let root = ContainerRoot::open(&path)?.with_mounts(mounts);
    commands.into_iter().try_for_each(|command| run_hook(command, &root))
}

fn run_hook(command: HookCommand, root: &ContainerRoot) -> Result<(), HookError> {
    match command {
        HookCommand::Unsupported(hook) => {
            // As NVIDIA's program does: a CDI file may be newer than the program that it names.
            say(&format!("skipping {hook:?}, a hook that this version does not have"));
            Ok(())
        }
        HookCommand::CreateSymlinks(links) => create_symlinks::create(root, &links),
        HookCommand::UpdateLdcache(folders) => update_ldcache::update(root, &folders),
        HookCommand::DisableDeviceNodeModification => match host_params()? {
            Some(params) => driver_params::cover(root, Path::new(PARAMS), &params),
            None => Ok(()),
        },
        HookCommand::EnableCudaCompat(host) => cuda_compat::enable(root, &host),
    }
}

/// Returns the changed parameters of the loaded driver; `None` if a container may have those of the host.
fn host_params() -> Result<Option<String>, HookError> {
    match File::open(PARAMS).and_then(|file| bounded_read::read(file, MAX_PARAMS)) {
        Ok(text) => Ok(driver_params::without_device_files(&String::from_utf8_lossy(&text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(HookError::Host {
            action: "read",
            path: PARAMS.into(),
            source,
        }),
    }
}
