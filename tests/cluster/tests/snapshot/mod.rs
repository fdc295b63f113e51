//! Everything that a cluster could leave on the machine.

use std::{collections::BTreeSet, ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path};

/// Folders that Kubernetes, containerd and their plugins write to when nobody keeps them from it.
const FOLDERS: [&str; 12] = [
    "/dev",
    "/etc",
    "/etc/cni",
    "/opt",
    "/root",
    "/run",
    "/run/netns",
    "/usr/libexec",
    "/var/lib",
    "/var/lib/cni",
    "/var/log",
    "/var/run",
];
/// Settings of the whole machine that a kubelet or a network plugin changes.
const SETTINGS: [&str; 6] = [
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/hostname",
];

/// Mark of the line of a control group.
const CONTROL_GROUP: &str = "control group";

/// One line for everything that is there.
pub struct Snapshot(BTreeSet<String>);

impl Snapshot {
    /// Looks at the machine; `root` is the folder of the clusters.
    pub fn take(root: &Path) -> Self {
        let mut lines = BTreeSet::new();
        processes(root, &mut lines);
        entries("network device", Path::new("/sys/class/net"), &mut lines);
        for folder in FOLDERS {
            entries("file", Path::new(folder), &mut lines);
        }
        for name in SETTINGS {
            let value = fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap_or_default();
            lines.insert(format!("setting {name} = {}", value.trim()));
        }
        for line in fs::read_to_string("/proc/self/mountinfo").unwrap().lines() {
            lines.insert(format!("mount {line}"));
        }
        for line in fs::read_to_string("/proc/net/route").unwrap().lines() {
            lines.insert(format!("route {line}"));
        }
        cgroups(Path::new("/sys/fs/cgroup"), 3, &mut lines);
        Snapshot(lines)
    }

    /// Lists what is in only one of the two; empty if they are equal. Clusters other than those whose network links and
    /// control groups are `ours` may come and go meanwhile, and so may control groups of other programs; those of a
    /// kubelet's pods that are in the wrong place are not such.
    pub fn difference(&self, after: &Snapshot, ours: &[String]) -> String {
        let concerns_others = |line: &str| {
            let of_program = line.contains(CONTROL_GROUP) && !line.contains("kubepods");
            let of_cluster = ["net/gpn", "route gpn", "/gpunode-"]
                .iter()
                .any(|mark| line.contains(mark));
            (of_program || of_cluster) && !ours.iter().any(|name| line.contains(name))
        };
        let gone = self.0.difference(&after.0).map(|line| format!("- {line}\n"));
        let new = after.0.difference(&self.0).map(|line| format!("+ {line}\n"));
        gone.chain(new).filter(|line| !concerns_others(line)).collect()
    }
}

/// Processes that have to do with the clusters; others come and go.
fn processes(root: &Path, lines: &mut BTreeSet<String>) {
    let root = root.canonicalize().unwrap();
    for entry in fs::read_dir("/proc").unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_owned();
        if !name.as_bytes().iter().all(u8::is_ascii_digit) || name == OsStr::new(&std::process::id().to_string()) {
            continue;
        }
        let read = |file: &str| fs::read(path.join(file)).unwrap_or_default();
        let mentions = |content: &[u8], what: &[u8]| content.windows(what.len()).any(|part| part == what);
        let folder = root.as_os_str().as_bytes();
        if mentions(&read("environ"), folder)
            || mentions(&read("cmdline"), folder)
            || mentions(&read("cgroup"), b"/gpunode-one-")
            || mentions(&read("cgroup"), b"/gpunode-two-")
        {
            let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            lines.insert(format!("process {} {command}", name.display()));
        }
    }
}

fn entries(what: &str, folder: &Path, lines: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        // mount(8) makes it for its own notes, and tests that run beside this one call it.
        if !path.ends_with("run/mount") {
            lines.insert(format!("{what} {}", path.display()));
        }
    }
}

fn cgroups(folder: &Path, depth: u8, lines: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if depth > 0 && path.is_dir() && !path.is_symlink() {
            lines.insert(format!("{CONTROL_GROUP} {}", path.display()));
            cgroups(&path, depth - 1, lines);
        }
    }
}
