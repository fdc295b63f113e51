//! Answer to the kubelet for a container that gets companions. Pure.

use crate::kubelet::device_plugin_api::{ContainerAllocateResponse, DeviceSpec, Mount};
use gpunode_config::{CompanionInjection, CompanionVariableValue};
use gpunode_gpu::CompanionDevice;
use std::collections::BTreeSet;

/// Separator of several ids or paths in a variable.
const SEPARATOR: &str = ",";

/// Returns the answer for a container that gets these companions of one resource by the shares `ids`. The same shares give the
/// same answer.
pub fn companion_response(companions: &[CompanionDevice], ids: &[String]) -> ContainerAllocateResponse {
    let mut response = ContainerAllocateResponse::default();
    for companion in companions {
        let CompanionInjection {
            device_nodes, mounts, ..
        } = &companion.injection;
        if let Some(nodes) = device_nodes {
            let spec = |(container_path, host_path): (String, String)| DeviceSpec {
                container_path,
                host_path,
                permissions: nodes.permissions().to_owned(),
            };
            response.devices.extend(paths(companion).map(spec));
        }
        if let Some(mounts) = mounts {
            let mount = |(container_path, host_path): (String, String)| Mount {
                container_path,
                host_path,
                read_only: mounts.read_only(),
            };
            response.mounts.extend(paths(companion).map(mount));
        }
    }
    let variable = companions.iter().find_map(|companion| companion.injection.env.as_ref());
    if let Some(variable) = variable {
        let value: Vec<String> = match variable.value {
            CompanionVariableValue::Ids => {
                let ids: BTreeSet<&String> = ids.iter().collect();
                ids.into_iter().cloned().collect()
            }
            CompanionVariableValue::Paths => companions.iter().flat_map(paths).map(|(path, _)| path).collect(),
        };
        response.envs = [(variable.name.clone(), value.join(SEPARATOR))].into();
    }
    response
}

/// Returns the path of each file in the container and on the host.
fn paths(companion: &CompanionDevice) -> impl Iterator<Item = (String, String)> {
    let files = companion.files.iter();
    files.map(|file| (file.path.clone(), file.host_path.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_config::load;
    use gpunode_gpu::CompanionFile;

    fn companion(inject: &str, paths: &[(&str, &str)]) -> CompanionDevice {
        let config = format!("companions: [{{resource: a.b/c, paths: [/dev/x/a]{inject}}}]");
        let file = |(path, host_path): &(&str, &str)| CompanionFile {
            path: (*path).to_owned(),
            host_path: (*host_path).to_owned(),
            ..CompanionFile::default()
        };
        CompanionDevice {
            files: paths.iter().map(file).collect(),
            injection: load(&config).unwrap().companions[0].injection(),
            ..CompanionDevice::default()
        }
    }

    const FILES: [(&str, &str); 2] = [("/dev/x/a", "/dev/x/a"), ("/dev/x/by-path/b", "/dev/x/b")];

    fn answer(inject: &str) -> ContainerAllocateResponse {
        let ids = ["path-2", "path-1", "path-2"].map(str::to_owned);
        companion_response(&[companion(inject, &FILES[..1]), companion(inject, &FILES[1..])], &ids)
    }

    #[test]
    fn files_are_device_nodes_unless_the_configuration_names_something_else() {
        let response = answer("");
        let nodes: Vec<_> = response
            .devices
            .iter()
            .map(|node| {
                (
                    node.container_path.as_str(),
                    node.host_path.as_str(),
                    node.permissions.as_str(),
                )
            })
            .collect();
        assert_eq!(
            nodes,
            [("/dev/x/a", "/dev/x/a", "rw"), ("/dev/x/by-path/b", "/dev/x/b", "rw")]
        );
        assert!(response.mounts.is_empty() && response.envs.is_empty() && response.cdi_devices.is_empty());
        assert_eq!(
            answer(", inject: {deviceNodes: {permissions: rwm}}").devices[0].permissions,
            "rwm"
        );
    }

    #[test]
    fn mounts_and_variables_are_those_of_the_configuration() {
        let response = answer(", inject: {mounts: {}, env: {name: A, value: Paths}}");
        assert!(response.devices.is_empty());
        let mounts: Vec<_> = response
            .mounts
            .iter()
            .map(|mount| (mount.container_path.as_str(), mount.host_path.as_str(), mount.read_only))
            .collect();
        assert_eq!(
            mounts,
            [("/dev/x/a", "/dev/x/a", true), ("/dev/x/by-path/b", "/dev/x/b", true)]
        );
        assert_eq!(
            response.envs,
            [("A".to_owned(), "/dev/x/a,/dev/x/by-path/b".to_owned())].into()
        );
        assert!(!answer(", inject: {mounts: {readOnly: false}}").mounts[0].read_only);
        let ids = answer(", inject: {env: {name: A, value: Ids}}");
        assert_eq!(ids.envs, [("A".to_owned(), "path-1,path-2".to_owned())].into());
        assert!(ids.devices.is_empty() && ids.mounts.is_empty());
    }
}
