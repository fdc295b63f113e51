//! `gpunode-agent mps-exec`: executes a program with a driver root, or that of the host, as its `/`, and mounts the folder of one
//! device and its shared memory there. The mounts are private to the program and end with it.

use anyhow::{Context as _, Result, bail};
use clap::Args;
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change},
    process::{chdir, chroot, fchdir},
    thread::UnshareFlags,
};
use std::{
    convert::Infallible,
    ffi::OsString,
    fs,
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    path::{Component, Path, PathBuf},
    process::Command,
};

/// Options of the tmpfs on a folder of the driver root, in which the device's folder is created; it holds only folders.
const TMPFS_DATA: &std::ffi::CStr = c"mode=0755,size=64k";

/// Arguments of `mps-exec`.
#[derive(Debug, Args)]
pub struct MpsExecArgs {
    /// Root of the program.
    #[arg(long)]
    pub root: PathBuf,

    /// Folder to mount under the same path in ROOT.
    #[arg(long)]
    pub folder: PathBuf,

    /// Folder to mount as /dev/shm in ROOT.
    #[arg(long)]
    pub shm: PathBuf,

    /// Program, as a path in ROOT, and its arguments.
    #[arg(last = true, required = true)]
    pub program: Vec<PathBuf>,
}

impl MpsExecArgs {
    /// Returns the arguments for this agent, up to `--` and the program.
    pub fn arguments(root: &Path, folder: &Path, shm: &Path) -> [OsString; 7] {
        let [root, folder, shm] = [root, folder, shm].map(|path| path.as_os_str().to_owned());
        [
            "mps-exec".into(),
            "--root".into(),
            root,
            "--folder".into(),
            folder,
            "--shm".into(),
            shm,
        ]
    }
}

/// Replaces this process with the program; returns only on failure.
pub fn exec(args: &MpsExecArgs) -> Result<Infallible> {
    unshare_mounts().context("create a mount namespace; does the container run privileged?")?;
    // Opened before the root changes, and in the new namespace: only its own mounts can be mounted again.
    let folder = open(&args.folder)?;
    let shm = open(&args.shm)?;
    chroot(&args.root).with_context(|| format!("change the root to {}", args.root.display()))?;
    chdir("/").context("go to the new root")?;

    let first = first_folder(&args.folder)?;
    create_folder(&first)?;
    mount(
        "tmpfs",
        &first,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        TMPFS_DATA,
    )
    .with_context(|| format!("mount a tmpfs on {} in the driver root", first.display()))?;
    create_folder(&args.folder)?;
    bind(&folder, &args.folder)?;
    let dev_shm = Path::new("/dev/shm");
    create_folder(dev_shm)?;
    bind(&shm, dev_shm)?;
    chdir("/").context("go to the new root")?;

    let (program, arguments) = args.program.split_first().context("no program is named")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("start {} in the root {}", program.display(), args.root.display()))
}

#[expect(
    deprecated,
    reason = "the replacement is unsafe because of file descriptor tables, which stay shared here"
)]
fn unshare_mounts() -> rustix::io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    // Unmounts of the host propagate here; otherwise a daemon would keep volumes of other pods busy.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
}

fn open(folder: &Path) -> Result<OwnedFd> {
    openat(
        CWD,
        folder,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .with_context(|| format!("open {}", folder.display()))
}

/// Mounts a folder, with the mounts in it, from outside the new root: only the working directory may be out there.
fn bind(folder: &OwnedFd, target: &Path) -> Result<()> {
    fchdir(folder)
        .and_then(|()| mount_bind_recursive(".", target))
        .with_context(|| format!("mount the device's folder on {} in the driver root", target.display()))
}

fn create_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("create {} in the driver root", path.display()))
}

/// Returns the first component of a path: `/run` of `/run/gpunode/mps/UUID`.
fn first_folder(folder: &Path) -> Result<PathBuf> {
    let mut components = folder.components();
    match (components.next(), components.next()) {
        (Some(Component::RootDir), Some(Component::Normal(first))) => Ok(Path::new("/").join(first)),
        _ => bail!("the device's folder {} is not an absolute path", folder.display()),
    }
}
