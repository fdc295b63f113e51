//! Finds the pod and the container of a process by its cgroups. Pure.

/// Shortest UID of a pod: that of a static pod, an MD5 sum. Others are UUIDs.
const SHORTEST_UID: usize = 32;

/// Returns the UID of the pod that a process belongs to, from the text of `/proc/PID/cgroup`; none for a process of the host.
///
/// The kubelet names the cgroup of a pod `podUID`. With systemd as driver this is `kubepods-podUID.slice`, with `_` for each `-`
/// of the UID (`pkg/kubelet/cm/pod_container_manager_linux.go` and `cgroup_manager_linux.go`, `ToSystemd`).
///
/// The outermost pod counts: containers, users and services may name the cgroups below their own as they like.
pub fn pod_of(cgroups: &str) -> Option<String> {
    pod_and_rest(cgroups).map(|(pod, _)| pod)
}

/// Returns the id of the container that a process belongs to; none for a process of the host, and for one of the pod alone.
///
/// Container runtimes name its cgroup by its id, with systemd as driver `RUNTIME-ID.scope`. CRI-O names it `crio-ID` without systemd.
pub fn container_of(cgroups: &str) -> Option<String> {
    let (_, folder) = pod_and_rest(cgroups)?;
    let folder = folder?;
    let id = match folder.strip_suffix(".scope") {
        Some(scope) => scope.rsplit_once('-')?.1,
        None => folder.strip_prefix("crio-").unwrap_or(&folder),
    };
    let is_id = id.len() >= SHORTEST_UID && id.chars().all(|character| character.is_ascii_hexdigit());
    is_id.then(|| id.to_owned())
}

/// Returns the UID of the outermost pod, and the folder of the cgroup below it.
fn pod_and_rest(cgroups: &str) -> Option<(String, Option<String>)> {
    let paths = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut in_path = paths.map(|path| path.split('/').take_while(|folder| !is_of_host(folder)));
    in_path.find_map(|mut folders| {
        let pod = folders.find_map(pod_uid)?;
        Some((pod, folders.next().map(str::to_owned)))
    })
}

/// Returns true for the cgroup of a user, a virtual machine or a service.
fn is_of_host(folder: &str) -> bool {
    ["user.slice", "machine.slice"].contains(&folder) || folder.ends_with(".service")
}

fn pod_uid(folder: &str) -> Option<String> {
    let uid = match folder.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1.replace('_', "-"),
        None => folder.strip_prefix("pod")?.to_owned(),
    };
    let is_uid = uid.len() >= SHORTEST_UID
        && uid
            .chars()
            .all(|character| character.is_ascii_hexdigit() || character == '-');
    is_uid.then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "1b4d2f6a-0c8e-4f3b-9a77-5d1e2c3b4a59";
    const CONTAINER: &str = "8c1f0d9e7b6a5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a8b7c6d5e4f3a2b1c0d";

    #[test]
    fn pods_are_found_under_each_cgroup_driver_and_version() {
        let escaped = UID.replace('-', "_");
        for cgroups in [
            format!("0::/kubepods/besteffort/pod{UID}/c\n"),
            format!("0::/kubepods/besteffort/pod{UID}/{CONTAINER}\n"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice/cri-containerd-{CONTAINER}.scope\n"
            ),
            // A guaranteed pod with CRI-O.
            format!("0::/kubepods.slice/kubepods-pod{escaped}.slice/crio-{CONTAINER}.scope/container\n"),
            format!("0::/kubepods/burstable/pod{UID}/crio-{CONTAINER}\n"),
            // As seen from a cgroup namespace.
            format!("0::/../../pod{UID}/{CONTAINER}\n"),
            format!(
                "12:devices:/node/kubepods/pod{UID}/{CONTAINER}\n11:cpu,cpuacct:/node/kubepods/pod{UID}/{CONTAINER}\n"
            ),
            format!(
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{escaped}.slice/cri-containerd-{CONTAINER}.scope"
            ),
        ] {
            assert_eq!(pod_of(&cgroups).as_deref(), Some(UID), "{cgroups}");
            let container = (!cgroups.ends_with("/c\n")).then_some(CONTAINER);
            assert_eq!(container_of(&cgroups).as_deref(), container, "{cgroups}");
        }
        let of_static = "0::/kubepods/pod0123456789abcdef0123456789abcdef/c";
        assert_eq!(pod_of(of_static).as_deref(), Some("0123456789abcdef0123456789abcdef"));
    }

    #[test]
    fn a_container_cannot_join_another_pod_by_the_name_of_a_cgroup() {
        let other = "9c2e0b7a-1d3f-4a5b-8c6d-7e8f9a0b1c2d";
        for cgroups in [
            format!("0::/kubepods/pod{UID}/{CONTAINER}/pod{other}\n"),
            // A kubelet in a pod.
            format!("0::/kubepods/pod{UID}/{CONTAINER}/kubelet.slice/kubepods/pod{other}/{CONTAINER}\n"),
        ] {
            assert_eq!(pod_of(&cgroups).as_deref(), Some(UID), "{cgroups}");
        }
    }

    #[test]
    fn processes_of_the_host_have_no_pod() {
        let escaped = UID.replace('-', "_");
        let of_user = "0::/user.slice/user-1000.slice/user@1000.service";
        for cgroups in [
            format!("{of_user}/kubepods.slice/kubepods-pod{escaped}.slice/run-1.service"),
            format!("{of_user}/pod{UID}"),
            format!("0::/system.slice/tenant.service/pod{UID}"),
        ] {
            assert_eq!(pod_of(&cgroups), None, "{cgroups}");
        }
        for cgroups in [
            "",
            "0::/",
            "0::/system.slice/nvidia-persistenced.service",
            "0::/user.slice/user-1000.slice/session-1.scope",
            "0::/machine.slice/libpod-0123456789abcdef0123456789abcdef.scope",
            "0::/podman/pod",
            "0::/kubepods.slice",
        ] {
            assert_eq!(pod_of(cgroups), None, "{cgroups}");
        }
    }
}
