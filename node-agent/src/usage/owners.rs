//! Finds the pod and the container of each process. Everything here blocks.

use crate::gpu_processes::{MPS, container_of, pod_of, small_file::text};
use gpunode_gpu::{ProcessOwner, ProcessesOnGpu, UsageHolder};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Folder of the host in which the kubelet has a link for each container, `POD_NAMESPACE_CONTAINER-ID.log`
/// (`pkg/kubelet/kuberuntime/legacy.go`, `legacyContainerLogsDir`).
const CONTAINER_LINKS: &str = "var/log/containers";
/// Length to which the kubelet cuts the name of a link before `.log` (`logSymlink`).
const LONGEST_LINK: usize = 251;
/// Length of the beginning of an id that tells containers apart.
const SHORT_ID: usize = 12;

/// Folders and pods by which processes are known.
#[derive(Clone, Copy, Debug)]
pub struct OwnerSearch<'a> {
    /// Processes of the node.
    pub proc: &'a Path,
    /// Root of the host.
    pub host_root: &'a Path,
    /// UID of the pod of the MPS servers; none if unknown.
    pub mps_pod: Option<&'a str>,
    /// Holders of devices.
    pub holders: &'a [UsageHolder],
}

impl OwnerSearch<'_> {
    /// Returns the owner of each process on these GPUs that runs.
    pub fn owners(&self, gpus: &[ProcessesOnGpu]) -> BTreeMap<u32, ProcessOwner> {
        let listed = gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
        let sampled = gpus.iter().flat_map(|gpu| gpu.samples.iter().flatten());
        let pids: BTreeSet<u32> = listed
            .map(|process| process.pid)
            .chain(sampled.map(|sample| sample.pid))
            .collect();
        pids.into_iter()
            .filter_map(|pid| Some((pid, self.owner(pid)?)))
            .collect()
    }

    fn owner(&self, pid: u32) -> Option<ProcessOwner> {
        let folder = self.proc.join(pid.to_string());
        let cgroups = text(&folder.join("cgroup")).ok()?;
        let pod_uid = pod_of(&cgroups);
        let is_named_so = || text(&folder.join("comm")).is_ok_and(|name| name.starts_with(MPS));
        let is_of_mps = |uid: &String| self.mps_pod.is_none_or(|pod| pod == uid);
        Some(ProcessOwner {
            container: pod_uid
                .as_ref()
                .and_then(|uid| self.container(uid, &container_of(&cgroups)?)),
            is_mps_server: pod_uid.as_ref().is_some_and(is_of_mps) && is_named_so(),
            pod_uid,
        })
    }

    /// Returns the name of a container, if several containers of its pod hold devices: only then it matters. None too if the names of
    /// the pod and its container leave no room for the id.
    fn container(&self, pod_uid: &str, id: &str) -> Option<String> {
        let of_pod = self.holders.iter().filter(|of| of.pod_uid.as_deref() == Some(pod_uid));
        let holders: BTreeSet<(&str, &str, &str)> = of_pod
            .map(|of| {
                let holder = &of.holder;
                (
                    holder.pod.as_str(),
                    holder.namespace.as_str(),
                    holder.container.as_str(),
                )
            })
            .collect();
        if holders.len() < 2 {
            return None;
        }
        let links = self.host_root.join(CONTAINER_LINKS);
        let has_link = |(pod, namespace, container): &(&str, &str, &str)| {
            let name = format!("{pod}_{namespace}_{container}-{id}");
            let cut = name.get(..LONGEST_LINK).unwrap_or(&name);
            let has_id = cut.len() + id.len() >= name.len() + SHORT_ID;
            has_id && fs::symlink_metadata(links.join(format!("{cut}.log"))).is_ok()
        };
        let found = holders.into_iter().find(has_link);
        found.map(|(_, _, container)| container.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_gpu::{DeviceHolder, ListedProcess, SmSample};
    use std::os::unix::fs::symlink;

    const UID: &str = "1b4d2f6a-0c8e-4f3b-9a77-5d1e2c3b4a59";
    const ID: &str = "8c1f0d9e7b6a5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a8b7c6d5e4f3a2b1c0d";

    #[test]
    fn containers_of_a_pod_are_found_by_the_links_of_the_kubelet_and_mps_servers_by_name_and_pod() {
        let node = tempfile::tempdir().unwrap();
        let (proc, links) = (node.path().join("proc"), node.path().join(CONTAINER_LINKS));
        fs::create_dir_all(&links).unwrap();
        let process = |pid: u32, cgroup: &str, name: &str| {
            let folder = proc.join(pid.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
            fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
        };
        process(1, &format!("/kubepods/pod{UID}/{ID}"), "python");
        process(2, "/system.slice/dcgm.service", "dcgm");
        process(3, &format!("/kubepods/pod{UID}/{ID}"), "nvidia-cuda-mps");
        // As the kubelet makes it: its target is in a folder that this container may not have.
        symlink("/var/log/pods/nowhere", links.join(format!("train_ml_two-{ID}.log"))).unwrap();
        let holder = |container: &str| UsageHolder {
            holder: DeviceHolder {
                namespace: "ml".to_owned(),
                pod: "train".to_owned(),
                container: container.to_owned(),
                ..DeviceHolder::default()
            },
            pod_uid: Some(UID.to_owned()),
        };
        let gpus = [ProcessesOnGpu {
            gpu: "GPU-0".to_owned(),
            processes: Ok([1, 2, 3]
                .map(|pid| ListedProcess {
                    pid,
                    ..ListedProcess::default()
                })
                .into()),
            samples: Ok(vec![SmSample { pid: 4, percent: 1 }]),
        }];
        let found = |holders: &[UsageHolder], mps_pod: Option<&str>| {
            let search = OwnerSearch {
                proc: &proc,
                host_root: node.path(),
                mps_pod,
                holders,
            };
            let owners = search.owners(&gpus).into_iter();
            let owners = owners.map(|(pid, of)| (pid, of.pod_uid.is_some(), of.container, of.is_mps_server));
            owners.collect::<Vec<_>>()
        };
        let two = || Some("two".to_owned());
        assert_eq!(
            found(&[holder("one"), holder("two")], Some(UID)),
            [(1, true, two(), false), (2, false, None, false), (3, true, two(), true)]
        );
        assert_eq!(
            found(&[holder("one"), holder("three")], Some("another")),
            [(1, true, None, false), (2, false, None, false), (3, true, None, false)]
        );
        assert_eq!(found(&[holder("two")], None)[0].2, None, "one container needs no name");
    }

    #[test]
    fn links_of_long_names_are_as_short_as_the_kubelet_makes_them() {
        let node = tempfile::tempdir().unwrap();
        let links = node.path().join(CONTAINER_LINKS);
        fs::create_dir_all(&links).unwrap();
        for (length, expected) in [(200, Some("two")), (240, None)] {
            let pod = "p".repeat(length);
            let name = format!("{pod}_ml_two-{ID}");
            symlink("/var/log/pods/nowhere", links.join(format!("{}.log", &name[..251]))).unwrap();
            let holders = ["one", "two"].map(|container| UsageHolder {
                holder: DeviceHolder {
                    namespace: "ml".to_owned(),
                    pod: pod.clone(),
                    container: container.to_owned(),
                    ..DeviceHolder::default()
                },
                pod_uid: Some(UID.to_owned()),
            });
            let search = OwnerSearch {
                proc: node.path(),
                host_root: node.path(),
                mps_pod: None,
                holders: &holders,
            };
            assert_eq!(search.container(UID, ID).as_deref(), expected, "{length}");
        }
    }
}
