//! Fuzz tests of what reads configurations. `cargo test` runs each for a moment, `make soak` for as long as it is told.

use crate::{
    ConfigDocument, DiscardedParts, PluginContainer, is_nvidia_plugin_file, load, mig_parted_layouts,
    nvidia_plugin_config,
};
use gpunode_fuzz::{Mutation, fuzz};

const CONFIGURATIONS: [&str; 6] = [
    "{}",
    "resources: [{name: nvidia.com/gpu, sharing: {strategy: TimeSlicing, replicas: 4}, allocation: Packed}]\nhealth: {ignoreXids: [109], recovery: Manual}\n",
    "resources:\n- name: aliyun.com/gpu-mem\n  devices: {indices: [0, 1], products: ['*V100*'], minMemory: 16Gi}\n  sharing: {strategy: Memory, unit: 1Gi}\n- name: a.b/c\n  devices: {uuids: [GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c]}\n  sharing: {strategy: Mps, replicas: 2}\npassDeviceSpecs: true\n",
    "mig: {strategy: Mixed, layout: [{devices: {products: ['*A100*']}, instances: {1g.10gb: 3, 4g.40gb: 1}}, {devices: {indices: [1]}, preset: all-balanced}, {disabled: true}]}\n",
    "deviceListStrategy: [Envvar, CdiCri]\ndeviceIdStrategy: Uuid\ngds: true\nmofed: true\nimexChannels: [0]\nfailOnInitError: false\nusage: {interval: 30s, idleAfter: 1h30m}\n",
    "companions:\n- {resource: rdma/hca, paths: ['/dev/infiniband/*'], group: Together, shares: 64, inject: {deviceNodes: {permissions: rw}, env: {name: RDMA, value: Paths}}}\n- {resource: a.b/c, paths: [/etc/colas/*], inject: {mounts: {readOnly: true}}}\n",
];

const OF_NVIDIA: [&str; 4] = [
    "version: v1\nflags: {migStrategy: mixed, failOnInitError: true, plugin: {passDeviceSpecs: true, deviceListStrategy: [envvar, cdi-cri], deviceIDStrategy: uuid}}\nsharing:\n  timeSlicing:\n    renameByDefault: true\n    failRequestsGreaterThanOne: true\n    resources:\n    - {name: nvidia.com/gpu, replicas: 10}\n    - {name: nvidia.com/mig-1g.5gb, rename: part, devices: all, replicas: 2}\n",
    "version: v1\nflags: {mpsRoot: /run/nvidia/mps}\nsharing: {mps: {resources: [{name: nvidia.com/gpu, rename: shared, replicas: 10, devices: [0, 1]}]}}\n",
    "version: v1\nresources: {gpus: [{pattern: '*T4*', name: t4}, {pattern: '*', name: gpu}], mig: [{pattern: 1g.5gb, name: small}]}\n",
    "flags: {gfd: {oneshot: false, noTimestamp: true, sleepInterval: 60s}, mpsRoot: /run/nvidia/mps, nvidiaDriverRoot: /}\nimex: {channelIDs: [0], required: true}\n",
];

const OF_MIG_PARTED: [&str; 2] = [
    "version: v1\nmig-configs:\n  all-1g.10gb:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.10gb: 7}\n  off: [{devices: [0, 1], mig-enabled: false}]\n",
    "version: v1\nmig-configs:\n  all-balanced:\n  - {device-filter: ['0x233010DE', '0x20B510DE'], devices: all, mig-enabled: true, mig-devices: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}}\n",
];

const ARGUMENTS: [&str; 8] = [
    "--mig-strategy=single",
    "--fail-on-init-error=false",
    "--device-list-strategy=envvar,cdi-annotations",
    "--device-id-strategy",
    "--config-file=/config/config.yaml",
    "--imex-channel-ids=0,1",
    "$(MIG_STRATEGY)",
    "--no-such-flag",
];

#[test]
fn documents_without_damage_are_accepted() {
    for document in CONFIGURATIONS {
        assert_eq!(load(document).map(drop), Ok(()), "{document}");
    }
    for file in OF_NVIDIA {
        let import = nvidia_plugin_config(file, &PluginContainer::default(), DiscardedParts::Honour);
        assert_eq!(import.map(drop), Ok(()), "{file}");
    }
    for file in OF_MIG_PARTED {
        assert_eq!(mig_parted_layouts(file).map(drop), Ok(()), "{file}");
    }
}

#[test]
fn a_configuration_that_is_accepted_reads_the_same_when_written() {
    fuzz(|mutation: Mutation| match load(&mutation.text(&CONFIGURATIONS)) {
        Ok(config) => assert_eq!(load(&ConfigDocument::of(&config).text), Ok(config)),
        Err(error) => assert!(!error.problems().is_empty(), "{error}"),
    });
}

#[test]
fn a_file_of_nvidias_plugin_becomes_a_configuration_that_is_accepted_or_an_error_with_a_reason() {
    fuzz(|(mutation, argument, is_honoured): (Mutation, Mutation, bool)| {
        let text = mutation.text(&OF_NVIDIA);
        _ = is_nvidia_plugin_file(&text);
        let argument = argument.text(&ARGUMENTS);
        let pod = PluginContainer {
            args: argument.split('\n').map(str::to_owned).collect(),
            env: [("DP_DISABLE_HEALTHCHECKS".to_owned(), Some(argument))].into(),
        };
        let discarded = if is_honoured {
            DiscardedParts::Honour
        } else {
            DiscardedParts::Ignore
        };
        match nvidia_plugin_config(&text, &pod, discarded) {
            Ok(import) => assert_eq!(load(&ConfigDocument::of(&import.config).text), Ok(import.config)),
            Err(error) => assert!(
                error.problems().iter().all(|problem| !problem.message.is_empty()),
                "{error}"
            ),
        }
    });
}

#[test]
fn a_file_of_mig_parted_becomes_layouts_that_are_accepted_or_an_error_with_a_reason() {
    fuzz(
        |mutation: Mutation| match mig_parted_layouts(&mutation.text(&OF_MIG_PARTED)) {
            Ok(layouts) => {
                for layout in layouts.into_values().filter(|layout| !layout.is_empty()) {
                    let config = crate::AgentConfig {
                        mig: Some(crate::MigConfig {
                            layout,
                            strategy: crate::MigStrategy::Mixed,
                        }),
                        ..crate::AgentConfig::default()
                    };
                    assert_eq!(load(&ConfigDocument::of(&config).text), Ok(config));
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        },
    );
}
