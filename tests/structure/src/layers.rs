//! Dependencies that each crate may have.

/// Crates of this repository that a product crate may use, by package name.
pub fn allowed_dependencies(package: &str) -> Option<&'static [&'static str]> {
    Some(match package {
        "gpunode-cdi" | "gpunode-config" | "gpunode-hook" | "gpunode-mig" | "gpunode-process" => &[],
        "gpunode-crds" => &["gpunode-config"],
        "gpunode-gpu" => &["gpunode-config", "gpunode-crds", "gpunode-mig"],
        "gpunode-plan" => &["gpunode-config", "gpunode-crds", "gpunode-gpu", "gpunode-mig"],
        "gpunode-operator" => &["gpunode-config", "gpunode-crds", "gpunode-process", "gpunode-plan"],
        "kubectl-gpunode" => &[
            "gpunode-config",
            "gpunode-crds",
            "gpunode-gpu",
            "gpunode-mig",
            "gpunode-plan",
        ],
        "gpunode-agent" => &[
            "gpunode-cdi",
            "gpunode-config",
            "gpunode-crds",
            "gpunode-gpu",
            "gpunode-mig",
            "gpunode-process",
        ],
        _ => return None,
    })
}

/// Crates of this repository that `manifest` depends on and its layer must not; dependencies of its tests are free.
pub fn upward_dependencies(package: &str, manifest: &str) -> Vec<String> {
    let allowed = allowed_dependencies(package).unwrap_or_default();
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        }
        let name: &str = line.split(['.', ' ', '=']).next().unwrap_or_default();
        let is_own = name.starts_with("gpunode-") || name == "kubectl-gpunode";
        if matches!(section, "[dependencies]" | "[build-dependencies]") && is_own && !allowed.contains(&name) {
            found.push(format!("{package} depends on {name}"));
        }
    }
    found
}
