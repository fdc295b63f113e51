//! Recognises machines whose NVIDIA GPUs gpunode cannot serve: they are no PCI functions.

use std::{fs, path::Path};

/// NVML of the Windows host, which WSL mounts into each distribution.
const WSL_LIBRARY: &str = "usr/lib/wsl/lib/libnvidia-ml.so.1";
/// Files of a Tegra system, as in go-nvlib's `pkg/nvlib/info/property-extractor.go`.
const TEGRA_RELEASE: &str = "etc/nv_tegra_release";
const TEGRA_FAMILY: &str = "sys/devices/soc0/family";

/// Returns the reason why the GPUs of such a machine are not advertised; none for any other machine. Blocks.
pub fn unsupported(host_root: &Path) -> Option<&'static str> {
    let is_tegra = || {
        let family = fs::read_to_string(host_root.join(TEGRA_FAMILY)).unwrap_or_default();
        host_root.join(TEGRA_RELEASE).is_file() || family.to_lowercase().starts_with("tegra")
    };
    if host_root.join(WSL_LIBRARY).exists() {
        Some(
            "this machine is WSL2, which gpunode does not support: its GPUs belong to Windows, and a container gets all \
             of them or none",
        )
    } else if is_tegra() {
        Some(
            "this machine is a Tegra system (Jetson, Drive), whose integrated GPU gpunode does not support; PCI GPUs in it \
             are advertised",
        )
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_recognised_by_their_files() {
        for (file, content, name) in [
            (WSL_LIBRARY, "", Some("WSL2")),
            (TEGRA_RELEASE, "# R36", Some("Tegra")),
            (TEGRA_FAMILY, "Tegra\n", Some("Tegra")),
            (TEGRA_FAMILY, "i.MX\n", None),
        ] {
            let host = tempfile::tempdir().unwrap();
            assert_eq!(unsupported(host.path()), None);
            let path = host.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
            let found = unsupported(host.path());
            assert_eq!(found.is_some(), name.is_some(), "{file}: {content:?}");
            assert!(name.is_none_or(|name| found.is_some_and(|reason| reason.contains(name))));
        }
    }
}
