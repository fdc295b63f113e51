//! The hooks and their options, the same as those of NVIDIA's `nvidia-cdi-hook`.

use crate::hook_error::HookError;
use std::{ffi::OsString, path::PathBuf};

/// Limit on the arguments of a hook, above the links of any driver.
const MAX_ARGUMENTS: usize = 10_000;

/// A hook with its options.
#[derive(Debug, PartialEq, Eq)]
pub enum HookCommand {
    /// `create-symlinks --link TARGET::LINK...`
    CreateSymlinks(Vec<ContainerLink>),
    /// `update-ldcache --folder FOLDER...`
    UpdateLdcache(Vec<PathBuf>),
    /// `disable-device-node-modification`
    DisableDeviceNodeModification,
    /// `enable-cuda-compat --host-driver-version V --host-cuda-version V --cuda-compat-container-root FOLDER`
    EnableCudaCompat(HostVersions),
    /// A hook of another version.
    Unsupported(String),
}

/// A link that a container gets.
#[derive(Debug, PartialEq, Eq)]
pub struct ContainerLink {
    /// Text of the link, as the container will see it.
    pub target: PathBuf,
    /// Path in the container.
    pub link: PathBuf,
}

/// Versions on the host, which those in the container are compared with.
#[derive(Debug, PartialEq, Eq)]
pub struct HostVersions {
    /// Such as 570.211.01; empty if not given.
    pub driver: String,
    /// Such as 12.8; empty if not given.
    pub cuda: String,
    /// Folder of the newer libraries in the container.
    pub folder: PathBuf,
}

/// Reads the arguments without the name of the program: hooks with their options, and `then` between two hooks.
pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Vec<HookCommand>, HookError> {
    let words: Vec<String> = arguments
        .take(MAX_ARGUMENTS)
        .map(|word| {
            word.into_string()
                .map_err(|word| usage(format!("{} is not UTF-8", word.display())))
        })
        .collect::<Result<_, _>>()?;
    words
        .split(|word| word == "then")
        .map(|call| hook_command(call.iter().cloned()))
        .collect()
}

fn hook_command(words: impl Iterator<Item = String>) -> Result<HookCommand, HookError> {
    // NVIDIA's program takes these before the hook.
    let mut words = words.skip_while(|word| matches!(word.as_str(), "--debug" | "-d" | "--quiet"));
    let hook = words.next().ok_or_else(|| usage("the hook is missing".to_owned()))?;
    match hook.as_str() {
        "create-symlinks" => {
            let [links] = options(&hook, words, ["--link"])?;
            links
                .iter()
                .map(|link| symbolic_link(link))
                .collect::<Result<_, _>>()
                .map(HookCommand::CreateSymlinks)
        }
        "update-ldcache" => {
            // The program writes the cache itself; NVIDIA's runs the `ldconfig` of the host.
            let [folders, _] = options(&hook, words, ["--folder", "--ldconfig-path"])?;
            Ok(HookCommand::UpdateLdcache(
                folders.into_iter().map(PathBuf::from).collect(),
            ))
        }
        "disable-device-node-modification" => {
            let [] = options(&hook, words, [])?;
            Ok(HookCommand::DisableDeviceNodeModification)
        }
        "enable-cuda-compat" => {
            let names = [
                "--host-driver-version",
                "--host-cuda-version",
                "--cuda-compat-container-root",
            ];
            let [driver, cuda, folder] = options(&hook, words, names)?.map(|mut values| values.pop());
            Ok(HookCommand::EnableCudaCompat(HostVersions {
                driver: driver.unwrap_or_default(),
                cuda: cuda.unwrap_or_default(),
                folder: folder.map_or_else(|| "/usr/local/cuda/compat".into(), PathBuf::from),
            }))
        }
        _ => Ok(HookCommand::Unsupported(hook)),
    }
}

/// Returns the values of each option of `names`, which are given as `--name VALUE` or `--name=VALUE`.
fn options<const N: usize>(
    hook: &str,
    mut words: impl Iterator<Item = String>,
    names: [&str; N],
) -> Result<[Vec<String>; N], HookError> {
    let mut values = [const { Vec::new() }; N];
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let (_, of_name) = names
            .iter()
            .zip(&mut values)
            .find(|(known, _)| **known == name)
            .ok_or_else(|| usage(format!("{hook} has no option {name}")))?;
        let value = value
            .or_else(|| words.next())
            .ok_or_else(|| usage(format!("{hook} needs a value for {name}")))?;
        of_name.push(value);
    }
    Ok(values)
}

fn symbolic_link(text: &str) -> Result<ContainerLink, HookError> {
    match text.split("::").collect::<Vec<_>>()[..] {
        [target, link] if !target.is_empty() && link.starts_with('/') => Ok(ContainerLink {
            target: target.into(),
            link: link.into(),
        }),
        _ => Err(usage(format!(
            "--link needs TARGET::LINK with an absolute LINK, not {text:?}"
        ))),
    }
}

fn usage(text: String) -> HookError {
    HookError::CommandLine(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<HookCommand, String> {
        all_parsed(line).map(|mut commands| commands.remove(0))
    }

    fn all_parsed(line: &str) -> Result<Vec<HookCommand>, String> {
        parse(line.split(' ').map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn one_call_can_have_several_hooks() {
        assert_eq!(
            all_parsed("update-ldcache --folder /a then chmod --mode 755 then disable-device-node-modification"),
            Ok(vec![
                HookCommand::UpdateLdcache(vec!["/a".into()]),
                HookCommand::Unsupported("chmod".into()),
                HookCommand::DisableDeviceNodeModification,
            ])
        );
        assert!(all_parsed("update-ldcache then").is_err() && all_parsed("then update-ldcache").is_err());
    }

    #[test]
    fn options_are_those_of_nvidias_program() {
        let links = vec![
            ContainerLink {
                target: "libcuda.so.1".into(),
                link: "/usr/lib64/libcuda.so".into(),
            },
            ContainerLink {
                target: "../a".into(),
                link: "/b".into(),
            },
        ];
        assert_eq!(
            parsed("create-symlinks --link libcuda.so.1::/usr/lib64/libcuda.so --link=../a::/b"),
            Ok(HookCommand::CreateSymlinks(links))
        );
        assert_eq!(
            parsed("--debug update-ldcache --ldconfig-path /sbin/ldconfig --folder /usr/lib64 --folder /opt/lib"),
            Ok(HookCommand::UpdateLdcache(vec!["/usr/lib64".into(), "/opt/lib".into()]))
        );
        assert_eq!(
            parsed("disable-device-node-modification"),
            Ok(HookCommand::DisableDeviceNodeModification)
        );
        assert_eq!(
            parsed("enable-cuda-compat --host-driver-version=570.211.01"),
            Ok(HookCommand::EnableCudaCompat(HostVersions {
                driver: "570.211.01".into(),
                cuda: String::new(),
                folder: "/usr/local/cuda/compat".into(),
            }))
        );
    }

    #[test]
    fn a_hook_of_another_version_is_no_error_and_a_wrong_option_is() {
        assert_eq!(parsed("chmod --mode 755"), Ok(HookCommand::Unsupported("chmod".into())));
        for line in [
            "",
            "create-symlinks --link a::b",
            "create-symlinks --link a",
            "create-symlinks --link a::/b::/c",
            "create-symlinks --link",
            "update-ldcache --directory /usr/lib",
            "disable-device-node-modification now",
        ] {
            assert_eq!(parsed(line).is_err(), !line.is_empty(), "{line}");
        }
        assert!(parse(std::iter::empty()).is_err());
    }
}
