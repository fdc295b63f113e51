//! The format of a CDI file, as far as gpunode uses it (`specs-go/config.go` of container-device-interface).

use serde::{Deserialize, Serialize};

/// Content of a CDI file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiSpec {
    /// Version of the format.
    #[serde(rename = "cdiVersion")]
    pub version: String,
    /// Vendor and class of the devices.
    pub kind: String,
    /// The devices; at least one.
    pub devices: Vec<CdiDevice>,
    /// Edits of a container with any of the devices.
    #[serde(default)]
    pub container_edits: ContainerEdits,
}

/// A device that containers can request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiDevice {
    /// UUID of the device.
    pub name: String,
    /// Edits of a container with the device.
    pub container_edits: ContainerEdits,
}

/// Additions to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerEdits {
    /// Environment variables, `NAME=VALUE`. They replace those of the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<CdiDeviceNode>,
    /// Mounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<CdiMount>,
    /// Calls of a hook program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<CdiHook>,
}

/// A device node. Number, type and mode are those that the node has on the host when the container starts: the driver gives
/// its nodes other numbers when it is loaded again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiDeviceNode {
    /// Path in the container.
    pub path: String,
    /// Path on the host, where it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
}

/// A bind mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiMount {
    /// Path on the host.
    pub host_path: String,
    /// Path in the container.
    pub container_path: String,
    /// Mount options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// A call of a hook program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiHook {
    /// Time of the call in the life of the container.
    pub hook_name: String,
    /// Path of the program on the host.
    pub path: String,
    /// Its arguments, the first of them its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment. Without one, a runtime may pass on that of the container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
}

impl CdiSpec {
    /// Returns the spec with the lowest version that has all its fields, so that old runtimes read it too
    /// (`MinimumRequiredVersion` of `specs-go/version.go`): paths on the host, and names that begin with a digit, came with
    /// 0.5.0, and no runtime reads a version before 0.3.0.
    pub(crate) fn with_lowest_version(self) -> Self {
        let version = self.lowest_version().to_owned();
        Self { version, ..self }
    }

    fn lowest_version(&self) -> &'static str {
        let of_devices = self.devices.iter().map(|device| &device.container_edits);
        let mut nodes = of_devices
            .chain([&self.container_edits])
            .flat_map(|edits| &edits.device_nodes);
        let mut names = self.devices.iter().map(|device| &device.name);
        let needs_newer = nodes.any(|node| node.host_path.is_some())
            || names.any(|name| name.starts_with(|first: char| first.is_ascii_digit()));
        if needs_newer { "0.5.0" } else { "0.3.0" }
    }
}

/// Returns true if a device may have that name (`ValidateDeviceName` of `pkg/parser/parser.go`). UUIDs of MIG devices from
/// before driver 470 have slashes.
pub(crate) fn is_device_name(name: &str) -> bool {
    let is_edge = |end: Option<char>| end.is_some_and(|end| end.is_ascii_alphanumeric());
    let is_inside = |inside: char| inside.is_ascii_alphanumeric() || "_-.:".contains(inside);
    is_edge(name.chars().next()) && is_edge(name.chars().next_back()) && name.chars().all(is_inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, host_path: Option<&str>) -> CdiSpec {
        let node = CdiDeviceNode {
            path: "/dev/nvidia0".to_owned(),
            host_path: host_path.map(str::to_owned),
        };
        CdiSpec {
            devices: vec![CdiDevice {
                name: name.to_owned(),
                container_edits: ContainerEdits {
                    device_nodes: vec![node],
                    ..ContainerEdits::default()
                },
            }],
            ..CdiSpec::default()
        }
        .with_lowest_version()
    }

    #[test]
    fn version_is_as_low_as_the_fields_allow() {
        assert_eq!(with("GPU-1", None).version, "0.3.0");
        assert_eq!(with("GPU-1", Some("/run/nvidia/driver/dev/nvidia0")).version, "0.5.0");
        assert_eq!(with("1", None).version, "0.5.0");
    }

    #[test]
    fn names_of_devices_are_those_that_the_format_allows() {
        for name in ["GPU-0c1b5e0a-1f2d", "MIG-1", "a", "a:1_b.c"] {
            assert!(is_device_name(name), "{name}");
        }
        for name in ["", "-a", "a-", "MIG-GPU-1/7/0", "a b", "ä"] {
            assert!(!is_device_name(name), "{name}");
        }
    }

    #[test]
    fn empty_fields_are_left_out_and_read_back() {
        let spec = with("GPU-1", None);
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(
            text,
            r#"{"cdiVersion":"0.3.0","kind":"","devices":[{"name":"GPU-1","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia0"}]}}],"containerEdits":{}}"#
        );
        assert_eq!(serde_json::from_str::<CdiSpec>(&text).unwrap(), spec);
    }
}
