//! Options of NVIDIA's device plugin 0.20: flags, variables and keys of the file (`cmd/nvidia-device-plugin/main.go` and
//! `api/config/v1/flags.go`). Of several names, the first is the current one.

/// One option.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PluginOption {
    /// Key in the file; also the name of an option that the file cannot have.
    pub key: &'static str,
    pub flags: &'static [&'static str],
    pub variables: &'static [&'static str],
    pub kind: OptionKind,
}

/// Form of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionKind {
    Text,
    Switch,
    /// One text or several.
    List,
}

const fn option(
    key: &'static str,
    flags: &'static [&'static str],
    variables: &'static [&'static str],
    kind: OptionKind,
) -> PluginOption {
    PluginOption {
        key,
        flags,
        variables,
        kind,
    }
}

pub(super) const MIG_STRATEGY: &str = "flags.migStrategy";
pub(super) const FAIL_ON_INIT_ERROR: &str = "flags.failOnInitError";
pub(super) const MPS_ROOT: &str = "flags.mpsRoot";
pub(super) const DRIVER_ROOT: &str = "flags.nvidiaDriverRoot";
pub(super) const DEV_ROOT: &str = "flags.nvidiaDevRoot";
pub(super) const GDRCOPY: &str = "flags.gdrcopyEnabled";
pub(super) const GDS: &str = "flags.gdsEnabled";
pub(super) const MOFED: &str = "flags.mofedEnabled";
pub(super) const DISCOVERY: &str = "flags.deviceDiscoveryStrategy";
pub(super) const PASS_DEVICE_SPECS: &str = "flags.plugin.passDeviceSpecs";
pub(super) const LIST_STRATEGY: &str = "flags.plugin.deviceListStrategy";
pub(super) const ID_STRATEGY: &str = "flags.plugin.deviceIDStrategy";
pub(super) const ANNOTATION_PREFIX: &str = "flags.plugin.cdiAnnotationPrefix";
pub(super) const HOOK_PATH: &str = "flags.plugin.nvidiaCTKPath";
pub(super) const CONTAINER_DRIVER_ROOT: &str = "flags.plugin.containerDriverRoot";
pub(super) const ALLOCATION_POLICY: &str = "flags.plugin.sharedDevicesAllocationPolicy";
pub(super) const IMEX_CHANNELS: &str = "imex.channelIDs";
pub(super) const IMEX_REQUIRED: &str = "imex.required";
pub(super) const KUBELET_SOCKET: &str = "kubelet-socket";
pub(super) const CONFIG_FILE: &str = "config-file";
pub(super) const CDI_FEATURES: &str = "cdi-feature-flags";
pub(super) const CDI_DISABLED_HOOKS: &str = "cdi-disable-hooks";
pub(super) const DISABLED_XIDS: &str = "DP_DISABLE_HEALTHCHECKS";
pub(super) const ENABLED_XIDS: &str = "DP_ENABLE_HEALTHCHECKS";

/// Every option of the plugin.
pub(super) const OPTIONS: &[PluginOption] = &[
    option(MIG_STRATEGY, &["mig-strategy"], &["MIG_STRATEGY"], OptionKind::Text),
    option(
        FAIL_ON_INIT_ERROR,
        &["fail-on-init-error"],
        &["FAIL_ON_INIT_ERROR"],
        OptionKind::Switch,
    ),
    option(MPS_ROOT, &["mps-root"], &["MPS_ROOT"], OptionKind::Text),
    option(
        DRIVER_ROOT,
        &["driver-root", "nvidia-driver-root"],
        &["NVIDIA_DRIVER_ROOT"],
        OptionKind::Text,
    ),
    option(
        DEV_ROOT,
        &["dev-root", "nvidia-dev-root"],
        &["NVIDIA_DEV_ROOT"],
        OptionKind::Text,
    ),
    option(GDRCOPY, &["gdrcopy-enabled"], &["GDRCOPY_ENABLED"], OptionKind::Switch),
    option(GDS, &["gds-enabled"], &["GDS_ENABLED"], OptionKind::Switch),
    option(MOFED, &["mofed-enabled"], &["MOFED_ENABLED"], OptionKind::Switch),
    option(
        DISCOVERY,
        &["device-discovery-strategy"],
        &["DEVICE_DISCOVERY_STRATEGY"],
        OptionKind::Text,
    ),
    option(
        PASS_DEVICE_SPECS,
        &["pass-device-specs"],
        &["PASS_DEVICE_SPECS"],
        OptionKind::Switch,
    ),
    option(
        LIST_STRATEGY,
        &["device-list-strategy"],
        &["DEVICE_LIST_STRATEGY"],
        OptionKind::List,
    ),
    option(
        ID_STRATEGY,
        &["device-id-strategy"],
        &["DEVICE_ID_STRATEGY"],
        OptionKind::Text,
    ),
    option(
        ANNOTATION_PREFIX,
        &["cdi-annotation-prefix"],
        &["CDI_ANNOTATION_PREFIX"],
        OptionKind::Text,
    ),
    option(
        HOOK_PATH,
        &["nvidia-cdi-hook-path", "nvidia-ctk-path"],
        &["NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"],
        OptionKind::Text,
    ),
    option(
        CONTAINER_DRIVER_ROOT,
        &["driver-root-ctr-path", "container-driver-root"],
        &["DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"],
        OptionKind::Text,
    ),
    option(
        ALLOCATION_POLICY,
        &["shared-devices-allocation-policy"],
        &["SHARED_DEVICES_ALLOCATION_POLICY"],
        OptionKind::Text,
    ),
    option(
        IMEX_CHANNELS,
        &["imex-channel-ids"],
        &["IMEX_CHANNEL_IDS"],
        OptionKind::List,
    ),
    option(
        IMEX_REQUIRED,
        &["imex-required"],
        &["IMEX_REQUIRED"],
        OptionKind::Switch,
    ),
    option(
        KUBELET_SOCKET,
        &["kubelet-socket"],
        &["KUBELET_SOCKET"],
        OptionKind::Text,
    ),
    option(CONFIG_FILE, &["config-file"], &["CONFIG_FILE"], OptionKind::Text),
    option(
        CDI_FEATURES,
        &["cdi-feature-flags"],
        &["CDI_FEATURE_FLAGS"],
        OptionKind::List,
    ),
    option(
        CDI_DISABLED_HOOKS,
        &["cdi-disable-hooks"],
        &["CDI_DISABLE_HOOKS"],
        OptionKind::List,
    ),
    option(DISABLED_XIDS, &[], &[DISABLED_XIDS], OptionKind::Text),
    option(ENABLED_XIDS, &[], &[ENABLED_XIDS], OptionKind::Text),
];

/// Keys of the file that GPU feature discovery alone reads.
pub(super) const DISCOVERY_KEYS: &[&str] = &[
    "flags.useNodeFeatureAPI",
    "flags.gfd.oneshot",
    "flags.gfd.noTimestamp",
    "flags.gfd.sleepInterval",
    "flags.gfd.outputFile",
    "flags.gfd.machineTypeFile",
];
