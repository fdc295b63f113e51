//! Runs NVIDIA's program `nvidia-cuda-mps-control` from the driver root, with that as its `/`. Where the driver root is a folder
//! with the driver's files alone, without a C library, the `/` is that of the host, as on GKE itself.

use super::{
    device_folder::DeviceFolder,
    exec::MpsExecArgs,
    processes::{ChildPid, MARK},
};
use crate::{
    driver::{
        hardware_probe::DriverRoots,
        library::{self, resolve_below},
    },
    runtime::bounded_file,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::{
    fs::File,
    io::{self, Seek as _, SeekFrom, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};
use tokio::{
    process::{Child, Command},
    sync::Mutex,
    task::spawn_blocking,
    time::timeout,
};
use tracing::warn;

const PROGRAM: &str = "nvidia-cuda-mps-control";
/// Option of a daemon whose one server takes the clients of all users. Without it a client of another user waits until the
/// clients before it have ended (nvidia-cuda-mps-control(1), "Description"). Older daemons do not know it.
const MULTIUSER: &str = "-multiuser-server";
/// Most bytes of output; the program cannot write more.
const MAX_OUTPUT: u16 = 4096;
/// Most bytes of the program's file that are read; it has some hundred KiB.
const MAX_PROGRAM: u64 = 64 * 1024 * 1024;
/// Timeout of a probe: the daemon answers at once or not at all. Shorter than the life of a fresh answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of a start: the daemon loads the driver before it goes into the background.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout of a quit: the program waits for the daemon, which ends after its last client.
const QUIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a killed program to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Failure of the program.
#[derive(Debug, thiserror::Error)]
pub enum MpsControlError {
    /// No driver root has the driver.
    #[error("find the NVIDIA driver of {PROGRAM} below {roots}: there is no libnvidia-ml.so.1")]
    NoDriver {
        /// Driver roots that were searched.
        roots: String,
    },
    /// The driver root has no such program.
    #[error(
        "find {PROGRAM} below {}, where the driver is: there is none; install the NVIDIA driver's compute utilities there",
        root.display()
    )]
    NoProgram {
        /// Root of the driver on the host.
        root: PathBuf,
    },
    /// The program could not be started.
    #[error("run nvidia-cuda-mps-control for {device}: {source}")]
    Run {
        /// UUID of the device.
        device: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The program did not end in time.
    #[error("{action} the MPS control daemon of {device}: no answer within {after:?}")]
    NoAnswer {
        /// Verb for the message: probe, start or quit.
        action: &'static str,
        /// UUID of the device.
        device: String,
        /// Timeout.
        after: Duration,
    },
    /// An earlier program was killed but has not ended.
    #[error(
        "{action} the MPS control daemon of {device}: an earlier nvidia-cuda-mps-control hangs in the kernel; see the host's \
         kernel log"
    )]
    Hangs {
        /// Verb for the message: probe, start or quit.
        action: &'static str,
        /// UUID of the device.
        device: String,
    },
    /// The program failed, or its output is not as expected.
    #[error("{action} the MPS control daemon of {device}: {status}: {output:?}")]
    Failed {
        /// Verb for the message: probe, start or quit.
        action: &'static str,
        /// UUID of the device.
        device: String,
        /// Exit status.
        status: ExitStatus,
        /// Output, cut to 4 KiB.
        output: String,
    },
}

/// Runs the program for one device.
#[derive(Clone, Debug)]
pub struct MpsControl {
    roots: DriverRoots,
    hung: HungProgram,
}

/// The program, and the root in which it runs.
struct ControlProgram {
    /// The file in this container.
    file: PathBuf,
    /// Root of the process in this container.
    root: PathBuf,
    /// The file as a path in that root. It has no links: those of NixOS lie in `/run`, which the process sees empty.
    path: PathBuf,
    /// Folder of the driver's libraries as a path in that root.
    libraries: PathBuf,
}

/// A killed program that has not ended. No other program starts meanwhile: each would hang as well.
type HungProgram = Arc<Mutex<Option<(Child, ChildPid)>>>;

impl MpsControl {
    /// Searches the program in the root of the driver.
    pub fn new(roots: DriverRoots) -> Self {
        let hung = HungProgram::default();
        Self { roots, hung }
    }

    /// Returns the roots of the host and of its driver.
    pub fn roots(&self) -> &DriverRoots {
        &self.roots
    }

    /// Returns false while the driver's container is not ready; blocks.
    pub fn driver_is_validated(&self) -> bool {
        let driver = self.roots.find();
        driver.is_none_or(|driver| self.roots.is_validated(&driver))
    }

    /// Starts the daemon of a device, for the clients of all users if it can; returns once it runs in the background.
    pub async fn start(&self, folder: &DeviceFolder) -> Result<(), MpsControlError> {
        let program = self.find_program()?.file;
        let multiuser = spawn_blocking(move || names_multiuser(&program).unwrap_or_default());
        let arguments: &[&str] = match multiuser.await {
            Ok(true) => &["-d", MULTIUSER],
            Ok(false) | Err(_) => &["-d"],
        };
        let mut command = self.command(folder, arguments)?;
        command.env(MARK, folder.path());
        run(&self.hung, command, "start", folder, "", START_TIMEOUT)
            .await
            .map(drop)
    }

    /// Probes the daemon with a question; an answer shows that it works.
    pub async fn probe(&self, folder: &DeviceFolder) -> Result<(), MpsControlError> {
        let action = "probe";
        let command = self.command(folder, &[])?;
        let (status, output) = run(
            &self.hung,
            command,
            action,
            folder,
            "get_default_active_thread_percentage\n",
            PROBE_TIMEOUT,
        )
        .await?;
        if output.trim().parse::<f32>().is_ok() {
            return Ok(());
        }
        Err(MpsControlError::Failed {
            action,
            device: folder.uuid().to_owned(),
            status,
            output,
        })
    }

    /// Tells the daemon to quit.
    pub async fn quit(&self, folder: &DeviceFolder) -> Result<(), MpsControlError> {
        run(
            &self.hung,
            self.command(folder, &[])?,
            "quit",
            folder,
            "quit\n",
            QUIT_TIMEOUT,
        )
        .await
        .map(drop)
    }

    fn command(&self, folder: &DeviceFolder, arguments: &[&str]) -> Result<Command, MpsControlError> {
        let program = self.find_program()?;
        // The control program starts its server by name.
        let folders = program.path.parent().unwrap_or(&program.root).display();
        let agent = std::env::current_exe().map_err(|source| MpsControlError::Run {
            device: folder.uuid().to_owned(),
            source,
        })?;
        let mut command = Command::new(agent);
        command
            .args(MpsExecArgs::arguments(&program.root, folder.path(), &folder.shm()))
            .arg("--")
            .arg(&program.path)
            .args(arguments)
            .env_clear()
            .env("PATH", format!("{folders}:/usr/sbin:/usr/bin:/sbin:/bin"))
            // Few distributions have these in the cache of the dynamic loader.
            .env("LD_LIBRARY_PATH", &program.libraries)
            .env("CUDA_VISIBLE_DEVICES", folder.uuid())
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", folder.log())
            .kill_on_drop(true);
        Ok(command)
    }

    /// Finds the program of the driver in use: one of another version would not work with its kernel module.
    fn find_program(&self) -> Result<ControlProgram, MpsControlError> {
        let driver = self.roots.find().ok_or_else(|| MpsControlError::NoDriver {
            roots: library::join_roots(&self.roots.driver_roots),
        })?;
        let Some(file) = library::find_program(&driver.mounted, PROGRAM) else {
            return Err(MpsControlError::NoProgram { root: driver.root });
        };
        let is_file_system = resolve_below(&driver.mounted, Path::new("usr")).is_some();
        let root = if is_file_system {
            &driver.mounted
        } else {
            &self.roots.host_root
        };
        let in_root = |path: &Path| Path::new("/").join(path.strip_prefix(root).unwrap_or(path));
        Ok(ControlProgram {
            root: root.clone(),
            path: in_root(&file),
            libraries: in_root(driver.library.parent().unwrap_or(&driver.mounted)),
            file,
        })
    }
}

/// Returns true if the program's file has the name of the option; blocks. A daemon that does not know an option may take it for
/// anything, so it is not tried out.
fn names_multiuser(program: &Path) -> io::Result<bool> {
    let content = bounded_file::start(program, MAX_PROGRAM)?;
    let name = MULTIUSER.trim_start_matches('-').as_bytes();
    Ok(content.windows(name.len()).any(|bytes| bytes == name))
}

/// Runs a command to its end, and returns its output.
async fn run(
    hung: &HungProgram,
    mut command: Command,
    action: &'static str,
    folder: &DeviceFolder,
    input: &str,
    after: Duration,
) -> Result<(ExitStatus, String), MpsControlError> {
    let device = || folder.uuid().to_owned();
    let failed = |source| MpsControlError::Run {
        device: device(),
        source,
    };
    let mut hung = hung.lock().await;
    if let Some((child, _)) = &mut *hung
        && child.try_wait().map_err(failed)?.is_none()
    {
        return Err(MpsControlError::Hangs {
            action,
            device: device(),
        });
    }
    *hung = None;
    let output = output_file().map_err(failed)?;
    let streams = || Ok((input_file(input)?, output.try_clone()?, output.try_clone()?));
    let (stdin, stdout, stderr) = streams().map_err(failed)?;
    command
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(stderr));
    let mut child = command.spawn().map_err(failed)?;
    let pid = child.id().map(ChildPid::new);
    let Ok(ended) = timeout(after, child.wait()).await else {
        if timeout(KILL_TIMEOUT, child.kill()).await.is_err() {
            warn!(
                device = folder.uuid(),
                action, "nvidia-cuda-mps-control hangs in the kernel; see the host's kernel log"
            );
            *hung = pid.map(|pid| (child, pid));
        }
        return Err(MpsControlError::NoAnswer {
            action,
            device: device(),
            after,
        });
    };
    let status = ended.map_err(failed)?;
    let output = read_output(&output).map_err(failed)?;
    if status.success() {
        Ok((status, output))
    } else {
        Err(MpsControlError::Failed {
            action,
            device: device(),
            status,
            output,
        })
    }
}

/// Creates a file in memory that cannot grow. A daemon that keeps it as its output neither fills the memory nor blocks on a
/// reader.
fn output_file() -> io::Result<File> {
    let file = File::from(memfd_create("output", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(MAX_OUTPUT.into())?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK)?;
    Ok(file)
}

fn input_file(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("input", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

fn read_output(file: &File) -> io::Result<String> {
    let mut bytes = vec![0; MAX_OUTPUT.into()];
    file.read_exact_at(&mut bytes, 0)?;
    // The unwritten rest is 0.
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn folder() -> DeviceFolder {
        DeviceFolder::of(Path::new("/nowhere"), "GPU-1").unwrap()
    }

    async fn shell(script: &str, input: &str, after: Duration) -> Result<(ExitStatus, String), MpsControlError> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).kill_on_drop(true);
        run(&HungProgram::default(), command, "probe", &folder(), input, after).await
    }

    #[tokio::test]
    async fn input_and_output_of_a_program_go_through() {
        let (status, output) = shell("cat; echo b >&2", "a\n", Duration::from_secs(10)).await.unwrap();
        assert!(status.success());
        assert_eq!(output, "a\nb");
        let error = shell("echo no; exit 1", "", Duration::from_secs(10))
            .await
            .unwrap_err()
            .to_string();
        assert_eq!(error, "probe the MPS control daemon of GPU-1: exit status: 1: \"no\"");
    }

    #[tokio::test]
    async fn endless_output_and_a_program_in_the_background_block_no_one() {
        let error = shell("yes", "", Duration::from_secs(10)).await.unwrap_err();
        assert!(
            matches!(&error, MpsControlError::Failed { output, .. } if output.len() <= 4096),
            "{error}"
        );
        // The background process keeps the output open.
        let (_, output) = shell("sleep 1 & echo a", "", Duration::from_secs(10)).await.unwrap();
        assert_eq!(output, "a");
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed() {
        let error = shell("exec sleep 100", "", Duration::from_millis(100))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("no answer within 100ms"), "{error}");
    }

    #[tokio::test]
    async fn no_program_is_started_while_one_that_was_killed_is_still_there() {
        let folder = folder();
        let hanging = Command::new("sleep").arg("100").kill_on_drop(true).spawn().unwrap();
        let own = ChildPid::new(hanging.id().unwrap());
        let hung = HungProgram::new(Mutex::new(Some((hanging, own))));
        let probe = || {
            run(
                &hung,
                Command::new("true"),
                "probe",
                &folder,
                "",
                Duration::from_secs(10),
            )
        };
        for _ in 0..2 {
            assert!(matches!(probe().await, Err(MpsControlError::Hangs { .. })));
        }
        hung.lock().await.as_mut().unwrap().0.kill().await.unwrap();
        probe().await.unwrap();
        assert!(hung.lock().await.is_none());
    }

    #[test]
    fn only_a_program_that_names_the_option_gets_it() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(PROGRAM);
        assert!(names_multiuser(&program).is_err());
        for (content, expected) in [("\0-d\0-f\0", false), ("\0-d\0-multiuser-server\0", true)] {
            fs::write(&program, content).unwrap();
            assert_eq!(names_multiuser(&program).unwrap(), expected);
        }
    }

    /// Makes an empty file with its folders.
    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn a_program_runs_in_the_drivers_file_system_or_in_that_of_the_host() {
        for (files, root, path, libraries) in [
            (
                ["run/nvidia/driver/usr/lib64", "run/nvidia/driver/usr/bin"],
                "run/nvidia/driver",
                "/usr/bin",
                "/usr/lib64",
            ),
            (
                ["usr/lib/x86_64-linux-gnu", "usr/bin"],
                "",
                "/usr/bin",
                "/usr/lib/x86_64-linux-gnu",
            ),
            (
                ["home/kubernetes/bin/nvidia/lib64", "home/kubernetes/bin/nvidia/bin"],
                "",
                "/home/kubernetes/bin/nvidia/bin",
                "/home/kubernetes/bin/nvidia/lib64",
            ),
        ] {
            let host = tempfile::tempdir().unwrap();
            let [library, program] = files.map(|folder| host.path().join(folder));
            touch(&library.join("libnvidia-ml.so.1"));
            touch(&program.join(PROGRAM));
            let found = MpsControl::new(DriverRoots::of_host(host.path()))
                .find_program()
                .unwrap();
            assert_eq!(found.file, program.join(PROGRAM));
            assert_eq!(found.root, host.path().join(root));
            assert_eq!(found.path, Path::new(path).join(PROGRAM));
            assert_eq!(found.libraries, Path::new(libraries));
        }
    }

    #[test]
    fn a_program_behind_a_link_is_named_where_it_is() {
        let host = tempfile::tempdir().unwrap();
        touch(&host.path().join("usr/lib64/libnvidia-ml.so.1"));
        touch(&host.path().join("nix/store/a/bin").join(PROGRAM));
        fs::create_dir_all(host.path().join("run/current-system")).unwrap();
        std::os::unix::fs::symlink("/nix/store/a", host.path().join("run/current-system/sw")).unwrap();
        let found = MpsControl::new(DriverRoots::of_host(host.path()))
            .find_program()
            .unwrap();
        assert_eq!(found.path, Path::new("/nix/store/a/bin").join(PROGRAM));
    }

    #[tokio::test]
    async fn a_driver_without_the_program_is_an_error_that_names_where_it_was_searched() {
        let host = tempfile::tempdir().unwrap();
        let control = MpsControl::new(DriverRoots::of_host(host.path()));
        let error = control.probe(&folder()).await.unwrap_err().to_string();
        assert!(error.contains("below /run/nvidia/driver, / and "), "{error}");
        touch(&host.path().join("run/nvidia/driver/usr/lib64/libnvidia-ml.so.1"));
        let error = control.probe(&folder()).await.unwrap_err().to_string();
        assert!(
            error.contains("below /run/nvidia/driver, where") && error.contains("compute utilities"),
            "{error}"
        );
    }
}
