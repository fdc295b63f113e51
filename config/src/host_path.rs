//! Paths on a node, as flags of the operator and of the agent name them.

use std::{
    fmt,
    path::{Component, Path, PathBuf},
    str::FromStr,
};

/// Most driver roots; each is searched in some twenty folders, about once a second.
const MAX_DRIVER_ROOTS: usize = 16;
/// Most bytes of a path.
const MAX_LENGTH: usize = 1024;
/// Characters that a path cannot have: a comma separates driver roots, a colon ends a path in `LD_LIBRARY_PATH` and is refused in
/// `volumeMounts[].mountPath` (Kubernetes, `pkg/apis/core/validation`), and `$(NAME)` in the arguments of a container is replaced.
const REFUSED: [char; 3] = [',', ':', '$'];

/// Driver roots that are searched unless a flag names others: the root of a driver container, that of the host, and the folder of
/// GKE's driver installer on Container-Optimized OS (GoogleCloudPlatform/container-engine-accelerators,
/// `cmd/nvidia_gpu/device-plugin.yaml`). Talos, Bottlerocket, NixOS and Jetson have the driver in folders below the host's root.
const DRIVER_ROOTS: [&str; 3] = ["/run/nvidia/driver", "/", "/home/kubernetes/bin/nvidia"];

/// An absolute path on the host in its shortest form: without `..`, `.` and needless slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath(PathBuf);

/// The roots of the host below which the driver is searched, in this order; as text separated by commas. Empty text is the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverRootList(Vec<HostPath>);

/// Text that is no path on a host, or no list of such paths.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostPathError {
    /// The path is empty or counts from a working folder.
    #[error("{0:?} is not an absolute path; write the folder as it is on the nodes, such as /opt/nvidia")]
    Relative(String),
    /// The path goes up.
    #[error("{0:?} contains \"..\"; write the path without it")]
    Parent(String),
    /// The path has a character that an argument or a mount cannot have.
    #[error("{path:?} contains {character:?}, which the path of a mount cannot have")]
    Character {
        /// The path.
        path: String,
        /// The first such character.
        character: char,
    },
    /// The path is too long.
    #[error("the path has {0} bytes, more than {MAX_LENGTH}")]
    TooLong(usize),
    /// The list is too long.
    #[error("{0} driver roots are more than {MAX_DRIVER_ROOTS}; name those that your nodes have")]
    TooManyRoots(usize),
}

impl HostPath {
    /// Returns `/`.
    pub fn root() -> Self {
        Self("/".into())
    }

    /// Returns the kubelet's default `--root-dir`.
    pub fn kubelet_root() -> Self {
        Self("/var/lib/kubelet".into())
    }

    /// Returns the path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for HostPath {
    type Err = HostPathError;

    fn from_str(text: &str) -> Result<Self, HostPathError> {
        if text.len() > MAX_LENGTH {
            return Err(HostPathError::TooLong(text.len()));
        }
        let is_refused = |character: &char| character.is_control() || REFUSED.contains(character);
        if let Some(character) = text.chars().find(is_refused) {
            let path = text.to_owned();
            return Err(HostPathError::Character { path, character });
        }
        let path = Path::new(text);
        if !path.is_absolute() {
            return Err(HostPathError::Relative(text.to_owned()));
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(HostPathError::Parent(text.to_owned()));
        }
        Ok(Self(path.components().collect()))
    }
}

impl fmt::Display for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.display())
    }
}

impl DriverRootList {
    /// Returns the roots in the order of the search.
    pub fn roots(&self) -> Vec<PathBuf> {
        self.0.iter().map(|root| root.0.clone()).collect()
    }
}

impl Default for DriverRootList {
    fn default() -> Self {
        Self(DRIVER_ROOTS.map(|root| HostPath(root.into())).into())
    }
}

impl FromStr for DriverRootList {
    type Err = HostPathError;

    fn from_str(text: &str) -> Result<Self, HostPathError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let number = text.split(',').count();
        if number > MAX_DRIVER_ROOTS {
            return Err(HostPathError::TooManyRoots(number));
        }
        let roots = text.split(',').map(|root| root.trim().parse::<HostPath>());
        Ok(Self(roots.collect::<Result<Vec<HostPath>, HostPathError>>()?))
    }
}

impl fmt::Display for DriverRootList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roots: Vec<String> = self.0.iter().map(HostPath::to_string).collect();
        f.write_str(&roots.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Result<String, String> {
        let path: Result<HostPath, _> = text.parse();
        path.map(|path| path.to_string()).map_err(|error| error.to_string())
    }

    fn list(text: &str) -> Result<String, String> {
        let list: Result<DriverRootList, _> = text.parse();
        list.map(|list| list.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_path_is_shortened_but_leads_to_the_same_folder() {
        for (text, expected) in [
            ("/", "/"),
            ("/home/kubernetes/bin/nvidia/", "/home/kubernetes/bin/nvidia"),
            ("//opt/./nvidia", "/opt/nvidia"),
            ("/opt/my driver", "/opt/my driver"),
            ("/opt/..driver", "/opt/..driver"),
        ] {
            assert_eq!(path(text).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn text_that_is_no_path_of_a_mount_is_refused_with_the_reason() {
        let long = format!("/{}", "a".repeat(MAX_LENGTH));
        for (text, reason) in [
            ("", "is not an absolute path"),
            ("opt/nvidia", "is not an absolute path"),
            ("~/driver", "is not an absolute path"),
            ("/opt/../etc", "contains \"..\""),
            ("/..", "contains \"..\""),
            ("/a,/b", "contains ','"),
            ("/a:/b", "contains ':'"),
            ("/$(NODE_NAME)", "contains '$'"),
            ("/a\n", "contains '\\n'"),
            ("/a\0", "contains '\\0'"),
            (long.as_str(), "has 1025 bytes"),
        ] {
            let error = path(text).unwrap_err();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }

    #[test]
    fn driver_roots_keep_their_order_and_are_at_most_sixteen() {
        assert_eq!(list("/b, /a/").as_deref(), Ok("/b,/a"));
        for empty in ["", " "] {
            assert_eq!(list(empty), Ok(DriverRootList::default().to_string()));
        }
        assert_eq!(list(&["/a"; 16].join(",")), Ok(["/a"; 16].join(",")));
        assert!(list(&["/a"; 17].join(",")).is_err_and(|error| error.starts_with("17 driver roots")));
        for text in ["/a,", "/a,,/b", ",", "/a,b", "/a;/b,.."] {
            assert!(list(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn defaults_are_paths_themselves() {
        let defaults = DriverRootList::default();
        assert_eq!(defaults.to_string().parse::<DriverRootList>(), Ok(defaults));
        for path in [HostPath::root(), HostPath::kubelet_root()] {
            assert_eq!(path.to_string().parse::<HostPath>(), Ok(path));
        }
    }
}
