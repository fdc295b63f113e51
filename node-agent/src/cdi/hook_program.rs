//! Chooses the program that the container runtime calls for each container, and installs gpunode's own where NVIDIA's is missing.

use crate::{driver::library::resolve_below, runtime::bounded_file, store::file_id::FileId};
use gpunode_cdi::{HookKind, HookProgram};
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::{
    env,
    ffi::OsString,
    fs::{self, File, Permissions},
    io::{self, Read, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

/// Programs of NVIDIA's container toolkit on a host: of packages, of gpu-operator, of gpu-operator on GKE (`toolkit.installDir` of
/// NVIDIA's guide), of Talos and of NixOS. Those below the root of a driver container do not count, since the runtime would start
/// them with the loader and the libraries of the host.
const NVIDIA_PROGRAMS: [&str; 10] = [
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/home/kubernetes/bin/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/local/bin/nvidia-cdi-hook",
    "/run/current-system/sw/bin/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
    "/home/kubernetes/bin/nvidia/toolkit/nvidia-ctk",
    "/usr/local/bin/nvidia-ctk",
    "/run/current-system/sw/bin/nvidia-ctk",
];

/// Folders for gpunode's own program where that of the state does not do; agents mount the folders above them. `/var` can be mounted
/// with `noexec`, as on Container-Optimized OS and Talos 1.14. `/run` often is not; the folder goes there with the CDI file at a boot,
/// and runtimes read no folders below that of CDI files. Kubernetes mounts `/var/lib/kubelet` with `exec` on Container-Optimized OS
/// (`cluster/gce/gci/configure-helper.sh`, `setup-kubelet-dir`), and the kubelet leaves folders below that of device plugins alone
/// (`pkg/kubelet/cm/devicemanager/manager.go`, `CleanupPluginDirectory`).
const OTHER_FOLDERS: [&str; 2] = ["/var/run/cdi/gpunode", "/var/lib/kubelet/device-plugins/gpunode"];

/// The youngest of the hooks that the CDI file names. A program without this text in it is older than NVIDIA's 1.18.0: it can fail
/// for hooks that it does not know, and may have the holes that were closed in 1.16.2 to 1.17.8 (CVE-2024-0132, CVE-2025-23359).
const YOUNGEST_HOOK: &[u8] = b"disable-device-node-modification";

/// Limit on the part of a program that is searched, in bytes; those of NVIDIA have less than 30 MiB.
const MAX_SEARCHED: u64 = 128 * 1024 * 1024;
/// Limit on gpunode's own program in bytes; it has about 1 MiB.
const MAX_OWN: u64 = 64 * 1024 * 1024;
/// Limit on unfinished copies that are removed at a time.
const MAX_UNFINISHED: usize = 1000;

/// Name of gpunode's own program, in the agent's image and on the host.
const OWN: &str = "gpunode-hook";

/// Reason why no program can prepare containers.
#[derive(Debug, thiserror::Error)]
pub enum HookProgramError {
    /// The image is not as it was built.
    #[error("read gpunode-hook of the agent's image: {0}; or install NVIDIA's container toolkit on the host")]
    Image(io::Error),
    /// No folder of the host takes the program.
    #[error(
        "install gpunode-hook on the host: {0}; mount one of these with exec, or install NVIDIA's container toolkit"
    )]
    Install(String),
}

/// Reason why a folder of the host does not take the program.
#[derive(Debug, thiserror::Error)]
enum FolderError {
    #[error("mounted with noexec")]
    NoExec,
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// Returns NVIDIA's program of the host, or gpunode's own, which is then in the folder `bin` of `state_dir` or in one of
/// [`OTHER_FOLDERS`]: folders that have the same path on the host. Blocks.
pub fn find(host_root: &Path, state_dir: &Path) -> Result<HookProgram, HookProgramError> {
    if let Some(program) = nvidia_program(host_root) {
        return Ok(HookProgram {
            path: program.into(),
            kind: HookKind::Nvidia,
        });
    }
    let source = env::current_exe().map_err(HookProgramError::Image)?.with_file_name(OWN);
    let folders = [state_dir.join("bin")]
        .into_iter()
        .chain(OTHER_FOLDERS.map(PathBuf::from));
    let path = install(&source, folders, |folder| is_noexec(host_root, folder))?;
    Ok(HookProgram {
        path,
        kind: HookKind::Own,
    })
}

/// Returns the first program of NVIDIA's on the host that knows every hook.
fn nvidia_program(host_root: &Path) -> Option<&'static str> {
    NVIDIA_PROGRAMS.into_iter().find(|program| {
        let program = Path::new(program);
        resolve_below(host_root, program).is_some_and(|path| knows_hooks(host_root, program, &path))
    })
}

/// Returns true if the host cannot start programs in the folder, which has the same path there.
fn is_noexec(host_root: &Path, folder: &Path) -> bool {
    let seen = resolve_below(host_root, folder).unwrap_or_else(|| folder.to_owned());
    statvfs(&seen).is_ok_and(|file_system| file_system.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// Returns true if nobody but root can change the file or put another in its place. The owner of the host's root is root there.
fn is_roots(host_root: &Path, file: &Path) -> bool {
    let Ok(root) = fs::metadata(host_root) else {
        return false;
    };
    let is_safe = |path: &Path| {
        fs::metadata(path).is_ok_and(|found| {
            let writers = if found.gid() == root.gid() { 0o002 } else { 0o022 };
            found.uid() == root.uid() && found.mode() & writers == 0
        })
    };
    is_safe(file) && file.parent().is_some_and(is_safe)
}

/// Returns true if the file at `resolved` is a program that knows every hook. gpu-operator wraps some programs in scripts; the program
/// itself is beside the script then, with `.real` after the name that was asked for.
fn knows_hooks(host_root: &Path, program: &Path, resolved: &Path) -> bool {
    let is_program = fs::metadata(resolved).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    if !is_program || !is_roots(host_root, resolved) {
        return false;
    }
    let mut start = [0; 2];
    let is_script = File::open(resolved)
        .and_then(|mut file| file.read_exact(&mut start))
        .is_ok()
        && start == *b"#!";
    if !is_script {
        return has_youngest_hook(resolved);
    }
    let mut real = OsString::from(program);
    real.push(".real");
    resolve_below(host_root, Path::new(&real))
        .is_some_and(|real| is_roots(host_root, &real) && has_youngest_hook(&real))
}

/// Searches the file once; remembers the answer for as long as nobody replaces the file.
fn has_youngest_hook(path: &Path) -> bool {
    static ANSWERS: Mutex<Vec<(FileId, bool)>> = Mutex::new(Vec::new());
    let Some(id) = FileId::of(path) else { return false };
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, answer)) = answers.iter().find(|(known, _)| *known == id) {
        return *answer;
    }
    let answer = File::open(path).is_ok_and(|file| contains(file.take(MAX_SEARCHED), YOUNGEST_HOOK));
    // Programs that were replaced leave theirs behind.
    if answers.len() > 2 * NVIDIA_PROGRAMS.len() {
        answers.clear();
    }
    answers.push((id, answer));
    answer
}

/// Returns true if `text` is in what `reader` has; false for what cannot be read.
fn contains(mut reader: impl Read, text: &[u8]) -> bool {
    const CHUNK: usize = 64 * 1024;
    let mut buffer = Vec::with_capacity(2 * CHUNK);
    loop {
        // The end of the chunk before, in which the text may begin.
        let kept = buffer.len().min(text.len().saturating_sub(1));
        buffer.drain(..buffer.len() - kept);
        match reader.by_ref().take(CHUNK as u64).read_to_end(&mut buffer) {
            Ok(0) | Err(_) => return false,
            Ok(_) if buffer.windows(text.len()).any(|found| found == text) => return true,
            Ok(_) => {}
        }
    }
}

/// Puts a copy of `source` that the host can run into the first folder that takes it, and returns its path.
fn install(
    source: &Path,
    folders: impl Iterator<Item = PathBuf>,
    is_noexec: impl Fn(&Path) -> bool,
) -> Result<PathBuf, HookProgramError> {
    let program = read(source).map_err(HookProgramError::Image)?;
    let mut errors = Vec::new();
    for folder in folders {
        match put(&program, &folder, &is_noexec) {
            Ok(path) => return Ok(path),
            Err(error) => errors.push(format!("{}: {error}", folder.display())),
        }
    }
    Err(HookProgramError::Install(errors.join("; ")))
}

/// Makes the file in the folder the program, if it is none.
fn put(program: &[u8], folder: &Path, is_noexec: impl Fn(&Path) -> bool) -> Result<PathBuf, FolderError> {
    fs::create_dir_all(folder)?;
    if is_noexec(folder) {
        return Err(FolderError::NoExec);
    }
    let path = folder.join(OWN);
    let is_current = fs::metadata(&path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o777 == 0o755)
        && read(&path).is_ok_and(|present| present == program);
    if !is_current {
        replace(folder, &path, program)?;
    }
    Ok(path)
}

/// Replaces the program, which a container runtime may be starting.
fn replace(folder: &Path, path: &Path, program: &[u8]) -> io::Result<()> {
    // Copies of agents that were killed. A second agent that makes one now tries again.
    for entry in fs::read_dir(folder)?.take(MAX_UNFINISHED) {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("gpunode-hook.") {
            fs::remove_file(entry.path())?;
        }
    }
    // Two agents of a node can have the same process id, each in its container.
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let new = folder.join(format!("{OWN}.{}", now.as_nanos()));
    let mut file = File::options().write(true).create_new(true).open(&new)?;
    file.write_all(program)?;
    file.set_permissions(Permissions::from_mode(0o755))?;
    file.sync_all()?;
    drop(file);
    fs::rename(&new, path)?;
    File::open(folder)?.sync_all()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    bounded_file::start(path, MAX_OWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn write(path: &Path, content: &[u8], mode: u32) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// A program of NVIDIA's, with the youngest hook across the border of two chunks.
    fn new_program() -> Vec<u8> {
        [&vec![0; 64 * 1024 - 7], YOUNGEST_HOOK, b"more"].concat()
    }

    #[test]
    fn a_program_of_nvidia_is_used_where_it_knows_every_hook() {
        let host = tempfile::tempdir().unwrap();
        let put = |path: &str, content: &[u8], mode| write(&host.path().join(path), content, mode);
        assert_eq!(nvidia_program(host.path()), None);
        put("usr/bin/nvidia-cdi-hook", b"create-symlinks update-ldcache", 0o755);
        assert_eq!(nvidia_program(host.path()), None, "an old one");
        put("usr/bin/nvidia-ctk", &new_program(), 0o644);
        assert_eq!(nvidia_program(host.path()), None, "not executable");
        put("usr/bin/nvidia-ctk", &new_program(), 0o755);
        assert_eq!(nvidia_program(host.path()), Some("/usr/bin/nvidia-ctk"));
        put(
            "usr/local/nvidia/toolkit/nvidia-cdi-hook",
            b"#!/bin/sh\nexec nvidia-cdi-hook.real",
            0o755,
        );
        assert_eq!(
            nvidia_program(host.path()),
            Some("/usr/bin/nvidia-ctk"),
            "a script of nothing"
        );
        put("usr/local/nvidia/toolkit/nvidia-cdi-hook.real", &new_program(), 0o755);
        assert_eq!(
            nvidia_program(host.path()),
            Some("/usr/local/nvidia/toolkit/nvidia-cdi-hook")
        );
        // A link of the host counts from the host's root.
        put("nix/store/a/nvidia-cdi-hook", &new_program(), 0o755);
        fs::remove_file(host.path().join("usr/bin/nvidia-cdi-hook")).unwrap();
        symlink(
            "/nix/store/a/nvidia-cdi-hook",
            host.path().join("usr/bin/nvidia-cdi-hook"),
        )
        .unwrap();
        assert_eq!(nvidia_program(host.path()), Some("/usr/bin/nvidia-cdi-hook"));
    }

    #[test]
    fn a_program_that_others_can_change_is_not_used() {
        let host = tempfile::tempdir().unwrap();
        let folder = host.path().join("home/kubernetes/bin/nvidia/toolkit");
        let (program, mode) = (folder.join("nvidia-cdi-hook"), |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        });
        write(&program, &new_program(), 0o755);
        let found = Some("/home/kubernetes/bin/nvidia/toolkit/nvidia-cdi-hook");
        assert_eq!(nvidia_program(host.path()), found);
        mode(&program, 0o757);
        assert_eq!(nvidia_program(host.path()), None);
        mode(&program, 0o755);
        mode(&folder, 0o777);
        assert_eq!(nvidia_program(host.path()), None);
        mode(&folder, 0o755);
        assert_eq!(nvidia_program(host.path()), found);
    }

    #[test]
    fn text_is_found_wherever_it_is() {
        for place in [0, 1, 65_500, 65_535, 65_536, 200_000] {
            let mut content = vec![b'd'; place];
            content.extend(YOUNGEST_HOOK);
            assert!(contains(&content[..], YOUNGEST_HOOK), "{place}");
            content.pop();
            assert!(!contains(&content[..], YOUNGEST_HOOK), "{place}");
        }
        assert!(!contains(&b""[..], YOUNGEST_HOOK));
    }

    #[test]
    fn own_program_is_installed_as_a_whole_and_only_if_it_differs() {
        let node = tempfile::tempdir().unwrap();
        let (source, folder) = (node.path().join("image/gpunode-hook"), node.path().join("state/bin"));
        let path = folder.join(OWN);
        let install = || super::install(&source, [folder.clone()].into_iter(), |_| false);
        let error = install().unwrap_err().to_string();
        assert!(error.contains("of the agent's image"), "{error}");
        write(&source, b"first", 0o755);
        assert_eq!(install().unwrap(), path);
        let inode = || fs::metadata(&path).unwrap().ino();
        let first = inode();
        install().unwrap();
        assert_eq!(inode(), first);
        // Another version, a copy of an agent that was killed, and somebody who took the permission away.
        write(&source, b"second", 0o755);
        write(&folder.join("gpunode-hook.123"), b"sec", 0o600);
        install().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        install().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        // A folder that cannot be written is named.
        fs::remove_dir_all(node.path().join("state")).unwrap();
        fs::write(node.path().join("state"), "").unwrap();
        let error = install().unwrap_err().to_string();
        assert!(error.contains("state/bin: "), "{error}");
    }

    #[test]
    fn own_program_is_in_the_first_folder_that_can_be_written_and_has_no_noexec() {
        let node = tempfile::tempdir().unwrap();
        let at = |path: &str| node.path().join(path);
        write(&at("image/gpunode-hook"), b"program", 0o755);
        let install = |noexec: &[&str]| {
            let folders = ["state/bin", "cdi/gpunode", "kubelet/gpunode"].map(at);
            super::install(&at("image/gpunode-hook"), folders.into_iter(), |folder| {
                noexec.iter().any(|&path| folder == at(path))
            })
        };
        assert_eq!(install(&[]).unwrap(), at("state/bin/gpunode-hook"));
        assert_eq!(install(&["state/bin"]).unwrap(), at("cdi/gpunode/gpunode-hook"));
        fs::remove_dir_all(at("cdi")).unwrap();
        fs::write(at("cdi"), "").unwrap();
        assert_eq!(install(&["state/bin"]).unwrap(), at("kubelet/gpunode/gpunode-hook"));
        let error = install(&["state/bin", "kubelet/gpunode"]).unwrap_err().to_string();
        for reason in [
            "state/bin: mounted with noexec; ",
            "cdi/gpunode: ",
            "kubelet/gpunode: mounted with noexec",
        ] {
            assert!(error.contains(reason), "{error}");
        }
    }
}
