//! Reads the container runtime, SELinux and the driver's root once.

use crate::{
    cdi::state::CdiState,
    container_runtime::cri_client::runtime_settings,
    driver::hardware_probe::DriverRoots,
    gpu_processes::toolkit_config::accepts_envvar,
    runtime::{blocking_thread::BlockingThread, bounded_file},
};
use gpunode_crds::{MAX_RUNTIME_PATH, MAX_RUNTIME_PROBLEM, RuntimeStatus, SelinuxMode};
use std::{path::Path, time::Duration};
use tokio::time::timeout;

/// State of SELinux below the host's root; the file does not exist without SELinux.
const SELINUX: &str = "sys/fs/selinux/enforce";

/// Maximum bytes of that file, which has one digit.
const MAX_SELINUX: u64 = 16;

/// Maximum time for the files of the host, which may lie on a file system that hangs.
const FILES_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the runtime's settings, and keeps those of `before` while the runtime does not answer.
pub async fn read(roots: &DriverRoots, files: &BlockingThread, before: Option<&RuntimeStatus>) -> RuntimeStatus {
    let mut status = runtime_settings(&roots.host_root)
        .await
        .unwrap_or_else(|error| RuntimeStatus {
            problem: Some(error.to_string()),
            ..RuntimeStatus::default()
        });
    let is_same = |before: &&RuntimeStatus| {
        status.name.is_none() || (&status.name, &status.version) == (&before.name, &before.version)
    };
    if let Some(problem) = &status.problem {
        let problem = problem.chars().take(MAX_RUNTIME_PROBLEM).collect();
        status = RuntimeStatus {
            problem: Some(problem),
            ..before.filter(is_same).unwrap_or(&status).clone()
        };
    }
    let roots = roots.clone();
    let read = files.run(move || {
        let host_root = &roots.host_root;
        (selinux(host_root), driver_root(&roots), accepts_envvar(host_root))
    });
    let before = || before.map(|before| (before.selinux, before.driver_root.clone(), before.accepts_envvar));
    (status.selinux, status.driver_root, status.accepts_envvar) = match timeout(FILES_TIMEOUT, read).await {
        Ok(Ok(files)) => files,
        Ok(Err(_)) | Err(_) => before().unwrap_or_default(),
    };
    status
}

/// Returns the status with what gpunode's CDI file leaves out of the devices that pods can get; `cdi` is none while no strategy uses
/// the file.
pub fn with_cdi_file(
    runtime: &RuntimeStatus,
    cdi: Option<&CdiState>,
    is_offered: impl Fn(&str) -> bool,
) -> RuntimeStatus {
    let (mut cdi_problem, mut cdi_left_out) = (None, None);
    if let Some(cdi) = cdi {
        let mut left_out = cdi.left_out.iter().filter(|(uuid, _)| is_offered(uuid));
        let first = left_out.next().map(|(uuid, reason)| {
            let more = match left_out.count() {
                0 => String::new(),
                count => format!("; and {count} more"),
            };
            format!("{uuid}: {reason}{more}")
        });
        if cdi.described.iter().any(|uuid| is_offered(uuid)) {
            cdi_left_out = first;
        } else {
            cdi_problem = cdi.problem.clone().or(first);
        }
    }
    let cut = |text: String| text.chars().take(MAX_RUNTIME_PROBLEM).collect::<String>();
    RuntimeStatus {
        cdi_problem: cdi_problem.map(cut),
        cdi_left_out: cdi_left_out.map(cut),
        ..runtime.clone()
    }
}

/// Returns the mode of SELinux; none where it is off. Blocks.
fn selinux(host_root: &Path) -> Option<SelinuxMode> {
    let text = bounded_file::start(&host_root.join(SELINUX), MAX_SELINUX).ok()?;
    match text.trim_ascii() {
        b"1" => Some(SelinuxMode::Enforcing),
        b"0" => Some(SelinuxMode::Permissive),
        _ => None,
    }
}

/// Returns the root of the driver's files on the host. Blocks.
fn driver_root(roots: &DriverRoots) -> Option<String> {
    let root = roots.find()?.root.display().to_string();
    Some(root.chars().take(MAX_RUNTIME_PATH).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn selinux_is_off_without_its_file() {
        let host = tempfile::tempdir().unwrap();
        assert_eq!(selinux(host.path()), None);
        fs::create_dir_all(host.path().join("sys/fs/selinux")).unwrap();
        for (text, expected) in [
            ("1", Some(SelinuxMode::Enforcing)),
            ("0\n", Some(SelinuxMode::Permissive)),
            ("", None),
            ("\u{1}nonsense that is longer than any state", None),
        ] {
            fs::write(host.path().join(SELINUX), text).unwrap();
            assert_eq!(selinux(host.path()), expected, "{text:?}");
        }
    }

    #[test]
    fn the_drivers_root_is_a_path_of_the_host() {
        let host = tempfile::tempdir().unwrap();
        let put = |folder: &str| {
            fs::create_dir_all(host.path().join(folder)).unwrap();
            fs::write(host.path().join(folder).join("libnvidia-ml.so.1"), "").unwrap();
        };
        assert_eq!(driver_root(&DriverRoots::of_host(host.path())), None);
        put("usr/lib64");
        assert_eq!(driver_root(&DriverRoots::of_host(host.path())).as_deref(), Some("/"));
        put("run/nvidia/driver/usr/lib64");
        assert_eq!(
            driver_root(&DriverRoots::of_host(host.path())).as_deref(),
            Some("/run/nvidia/driver")
        );
    }

    #[test]
    fn devices_that_the_cdi_file_lacks_are_said_with_their_reason() {
        let of = |described: &[&str], left_out: &[&str], problem: Option<&str>| {
            let mut state = CdiState {
                problem: problem.map(str::to_owned),
                ..CdiState::default()
            };
            state.described.extend(described.iter().map(|uuid| (*uuid).to_owned()));
            let left_out = left_out.iter().map(|uuid| ((*uuid).to_owned(), "no node".to_owned()));
            state.left_out.extend(left_out);
            // Nobody can get a GPU that is divided into MIG devices.
            let runtime = with_cdi_file(&RuntimeStatus::default(), Some(&state), |uuid| uuid != "divided");
            (runtime.cdi_problem, runtime.cdi_left_out)
        };
        let said = |text: &str| Some(text.to_owned());
        assert_eq!(of(&[], &["a"], Some("no driver")), (said("no driver"), None));
        assert_eq!(of(&[], &["a", "b"], None), (said("a: no node; and 1 more"), None));
        assert_eq!(of(&["c"], &["a"], None), (None, said("a: no node")));
        assert_eq!(of(&["divided"], &["a"], None), (said("a: no node"), None));
        assert_eq!(of(&["a"], &["divided"], None), (None, None));
        assert_eq!(of(&["divided"], &[], None), (None, None));
        // The disk does not answer, but the file is there.
        assert_eq!(of(&["c"], &[], Some("no answer")), (None, None));
        let long = of(&[], &[], Some(&"x".repeat(5000))).0;
        assert_eq!(long.map(|text| text.len()), Some(MAX_RUNTIME_PROBLEM));
        let before = RuntimeStatus {
            cdi_problem: said("earlier"),
            ..RuntimeStatus::default()
        };
        assert_eq!(with_cdi_file(&before, None, |_| true), RuntimeStatus::default());
    }

    #[tokio::test]
    async fn settings_stay_while_the_runtime_does_not_answer() {
        let host = tempfile::tempdir().unwrap();
        fs::create_dir_all(host.path().join("usr/bin")).unwrap();
        fs::write(host.path().join("usr/bin/nvidia-container-runtime"), "").unwrap();
        let before = RuntimeStatus {
            name: Some("containerd".to_owned()),
            selinux: Some(SelinuxMode::Enforcing),
            ..RuntimeStatus::default()
        };
        let now = read(
            &DriverRoots::of_host(host.path()),
            &BlockingThread::default(),
            Some(&before),
        )
        .await;
        assert_eq!((now.name.as_deref(), now.selinux), (Some("containerd"), None));
        assert_eq!(now.accepts_envvar, Some(true));
        assert!(now.problem.is_some_and(|problem| problem.contains("found no socket")));
    }
}
