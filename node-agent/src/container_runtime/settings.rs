//! Settings in the answers of a container runtime. Pure.
//!
//! A verbose status has the configuration as JSON under `config`. containerd writes its whole CRI configuration there
//! (`internal/cri/server/status.go`, names in `internal/cri/config/config.go`). CRI-O writes its pause image
//! (`server/runtime_status.go`) and, in newer versions, its configuration under `crio` with Go's names. A field of another
//! type counts as missing.

use crate::container_runtime::cri_api::{StatusResponse, VersionResponse};
use gpunode_crds::{
    CdiMode, MAX_CDI_SPEC_DIRS, MAX_RUNTIME_HANDLERS, MAX_RUNTIME_NAME, MAX_RUNTIME_PATH, RuntimeStatus,
};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, path::Path};

/// Beginning of the file names of NVIDIA's container runtime, as in `nvidia-container-runtime.cdi`.
const NVIDIA_PROGRAM: &str = "nvidia-container-runtime";

/// Type of containerd's handlers that run runc, or a program in its place.
const RUNC_SHIM: &str = "io.containerd.runc.v2";

/// Returns the settings of a runtime; without a status, its name and version alone.
pub fn settings(version: &VersionResponse, status: Option<&StatusResponse>) -> RuntimeStatus {
    let told = |text: &str| Some(cut(text, MAX_RUNTIME_NAME)).filter(|text| !text.is_empty());
    let named = RuntimeStatus {
        name: told(&version.runtime_name),
        // containerd puts a `v` before it, which the kubelet leaves out of the Node as well.
        version: told(version.runtime_version.trim_start_matches('v')),
        ..RuntimeStatus::default()
    };
    let Some(status) = status else { return named };
    let (config, problem) = match status.info.get("config").map(|text| serde_json::from_str(text)) {
        None => (Value::Null, None),
        Some(Ok(config)) => (config, None),
        Some(Err(error)) => {
            let problem =
                format!("read the configuration in the runtime's status: {error}; see `crictl info` on the node");
            (Value::Null, Some(problem))
        }
    };
    let (cdi, dirs) = match version.runtime_name.as_str() {
        "containerd" => containerd_cdi(&config),
        // It always applies CDI files.
        "cri-o" => (Some(CdiMode::Enabled), texts(config.pointer("/crio/CDISpecDirs"))),
        _ => (None, Vec::new()),
    };
    let default = ["/containerd/defaultRuntimeName", "/crio/DefaultRuntime"];
    let default = default.into_iter().find_map(|path| config.pointer(path)?.as_str());
    let handlers = handlers(&config, status);
    let nvidia = handlers.iter().filter(|(_, is_nvidia)| **is_nvidia);
    RuntimeStatus {
        cdi,
        cdi_spec_dirs: dirs,
        default_handler: default.and_then(told),
        handlers: names(handlers.keys()),
        nvidia_handlers: names(nvidia.map(|(name, _)| name)),
        problem,
        ..named
    }
}

/// Returns the state of CDI in a containerd, and its folders. Version 1.6 has no CDI, 1.7 and some 2.x have the switch
/// `enableCDI`, and later ones have CDI always on. Without a folder there is nothing to apply.
fn containerd_cdi(config: &Value) -> (Option<CdiMode>, Vec<String>) {
    let dirs = texts(config.get("cdiSpecDirs"));
    let switch = config.get("enableCDI").and_then(Value::as_bool);
    let mode = match switch {
        _ if config.get("containerd").is_none() => None,
        Some(true) | None if !dirs.is_empty() => Some(CdiMode::Enabled),
        Some(_) | None => Some(CdiMode::Disabled),
    };
    (mode, dirs)
}

/// Returns the handlers by name, each with true if it runs NVIDIA's container runtime.
fn handlers(config: &Value, status: &StatusResponse) -> BTreeMap<String, bool> {
    let configured = |path: &str, programs: [&'static str; 2]| {
        let handlers = config.pointer(path).and_then(Value::as_object);
        handlers.into_iter().flat_map(Map::iter).map(move |(name, handler)| {
            let mut found = programs.iter().filter_map(|path| handler.pointer(path)?.as_str());
            let program = found.find(|program| !program.is_empty());
            // Without a program, containerd's shim for runc runs runc.
            let is_runc = program.is_none() && handler["runtimeType"] == RUNC_SHIM;
            (name.clone(), !is_runc && is_nvidia(name, program))
        })
    };
    let listed = status.runtime_handlers.iter().map(|handler| &handler.name);
    let mut handlers: BTreeMap<String, bool> = listed
        .filter(|name| !name.is_empty())
        .map(|name| (name.clone(), is_nvidia(name, None)))
        .collect();
    // The configuration knows the programs, the list knows names alone.
    handlers.extend(configured(
        "/containerd/runtimes",
        ["/options/BinaryName", "/runtimePath"],
    ));
    handlers.extend(configured("/crio/Runtimes", ["/RuntimePath", "/runtime_path"]));
    handlers
}

/// Returns true for a handler with NVIDIA's program, and where the program is unknown for one with a name that NVIDIA's
/// toolkit gives: `nvidia`, `nvidia-cdi`, `nvidia-legacy`.
fn is_nvidia(name: &str, program: Option<&str>) -> bool {
    let Some(program) = program else {
        return name == "nvidia" || name.starts_with("nvidia-");
    };
    let file = Path::new(program).file_name().and_then(|file| file.to_str());
    file.is_some_and(|file| file.starts_with(NVIDIA_PROGRAM))
}

/// Returns the texts of a list, bounded.
fn texts(list: Option<&Value>) -> Vec<String> {
    let texts = list.and_then(Value::as_array).into_iter().flatten();
    let texts = texts.filter_map(Value::as_str).map(|text| cut(text, MAX_RUNTIME_PATH));
    texts.take(MAX_CDI_SPEC_DIRS).collect()
}

/// Returns the first names, bounded.
fn names<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let names = names.map(|name| cut(name, MAX_RUNTIME_NAME));
    names.take(MAX_RUNTIME_HANDLERS).collect()
}

/// Cuts a text after `most` characters.
fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container_runtime::cri_api::RuntimeHandler;
    use serde_json::json;

    fn version(name: &str, version: &str) -> VersionResponse {
        VersionResponse {
            runtime_name: name.to_owned(),
            runtime_version: version.to_owned(),
            ..VersionResponse::default()
        }
    }

    fn status(config: &str, handlers: &[&str]) -> StatusResponse {
        let handler = |name: &&str| RuntimeHandler {
            name: (*name).to_owned(),
        };
        StatusResponse {
            info: [("config".to_owned(), config.to_owned())].into(),
            runtime_handlers: handlers.iter().map(handler).collect(),
        }
    }

    fn containerd(config: &Value) -> RuntimeStatus {
        settings(
            &version("containerd", "v2.1.4"),
            Some(&status(&config.to_string(), &[])),
        )
    }

    #[test]
    fn containerd_says_if_it_applies_cdi_files() {
        let dirs = json!(["/etc/cdi", "/var/run/cdi"]);
        let handlers = json!({"defaultRuntimeName": "runc", "runtimes": {"runc": {}}});
        for (version, config, expected) in [
            ("1.6", json!({"containerd": handlers}), Some(CdiMode::Disabled)),
            (
                "1.7",
                json!({"containerd": handlers, "enableCDI": false, "cdiSpecDirs": dirs}),
                Some(CdiMode::Disabled),
            ),
            (
                "2.1",
                json!({"containerd": handlers, "enableCDI": true, "cdiSpecDirs": dirs}),
                Some(CdiMode::Enabled),
            ),
            (
                "2.4",
                json!({"containerd": handlers, "cdiSpecDirs": dirs}),
                Some(CdiMode::Enabled),
            ),
            (
                "no folder",
                json!({"containerd": handlers, "cdiSpecDirs": null}),
                Some(CdiMode::Disabled),
            ),
            ("another form", json!({"enableCDI": "yes"}), None),
            ("no object", json!([1]), None),
        ] {
            let status = containerd(&config);
            assert_eq!(
                (status.cdi, status.version.as_deref()),
                (expected, Some("2.1.4")),
                "{version}"
            );
        }
    }

    #[test]
    fn handlers_are_told_by_their_program() {
        let status = containerd(&json!({"containerd": {"defaultRuntimeName": "gpu", "runtimes": {
            "runc": {"options": {"BinaryName": ""}},
            "gpu": {"options": {"BinaryName": "/usr/local/nvidia/toolkit/nvidia-container-runtime"}},
            "nvidia-cdi": {"options": {"BinaryName": "/usr/bin/nvidia-container-runtime.cdi"}},
            "nvidia": {"options": {"BinaryName": "/usr/bin/runc"}},
            "nvidia-legacy": {"options": null},
            "nvidia-runc": {"runtimeType": "io.containerd.runc.v2", "options": {}},
            "junk": 3,
        }}}));
        assert_eq!(status.default_handler.as_deref(), Some("gpu"));
        assert_eq!(
            status.handlers,
            [
                "gpu",
                "junk",
                "nvidia",
                "nvidia-cdi",
                "nvidia-legacy",
                "nvidia-runc",
                "runc"
            ]
        );
        assert_eq!(status.nvidia_handlers, ["gpu", "nvidia-cdi", "nvidia-legacy"]);
    }

    #[test]
    fn crio_always_has_cdi_and_tells_its_handlers_in_either_way() {
        let of = |config: &str| {
            settings(
                &version("cri-o", "1.34.1"),
                Some(&status(config, &["crun", "", "nvidia"])),
            )
        };
        let old = of(r#"{"sandboxImage": "pause"}"#);
        assert_eq!((old.cdi, old.default_handler), (Some(CdiMode::Enabled), None));
        assert_eq!(
            (old.handlers, old.nvidia_handlers),
            (vec!["crun".into(), "nvidia".into()], vec!["nvidia".into()])
        );
        let new = of(
            r#"{"crio": {"DefaultRuntime": "crun", "CDISpecDirs": ["/etc/cdi"], "Runtimes": {"crun": {"RuntimePath": "/usr/bin/crun"}}}}"#,
        );
        assert_eq!(new.default_handler.as_deref(), Some("crun"));
        assert_eq!(new.cdi_spec_dirs, ["/etc/cdi"]);
    }

    #[test]
    fn junk_is_a_problem_and_no_setting() {
        let junk = settings(
            &version("containerd", "2.1.4"),
            Some(&status("{\"enableCDI\": tr", &["runc"])),
        );
        assert_eq!((junk.cdi, junk.handlers), (None, vec!["runc".to_owned()]));
        assert!(junk.problem.is_some_and(|problem| problem.contains("crictl info")));
        let silent = settings(&version("", ""), None);
        assert_eq!(silent, RuntimeStatus::default());
        let docker = settings(&version("docker", "28.0"), Some(&StatusResponse::default()));
        assert_eq!((docker.cdi, docker.problem), (None, None));
    }

    #[test]
    fn every_text_and_list_has_a_bound() {
        let long = "x".repeat(5000);
        let handlers: Map<String, Value> = (0..500)
            .map(|index| (format!("nvidia-{index}-{long}"), json!({})))
            .collect();
        let config = json!({
            "containerd": {"defaultRuntimeName": long, "runtimes": handlers},
            "cdiSpecDirs": vec![long.clone(); 500],
        });
        let status = containerd(&config);
        assert_eq!(
            (status.handlers.len(), status.nvidia_handlers.len()),
            (MAX_RUNTIME_HANDLERS, MAX_RUNTIME_HANDLERS)
        );
        assert_eq!(status.cdi_spec_dirs.len(), MAX_CDI_SPEC_DIRS);
        assert!(status.handlers.iter().all(|name| name.len() == MAX_RUNTIME_NAME));
        assert!(status.cdi_spec_dirs.iter().all(|dir| dir.len() == MAX_RUNTIME_PATH));
        assert_eq!(status.default_handler.map(|name| name.len()), Some(MAX_RUNTIME_NAME));
    }
}
