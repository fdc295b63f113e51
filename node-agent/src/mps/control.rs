//! Runs NVIDIA's program `nvidia-cuda-mps-control` from the driver root, with that as its `/`.

use super::{
    device_folder::DeviceFolder,
    exec::MpsExecArgs,
    processes::{ChildPid, MARK},
};
use crate::driver::{hardware_probe::is_validated, library};
use rustix::fs::{MemfdFlags, Mode, OFlags, ResolveFlags, SealFlags, fcntl_add_seals, memfd_create, openat2};
use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
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

/// Paths of the program in a driver root.
const PROGRAMS: [&str; 2] = ["usr/bin/nvidia-cuda-mps-control", "bin/nvidia-cuda-mps-control"];
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
    /// No driver root has the program.
    #[error(
        "find usr/bin/nvidia-cuda-mps-control below {roots}: there is none; install the NVIDIA driver's compute \
         utilities there"
    )]
    NoProgram {
        /// Driver roots that were searched.
        roots: String,
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
    host_root: PathBuf,
    driver_root: Option<PathBuf>,
    hung: HungProgram,
}

/// A killed program that has not ended. No other program starts meanwhile: each would hang as well.
type HungProgram = Arc<Mutex<Option<(Child, ChildPid)>>>;

impl MpsControl {
    /// Searches `driver_root`, or the usual roots below `host_root` without one.
    pub fn new(host_root: &Path, driver_root: Option<&Path>) -> Self {
        Self {
            host_root: host_root.to_owned(),
            driver_root: driver_root.map(Path::to_owned),
            hung: HungProgram::default(),
        }
    }

    /// Returns the root of the host.
    pub fn host_root(&self) -> &Path {
        &self.host_root
    }

    /// Returns the folders that may be the driver's root.
    pub fn roots(&self) -> Vec<PathBuf> {
        library::roots(&self.host_root, self.driver_root.as_deref())
    }

    /// Returns false while the driver's container is not ready; blocks.
    pub fn driver_is_validated(&self) -> bool {
        let library = library::find_library(&self.roots());
        library.is_none_or(|library| is_validated(&self.host_root, &library))
    }

    /// Starts the daemon of a device, for the clients of all users if it can; returns once it runs in the background.
    pub async fn start(&self, folder: &DeviceFolder) -> Result<(), MpsControlError> {
        let (root, program) = self.find_program()?;
        let multiuser = spawn_blocking(move || names_multiuser(&root, program).unwrap_or_default());
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
        let (root, program) = self.find_program()?;
        let agent = std::env::current_exe().map_err(|source| MpsControlError::Run {
            device: folder.uuid().to_owned(),
            source,
        })?;
        let mut command = Command::new(agent);
        command
            .args(MpsExecArgs::arguments(&root, folder.path(), &folder.shm()))
            .arg("--")
            .arg(Path::new("/").join(program))
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CUDA_VISIBLE_DEVICES", folder.uuid())
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", folder.log())
            .kill_on_drop(true);
        Ok(command)
    }

    /// Returns the first driver root with the program, and the program's path in it. A symbolic link counts: it resolves inside
    /// that root.
    fn find_program(&self) -> Result<(PathBuf, &'static str), MpsControlError> {
        let roots = self.roots();
        let find = |root: &PathBuf| {
            PROGRAMS
                .into_iter()
                .find(|program| root.join(program).symlink_metadata().is_ok())
        };
        let found = roots.iter().find_map(|root| Some((root.clone(), find(root)?)));
        found.ok_or_else(|| MpsControlError::NoProgram {
            roots: library::join_roots(&roots),
        })
    }
}

/// Returns true if the program's file has the name of the option; blocks. A daemon that does not know an option may take it for
/// anything, so it is not tried out.
fn names_multiuser(root: &Path, program: &str) -> io::Result<bool> {
    let root = File::open(root)?;
    let (flags, mode) = (OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let mut content = Vec::new();
    // A symbolic link resolves inside the root.
    File::from(openat2(&root, program, flags, mode, ResolveFlags::IN_ROOT)?)
        .take(MAX_PROGRAM)
        .read_to_end(&mut content)?;
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
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/bin");
        std::fs::create_dir_all(&folder).unwrap();
        // Absolute links count from the driver's root.
        std::os::unix::fs::symlink("/usr/bin/of-the-driver", folder.join("nvidia-cuda-mps-control")).unwrap();
        let names = || names_multiuser(root.path(), PROGRAMS[0]);
        assert!(names().is_err());
        for (content, expected) in [("\0-d\0-f\0", false), ("\0-d\0-multiuser-server\0", true)] {
            std::fs::write(folder.join("of-the-driver"), content).unwrap();
            assert_eq!(names().unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn a_driver_without_the_program_is_an_error_that_names_where_it_was_searched() {
        let root = tempfile::tempdir().unwrap();
        let control = MpsControl::new(root.path(), None);
        let error = control.probe(&folder()).await.unwrap_err().to_string();
        assert!(
            error.contains("run/nvidia/driver and ") && error.contains("compute utilities"),
            "{error}"
        );
    }
}
