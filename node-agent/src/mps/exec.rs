//! `gpunode-agent mps-exec`: becomes another program that sees a driver root as its `/`, with the folder of one device and
//! its shared memory in it. Nobody else sees these mounts, and they end with the program.

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

/// What is mounted over a folder of the driver root so that the device's folder can be made in it: only folders.
const TMPFS_DATA: &std::ffi::CStr = c"mode=0755,size=64k";

/// Which program is started, and what it sees.
#[derive(Debug, Args)]
pub struct MpsExecArgs {
    /// What the program sees as its root.
    #[arg(long)]
    pub root: PathBuf,

    /// Folder that it sees under the same path.
    #[arg(long)]
    pub folder: PathBuf,

    /// Folder that it sees as /dev/shm.
    #[arg(long)]
    pub shm: PathBuf,

    /// The program below ROOT, and its arguments.
    #[arg(last = true, required = true)]
    pub program: Vec<PathBuf>,
}

impl MpsExecArgs {
    /// The arguments of this agent that say so, before `--` and the program.
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

/// Returns only where the program could not be started.
pub fn exec(args: &MpsExecArgs) -> Result<Infallible> {
    leave_the_mounts_of_others().context("make a mount namespace; does the container run privileged?")?;
    // Taken before the root changes, and in the new namespace, whose mounts alone can be mounted again.
    let folder = open(&args.folder)?;
    let shm = open(&args.shm)?;
    chroot(&args.root).with_context(|| format!("change the root to {}", args.root.display()))?;
    chdir("/").context("go to the new root")?;

    let first = first_folder(&args.folder)?;
    make_folder(&first)?;
    mount(
        "tmpfs",
        &first,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        TMPFS_DATA,
    )
    .with_context(|| format!("mount a tmpfs on {} in the driver root", first.display()))?;
    make_folder(&args.folder)?;
    bind(&folder, &args.folder)?;
    let dev_shm = Path::new("/dev/shm");
    make_folder(dev_shm)?;
    bind(&shm, dev_shm)?;
    chdir("/").context("go to the new root")?;

    let (program, arguments) = args.program.split_first().context("no program is named")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("start {} in the root {}", program.display(), args.root.display()))
}

#[expect(
    deprecated,
    reason = "what takes its place is unsafe for the sake of file descriptor tables, which stay shared here"
)]
fn leave_the_mounts_of_others() -> rustix::io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    // What the host unmounts later is unmounted here too; otherwise a daemon would keep volumes of other pods busy.
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

/// Mounts a folder, and what is mounted in it, that is outside of the root by now: the working directory may be.
fn bind(folder: &OwnedFd, target: &Path) -> Result<()> {
    fchdir(folder)
        .and_then(|()| mount_bind_recursive(".", target))
        .with_context(|| format!("mount the device's folder on {} in the driver root", target.display()))
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("make {} in the driver root", path.display()))
}

/// `/run` of `/run/gpunode/mps/UUID`.
fn first_folder(folder: &Path) -> Result<PathBuf> {
    let mut components = folder.components();
    match (components.next(), components.next()) {
        (Some(Component::RootDir), Some(Component::Normal(first))) => Ok(Path::new("/").join(first)),
        _ => bail!("the device's folder {} is no absolute path", folder.display()),
    }
}
