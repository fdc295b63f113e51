//! Finds processes and open handles on GPU instances, or on a GPU, that have to go.

use crate::{
    driver::{
        calls::DriverCall,
        nvml::{self, GpuAddress, MigChangeError},
    },
    gpu_processes::{pod_of, small_file},
};
use gpunode_crds::named;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

/// Most processes whose open files are looked at: more than a node runs.
const MAX_PROCESSES: usize = 65_536;
/// Most open files of a process that are looked at.
const MAX_FILES: usize = 65_536;
/// Most names in a message.
const MAX_NAMES: usize = 4;

/// Name of nvidia-persistenced, which lets a GPU go when NVML switches persistence mode off. The kernel cuts a name after 15 bytes.
const PERSISTENCED: &str = "nvidia-persiste";
/// Beginning of the names of gpunode's programs.
const GPUNODE: &str = "gpunode-";
/// Beginnings of the names of processes that keep no GPU from a change: the driver's own daemons and gpunode.
const OWN: [&str; 3] = [PERSISTENCED, "nv-fabricmanage", GPUNODE];

/// Part of a GPU that has to be free.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaving {
    /// Ids of GPU instances; none if the mode of the GPU changes, which no process on it outlives.
    pub instances: Option<BTreeSet<u32>>,
    /// Paths of device nodes that nobody may have open. Containers on other instances open the GPU's own node too, so that one is
    /// not among them unless the GPU is reset.
    pub nodes: Vec<String>,
    /// Processes that count although they keep no GPU from a change as a rule.
    pub suspects: Suspects,
}

/// Processes that are named once the driver has refused a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspects {
    /// nvidia-persistenced, which NVML did not find.
    pub persistenced: bool,
    /// Other agents of gpunode.
    pub agents: bool,
}

/// Returns the names of processes and of holders of open handles on what leaves; none if there are none. Ends the turn of the
/// call after the driver's answers. Blocks.
pub fn occupants(
    library: &Path,
    host_root: &Path,
    gpu: &GpuAddress,
    leaving: &Leaving,
    call: &DriverCall,
) -> Result<Option<String>, MigChangeError> {
    let proc = host_root.join("proc");
    let mut pids = nvml::pids_on(library, gpu, leaving.instances.as_ref())?;
    call.answered();
    call.end_turn();
    pids.extend(openers(host_root, &leaving.nodes));
    let names: Vec<String> = pids
        .into_iter()
        .filter_map(|pid| describe(&proc, pid, leaving.suspects))
        .collect();
    Ok((!names.is_empty()).then(|| named(&names, MAX_NAMES)))
}

/// Device nodes of what leaves: the ends of their paths, and their device numbers.
struct LeavingNodes {
    ends: Vec<PathBuf>,
    numbers: BTreeSet<u64>,
}

impl LeavingNodes {
    fn of(host_root: &Path, nodes: &[String]) -> Self {
        let relative = |path: &String| PathBuf::from(path.trim_start_matches('/'));
        let ends: Vec<PathBuf> = nodes.iter().map(relative).collect();
        let numbers = ends.iter().filter_map(|end| device_number(&host_root.join(end)));
        Self {
            numbers: numbers.collect(),
            ends,
        }
    }

    /// Returns true for an open file that is one of the nodes. `path` is the name under which the process opened it.
    fn have(&self, file: &Path, path: &Path) -> bool {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return false;
        };
        // Few files have such a name, so that few are looked at.
        if !name.starts_with("nvidia") {
            return false;
        }
        // The kernel's mark of a file whose name is gone.
        let path = path.with_file_name(name.trim_end_matches(" (deleted)"));
        self.ends.iter().any(|end| path.ends_with(end))
            || device_number(file).is_some_and(|number| self.numbers.contains(&number))
    }
}

/// Returns the number of a device node.
fn device_number(path: &Path) -> Option<u64> {
    let node = fs::metadata(path).ok()?;
    node.file_type().is_char_device().then(|| node.rdev())
}

/// Returns the processes that have one of these device nodes open.
fn openers(host_root: &Path, nodes: &[String]) -> Vec<u32> {
    if nodes.is_empty() {
        return Vec::new();
    }
    let nodes = LeavingNodes::of(host_root, nodes);
    let proc = host_root.join("proc");
    let processes = fs::read_dir(&proc).into_iter().flatten().filter_map(Result::ok);
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let opens = |pid: &u32| {
        let files = fs::read_dir(proc.join(pid.to_string()).join("fd"));
        let mut files = files.into_iter().flatten().filter_map(Result::ok).take(MAX_FILES);
        files.any(|file| fs::read_link(file.path()).is_ok_and(|path| nodes.have(&file.path(), &path)))
    };
    pids.take(MAX_PROCESSES).filter(opens).collect()
}

/// Names a process; none if it keeps no GPU from a change. One that has ended meanwhile has only its number.
fn describe(proc: &Path, pid: u32, suspects: Suspects) -> Option<String> {
    let folder = proc.join(pid.to_string());
    let text = |name: &str| small_file::text(&folder.join(name)).unwrap_or_default();
    let (name, pod) = (text("comm"), pod_of(&text("cgroup")));
    let name = name.trim_end();
    let is_suspect = (suspects.persistenced && name.starts_with(PERSISTENCED))
        || (suspects.agents && name.starts_with(GPUNODE) && pid != std::process::id());
    if !is_suspect && OWN.iter().any(|own| name.starts_with(own)) {
        return None;
    }
    let name = match name {
        "" => "a process",
        PERSISTENCED => "nvidia-persistenced",
        name => name,
    };
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

    const NODES: [&str; 2] = ["/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"];

    fn opened(host: &Path, nodes: &[&str]) -> Vec<u32> {
        let nodes: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
        let mut pids = openers(host, &nodes);
        pids.sort_unstable();
        pids
    }

    fn described(proc: &Path, pid: u32) -> Option<String> {
        describe(proc, pid, Suspects::default())
    }

    #[test]
    fn open_nodes_of_an_instance_count_and_those_of_its_gpu_do_not() {
        let host = tempfile::tempdir().unwrap();
        let proc = host.path().join("proc");
        process(&proc, 10, "dcgm", NODES[0]);
        process(&proc, 11, "train", "/dev/nvidia0");
        process(&proc, 12, "other", "/dev/nvidia-caps/nvidia-cap661");
        process(&proc, 13, "shell", "/host/dev/nvidia-caps/nvidia-cap67 (deleted)");
        assert_eq!(opened(host.path(), &NODES), [10, 13]);
        assert_eq!(opened(host.path(), &["/dev/nvidia0"]), [11]);
        assert_eq!(opened(host.path(), &[]), [0; 0]);
        assert_eq!(described(&proc, 10).as_deref(), Some("dcgm (process 10)"));
    }

    #[test]
    fn a_node_under_another_name_is_known_by_its_number() {
        let host = tempfile::tempdir().unwrap();
        let node = host.path().join("dev/nvidia-caps/nvidia-cap66");
        fs::create_dir_all(node.parent().unwrap()).unwrap();
        symlink("/dev/zero", node).unwrap();
        for (pid, of) in [(10, "/dev/zero"), (11, "/dev/null")] {
            let renamed = host.path().join(format!("nvidia-{pid}"));
            symlink(of, &renamed).unwrap();
            process(&host.path().join("proc"), pid, "dcgm", renamed.to_str().unwrap());
        }
        assert_eq!(opened(host.path(), &NODES), [10]);
    }

    #[test]
    fn daemons_of_the_driver_and_gpunode_keep_no_gpu_from_a_change() {
        let host = tempfile::tempdir().unwrap();
        for (pid, name) in [(1, "nvidia-persiste"), (2, "nv-fabricmanage"), (3, "gpunode-agent")] {
            process(host.path(), pid, name, "/dev/nvidia0");
            assert_eq!(described(host.path(), pid), None);
        }
        assert_eq!(described(host.path(), 4).as_deref(), Some("a process (process 4)"));
    }

    #[test]
    fn suspects_are_named_once_a_change_was_refused() {
        let host = tempfile::tempdir().unwrap();
        for (pid, name) in [(1, PERSISTENCED), (2, "nv-fabricmanage"), (3, "gpunode-agent")] {
            process(host.path(), pid, name, "/dev/nvidia0");
        }
        let named = |suspects| [1, 2, 3].map(|pid| describe(host.path(), pid, suspects).unwrap_or_default());
        let (persistenced, agents) = (true, true);
        assert_eq!(
            named(Suspects { persistenced, agents }),
            ["nvidia-persistenced (process 1)", "", "gpunode-agent (process 3)"]
        );
        assert_eq!(
            named(Suspects {
                agents,
                ..Suspects::default()
            })[0],
            ""
        );
        let own = std::process::id();
        process(host.path(), own, "gpunode-agent", "/dev/nvidia0");
        assert_eq!(describe(host.path(), own, Suspects { persistenced, agents }), None);
    }

    #[test]
    fn a_process_is_named_with_its_pod() {
        let proc = tempfile::tempdir().unwrap();
        process(proc.path(), 10, "train", NODES[0]);
        let uid = "1b4d2f6a-0c8e-4f3b-9a77-5d1e2c3b4a59";
        fs::write(proc.path().join("10/cgroup"), format!("0::/kubepods/pod{uid}/8c1f\n")).unwrap();
        let named = format!("train (process 10 of the pod with UID {uid})");
        assert_eq!(described(proc.path(), 10), Some(named));
    }
}
