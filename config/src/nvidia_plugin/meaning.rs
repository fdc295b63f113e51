//! Options as a configuration and as paths.

use super::{
    file::PluginFile,
    options::{
        ALLOCATION_POLICY, ANNOTATION_PREFIX, CDI_DISABLED_HOOKS, CDI_FEATURES, CONTAINER_DRIVER_ROOT, DEV_ROOT,
        DISCOVERY, DRIVER_ROOT, FAIL_ON_INIT_ERROR, GDRCOPY, GDS, HOOK_PATH, ID_STRATEGY, IMEX_CHANNELS, IMEX_REQUIRED,
        KUBELET_SOCKET, LIST_STRATEGY, MIG_STRATEGY, MOFED, MPS_ROOT, PASS_DEVICE_SPECS,
    },
    paths::PluginPaths,
    pod::PluginContainer,
    report::Report,
    resources::{DiscardedParts, ImportRules, resources},
    settings::PluginSettings,
    xids,
};
use crate::{
    AgentConfig, Allocation, DeviceListStrategy, DriverRootList, HostPath, MigConfig, MigStrategy, ResourceConfig,
    agent_config::CDI_ANNOTATION_PREFIX,
};

/// Default of `--device-list-strategy`.
const DEFAULT_LIST_STRATEGY: DeviceListStrategy = DeviceListStrategy::Envvar;
/// End of the kubelet's socket below its folder.
const KUBELET_SOCKET_END: &str = "/device-plugins/kubelet.sock";

/// Returns the configuration, and the paths of the nodes.
pub(super) fn config(
    settings: &PluginSettings,
    file: &PluginFile,
    container: &PluginContainer,
    discarded: DiscardedParts,
    report: &mut Report,
) -> (AgentConfig, PluginPaths) {
    let mig = mig_strategy(settings, report);
    if file.mps.is_some() {
        check_mps(settings, container, mig, report);
    }
    let allocation = allocation(settings, report);
    let rules = ImportRules {
        mig,
        allocation,
        discarded,
    };
    let device_list_strategy = list_strategy(settings, report);
    let mut pass_device_specs = enabled(settings, PASS_DEVICE_SPECS);
    if pass_device_specs.is_some() && device_list_strategy.iter().all(|strategy| strategy.is_cdi()) {
        let (_, source) = settings.switch(PASS_DEVICE_SPECS).unwrap_or_default();
        report.ignored(
            source,
            "NVIDIA's plugin passes no device nodes if every deviceListStrategy is one of CDI",
        );
        pass_device_specs = None;
    }
    let config = AgentConfig {
        resources: resources(file, rules, report),
        mig: (mig != MigStrategy::None).then(|| MigConfig {
            strategy: mig,
            layout: Vec::new(),
        }),
        device_list_strategy,
        device_id_strategy: None,
        cdi_annotation_prefix: annotation_prefix(settings),
        gds: enabled(settings, GDS),
        mofed: enabled(settings, MOFED),
        gdrcopy: enabled(settings, GDRCOPY),
        imex_channels: imex_channels(settings, report),
        pass_device_specs,
        health: Some(xids::rules(settings, report)),
        usage: None,
        fail_on_init_error: None,
        companions: Vec::new(),
    };
    let is_shared = |resource: &ResourceConfig| resource.sharing.is_some();
    if allocation == Allocation::Packed && !config.resources.iter().any(is_shared) {
        let (_, source) = settings.text(ALLOCATION_POLICY).unwrap_or_default();
        report.differs(
            source,
            "left out: no resource is shared, and set `allocation` of a resource for others",
        );
    }
    remark(settings, report);
    (config, paths(settings, report))
}

/// Checks what the plugin wants beside `sharing.mps`.
fn check_mps(settings: &PluginSettings, container: &PluginContainer, mig: MigStrategy, report: &mut Report) {
    let is_set = settings.text(MPS_ROOT).is_some_and(|(root, _)| !root.is_empty());
    let has_root = is_set || container.env.get("MPS_ROOT") == Some(&None);
    // A file alone does not say what the flags are.
    if !has_root && *container != PluginContainer::default() {
        report.refuse(
            "sharing.mps",
            "NVIDIA's plugin does not start with it unless MPS_ROOT or --mps-root is set; set it, or remove sharing.mps",
        );
    }
    match mig {
        MigStrategy::None => {}
        MigStrategy::Single => report.differs(
            "sharing.mps",
            "NVIDIA's plugin serves no MIG device under MPS; here they are shared as whole GPUs are",
        ),
        MigStrategy::Mixed => report.refuse(
            "sharing.mps",
            "NVIDIA's plugin does not start with it and migStrategy mixed; use timeSlicing",
        ),
    }
}

fn enabled(settings: &PluginSettings, key: &str) -> Option<bool> {
    settings.switch(key).filter(|(is_on, _)| *is_on).map(|(is_on, _)| is_on)
}

fn mig_strategy(settings: &PluginSettings, report: &mut Report) -> MigStrategy {
    match settings.text(MIG_STRATEGY) {
        None | Some(("none", _)) => MigStrategy::None,
        Some(("single", _)) => MigStrategy::Single,
        Some(("mixed", _)) => MigStrategy::Mixed,
        Some((other, source)) => {
            report.refuse(source, format!("must be none, single or mixed, not `{other}`"));
            MigStrategy::None
        }
    }
}

fn allocation(settings: &PluginSettings, report: &mut Report) -> Allocation {
    match settings.text(ALLOCATION_POLICY) {
        None | Some(("distributed", _)) => Allocation::Spread,
        Some(("packed", _)) => Allocation::Packed,
        Some((other, source)) => {
            report.refuse(source, format!("must be distributed or packed, not `{other}`"));
            Allocation::Spread
        }
    }
}

fn list_strategy(settings: &PluginSettings, report: &mut Report) -> Vec<DeviceListStrategy> {
    let Some((names, source)) = settings.list(LIST_STRATEGY) else {
        return vec![DEFAULT_LIST_STRATEGY];
    };
    let mut strategies = Vec::new();
    for name in names {
        let strategy = match name.as_str() {
            "envvar" => DeviceListStrategy::Envvar,
            "volume-mounts" => DeviceListStrategy::VolumeMounts,
            "cdi-annotations" => DeviceListStrategy::CdiAnnotations,
            "cdi-cri" => DeviceListStrategy::CdiCri,
            other => {
                report.refuse(
                    source,
                    format!("must be of envvar, volume-mounts, cdi-annotations and cdi-cri, not `{other}`"),
                );
                continue;
            }
        };
        if !strategies.contains(&strategy) {
            strategies.push(strategy);
        }
    }
    if names.is_empty() {
        report.refuse(
            source,
            "must name a strategy; the plugin would give containers no device",
        );
    }
    strategies
}

fn annotation_prefix(settings: &PluginSettings) -> Option<String> {
    let prefix = settings.text(ANNOTATION_PREFIX).map(|(prefix, _)| prefix);
    prefix
        .filter(|prefix| *prefix != CDI_ANNOTATION_PREFIX)
        .map(str::to_owned)
}

fn imex_channels(settings: &PluginSettings, report: &mut Report) -> Vec<i32> {
    match settings.list(IMEX_CHANNELS) {
        None | Some(([], _)) => Vec::new(),
        Some(([channel], _)) if channel == "0" => vec![0],
        Some((_, source)) => {
            report.refuse(source, "must be [] or [0]");
            Vec::new()
        }
    }
}

/// Notes options without a counterpart.
fn remark(settings: &PluginSettings, report: &mut Report) {
    if let Some((true, source)) = settings.switch(FAIL_ON_INIT_ERROR) {
        report.differs(
            source,
            "left out: the agent waits for the driver and says so in the node's status; set failOnInitError to exit instead",
        );
    }
    if let Some(("index", source)) = settings.text(ID_STRATEGY) {
        report.differs(
            source,
            "containers are told UUIDs, since indices shift when a GPU is lost or replaced",
        );
    } else if let Some((other, source)) = settings.text(ID_STRATEGY).filter(|(name, _)| *name != "uuid") {
        report.refuse(source, format!("must be uuid or index, not `{other}`"));
    }
    match settings.text(DISCOVERY) {
        None | Some(("auto" | "nvml", _)) => {}
        Some(("tegra", source)) => report.refuse(source, "GPUs of Tegra boards have no NVML, which gpunode needs"),
        Some((other, source)) => report.refuse(source, format!("must be auto or nvml, not `{other}`")),
    }
    if let Some((true, source)) = settings.switch(IMEX_REQUIRED) {
        report.differs(
            source,
            "containers get the channel where the node has it, and start without it elsewhere",
        );
    }
    for (key, message) in [
        (
            MPS_ROOT,
            "gpunode keeps the files of its MPS daemons in a folder of its own; remove the old one after the move",
        ),
        (HOOK_PATH, "not needed: gpunode brings a hook program of its own"),
        (
            CONTAINER_DRIVER_ROOT,
            "not needed: the agent finds the driver below the node's own root",
        ),
    ] {
        if let Some((text, source)) = settings.text(key)
            && !text.is_empty()
        {
            report.differs(source, message);
        }
    }
    for key in [CDI_FEATURES, CDI_DISABLED_HOOKS] {
        if let Some((names, source)) = settings.list(key)
            && names.iter().any(|name| !name.is_empty())
        {
            report.differs(
                source,
                "an option of NVIDIA's CDI generator; gpunode writes its CDI file itself",
            );
        }
    }
}

/// Returns the paths of the nodes.
fn paths(settings: &PluginSettings, report: &mut Report) -> PluginPaths {
    let mut path = |key: &str| match settings.text(key) {
        None | Some(("" | "/", _)) => None,
        Some((path, source)) => match path.parse::<HostPath>() {
            Ok(path) => Some(path),
            Err(error) => {
                report.refuse(source, error.to_string());
                None
            }
        },
    };
    // Agents search these.
    let searched = DriverRootList::default().roots();
    let driver_root = path(DRIVER_ROOT).filter(|root| !searched.iter().any(|known| known == root.as_path()));
    let dev_root = path(DEV_ROOT);
    let kubelet_root = settings.text(KUBELET_SOCKET).and_then(|(socket, source)| {
        let root = socket.strip_suffix(KUBELET_SOCKET_END).map(str::parse::<HostPath>);
        let root = root.and_then(Result::ok);
        if root.is_none() {
            report.refuse(
                source,
                format!(
                    "must be the kubelet's folder and {KUBELET_SOCKET_END}, as /var/lib/kubelet{KUBELET_SOCKET_END}"
                ),
            );
        }
        root.filter(|root| *root != HostPath::kubelet_root())
    });
    PluginPaths {
        driver_root,
        dev_root,
        kubelet_root,
    }
}
