//! Finds processes and open handles on GPU instances, or on a GPU, that have to go.

use crate::{
    driver::nvml::{self, DriverError, DriverProcess, GpuAddress},
    gpu_processes::pod_of,
};
use gpunode_crds::named;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Most processes whose open files are looked at: more than a node runs.
const MAX_PROCESSES: usize = 65_536;
/// Most open files of a process that are looked at.
const MAX_FILES: usize = 65_536;
/// Most names in a message.
const MAX_NAMES: usize = 4;

/// Beginnings of the names of processes that keep no GPU from a change: the driver's own daemons and gpunode. The kernel cuts a
/// name after 15 bytes.
const OWN: [&str; 3] = ["nvidia-persiste", "nv-fabricmanage", "gpunode-"];

/// Part of a GPU that has to be free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// The GPU as a whole, since its mode changes.
    Gpu {
        /// The N of its `/dev/nvidiaN`.
        minor: Option<u32>,
    },
    /// GPU instances by id, each with the paths of its device nodes. Containers on other instances open the GPU's own node too, so
    /// that says nothing.
    Instances(BTreeMap<u32, Vec<String>>),
}

impl Leaving {
    fn has_process(&self, process: &DriverProcess) -> bool {
        match self {
            Self::Gpu { .. } => true,
            Self::Instances(instances) => process.instance.is_some_and(|(id, _)| instances.contains_key(&id)),
        }
    }

    /// Returns true for the path of a device node, as a process sees it.
    fn has_node(&self, path: &Path) -> bool {
        match self {
            Self::Gpu { minor } => minor.is_some_and(|minor| path.ends_with(format!("dev/nvidia{minor}"))),
            Self::Instances(instances) => instances
                .values()
                .flatten()
                .any(|node| path.ends_with(node.trim_start_matches('/'))),
        }
    }
}

/// Returns a sentence about the processes and handles on what leaves; none if there are none. `begin` receives the UUID of the
/// GPU before the calls about it. Blocks.
pub fn occupants(
    library: &Path,
    host_root: &Path,
    gpu: &GpuAddress,
    leaving: &Leaving,
    begin: impl Fn(&str),
) -> Result<Option<String>, DriverError> {
    let proc = host_root.join("proc");
    let on_gpu = nvml::processes(library, std::slice::from_ref(gpu), |uuid| {
        begin(uuid);
        true
    })?;
    let mut pids: BTreeSet<u32> = on_gpu
        .iter()
        .filter(|process| leaving.has_process(process))
        .map(|process| process.pid)
        .collect();
    pids.extend(openers(&proc, leaving));
    let names: Vec<String> = pids.into_iter().filter_map(|pid| describe(&proc, pid)).collect();
    Ok((!names.is_empty()).then(|| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        named(&names, MAX_NAMES)
    }))
}

/// Returns the processes with an open device node of what leaves.
fn openers(proc: &Path, leaving: &Leaving) -> Vec<u32> {
    let processes = fs::read_dir(proc).into_iter().flatten().filter_map(Result::ok);
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let opens = |pid: &u32| {
        let files = fs::read_dir(proc.join(pid.to_string()).join("fd"));
        let files = files.into_iter().flatten().filter_map(Result::ok).take(MAX_FILES);
        let mut paths = files.filter_map(|file| fs::read_link(file.path()).ok());
        paths.any(|path| leaving.has_node(&path))
    };
    pids.take(MAX_PROCESSES).filter(opens).collect()
}

/// Names a process; none if it keeps no GPU from a change, or has ended.
fn describe(proc: &Path, pid: u32) -> Option<String> {
    let folder = proc.join(pid.to_string());
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let (name, pod) = (text("comm"), pod_of(&text("cgroup")));
    let name = name.trim_end();
    if OWN.iter().any(|own| name.starts_with(own)) {
        return None;
    }
    let name = if name.is_empty() { "a process" } else { name };
    Some(match pod {
        Some(uid) => format!("{name} (process {pid} of the pod with UID {uid})"),
        None => format!("{name} (process {pid})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn process(proc: &Path, pid: u32, name: &str, open: &str) {
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(folder.join("fd")).unwrap();
        fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
        fs::write(folder.join("cgroup"), "0::/system.slice/dcgm.service\n").unwrap();
        symlink(open, folder.join("fd/7")).unwrap();
    }

    #[test]
    fn open_nodes_of_an_instance_count_and_those_of_its_gpu_do_not() {
        let host = tempfile::tempdir().unwrap();
        let proc = host.path().join("proc");
        process(&proc, 10, "dcgm", "/dev/nvidia-caps/nvidia-cap66");
        process(&proc, 11, "train", "/dev/nvidia0");
        process(&proc, 12, "other", "/dev/nvidia-caps/nvidia-cap661");
        let nodes = ["/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"].map(str::to_owned);
        let leaving = Leaving::Instances(BTreeMap::from([(7, nodes.into())]));
        assert_eq!(openers(&proc, &leaving), [10]);
        assert_eq!(openers(&proc, &Leaving::Gpu { minor: Some(0) }), [11]);
        assert_eq!(describe(&proc, 10).as_deref(), Some("dcgm (process 10)"));
    }

    #[test]
    fn daemons_of_the_driver_and_gpunode_keep_no_gpu_from_a_change() {
        let host = tempfile::tempdir().unwrap();
        for (pid, name) in [(1, "nvidia-persiste"), (2, "nv-fabricmanage"), (3, "gpunode-agent")] {
            process(host.path(), pid, name, "/dev/nvidia0");
            assert_eq!(describe(host.path(), pid), None);
        }
    }
}
