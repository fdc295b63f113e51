//! Reads the configuration of NVIDIA's container runtime: a container gets the GPUs that its variables name unless this is off.

use super::small_file::text;
use crate::driver::library::resolve_below;
use std::path::{Path, PathBuf};

/// Places of the file and of the runtime on the host: of a package, of gpu-operator, whose programs are called with another
/// `XDG_CONFIG_HOME` (nvidia-container-toolkit, `GetConfigFilePath`; `cmd/nvidia-ctk-installer`), and of gpu-operator on GKE
/// (`toolkit.installDir` of NVIDIA's guide).
const PLACES: [(&str, &str); 3] = [
    (
        "/etc/nvidia-container-runtime/config.toml",
        "/usr/bin/nvidia-container-runtime",
    ),
    (
        "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
        "/usr/local/nvidia/toolkit/nvidia-container-runtime",
    ),
    (
        "/home/kubernetes/bin/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
        "/home/kubernetes/bin/nvidia/toolkit/nvidia-container-runtime",
    ),
];

/// Key of the setting, which is on by default.
pub const ACCEPT_VARIABLE: &str = "accept-nvidia-visible-devices-envvar-when-unprivileged";

/// Returns the first configuration of the host that lets unprivileged containers name their GPUs, or the missing one of a runtime
/// that does so without. Blocks.
pub fn accepting(host_root: &Path) -> Option<PathBuf> {
    let mut all = settings(host_root);
    all.find_map(|(file, accepts)| accepts.then(|| PathBuf::from(file)))
}

/// Returns true if a container runtime of NVIDIA on the host lets unprivileged containers name their GPUs; none without such a runtime.
/// Blocks.
pub fn accepts_envvar(host_root: &Path) -> Option<bool> {
    settings(host_root)
        .map(|(_, accepts)| accepts)
        .reduce(|one, other| one || other)
}

/// Returns the setting of each of NVIDIA's runtimes on the host, with its file. Blocks.
fn settings(host_root: &Path) -> impl Iterator<Item = (&'static str, bool)> {
    PLACES.into_iter().filter_map(move |(file, program)| {
        let config = resolve_below(host_root, Path::new(file)).and_then(|path| text(&path).ok());
        let by_default = || resolve_below(host_root, Path::new(program)).map(|_| true);
        Some((
            file,
            config.map(|config| accepts_variable(&config)).or_else(by_default)?,
        ))
    })
}

/// Returns true unless the setting is off. It belongs to no table, so it comes before the first one.
fn accepts_variable(config: &str) -> bool {
    let lines = config.lines().map(str::trim).take_while(|line| !line.starts_with('['));
    let mut settings = lines.filter_map(|line| line.split_once('='));
    !settings.any(|(key, value)| {
        let value = value.split('#').next().unwrap_or_default();
        key.trim() == ACCEPT_VARIABLE && value.trim() == "false"
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn the_setting_is_on_unless_it_is_off_outside_of_tables() {
        let off = format!("{ACCEPT_VARIABLE} = false");
        for config in [
            String::new(),
            format!("#{off}\n"),
            format!("{ACCEPT_VARIABLE} = true\n"),
            format!("[nvidia-container-cli]\n{off}\n"),
        ] {
            assert!(accepts_variable(&config), "{config}");
        }
        for config in [
            format!("disable-require = false\n  {off} # as the documentation says\n[nvidia-container-cli]\n"),
            format!("{ACCEPT_VARIABLE}=false"),
        ] {
            assert!(!accepts_variable(&config), "{config}");
        }
    }

    /// Writes a file of the host.
    fn put(host: &Path, path: &str, text: &str) {
        let path = host.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_host_without_the_runtime_accepts_nothing() {
        let host = tempfile::tempdir().unwrap();
        let found = || (accepting(host.path()), accepts_envvar(host.path()));
        assert_eq!(found(), (None, None));
        for (file, _) in PLACES {
            put(host.path(), file, "disable-require = false\n");
            assert_eq!(found(), (Some(file.into()), Some(true)));
            put(host.path(), file, &format!("{ACCEPT_VARIABLE} = false\n"));
            assert_eq!(found(), (None, Some(false)));
        }
    }

    #[test]
    fn a_runtime_without_its_file_accepts_variables() {
        for (file, program) in PLACES {
            let host = tempfile::tempdir().unwrap();
            put(host.path(), program, "");
            assert_eq!(accepting(host.path()), Some(file.into()));
        }
    }

    #[test]
    fn the_runtime_of_gpu_operator_on_gke_counts() {
        let host = tempfile::tempdir().unwrap();
        let toolkit = "/home/kubernetes/bin/nvidia/toolkit";
        put(host.path(), &format!("{toolkit}/nvidia-container-runtime"), "");
        assert_eq!(accepts_envvar(host.path()), Some(true));
        let file = format!("{toolkit}/.config/nvidia-container-runtime/config.toml");
        put(host.path(), &file, &format!("{ACCEPT_VARIABLE} = false\n"));
        assert_eq!(accepts_envvar(host.path()), Some(false));
    }

    #[test]
    fn the_file_is_found_behind_links_of_the_host() {
        let host = tempfile::tempdir().unwrap();
        put(host.path(), "/etc/static/nvidia-container-runtime/config.toml", "");
        symlink(
            "/etc/static/nvidia-container-runtime",
            host.path().join("etc/nvidia-container-runtime"),
        )
        .unwrap();
        assert_eq!(accepts_envvar(host.path()), Some(true));
    }
}
