//! Control groups of the nodes, version 1 and 2.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::wait;

/// Controllers without which the kubelet or runc refuse to run pods.
const V1_CONTROLLERS: [&str; 7] = ["cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids"];
const V2_CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// Passed on where they are there.
const V2_OPTIONAL: [&str; 3] = ["cpuset", "io", "hugetlb"];

/// Version of the machine's control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupVersion {
    /// A tree per controller.
    V1,
    /// One tree.
    V2,
}

impl std::fmt::Display for CgroupVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CgroupVersion::V1 => "v1",
            CgroupVersion::V2 => "v2",
        })
    }
}

/// The trees of control groups that are mounted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Trees {
    pub(crate) version: CgroupVersion,
    mounts: Vec<PathBuf>,
}

impl Trees {
    /// Finds the machine's trees, and refuses a machine on which no kubelet could run.
    pub(crate) fn find() -> Result<Self> {
        let path = "/proc/self/mountinfo";
        let mounts = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        let trees = Self::choose(&mounts)?;
        if trees.version == CgroupVersion::V2 {
            let have = read_words(Path::new("/sys/fs/cgroup/cgroup.controllers"))?;
            need(&V2_CONTROLLERS, &have, "delegate them to the cgroup of this session")?;
        }
        Ok(trees)
    }

    fn choose(mountinfo: &str) -> Result<Self> {
        let mut version1 = Vec::new();
        let mut controllers = Vec::new();
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let (Some(point), Some(kind)) = (left.split(' ').nth(4), right.split(' ').next()) else {
                continue;
            };
            match kind {
                "cgroup2" if point == "/sys/fs/cgroup" => {
                    return Ok(Trees {
                        version: CgroupVersion::V2,
                        mounts: vec![PathBuf::from(point)],
                    });
                }
                // Beside version 1; it has no controllers, but runc makes groups in it.
                "cgroup2" if point.starts_with("/sys/fs/cgroup/") => {
                    version1.push(PathBuf::from(point));
                }
                "cgroup" if point.starts_with("/sys/fs/cgroup/") => {
                    version1.push(PathBuf::from(point));
                    let options = right.rsplit(' ').next().unwrap_or_default();
                    controllers.extend(options.split(',').map(str::to_owned));
                }
                _ => {}
            }
        }
        need(
            &V1_CONTROLLERS,
            &controllers,
            "mount cgroup v2, or these controllers of v1, at /sys/fs/cgroup",
        )?;
        Ok(Trees {
            version: CgroupVersion::V1,
            mounts: version1,
        })
    }

    /// Makes the group of a node below the cluster's group in every tree and returns its name for the kubelet.
    pub(crate) fn create(&self, group: &str, node: &str) -> Result<String> {
        for mount in &self.mounts {
            let cluster = mount.join(group);
            if self.version == CgroupVersion::V2 {
                pass_on_controllers(mount)?;
            }
            make(&cluster)?;
            if self.version == CgroupVersion::V2 {
                pass_on_controllers(&cluster)?;
            }
            make(&cluster.join(node))?;
        }
        Ok(format!("/{group}/{node}"))
    }

    /// Removes the cluster's group and all below it; their processes have ended.
    pub(crate) fn remove(&self, group: &str) -> Result<()> {
        for mount in &self.mounts {
            let path = mount.join(group);
            // The kernel may hold a group for a moment after its last process.
            let mut last = None;
            let removed = wait::until("control groups to be free", Duration::from_mins(1), || {
                last = remove_tree(&path).err();
                Ok(last.is_none().then_some(()))
            });
            if let (Err(timeout), Some(error)) = (removed, last) {
                return Err(error).with_context(|| format!("{timeout}: remove {}", path.display()));
            }
        }
        Ok(())
    }
}

/// Name of the group of the cluster in this folder.
pub(crate) fn group(cluster: &Path) -> String {
    let name = cluster.file_name().unwrap_or_default().to_string_lossy();
    let digest = Sha256::digest(cluster.as_os_str().as_encoded_bytes());
    format!("gpunode-{name}-{digest:.8x}")
}

fn need(wanted: &[&str], have: &[String], what_to_do: &str) -> Result<()> {
    let missing: Vec<_> = wanted
        .iter()
        .filter(|name| !have.iter().any(|other| other == *name))
        .copied()
        .collect();
    if !missing.is_empty() {
        bail!("cgroup controllers {} are missing: {what_to_do}", missing.join(", "));
    }
    Ok(())
}

fn make(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("create control group {}", path.display())),
    }
    // In version 1 a new cpuset is empty, and no process can enter it.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = path.join(file);
        let inherited = path.parent().map(|parent| parent.join(file));
        if let Some(inherited) = inherited
            && own.exists()
            && inherited.exists()
            && fs::read_to_string(&own).is_ok_and(|value| value.trim().is_empty())
        {
            let value = fs::read_to_string(&inherited).with_context(|| format!("read {}", inherited.display()))?;
            fs::write(&own, value.trim()).with_context(|| format!("write {}", own.display()))?;
        }
    }
    Ok(())
}

/// Version 2: lets the children of a group have controllers.
fn pass_on_controllers(group: &Path) -> Result<()> {
    let file = group.join("cgroup.subtree_control");
    let have = read_words(&group.join("cgroup.controllers"))?;
    let active = read_words(&file)?;
    let missing: Vec<_> = V2_CONTROLLERS
        .iter()
        .chain(&V2_OPTIONAL)
        .filter(|name| have.iter().any(|other| other == *name) && !active.iter().any(|other| other == *name))
        .map(|name| format!("+{name}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    match fs::write(&file, missing.join(" ")) {
        Err(error) if error.kind() == ErrorKind::ResourceBusy => bail!(
            "cannot pass cgroup controllers on in {}: move its processes into a child group first",
            group.display()
        ),
        result => result.with_context(|| format!("write {missing:?} to {}", file.display())),
    }
}

fn read_words(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    Ok(text.split_ascii_whitespace().map(str::to_owned).collect())
}

fn remove_tree(path: &Path) -> std::io::Result<()> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v1(controllers: &[&str]) -> String {
        let fixed = "22 1 0:20 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                          30 22 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                          31 22 0:32 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";
        controllers.iter().fold(fixed.to_owned(), |mounts, name| {
            mounts + "40 22 0:40 / /sys/fs/cgroup/" + name + " rw - cgroup cgroup rw," + name + "\n"
        })
    }

    #[test]
    fn one_tree_is_version_2() {
        let trees = Trees::choose("30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n").unwrap();
        assert_eq!(trees.version, CgroupVersion::V2);
        assert_eq!(trees.mounts, [Path::new("/sys/fs/cgroup")]);
    }

    #[test]
    fn a_tree_per_controller_is_version_1_even_with_a_unified_one_beside_them() {
        let trees = Trees::choose(&v1(&V1_CONTROLLERS)).unwrap();
        assert_eq!(trees.version, CgroupVersion::V1);
        assert!(trees.mounts.contains(&PathBuf::from("/sys/fs/cgroup/systemd")));
        assert!(trees.mounts.contains(&PathBuf::from("/sys/fs/cgroup/unified")));
    }

    #[test]
    fn controllers_can_share_a_tree() {
        let trees = Trees::choose(&v1(&["cpu,cpuacct", "cpuset", "memory", "devices", "freezer", "pids"]));
        assert_eq!(trees.unwrap().version, CgroupVersion::V1);
    }

    #[test]
    fn missing_controllers_are_named() {
        let error = Trees::choose(&v1(&["cpu", "cpuacct", "cpuset", "devices", "freezer"])).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cgroup controllers memory, pids are missing:"),
            "{error}"
        );
    }

    #[test]
    fn groups_of_clusters_with_the_same_name_differ() {
        assert_ne!(group(Path::new("/a/default")), group(Path::new("/b/default")));
    }
}
