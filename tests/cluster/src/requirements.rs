//! Requirements of a cluster on the machine.

use std::{env, path::Path, path::PathBuf};

use anyhow::{Result, bail};

use crate::cgroup::Trees;

const PROGRAMS: [&str; 12] = [
    "busybox",
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "pause",
];
const TOOLS: [&str; 9] = [
    "ip",
    "nsenter",
    "unshare",
    "setsid",
    "mount",
    "pivot_root",
    "runc",
    "nft",
    "conntrack",
];
const CNI: [&str; 3] = ["bridge", "host-local", "loopback"];

/// Everything that is missing, a line each, saying what to do. Empty if a cluster can be started.
pub(crate) fn missing(bin: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    if let Err(error) = root() {
        lines.push(format!("{error:#}"));
    }
    if let Err(error) = Trees::find() {
        lines.push(format!("{error:#}"));
    }
    let absent: Vec<_> = PROGRAMS.into_iter().filter(|name| !bin.join(name).exists()).collect();
    if !absent.is_empty() {
        lines.push(format!(
            "{} missing in {}: run tests/cluster/build/build.sh",
            absent.join(", "),
            bin.display()
        ));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    // Where the cluster's programs look, whatever the caller's search path is.
    folders.extend(["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from));
    let mut absent: Vec<_> = TOOLS
        .into_iter()
        .filter(|tool| !folders.iter().any(|folder| folder.join(tool).exists()))
        .map(str::to_owned)
        .collect();
    let cni = CNI.map(|name| format!("/usr/lib/cni/{name}"));
    absent.extend(cni.into_iter().filter(|path| !Path::new(path).exists()));
    if !absent.is_empty() {
        lines.push(format!(
            "{} missing: run tests/cluster/install-packages.sh",
            absent.join(", ")
        ));
    }
    lines
}

/// Refuses other users than root, who could not even see the processes of a cluster.
pub(crate) fn root() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("root is needed for namespaces, mounts and control groups: run this as root");
    }
    Ok(())
}

/// Refuses a machine on which no cluster could run, in one line.
pub(crate) fn ensure(bin: &Path) -> Result<Trees> {
    let missing = missing(bin);
    if !missing.is_empty() {
        bail!("{}", missing.join("; "));
    }
    Trees::find()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_named_with_what_to_do() {
        let bin = tempfile::tempdir().unwrap();
        for name in PROGRAMS.into_iter().filter(|name| *name != "etcd") {
            std::fs::write(bin.path().join(name), "").unwrap();
        }
        let lines = missing(bin.path());
        let line = lines.iter().find(|line| line.contains("build.sh")).unwrap();
        assert!(line.starts_with("etcd missing in "), "{line}");
    }
}
