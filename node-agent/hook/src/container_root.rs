//! The file system of a container, seen from the host while the container is created.
//!
//! Every path is resolved by one call of the kernel, `openat2` with `RESOLVE_IN_ROOT`: links of the image, absolute ones and those
//! with `..`, lead to places below the root, also if somebody changes them meanwhile (source: openat2(2)). Nothing is looked at by
//! name and used by name afterwards. Files to change or to copy must be in the root file system itself (`RESOLVE_NO_XDEV`), links also in
//! the `/dev` that the runtime made for the container: a volume can be a folder of the host or of another pod.

use crate::{bounded_read, container_state::ContainerMount, hook_error::HookError};
use rustix::{
    fd::{AsFd, AsRawFd as _, OwnedFd},
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, mkdirat, openat, openat2, readlinkat,
        renameat, symlinkat, unlinkat,
    },
    io::Errno,
};
use std::{
    ffi::OsStr,
    fs::{File, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
    process,
};

/// Tries while somebody renames folders on the way: the kernel then refuses to follow `..`.
const MAX_TRIES: usize = 256;
/// Limit on the names in a folder; a distribution's library folder has some thousand.
const MAX_NAMES: usize = 100_000;
/// Folder where the runtime mounts a file system of each container's own.
pub const DEV: &str = "/dev";
/// File systems whose files are made by the kernel when somebody reads them.
const KERNEL_FILE_SYSTEMS: [i64; 9] = [
    libc::PROC_SUPER_MAGIC,
    libc::SYSFS_MAGIC,
    libc::CGROUP_SUPER_MAGIC,
    libc::CGROUP2_SUPER_MAGIC,
    libc::BPF_FS_MAGIC,
    libc::DEBUGFS_MAGIC,
    libc::TRACEFS_MAGIC,
    libc::SECURITYFS_MAGIC,
    libc::SELINUX_MAGIC,
];

/// The root folder of a container.
#[derive(Debug)]
pub struct ContainerRoot {
    folder: OwnedFd,
    mounts: Vec<ContainerMount>,
}

/// A name in a folder of a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FolderName {
    /// Last part of the path.
    pub name: String,
    /// The name is that of a symbolic link.
    pub is_link: bool,
}

/// Identity of a file, whatever its path: device and inode.
pub type FileIdentity = (u64, u64);

impl ContainerRoot {
    /// Opens the root of a container at `path` on the host.
    pub fn open(path: &Path) -> Result<Self, HookError> {
        match openat(CWD, path, FOLDER, Mode::empty()) {
            Ok(folder) => Ok(Self {
                folder,
                mounts: Vec::new(),
            }),
            Err(error) => Err(HookError::Host {
                action: "open",
                path: path.to_owned(),
                source: error.into(),
            }),
        }
    }

    /// Tells the mounts of the container, which show whether its `/dev` is its own.
    pub fn with_mounts(self, mounts: Vec<ContainerMount>) -> Self {
        Self { mounts, ..self }
    }

    /// Returns a handle of what is at `path`, which does not open it: a device or a pipe stays untouched.
    pub fn handle(&self, path: &Path) -> io::Result<OwnedFd> {
        Ok(self.resolve(path, OFlags::PATH, ResolveFlags::empty())?)
    }

    /// Opens the regular file at `path` for reading.
    pub fn file(&self, path: &Path) -> io::Result<File> {
        self.file_within(path, ResolveFlags::empty())
    }

    fn file_within(&self, path: &Path, limits: ResolveFlags) -> io::Result<File> {
        let handle = File::from(self.resolve(path, OFlags::PATH, limits)?);
        let refused = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        if !handle.metadata()?.is_file() {
            return refused("no regular file");
        }
        // Root of the host reads there what no container may, and some reads have effects: /proc/kmsg takes messages from the log.
        if KERNEL_FILE_SYSTEMS.contains(&fstatfs(&handle)?.f_type) {
            return refused("a file of the kernel");
        }
        File::open(path_of(&handle))
    }

    /// Returns the content of the regular file at `path`, `None` if there is none.
    pub fn read(&self, path: &Path, max: u64) -> Result<Option<Vec<u8>>, HookError> {
        self.read_within(path, max, ResolveFlags::empty())
    }

    /// Returns the content of a file of the root file system alone, to write it again for every user of the container. In a volume,
    /// root of the host reads more than the container may.
    pub fn read_own(&self, path: &Path, max: u64) -> Result<Option<Vec<u8>>, HookError> {
        self.read_within(path, max, ResolveFlags::NO_XDEV)
    }

    fn read_within(&self, path: &Path, max: u64, limits: ResolveFlags) -> Result<Option<Vec<u8>>, HookError> {
        let file = self.file_within(path, limits);
        found(file.and_then(|file| bounded_read::read(file, max)))
            .map_err(|error| HookError::container("read", path, error))
    }

    /// Returns whether there is something at `path`.
    pub fn exists(&self, path: &Path) -> Result<bool, HookError> {
        match found(self.handle(path)) {
            Ok(handle) => Ok(handle.is_some()),
            Err(error) => Err(HookError::container("find", path, error)),
        }
    }

    /// Returns the identity of the folder at `path`, `None` if there is none.
    pub fn folder_identity(&self, path: &Path) -> Result<Option<FileIdentity>, HookError> {
        let folder = self.resolve(path, FOLDER, ResolveFlags::empty());
        found(folder.map_err(Into::into).and_then(|folder| identity_of(&folder)))
            .map_err(|error| HookError::container("open", path, error))
    }

    /// Returns the names in the folder at `path`, in order; none if there is no folder. Leaves names out that are not UTF-8.
    pub fn names(&self, path: &Path) -> Result<Vec<FolderName>, HookError> {
        let names = || -> io::Result<Vec<FolderName>> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let folder = Dir::new(self.resolve(path, flags, ResolveFlags::empty())?)?;
            let mut names = Vec::new();
            for entry in folder {
                let entry = entry?;
                if names.len() == MAX_NAMES {
                    return Err(io::Error::other(format!("more than {MAX_NAMES} files")));
                }
                if let Ok(name) = entry.file_name().to_str()
                    && !matches!(name, "." | "..")
                {
                    names.push(FolderName {
                        name: name.to_owned(),
                        is_link: entry.file_type() == FileType::Symlink,
                    });
                }
            }
            names.sort_unstable();
            Ok(names)
        };
        let names = found(names()).map_err(|error| HookError::container("list", path, error))?;
        Ok(names.unwrap_or_default())
    }

    /// Makes the symbolic link `link` to `target`, whose text the container's own programs will follow. Replaces what is at `link`;
    /// a link that has this target stays, wherever it is.
    pub fn link(&self, target: &Path, link: &Path) -> Result<(), HookError> {
        let make = || -> io::Result<()> {
            let (parent, name) = parent_and_name(link)?;
            let present = self
                .resolve(parent, FOLDER, ResolveFlags::empty())
                .and_then(|folder| readlinkat(folder, name, Vec::<u8>::new()));
            if present.is_ok_and(|present| present.as_bytes() == target.as_os_str().as_encoded_bytes()) {
                return Ok(());
            }
            let folder = self.folder_to_change(parent)?;
            replace(&folder, name, |temporary| Ok(symlinkat(target, &folder, temporary)?))
        };
        make().map_err(|error| HookError::container("make the link", link, error))
    }

    /// Replaces the file at `path`, which every user of the container may read.
    pub fn write(&self, path: &Path, content: &[u8]) -> Result<(), HookError> {
        let write = || -> io::Result<()> {
            let (parent, name) = parent_and_name(path)?;
            let folder = self.folder_to_change(parent)?;
            replace(&folder, name, |temporary| {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut file = File::from(openat(&folder, temporary, flags, Mode::RUSR | Mode::WUSR)?);
                let written = file
                    .write_all(content)
                    .and_then(|()| file.set_permissions(Permissions::from_mode(0o644)));
                if written.is_err() {
                    let _ = unlinkat(&folder, temporary, AtFlags::empty());
                }
                written
            })
        };
        write().map_err(|error| HookError::container("write", path, error))
    }

    /// Opens a folder to change it, of the root file system or below the container's own `/dev`; makes the folders that are missing.
    fn folder_to_change(&self, path: &Path) -> io::Result<OwnedFd> {
        if let Ok(below) = path.strip_prefix(DEV)
            && let Some(dev) = self.own_dev()
        {
            return folder_below(&dev, below);
        }
        folder_below(&self.folder, path)
    }

    /// Returns the folder `/dev` if the runtime made its file system for this container. A volume comes as a mount of another type,
    /// and may get there through a link of the image.
    fn own_dev(&self) -> Option<OwnedFd> {
        let is_own = |mount: &&ContainerMount| mount.kind == "tmpfs" && mount.destination == Path::new(DEV);
        let (own, others): (Vec<_>, Vec<_>) = self.mounts.iter().partition(is_own);
        let folder = self.resolve(Path::new(DEV), FOLDER, ResolveFlags::empty()).ok()?;
        let identity = identity_of(&folder).ok()?;
        let is_elsewhere = |mount: &ContainerMount| {
            let there = self.folder_identity(&mount.destination);
            there.is_ok_and(|there| there != Some(identity))
        };
        (!own.is_empty() && others.into_iter().all(is_elsewhere)).then_some(folder)
    }

    fn resolve(&self, path: &Path, flags: OFlags, limits: ResolveFlags) -> rustix::io::Result<OwnedFd> {
        resolve_below(&self.folder, path, flags, limits)
    }
}

/// Flags of a handle of a folder.
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Returns the path by which the kernel names what this process has opened: the host's own `/proc`, which no image can change.
pub fn path_of(handle: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()))
}

fn resolve_below(base: &OwnedFd, path: &Path, flags: OFlags, limits: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    let limits = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | limits;
    for _ in 0..MAX_TRIES {
        match openat2(base, path, flags | OFlags::CLOEXEC, Mode::empty(), limits) {
            Err(Errno::AGAIN) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens the folder `path` below `base`, in the same file system; makes the folders that are missing.
fn folder_below(base: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let mut reached = PathBuf::from("/");
    let mut folder = resolve_below(base, &reached, FOLDER, ResolveFlags::NO_XDEV)?;
    for part in path.components() {
        match part {
            Component::RootDir => continue,
            Component::Normal(name) => reached.push(name),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain absolute path")),
        }
        folder = match resolve_below(base, &reached, FOLDER, ResolveFlags::NO_XDEV) {
            Err(Errno::NOENT) => {
                let name = reached.file_name().unwrap_or_default();
                match mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                resolve_below(base, &reached, FOLDER, ResolveFlags::NO_XDEV)?
            }
            resolved => resolved?,
        };
    }
    Ok(folder)
}

fn identity_of(folder: &OwnedFd) -> io::Result<FileIdentity> {
    let stat = fstat(folder)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Makes a file or link under a temporary name in `folder` and renames it.
fn replace(folder: &OwnedFd, name: &OsStr, make: impl Fn(&str) -> io::Result<()>) -> io::Result<()> {
    for attempt in 0..MAX_TRIES {
        let temporary = format!(".gpunode-hook-{}-{attempt}", process::id());
        match make(&temporary) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(()) => {
                return renameat(folder, &temporary, folder, name).map_err(|error| {
                    let _ = unlinkat(folder, &temporary, AtFlags::empty());
                    error.into()
                });
            }
        }
    }
    Err(Errno::EXIST.into())
}

fn parent_and_name(path: &Path) -> io::Result<(&Path, &OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if path.is_absolute() => Ok((parent, name)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not an absolute path of a file",
        )),
    }
}

/// Returns `None` for what is not there.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::{
        env, fs,
        os::unix::fs::{MetadataExt as _, symlink},
        process::Command,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    /// Set in the mount namespace of a test.
    const IN_NAMESPACE: &str = "GPUNODE_HOOK_IN_NAMESPACE";

    /// Runs the ignored test `name` again in a mount namespace of its own, where it does `test`.
    pub fn in_mount_namespace(name: &str, test: impl FnOnce()) {
        if env::var_os(IN_NAMESPACE).is_some() {
            return test();
        }
        let status = Command::new("unshare")
            .arg("--mount")
            .arg(env::current_exe().unwrap())
            .args(["--exact", "--ignored", name])
            .env(IN_NAMESPACE, "yes")
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// A host folder that nobody may touch, and a container's root beside it.
    struct Host {
        folder: tempfile::TempDir,
        root: ContainerRoot,
    }

    impl Host {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("rootfs/etc")).unwrap();
            fs::create_dir_all(folder.path().join("secret")).unwrap();
            fs::write(folder.path().join("secret/file"), "of the host").unwrap();
            let root = ContainerRoot::open(&folder.path().join("rootfs")).unwrap();
            Self { folder, root }
        }

        fn inside(&self, path: &str) -> PathBuf {
            self.folder.path().join("rootfs").join(path)
        }

        fn secret(&self) -> PathBuf {
            self.folder.path().join("secret")
        }

        fn assert_untouched(&self) {
            let names: Vec<_> = fs::read_dir(self.secret())
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            assert_eq!(names, ["file"]);
            assert_eq!(fs::read_to_string(self.secret().join("file")).unwrap(), "of the host");
        }
    }

    #[test]
    fn links_of_an_image_lead_nowhere_outside_the_root() {
        let host = Host::new();
        for (name, target) in [
            ("absolute", host.secret()),
            ("relative", PathBuf::from("../secret")),
            (
                "far",
                PathBuf::from("../../../../../../../../../../").join(host.secret().strip_prefix("/").unwrap()),
            ),
            (
                "magic",
                PathBuf::from("/proc/self/root").join(host.secret().strip_prefix("/").unwrap()),
            ),
        ] {
            symlink(&target, host.inside(name)).unwrap();
            let path = Path::new("/").join(name);
            assert_eq!(host.root.read(&path.join("file"), 100).unwrap(), None, "{name}");
            assert!(host.root.names(&path).unwrap().is_empty(), "{name}");
            // The link of the image leads to a place below the root that does not exist.
            host.root.link(Path::new("a"), &path.join("link")).unwrap_err();
            host.root.write(&path.join("file"), b"changed").unwrap_err();
            host.assert_untouched();
        }
        // Links that stay in the root are followed from there.
        fs::create_dir_all(host.inside("opt/lib")).unwrap();
        symlink("/opt", host.inside("alternative")).unwrap();
        host.root.write(Path::new("/alternative/lib/new/file"), b"x").unwrap();
        assert_eq!(fs::read(host.inside("opt/lib/new/file")).unwrap(), b"x");
        symlink("../../../..", host.inside("opt/up")).unwrap();
        host.root.link(Path::new("a"), Path::new("/opt/up/etc/link")).unwrap();
        assert_eq!(fs::read_link(host.inside("etc/link")).unwrap(), Path::new("a"));
    }

    #[test]
    fn a_link_that_changes_meanwhile_leads_nowhere_outside_the_root() {
        let host = Host::new();
        fs::create_dir_all(host.inside("real")).unwrap();
        let swap = host.inside("swap");
        symlink("real", &swap).unwrap();
        let stop = AtomicBool::new(false);
        let leaked = thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for target in [host.secret(), PathBuf::from("real"), PathBuf::from("../secret")] {
                        symlink(target, host.inside("next")).unwrap();
                        fs::rename(host.inside("next"), &swap).unwrap();
                    }
                }
            });
            let leaked = (0..2000).any(|_| {
                // Both fail as long as the link leads outside.
                let _ = host.root.link(Path::new("a"), Path::new("/swap/link"));
                let _ = host.root.write(Path::new("/swap/other"), b"changed");
                host.root
                    .read(Path::new("/swap/file"), 100)
                    .is_ok_and(|content| content.is_some())
            });
            stop.store(true, Ordering::Relaxed);
            leaked
        });
        assert!(!leaked);
        host.assert_untouched();
        assert_eq!(fs::read(host.inside("real/other")).unwrap(), b"changed");
    }

    #[test]
    fn files_and_links_are_replaced_as_a_whole_and_not_followed() {
        let host = Host::new();
        symlink(host.secret().join("file"), host.inside("etc/ld.so.cache")).unwrap();
        host.root.write(Path::new("/etc/ld.so.cache"), b"cache").unwrap();
        assert_eq!(fs::read(host.inside("etc/ld.so.cache")).unwrap(), b"cache");
        assert_eq!(
            fs::metadata(host.inside("etc/ld.so.cache")).unwrap().mode() & 0o777,
            0o644
        );
        symlink(host.secret().join("file"), host.inside("etc/link")).unwrap();
        host.root.link(Path::new("a"), Path::new("/etc/link")).unwrap();
        assert_eq!(fs::read_link(host.inside("etc/link")).unwrap(), Path::new("a"));
        host.assert_untouched();
        // No temporary file is left, also after a failure.
        fs::create_dir(host.inside("etc/folder")).unwrap();
        host.root.link(Path::new("a"), Path::new("/etc/folder")).unwrap_err();
        let names: Vec<String> = host
            .root
            .names(Path::new("/etc"))
            .unwrap()
            .into_iter()
            .map(|name| name.name)
            .collect();
        assert_eq!(names, ["folder", "ld.so.cache", "link"]);
    }

    #[test]
    fn a_link_that_is_right_is_not_made_again() {
        let host = Host::new();
        symlink("a", host.inside("etc/link")).unwrap();
        let inode = fs::symlink_metadata(host.inside("etc/link")).unwrap().ino();
        host.root.link(Path::new("a"), Path::new("/etc/link")).unwrap();
        assert_eq!(fs::symlink_metadata(host.inside("etc/link")).unwrap().ino(), inode);
    }

    #[test]
    fn pipes_and_folders_are_no_files_and_a_large_file_is_refused() {
        let host = Host::new();
        rustix::fs::mkfifoat(CWD, host.inside("etc/pipe"), Mode::RWXU).unwrap();
        for path in ["/etc", "/etc/pipe"] {
            let error = host.root.read(Path::new(path), 100).unwrap_err().to_string();
            assert_eq!(error, format!("cannot read {path} of the container: no regular file"));
        }
        File::create(host.inside("etc/large"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        let error = host.root.read(Path::new("/etc/large"), 100).unwrap_err().to_string();
        assert_eq!(error, "cannot read /etc/large of the container: more than 100 bytes");
    }

    #[test]
    fn files_of_the_kernel_are_not_read() {
        let host = ContainerRoot::open(Path::new("/")).unwrap();
        for path in ["/proc/version", "/sys/kernel/notes"] {
            let error = host.read(Path::new(path), 1_000_000).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("cannot read {path} of the container: a file of the kernel")
            );
        }
        let error = host.read_own(Path::new("/proc/version"), 1_000_000).unwrap_err();
        assert!(matches!(error, HookError::InVolume { .. }), "{error}");
    }
}
