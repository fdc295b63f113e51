//! Tests of the import of NVIDIA's device plugin.

use super::options::{DISCOVERY_KEYS, OPTIONS, OptionKind, PluginOption};
use super::*;
use crate::{Allocation, DeviceListStrategy, MigStrategy, SharingStrategy, is_xid_fault, load};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn import(text: &str) -> NvidiaPluginImport {
    import_with(text, &[], &[], DiscardedParts::Ignore)
}

fn as_written(text: &str) -> NvidiaPluginImport {
    import_with(text, &[], &[], DiscardedParts::Honour)
}

fn container(args: &[&str], env: &[(&str, &str)]) -> PluginContainer {
    PluginContainer {
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned())))
            .collect(),
    }
}

fn import_with(text: &str, args: &[&str], env: &[(&str, &str)], discarded: DiscardedParts) -> NvidiaPluginImport {
    nvidia_plugin_config(text, &container(args, env), discarded).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> Vec<String> {
    refused_with(text, &[], DiscardedParts::Ignore)
}

fn refused_with(text: &str, args: &[&str], discarded: DiscardedParts) -> Vec<String> {
    match nvidia_plugin_config(text, &container(args, &[]), discarded) {
        Err(NvidiaPluginError::Refused(problems)) => problems.iter().map(ToString::to_string).collect(),
        other => panic!("{text}: {other:?}"),
    }
}

fn ignored(import: &NvidiaPluginImport) -> Vec<&str> {
    let ignored = import.remarks.iter().filter(|remark| remark.is_ignored);
    ignored.map(|remark| remark.setting.as_str()).collect()
}

fn flags(import: &NvidiaPluginImport) -> Vec<String> {
    PluginPaths::flags(std::iter::once(&import.paths)).unwrap()
}

fn differing(import: &NvidiaPluginImport) -> Vec<&str> {
    let differing = import.remarks.iter().filter(|remark| !remark.is_ignored);
    differing.map(|remark| remark.setting.as_str()).collect()
}

/// The resources and strategies as YAML, for comparison with what a person would write.
fn assert_resources(import: &NvidiaPluginImport, expected: &str) {
    let expected = load(&format!("mig: {{strategy: Mixed}}\nresources: {expected}"))
        .unwrap_or_else(|error| panic!("{expected}: {error}"));
    assert_eq!(import.config.resources, expected.resources);
}

const SLICED: &str = "
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 4
";

#[test]
fn time_slices_of_the_readme_are_taken_over() {
    let import = import(SLICED);
    assert_resources(
        &import,
        "[{name: nvidia.com/gpu, allocation: Spread, sharing: {strategy: TimeSlicing, replicas: 4}}]",
    );
    assert_eq!(import.config.device_list_strategy, [DeviceListStrategy::Envvar]);
    assert_eq!((import.remarks, import.paths), (vec![], PluginPaths::default()));
}

#[test]
fn an_empty_file_keeps_what_the_plugin_does_by_default() {
    for text in ["", "{}", "version: v1", "flags: {}\nsharing:\n", "version: \"\""] {
        let import = import(text);
        assert_eq!(import.config.resources, []);
        assert_eq!(import.config.mig, None);
        assert_eq!(import.config.device_list_strategy, [DeviceListStrategy::Envvar]);
        assert_eq!(import.remarks, []);
    }
}

#[test]
fn mps_without_its_root_is_refused_where_the_flags_are_known() {
    let import = |env: &[(&str, &str)]| {
        let file = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}";
        nvidia_plugin_config(file, &container(&[], env), DiscardedParts::Ignore).map(drop)
    };
    for env in [&[("MIG_STRATEGY", "none")][..], &[("MPS_ROOT", "")]] {
        let error = import(env).unwrap_err().to_string();
        assert!(
            error.starts_with("sharing.mps: NVIDIA's plugin does not start with it unless MPS_ROOT"),
            "{error}"
        );
    }
    assert_eq!(import(&[("MPS_ROOT", "/run/nvidia/mps")]), Ok(()));
    assert_eq!(import(&[]), Ok(()), "a file alone");
}

#[test]
fn variables_are_put_into_arguments_and_into_other_variables() {
    let env = [
        ("ROOT", "/custom/driver"),
        ("NVIDIA_DRIVER_ROOT", "$(ROOT)"),
        ("FLAG", "--mig-strategy=single"),
    ];
    let import = import_with("", &["$(FLAG)"], &env, DiscardedParts::Ignore);
    assert_eq!(import.config.mig_strategy(), MigStrategy::Single);
    assert!(import.paths.driver_root.is_some());
    let names: Vec<String> = (0..60).map(|number| format!("V{number:02}")).collect();
    let values: Vec<String> = (1..61)
        .map(|number| format!("$(V{number:02})$(V{number:02})"))
        .collect();
    let mut env: Vec<(&str, &str)> = names
        .iter()
        .map(String::as_str)
        .zip(values.iter().map(String::as_str))
        .collect();
    env.push(("NVIDIA_DRIVER_ROOT", "$(V00)"));
    assert!(nvidia_plugin_config("", &container(&[], &env), DiscardedParts::Ignore).is_err());
}

#[test]
fn what_the_plugin_does_otherwise_beside_cdi_and_under_mps_is_noted() {
    let import = |text: &str, env: &[(&str, &str)]| {
        let import = import_with(text, &[], env, DiscardedParts::Ignore);
        let noted: Vec<(String, bool)> = import
            .remarks
            .iter()
            .map(|remark| (remark.setting.clone(), remark.is_ignored))
            .collect();
        (import.config, noted)
    };
    let (config, noted) = import(
        "",
        &[("PASS_DEVICE_SPECS", "true"), ("DEVICE_LIST_STRATEGY", "cdi-cri")],
    );
    assert_eq!(config.pass_device_specs, None);
    assert_eq!(noted, [("PASS_DEVICE_SPECS".to_owned(), true)]);
    let (config, noted) = import("flags: {plugin: {passDeviceSpecs: true}}", &[]);
    assert_eq!((config.pass_device_specs, noted), (Some(true), vec![]));
    let mps = "flags: {migStrategy: single}\nsharing: {mps: {failRequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 2}]}}";
    let (_, noted) = import(mps, &[("MPS_ROOT", "/run/nvidia/mps")]);
    let named: Vec<&str> = noted.iter().map(|(setting, _)| setting.as_str()).collect();
    assert_eq!(
        named,
        ["sharing.mps", "sharing.mps.failRequestsGreaterThanOne", "MPS_ROOT"]
    );
    let env = [("DP_DISABLE_HEALTHCHECKS", "all"), ("DP_ENABLE_HEALTHCHECKS", "79")];
    let (_, noted) = import("", &env);
    assert_eq!(
        noted,
        [
            ("DP_DISABLE_HEALTHCHECKS".to_owned(), false),
            ("DP_ENABLE_HEALTHCHECKS".to_owned(), true)
        ]
    );
}

#[test]
fn the_plugins_xids_stay_those_that_count() {
    let health = |env: &[(&str, &str)]| {
        let import = import_with("", &[], env, DiscardedParts::Ignore);
        (import.config.health.unwrap(), import.remarks)
    };
    let (default, _) = health(&[]);
    assert_eq!(default.ignore_xids, [109]);
    let ignored = |rules: &crate::HealthRules| (1..200).filter(|xid| !is_xid_fault(*xid, rules)).collect::<Vec<_>>();
    assert_eq!(ignored(&default), [13, 31, 43, 45, 68, 109]);
    let (changed, _) = health(&[
        ("DP_DISABLE_HEALTHCHECKS", "48, 79"),
        ("DP_ENABLE_HEALTHCHECKS", "79,109,13"),
    ]);
    assert_eq!(ignored(&changed), [31, 43, 45, 48, 68]);
    let (none, remarks) = health(&[("DP_DISABLE_HEALTHCHECKS", "XIDS"), ("DP_ENABLE_HEALTHCHECKS", "79")]);
    let counted: Vec<_> = (1..200).filter(|xid| is_xid_fault(*xid, &none)).collect();
    assert!(
        counted.iter().all(|xid| crate::describe_xid(*xid).is_none()),
        "{counted:?}"
    );
    assert_eq!((none.ignore.len(), remarks.len()), (7, 2));
    let (all, remarks) = health(&[("DP_ENABLE_HEALTHCHECKS", "all")]);
    assert_eq!(ignored(&all), Vec::<i32>::new());
    let [remark] = remarks.as_slice() else {
        panic!("{remarks:?}")
    };
    assert!(remark.to_string().starts_with("DP_ENABLE_HEALTHCHECKS: "), "{remark}");
    for disabled in ["all", "48", "0"] {
        let (all, _) = health(&[("DP_DISABLE_HEALTHCHECKS", disabled), ("DP_ENABLE_HEALTHCHECKS", "0")]);
        assert_eq!(
            (ignored(&all), all.ignore),
            (vec![], vec![]),
            "enabling beats disabling"
        );
    }
    let (_, remarks) = health(&[("DP_DISABLE_HEALTHCHECKS", "79,many,,70000")]);
    let told: Vec<_> = remarks
        .iter()
        .map(|remark| (remark.message.as_str(), remark.is_ignored))
        .collect();
    assert_eq!(
        told,
        [
            ("`many` is no XID, a number from 1 to 65535", true),
            ("`70000` is no XID, a number from 1 to 65535", true)
        ]
    );
}

#[test]
fn flags_beat_the_environment_and_both_beat_the_file() {
    let file = "flags: {migStrategy: single, plugin: {deviceListStrategy: [volume-mounts], passDeviceSpecs: true}}";
    let of_file = import(file).config;
    assert_eq!(of_file.mig_strategy(), MigStrategy::Single);
    assert_eq!(of_file.device_list_strategy, [DeviceListStrategy::VolumeMounts]);
    assert!(of_file.pass_device_specs());
    let env = [
        ("MIG_STRATEGY", "none"),
        ("DEVICE_LIST_STRATEGY", "envvar,cdi-cri"),
        ("PASS_DEVICE_SPECS", ""),
    ];
    let of_env = import_with(file, &[], &env, DiscardedParts::Ignore).config;
    assert_eq!(of_env.mig_strategy(), MigStrategy::None);
    assert_eq!(
        of_env.device_list_strategy,
        [DeviceListStrategy::Envvar, DeviceListStrategy::CdiCri]
    );
    assert!(!of_env.pass_device_specs(), "a switch whose variable is empty is off");
    let args = [
        "--mig-strategy",
        "mixed",
        "--device-list-strategy=cdi-annotations,envvar",
        "-pass-device-specs",
    ];
    let of_args = import_with(file, &args, &env, DiscardedParts::Ignore).config;
    assert_eq!(of_args.mig_strategy(), MigStrategy::Mixed);
    assert_eq!(
        of_args.device_list_strategy,
        [DeviceListStrategy::CdiAnnotations, DeviceListStrategy::Envvar]
    );
    assert!(of_args.pass_device_specs());
}

#[test]
fn older_names_of_flags_and_variables_are_read() {
    let import = import_with(
        "",
        &[
            "--nvidia-driver-root=/opt/nvidia",
            "--device-list-strategy=envvar",
            "--device-list-strategy=cdi-cri",
        ],
        &[
            ("NVIDIA_CTK_PATH", "/usr/bin/nvidia-ctk"),
            ("CONTAINER_DRIVER_ROOT", "/driver-root"),
        ],
        DiscardedParts::Ignore,
    );
    assert_eq!(
        flags(&import),
        ["--driver-roots=/opt/nvidia,/run/nvidia/driver,/,/home/kubernetes/bin/nvidia"]
    );
    assert_eq!(
        import.config.device_list_strategy,
        [DeviceListStrategy::Envvar, DeviceListStrategy::CdiCri]
    );
    assert_eq!(differing(&import), ["NVIDIA_CTK_PATH", "CONTAINER_DRIVER_ROOT"]);
}

#[test]
fn paths_become_flags_of_the_operator() {
    let import = import_with(
        "flags: {nvidiaDriverRoot: /custom/driver, nvidiaDevRoot: /custom, mpsRoot: /run/nvidia/mps}",
        &[],
        &[("KUBELET_SOCKET", "/data/kubelet/device-plugins/kubelet.sock")],
        DiscardedParts::Ignore,
    );
    assert_eq!(
        flags(&import),
        [
            "--driver-roots=/custom/driver,/run/nvidia/driver,/,/home/kubernetes/bin/nvidia",
            "--dev-root=/custom",
            "--kubelet-root=/data/kubelet"
        ]
    );
    assert_eq!(differing(&import), ["flags.mpsRoot"]);
    let found = "flags: {nvidiaDriverRoot: /run/nvidia/driver}";
    assert_eq!(flags(&super::tests::import(found)), [""; 0], "agents search it anyway");
    let problems = refused_with("", &["--kubelet-socket=", "--dev-root=dev"], DiscardedParts::Ignore);
    assert!(
        problems[0].starts_with("--dev-root: \"dev\" is not an absolute path"),
        "{problems:?}"
    );
    assert!(
        problems[1].starts_with("--kubelet-socket: must be the kubelet's folder"),
        "{problems:?}"
    );
}

#[test]
fn what_the_plugin_ignores_is_named() {
    let import = import(
        "flags: {migStrategie: single, plugin: {passDeviceSpec: true}, gfd: {sleepinterval: 5s}}
extra: 1
resources:
  gpus: [{pattern: '*A100*', name: a100}]
sharing:
  timeSlicing: {resources: [{name: gpu, replicas: 2}]}
  mps:
    resources:
    - {name: gpu, rename: half, devices: [0, '0:1', GPU-b1028956-cfa2-0990-bf4a-5da9abb51763], replicas: 2, share: 1}
    - {name: nvidia.com/mig-1g.5gb, replicas: 2}
",
    );
    assert_eq!(
        ignored(&import),
        [
            "extra",
            "flags.migStrategie",
            "flags.plugin.passDeviceSpec",
            "sharing.mps.resources[0].share",
            "resources.gpus",
            "sharing.timeSlicing",
            "sharing.mps.resources[0].rename",
            "sharing.mps.resources[0].devices",
            "sharing.mps.resources[1].name",
        ]
    );
    let hint = import
        .remarks
        .iter()
        .find(|remark| remark.setting == "flags.migStrategie")
        .unwrap();
    assert_eq!(hint.message, "unknown field; did you mean `migStrategy`?");
    assert_eq!(differing(&import), ["flags.gfd.sleepinterval"]);
    assert_resources(
        &import,
        "[{name: nvidia.com/gpu, allocation: Spread,
           sharing: {strategy: Mps, replicas: 2, failRequestsGreaterThanOne: true}}]",
    );
}

#[test]
fn keys_of_structures_are_read_in_any_case_as_go_does() {
    let import = import("Flags: {MIGSTRATEGY: single, Plugin: {PassDeviceSpecs: yes}}\nSharing: {}\n");
    assert_eq!(import.config.mig_strategy(), MigStrategy::Single);
    assert!(import.config.pass_device_specs());
    assert_eq!(import.remarks, []);
    // Those below timeSlicing are read by hand there, in their own case.
    let shared = "sharing: {timeSlicing: {RenameByDefault: true, resources: [{name: gpu, replicas: 2}]}}";
    assert_eq!(
        ignored(&super::tests::import(shared)),
        ["sharing.timeSlicing.RenameByDefault"]
    );
}

#[test]
fn shared_mig_profiles_get_entries_beside_whole_gpus() {
    let import = import(
        "flags: {migStrategy: mixed, plugin: {sharedDevicesAllocationPolicy: packed}}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/mig-1g.10gb.me, replicas: 3}
    - {name: nvidia.com/mig-2g.20gb, rename: nvidia.com/mig-2g.20gb.shared, replicas: 2}
",
    );
    let sharing = "strategy: TimeSlicing, renameByDefault: true, failRequestsGreaterThanOne: true";
    assert_resources(
        &import,
        &format!(
            "[{{name: nvidia.com/gpu}},
              {{name: nvidia.com/mig-1g.10gb.me, devices: {{migProfiles: [1g.10gb+me]}}, allocation: Packed, sharing: {{{sharing}, replicas: 3}}}},
              {{name: nvidia.com/mig-2g.20gb, devices: {{migProfiles: [2g.20gb]}}, allocation: Packed, sharing: {{{sharing}, replicas: 2}}}}]"
        ),
    );
    assert_eq!(import.remarks, []);
    assert_eq!(import.config.resources[1].strategy(), SharingStrategy::TimeSlicing);
    assert_eq!(import.config.resources[1].allocation(), Allocation::Packed);
}

#[test]
fn as_written_honours_names_renames_and_devices() {
    let import = as_written(
        "resources:
  gpus:
  - {pattern: 'NVIDIA A100*', name: a100}
  - {pattern: 'Tesla T4', name: small}
  - {pattern: 'Tesla P4', name: small}
  mig: [{pattern: 1g.5gb, name: slice}]
sharing:
  timeSlicing:
    resources:
    - {name: a100, rename: a100-shared, devices: [0, '2'], replicas: 4}
    - {name: small, rename: tiny, replicas: 2}
",
    );
    assert_resources(
        &import,
        "[{name: nvidia.com/a100-shared, devices: {products: [NVIDIA-A100*], indices: [0, 2]}, allocation: Spread,
            sharing: {strategy: TimeSlicing, replicas: 4}},
          {name: nvidia.com/a100, devices: {products: [NVIDIA-A100*]}},
          {name: nvidia.com/tiny, devices: {products: [Tesla-T4, Tesla-P4]}, allocation: Spread,
            sharing: {strategy: TimeSlicing, replicas: 2}},
          {name: nvidia.com/gpu}]",
    );
    assert_eq!(
        ignored(&import),
        ["resources.mig"],
        "there are no MIG devices without a strategy"
    );
    let single = as_written(
        "flags: {migStrategy: single}\nresources: {gpus: [{pattern: '*A100*', name: a100}, {pattern: '*', name: rest}]}",
    );
    assert_resources(
        &single,
        "[{name: nvidia.com/a100, devices: {products: ['*A100*'], kind: FullGpu}},
          {name: nvidia.com/rest, devices: {kind: FullGpu}}, {name: nvidia.com/gpu}]",
    );
    let mig = as_written(
        "flags: {migStrategy: mixed}\nresources: {mig: [{pattern: '1g.*', name: slice}], gpus: [{pattern: '*', name: whole}]}",
    );
    assert_resources(
        &mig,
        "[{name: nvidia.com/slice, devices: {migProfiles: ['1g.*']}}, {name: nvidia.com/whole}, {name: nvidia.com/gpu}]",
    );
}

#[test]
fn what_as_written_cannot_keep_is_refused_by_name() {
    let shared = |devices: &str| {
        let text = format!(
            "sharing: {{timeSlicing: {{resources: [{{name: gpu, rename: part, devices: {devices}, replicas: 2}}]}}}}"
        );
        refused_with(&text, &[], DiscardedParts::Honour)
    };
    let path = "sharing.timeSlicing.resources[0].devices";
    for (devices, message) in [
        (
            "2",
            "a number of devices leaves open which they are; list their indices or UUIDs",
        ),
        (
            "['0:1']",
            "the index of MIG device 0:1 changes with the layout; write its UUID, or share its profile",
        ),
        (
            "[0, GPU-b1028956-cfa2-0990-bf4a-5da9abb51763]",
            "a device must meet every condition of a selector; write UUIDs alone, or indices alone",
        ),
    ] {
        assert_eq!(shared(devices), [format!("{path}: {message}")]);
    }
    let unnamed = "sharing: {timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 2}]}}";
    assert_eq!(
        refused_with(unnamed, &[], DiscardedParts::Honour),
        [format!(
            "{path}: the devices of one resource are shared alike: set `rename` for the shared ones, or remove `devices`"
        )]
    );
    let first = "resources: {gpus: [{pattern: 'Tesla?', name: a}, {pattern: T4, name: gpu}, {pattern: P4, name: b}]}";
    assert_eq!(
        refused_with(first, &[], DiscardedParts::Honour),
        [
            "resources.gpus[0]: `?` is a question mark there, and any character here; write *",
            "resources.gpus[1]: every other GPU is nvidia.com/gpu, too; put this entry last",
        ]
    );
}

#[test]
fn what_stops_the_plugin_is_refused_with_its_name() {
    for (text, problem) in [
        ("version: v2", "version: only v1 is known"),
        ("flags: 1", "flags: must be a mapping"),
        ("[]", "must be a mapping"),
        ("flags: {migStrategy: [a]}", "flags.migStrategy: must be a text"),
        (
            "flags: {migStrategy: both}",
            "flags.migStrategy: must be none, single or mixed, not `both`",
        ),
        (
            "flags: {failOnInitError: maybe}",
            "flags.failOnInitError: must be true or false",
        ),
        (
            "flags: {plugin: {deviceListStrategy: 'envvar,cdi-cri'}}",
            "flags.plugin.deviceListStrategy: must be of envvar, volume-mounts, cdi-annotations and cdi-cri, not `envvar,cdi-cri`",
        ),
        (
            "flags: {plugin: {deviceIDStrategy: name}}",
            "flags.plugin.deviceIDStrategy: must be uuid or index, not `name`",
        ),
        (
            "flags: {plugin: {sharedDevicesAllocationPolicy: best}}",
            "flags.plugin.sharedDevicesAllocationPolicy: must be distributed or packed, not `best`",
        ),
        (
            "flags: {deviceDiscoveryStrategy: tegra}",
            "flags.deviceDiscoveryStrategy: GPUs of Tegra boards have no NVML, which gpunode needs",
        ),
        ("imex: {channelIDs: [0, 1]}", "imex.channelIDs: must be [] or [0]"),
        (
            "sharing: {timeSlicing: }",
            "sharing.timeSlicing.resources: must name at least one resource",
        ),
        (
            "sharing: {mps: {resources: [null, {name: gpu, replicas: 2}]}}",
            "sharing.mps.resources[0]: must be a mapping",
        ),
        ("resources: {gpus: [null]}", "resources.gpus[0]: must be a mapping"),
        (
            "sharing: {mps: {resources: [{name: gpu, rename: null, replicas: 2}]}}",
            "sharing.mps.resources[0].rename: must be the name of a resource, such as nvidia.com/gpu",
        ),
        (
            "flags: {}\nFlags: {}",
            "flags: is there twice, in capital and in small letters; keep one",
        ),
        (
            "sharing: {timeSlicing: {}}",
            "sharing.timeSlicing.resources: must name at least one resource",
        ),
        (
            "sharing: {mps: {resources: [{replicas: 2}]}}",
            "sharing.mps.resources[0].name: must be the name of a resource, such as nvidia.com/gpu",
        ),
        (
            "sharing: {mps: {resources: [{name: UPPER, replicas: 2}]}}",
            "sharing.mps.resources[0].name: must be nvidia.com/ and a DNS name, at most 63 characters together",
        ),
        (
            "sharing: {mps: {resources: [{name: gpu, replicas: 1}]}}",
            "sharing.mps.resources[0].replicas: must be a number of at least 2",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}, {name: gpu, replicas: 3}]}}",
            "sharing.timeSlicing.resources[1]: nvidia.com/gpu is shared twice; keep one entry",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, devices: some, replicas: 2}]}}",
            "sharing.timeSlicing.resources[0].devices: must be all, a number above 0, or a list of indices (0), MIG indices (\"0:1\") and UUIDs",
        ),
        (
            "flags: {migStrategy: mixed}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}",
            "sharing.mps: NVIDIA's plugin does not start with it and migStrategy mixed; use timeSlicing",
        ),
    ] {
        assert_eq!(refused(text), [problem], "{text}");
    }
    for (args, problem) in [
        (&["--colour"][..], "--colour: is no flag of NVIDIA's device plugin 0.20"),
        (
            &["--driver-root=/a", "--nvidia-driver-root=/b"],
            "--nvidia-driver-root: is another name of a flag that is there already; the plugin takes one form",
        ),
        (&["--gds-enabled="], "--gds-enabled: must be true or false"),
        (&["--imex-channel-ids="], "--imex-channel-ids: must be [] or [0]"),
        (&["--mig-strategy"], "--mig-strategy: needs a value"),
        (
            &["--gds-enabled=perhaps"],
            "--gds-enabled: must be true or false, not `perhaps`",
        ),
    ] {
        assert_eq!(refused_with("", args, DiscardedParts::Ignore), [problem]);
    }
    assert!(matches!(
        nvidia_plugin_config("a: [", &PluginContainer::default(), DiscardedParts::Ignore),
        Err(NvidiaPluginError::Malformed(_))
    ));
    assert_eq!(
        nvidia_plugin_config(
            &"#".repeat(MAX_DOCUMENT_BYTES + 1),
            &PluginContainer::default(),
            DiscardedParts::Ignore
        ),
        Err(NvidiaPluginError::TooLong(MAX_DOCUMENT_BYTES + 1))
    );
}

#[test]
fn what_cannot_be_the_same_is_said() {
    let import = import_with(
        "flags: {failOnInitError: true, plugin: {deviceIDStrategy: index}}\nimex: {channelIDs: [0], required: true}",
        &["--cdi-feature-flags=disable-nvsandbox"],
        &[],
        DiscardedParts::Ignore,
    );
    assert_eq!(
        differing(&import),
        [
            "flags.failOnInitError",
            "flags.plugin.deviceIDStrategy",
            "imex.required",
            "--cdi-feature-flags"
        ]
    );
    assert_eq!(import.config.imex_channels, [0]);
    assert_eq!(
        (import.config.fail_on_init_error, import.config.device_id_strategy),
        (None, None)
    );
    let mut hidden = container(&[], &[]);
    hidden.env.insert("MIG_STRATEGY".to_owned(), None);
    let import = nvidia_plugin_config("", &hidden, DiscardedParts::Ignore).unwrap();
    assert_eq!(differing(&import), ["MIG_STRATEGY"]);
}

#[test]
fn a_file_of_the_plugin_is_told_from_one_of_gpunode() {
    for text in [
        "version: v1",
        "flags: {}",
        SLICED,
        "imex: {}",
        "resources: {gpus: []}",
        "version: v1\nflags: {migStrategy: none}\nresources:\n",
        "Sharing: {}",
    ] {
        assert!(is_nvidia_plugin_file(text), "{text}");
    }
    // A stray field of the other is refused by name.
    for text in [
        "version: v1\nmig: {strategy: None}",
        "sharing: {}\nresources: []",
        "flags: {}\nhealth: {}",
    ] {
        assert!(!is_nvidia_plugin_file(text), "{text}");
        assert!(load(text).is_err(), "{text}");
    }
    for text in [
        "",
        "{}",
        "resources:",
        "resources: []",
        "mig: {strategy: None}",
        "- a",
        "a: [",
        "1",
    ] {
        assert!(!is_nvidia_plugin_file(text), "{text}");
    }
}

/// Every setting of the plugin, by section.
fn listed() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let list = include_str!("../../testdata/nvidia-device-plugin-0.20.txt");
    let mut sections = BTreeMap::new();
    let mut section = "";
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => section = name,
            None => sections
                .entry(section)
                .or_insert_with(BTreeSet::new)
                .extend(line.split_whitespace()),
        }
    }
    sections
}

#[test]
fn each_setting_of_the_plugin_is_imported_or_noted() {
    let listed = listed();
    let names = |of: fn(&PluginOption) -> &'static [&'static str]| OPTIONS.iter().flat_map(of).copied();
    let flags: BTreeSet<String> = names(|option| option.flags).map(|flag| format!("--{flag}")).collect();
    assert!(
        flags
            .iter()
            .map(String::as_str)
            .eq(listed["plugin: flags"].iter().copied()),
        "{flags:?}"
    );
    let variables: BTreeSet<_> = names(|option| option.variables).collect();
    assert_eq!(variables, listed["plugin: variables"]);
    let keys = OPTIONS.iter().map(|option| option.key).filter(|key| key.contains('.'));
    assert_eq!(keys.collect::<BTreeSet<_>>(), listed["plugin: keys"]);
    let discovery: BTreeSet<_> = DISCOVERY_KEYS.iter().copied().collect();
    assert_eq!(discovery, listed["GPU feature discovery: keys"]);
}

#[test]
fn each_option_of_the_plugin_changes_what_is_imported() {
    let default = import("");
    for option in OPTIONS {
        let value = match option.key {
            "flags.migStrategy" => "mixed",
            "flags.plugin.deviceListStrategy" => "cdi-cri",
            "flags.plugin.deviceIDStrategy" => "index",
            "flags.plugin.cdiAnnotationPrefix" => "example.com/",
            "flags.plugin.sharedDevicesAllocationPolicy" => "packed",
            "flags.deviceDiscoveryStrategy" => "tegra",
            "imex.channelIDs" => "0",
            "kubelet-socket" => "/data/kubelet/device-plugins/kubelet.sock",
            // It names the file, whose text is given.
            "config-file" => continue,
            "DP_DISABLE_HEALTHCHECKS" | "DP_ENABLE_HEALTHCHECKS" => "all",
            _ if option.kind == OptionKind::Switch => "true",
            _ => "/somewhere",
        };
        let variables = option.variables.iter().map(|name| container(&[], &[(name, value)]));
        let flags = option
            .flags
            .iter()
            .map(|flag| container(&[&format!("--{flag}={value}")], &[]));
        for container in variables.chain(flags) {
            let imported = nvidia_plugin_config("", &container, DiscardedParts::Ignore);
            assert_ne!(imported, Ok(default.clone()), "{container:?}");
        }
    }
}

#[test]
fn arguments_are_read_as_the_kubelet_and_go_do() {
    let import = import_with(
        "",
        &[
            "--dev-root=$(ROOT)/dev",
            "--pass-device-specs",
            "true",
            "--mig-strategy=mixed",
        ],
        &[
            ("ROOT", "/opt"),
            ("IMEX_CHANNEL_IDS", ""),
            ("NVIDIA_VISIBLE_DEVICES", "0,1"),
        ],
        DiscardedParts::Ignore,
    );
    assert_eq!(flags(&import), ["--dev-root=/opt/dev"]);
    assert_eq!(ignored(&import), ["true", "--mig-strategy=mixed"]);
    assert_eq!(differing(&import), ["NVIDIA_VISIBLE_DEVICES"]);
    let unknown = PluginContainer {
        env: [("NVIDIA_VISIBLE_DEVICES".to_owned(), None)].into(),
        ..PluginContainer::default()
    };
    let of_unknown = nvidia_plugin_config("", &unknown, DiscardedParts::Ignore).unwrap();
    assert_eq!(differing(&of_unknown), ["NVIDIA_VISIBLE_DEVICES"]);
    assert!(import.config.pass_device_specs() && import.config.mig.is_none());
    assert_eq!(
        refused_with("", &["--device-list-strategy=envvar,"], DiscardedParts::Ignore),
        ["--device-list-strategy: must be of envvar, volume-mounts, cdi-annotations and cdi-cri, not ``"]
    );
}

#[test]
fn merge_keys_are_applied() {
    let import = import("base: &b {migStrategy: mixed}\nflags: {<<: *b}\n");
    assert_eq!(import.config.mig_strategy(), MigStrategy::Mixed);
    assert_eq!(ignored(&import), ["base"]);
}

#[test]
fn paths_of_several_configurations_are_flags_together() {
    let paths = |text: &str| import(text).paths;
    let (opt, nvidia) = (
        paths("flags: {nvidiaDriverRoot: /opt/a}"),
        paths("flags: {nvidiaDriverRoot: /b}"),
    );
    let none = PluginPaths::default();
    assert_eq!(
        PluginPaths::flags([&opt, &none, &nvidia, &opt].into_iter()),
        Ok(vec![
            "--driver-roots=/opt/a,/b,/run/nvidia/driver,/,/home/kubernetes/bin/nvidia".to_owned()
        ])
    );
    let dev = paths("flags: {nvidiaDevRoot: /dev-root}");
    let error = PluginPaths::flags([&dev, &none].into_iter()).unwrap_err().to_string();
    assert!(error.contains("--dev-root=/dev-root and --dev-root=/"), "{error}");
}

#[test]
fn each_setting_of_the_plugin_is_on_the_page() {
    let page = include_str!("../../../docs/from-nvidia-device-plugin.md");
    let settings = listed().into_values().flatten();
    let missing: Vec<_> = settings
        .filter(|setting| !page.contains(&format!("`{setting}`")))
        .collect();
    assert_eq!(missing, [""; 0]);
}

/// A value of YAML for a key of the plugin's file, seldom a right one.
fn any_value() -> impl Strategy<Value = String> {
    let words = [
        "null",
        "true",
        "2",
        "-1",
        "all",
        "[]",
        "{}",
        "mixed",
        "single",
        "packed",
        "envvar",
        "[0, '0:1']",
        "gpu",
        "/opt",
        "'*'",
        "index",
        "nvidia.com/mig-1g.5gb",
        "[{pattern: '*T4*', name: t4}]",
        "[{pattern: 1g.5gb, name: part}]",
        "{resources: [{name: gpu, replicas: 2}]}",
        "{renameByDefault: true, resources: [{name: mig-1g.5gb.me, replicas: 3, rename: a, devices: [0]}, {name: t4, replicas: 9999}]}",
    ];
    proptest::sample::select(words.to_vec()).prop_map(str::to_owned)
}

/// A document with keys of the plugin's file.
fn any_file() -> impl Strategy<Value = String> {
    let options = OPTIONS
        .iter()
        .map(|option| option.key)
        .chain(DISCOVERY_KEYS.iter().copied());
    let parts = [
        "version",
        "resources.gpus",
        "resources.mig",
        "sharing.timeSlicing",
        "sharing.mps",
        "sharing",
        "flags",
        "other",
    ];
    let keys: Vec<&str> = options.chain(parts).collect();
    let settings = proptest::collection::btree_map(proptest::sample::select(keys), any_value(), 0..6);
    settings.prop_map(|settings| {
        let mut document = serde_yaml::Mapping::new();
        for (key, value) in settings {
            let mut place = &mut document;
            let (groups, last) = key.rsplit_once('.').map_or(("", key), |(groups, last)| (groups, last));
            for group in groups.split('.').filter(|group| !group.is_empty()) {
                let entry = place
                    .entry(group.into())
                    .or_insert_with(|| Value::Mapping(serde_yaml::Mapping::new()));
                if !entry.is_mapping() {
                    *entry = Value::Mapping(serde_yaml::Mapping::new());
                }
                place = entry.as_mapping_mut().unwrap();
            }
            place.insert(last.into(), serde_yaml::from_str(&value).unwrap());
        }
        serde_yaml::to_string(&document).unwrap()
    })
}

proptest::proptest! {
    #[test]
    fn what_is_imported_can_be_loaded(file in any_file(), is_honoured in proptest::bool::ANY) {
        let discarded = if is_honoured { DiscardedParts::Honour } else { DiscardedParts::Ignore };
        if let Ok(import) = nvidia_plugin_config(&file, &PluginContainer::default(), discarded) {
            let written = serde_yaml::to_string(&import.config).unwrap();
            assert_eq!(load(&written), Ok(import.config));
        }
    }
}
