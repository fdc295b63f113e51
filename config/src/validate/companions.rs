//! Names, paths and variables of companions.

use super::{list_length::validate_length, problem::FieldProblem, resource_name::is_extended_resource_name};
use crate::{
    AgentConfig, CompanionConfig, CompanionInjection,
    companion::{
        GLOB_RULE, MAX_COMPANION_PATH, MAX_COMPANIONS, MAX_PATHS, MAX_SHARES, MAX_VARIABLE, RESOURCE_TWICE,
        VARIABLE_RULE, VARIABLE_TWICE,
    },
};
use std::collections::BTreeSet;

/// Prefix of the resources of MIG devices, which strategy `Mixed` advertises.
const MIG_RESOURCE: &str = "nvidia.com/mig-";

pub(super) fn validate(config: &AgentConfig, problems: &mut Vec<FieldProblem>) {
    validate_length("companions", config.companions.len(), 0..=MAX_COMPANIONS, problems);
    let mut names: BTreeSet<String> = config
        .effective_resources()
        .iter()
        .flat_map(|resource| [resource.name.clone(), resource.advertised_name()])
        .collect();
    let mut variables = BTreeSet::new();
    for (index, companion) in config.companions.iter().enumerate() {
        let path = format!("companions[{index}]");
        validate_companion(&path, companion, problems);
        if !names.insert(companion.resource.clone()) {
            let message = format!("{}: {RESOURCE_TWICE}", companion.resource);
            problems.push(FieldProblem::new(format!("{path}.resource"), message));
        }
        let variable = companion.inject.as_ref().and_then(|inject| inject.env.as_ref());
        if let Some(variable) = variable
            && !variables.insert(&variable.name)
        {
            let message = format!("{}: {VARIABLE_TWICE}", variable.name);
            problems.push(FieldProblem::new(format!("{path}.inject.env.name"), message));
        }
    }
}

fn validate_companion(path: &str, companion: &CompanionConfig, problems: &mut Vec<FieldProblem>) {
    let name = &companion.resource;
    let refused = is_extended_resource_name(name).err();
    let is_mig = name.starts_with(MIG_RESOURCE);
    if let Some(reason) = refused.or(is_mig.then_some("is a name of MIG devices; use another one")) {
        problems.push(FieldProblem::new(
            format!("{path}.resource"),
            format!("`{name}` {reason}"),
        ));
    }
    validate_length(format!("{path}.paths"), companion.paths.len(), 1..=MAX_PATHS, problems);
    for (index, glob) in companion.paths.iter().enumerate().filter(|(_, glob)| !is_glob(glob)) {
        problems.push(FieldProblem::new(
            format!("{path}.paths[{index}]"),
            format!("{glob:?} {GLOB_RULE}, of at most {MAX_COMPANION_PATH} characters"),
        ));
    }
    if let Some(shares) = companion.shares.filter(|shares| !(1..=MAX_SHARES).contains(shares)) {
        problems.push(FieldProblem::new(
            format!("{path}.shares"),
            format!("{shares} is not between 1 and {MAX_SHARES}"),
        ));
    }
    if let Some(inject) = &companion.inject {
        validate_injection(&format!("{path}.inject"), inject, problems);
    }
}

fn validate_injection(path: &str, inject: &CompanionInjection, problems: &mut Vec<FieldProblem>) {
    let CompanionInjection {
        device_nodes,
        mounts,
        env,
    } = inject;
    if device_nodes.is_none() && mounts.is_none() && env.is_none() {
        problems.push(FieldProblem::new(
            path,
            "must set deviceNodes, mounts or env; leave it out for device nodes to read and write",
        ));
    }
    let permissions = device_nodes.as_ref().and_then(|nodes| nodes.permissions.as_deref());
    if let Some(permissions) = permissions.filter(|permissions| !is_permissions(permissions)) {
        problems.push(FieldProblem::new(
            format!("{path}.deviceNodes.permissions"),
            format!("`{permissions}` is not one or more of r, w and m, in this order"),
        ));
    }
    if let Some(variable) = env.as_ref().filter(|variable| !is_variable(&variable.name)) {
        problems.push(FieldProblem::new(
            format!("{path}.env.name"),
            format!("{:?} {VARIABLE_RULE}", variable.name),
        ));
    }
}

/// Returns true for a glob that the CRD accepts too.
fn is_glob(glob: &str) -> bool {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "-_.:@+=~*?".contains(c);
    let is_part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.chars().all(is_known);
    glob.len() <= MAX_COMPANION_PATH
        && !glob.contains("**")
        && glob.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_part))
}

fn is_permissions(permissions: &str) -> bool {
    let rest = permissions.strip_prefix('r').unwrap_or(permissions);
    let rest = rest.strip_prefix('w').unwrap_or(rest);
    !permissions.is_empty() && rest.strip_prefix('m').unwrap_or(rest).is_empty()
}

fn is_variable(name: &str) -> bool {
    let is_reserved = name == "PATH" || ["LD_", "NVIDIA_", "CUDA_"].iter().any(|start| name.starts_with(start));
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts_well = name
        .chars()
        .next()
        .is_some_and(|first| is_name(first) && !first.is_ascii_digit());
    starts_well && !is_reserved && name.len() <= MAX_VARIABLE && name.chars().all(is_name)
}

#[cfg(test)]
mod tests {
    use crate::{load, validate::tests::problems};

    #[test]
    fn companions_of_all_kinds_are_accepted() {
        let config = load(
            "companions:
- {resource: rdma/hca, paths: ['/dev/infiniband/*'], group: Together, shares: 64}
- {resource: xilinx.com/fpga, paths: ['/dev/xclmgmt*', '/dev/dri/renderD*'], group: PciSlot, inject: {deviceNodes: {permissions: rwm}}}
- {resource: myway5.com/cola, paths: [/etc/colas/*], inject: {env: {name: COLA_DEVICES, value: Ids}}}
- {resource: a.b/c, paths: ['/data/a?/*'], inject: {mounts: {readOnly: false}, env: {name: _C, value: Paths}}}
",
        )
        .unwrap();
        let shares: Vec<u32> = config.companions.iter().map(crate::CompanionConfig::shares).collect();
        assert_eq!(shares, [64, 1, 1, 1]);
        let default = config.companions[0].injection();
        let nodes = default.device_nodes.map(|nodes| nodes.permissions().to_owned());
        assert_eq!(
            (nodes.as_deref(), default.mounts, default.env),
            (Some("rw"), None, None)
        );
        let own = config.companions[2].injection();
        assert!(own.device_nodes.is_none() && own.env.is_some());
    }

    #[test]
    fn paths_that_could_lead_elsewhere_are_refused() {
        for bad in [
            "dev/a",
            "/",
            "/dev/../etc/a",
            "/dev/./a",
            "/dev//a",
            "/dev/a/",
            "/dev/**",
            "/dev/[ab]",
            "/dev/{a,b}",
            "/dev/a b",
            "/dev/a,b",
            "/dev/$(X)",
            "/dev/\u{e9}",
        ] {
            let found = problems(&format!("companions: [{{resource: a.b/c, paths: [\"{bad}\"]}}]"));
            assert!(
                found.len() == 1 && found[0].starts_with("companions[0].paths[0]: "),
                "{bad}: {found:?}"
            );
        }
        let long = format!("/dev/{}", "a".repeat(251));
        assert_eq!(
            problems(&format!("companions: [{{resource: a.b/c, paths: [{long}]}}]")).len(),
            1
        );
        assert_eq!(
            problems("companions: [{resource: a.b/c, paths: []}]"),
            ["companions[0].paths: must have 1 to 16 entries, has 0"]
        );
    }

    #[test]
    fn names_of_other_resources_are_refused() {
        let twice = "companions[0].resource: nvidia.com/gpu: a companion must not have the name of another resource";
        assert_eq!(
            problems("companions: [{resource: nvidia.com/gpu, paths: [/dev/a/b]}]"),
            [twice]
        );
        let shared = "{resources: [{name: a.b/c, sharing: {strategy: TimeSlicing, replicas: 2, renameByDefault: true}}],
            companions: [{resource: a.b/c.shared, paths: [/dev/a/b]}, {resource: a.b/d, paths: [/dev/a/b]}, {resource: a.b/d, paths: [/dev/a/b]}]}";
        let found = problems(shared);
        assert!(
            found.len() == 2
                && found[0].starts_with("companions[0].resource")
                && found[1].starts_with("companions[2].resource"),
            "{found:?}"
        );
        for bad in ["nvidia.com/mig-1g.5gb", "gpu", "kubernetes.io/a", "requests.a/b"] {
            let found = problems(&format!("companions: [{{resource: {bad}, paths: [/dev/a/b]}}]"));
            assert!(
                found.len() == 1 && found[0].starts_with("companions[0].resource: "),
                "{found:?}"
            );
        }
    }

    #[test]
    fn injections_that_do_nothing_or_harm_are_refused() {
        let of = |inject: &str| {
            problems(&format!(
                "companions: [{{resource: a.b/c, paths: [/dev/a/b], inject: {inject}}}]"
            ))
        };
        assert_eq!(
            of("{}"),
            [
                "companions[0].inject: must set deviceNodes, mounts or env; leave it out for device nodes to read and write"
            ]
        );
        for bad in ["''", "x", "wr", "rr"] {
            let found = of(&format!("{{deviceNodes: {{permissions: {bad}}}}}"));
            assert!(
                found.len() == 1 && found[0].contains("deviceNodes.permissions"),
                "{bad}: {found:?}"
            );
        }
        for bad in ["LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "PATH", "1A", "A-B", "''"] {
            let found = of(&format!("{{env: {{name: {bad}, value: Ids}}}}"));
            assert!(
                found.len() == 1 && found[0].contains("inject.env.name"),
                "{bad}: {found:?}"
            );
        }
        let two = "companions: [{resource: a.b/c, paths: [/dev/a/b], inject: {env: {name: A, value: Ids}}},
            {resource: a.b/d, paths: [/dev/a/b], inject: {env: {name: A, value: Paths}}}]";
        assert_eq!(
            problems(two),
            [
                "companions[1].inject.env.name: A: two companions must not set the same variable: a container that gets both would lose one"
            ]
        );
        assert!(
            problems("companions: [{resource: a.b/c, paths: [/dev/a/b], shares: 0}]")[0].contains("between 1 and 8192")
        );
    }
}
