use super::*;
use gpunode_config::load;
use gpunode_crds::CdiMode;

const UUIDS: [&str; 2] = ["GPU-0", "MIG-1"];

fn rules(document: &str) -> InjectionRules {
    InjectionRules::of(&load(document).unwrap(), None)
}

fn described(uuids: &[&str]) -> BTreeSet<String> {
    uuids.iter().map(|uuid| (*uuid).to_owned()).collect()
}

/// Returns one line for each entry of the response to a request for both devices.
fn entries(document: &str, in_file: &[&str], channels: &[u32]) -> Vec<String> {
    let response = rules(document).response(&UUIDS, &described(in_file), channels);
    let mut entries: Vec<String> = response
        .cdi_devices
        .iter()
        .map(|device| format!("CDI {}", device.name))
        .collect();
    let pair = |kind: &'static str| move |(name, value): (&String, &String)| format!("{kind} {name}={value}");
    entries.extend(response.annotations.iter().map(pair("annotation")));
    let mut envs: Vec<String> = response.envs.iter().map(pair("env")).collect();
    envs.sort();
    entries.extend(envs);
    let mount = |mount: &Mount| format!("mount {} at {}", mount.host_path, mount.container_path);
    entries.extend(response.mounts.iter().map(mount));
    entries
}

#[test]
fn each_strategy_names_the_devices_in_its_way() {
    let both = "gpunode.dev/gpu=GPU-0,gpunode.dev/gpu=MIG-1";
    for (strategies, expected) in [
        (
            "[CdiCri]",
            vec!["CDI gpunode.dev/gpu=GPU-0", "CDI gpunode.dev/gpu=MIG-1"],
        ),
        (
            "[CdiAnnotations]",
            vec!["annotation cdi.k8s.io/gpunode_GPU-0=gpunode.dev/gpu=GPU-0,gpunode.dev/gpu=MIG-1"],
        ),
        ("[Envvar]", vec!["env NVIDIA_VISIBLE_DEVICES=GPU-0,MIG-1"]),
        (
            "[VolumeMounts]",
            vec![
                "env NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices",
                "mount /dev/null at /var/run/nvidia-container-devices/GPU-0",
                "mount /dev/null at /var/run/nvidia-container-devices/MIG-1",
            ],
        ),
    ] {
        let document = format!("deviceListStrategy: {strategies}");
        assert_eq!(entries(&document, &UUIDS, &[]), expected, "{strategies}");
    }
    let prefixed = entries(
        "deviceListStrategy: [CdiAnnotations]\ncdiAnnotationPrefix: nvidia.cdi.k8s.io/",
        &UUIDS,
        &[],
    );
    assert_eq!(prefixed, [format!("annotation nvidia.cdi.k8s.io/gpunode_GPU-0={both}")]);
}

#[test]
fn by_default_a_described_device_comes_by_cdi_and_the_variable_and_another_by_the_variable_alone() {
    let variable = "env NVIDIA_VISIBLE_DEVICES=GPU-0,MIG-1";
    assert_eq!(
        entries("{}", &UUIDS, &[]),
        ["CDI gpunode.dev/gpu=GPU-0", "CDI gpunode.dev/gpu=MIG-1", variable]
    );
    // A part by CDI would make the runtime leave out the rest.
    assert_eq!(entries("{}", &["GPU-0"], &[]), [variable]);
    assert_eq!(entries("{}", &[], &[]), [variable]);
}

#[test]
fn mounts_win_over_the_variable_beside_them_as_in_nvidias_plugin() {
    let found = entries("deviceListStrategy: [Envvar, VolumeMounts]", &[], &[]);
    assert_eq!(found[0], "env NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices");
    assert_eq!(found.len(), 3);
}

#[test]
fn channels_of_the_node_come_with_the_devices() {
    assert_eq!(
        entries("deviceListStrategy: [Envvar]\nimexChannels: [0]", &[], &[0])[0],
        "env NVIDIA_IMEX_CHANNELS=0"
    );
    assert_eq!(
        entries("deviceListStrategy: [VolumeMounts]", &[], &[0])[3],
        "mount /dev/null at /var/run/nvidia-container-devices/imex/0"
    );
}

#[test]
fn switches_are_set_whatever_the_strategy() {
    let found = entries(
        "deviceListStrategy: [CdiCri]\ngds: true\nmofed: true\ngdrcopy: true",
        &UUIDS,
        &[],
    );
    assert_eq!(
        found[2..],
        [
            "env NVIDIA_GDRCOPY=enabled",
            "env NVIDIA_GDS=enabled",
            "env NVIDIA_MOFED=enabled"
        ]
    );
}

#[test]
fn the_same_devices_get_the_same_response_and_another_resource_another_key() {
    let rules = rules("deviceListStrategy: [CdiAnnotations]");
    let of = |uuid: &str| rules.response(&[uuid], &described(&[uuid]), &[]);
    assert_eq!(of("GPU-0"), of("GPU-0"));
    // The longest name that a driver has for a device: a MIG device before driver 470.
    let longest = "MIG-GPU-c0ffee00-1234-5678-9abc-def012345678/13/0";
    for (uuid, key) in [
        ("GPU-0", "cdi.k8s.io/gpunode_GPU-0"),
        (
            longest,
            "cdi.k8s.io/gpunode_MIG-GPU-c0ffee00-1234-5678-9abc-def012345678_13_0",
        ),
    ] {
        let keys: Vec<String> = of(uuid).annotations.into_keys().collect();
        assert_eq!(keys, [key]);
        assert!(key.len() - "cdi.k8s.io/".len() <= 63);
    }
}

#[test]
fn a_device_that_cdi_alone_could_hand_over_and_the_file_lacks_has_a_reason() {
    let cdi = CdiState {
        described: described(&["GPU-0"]),
        left_out: [("GPU-1".to_owned(), "/dev/nvidia1 does not exist".to_owned())].into(),
        ..CdiState::default()
    };
    let reason = |document: &str, uuid: &str| rules(document).not_injectable(uuid, &cdi);
    for alone in ["[CdiCri]", "[CdiAnnotations]", "[CdiCri, CdiAnnotations]"] {
        let document = format!("deviceListStrategy: {alone}");
        assert_eq!(reason(&document, "GPU-0"), None);
        assert_eq!(
            reason(&document, "GPU-1").as_deref(),
            Some("the CDI file does not describe it: /dev/nvidia1 does not exist")
        );
        assert_eq!(
            reason(&document, "GPU-2").as_deref(),
            Some("the CDI file does not describe it: the file is not written yet")
        );
    }
    for beside in ["[CdiCri, Envvar]", "[Envvar]", "[VolumeMounts]", "[]"] {
        assert_eq!(
            reason(&format!("deviceListStrategy: {beside}"), "GPU-1"),
            None,
            "{beside}"
        );
    }
    // Another strategy needs NVIDIA's container runtime, which this node does not have.
    let runtime = RuntimeStatus {
        cdi: Some(CdiMode::Enabled),
        handlers: vec!["runc".to_owned()],
        ..RuntimeStatus::default()
    };
    for (document, is_withheld) in [
        ("deviceListStrategy: [CdiCri, Envvar]", true),
        ("{deviceListStrategy: [CdiCri, Envvar], passDeviceSpecs: true}", false),
        ("deviceListStrategy: [Envvar]", false),
    ] {
        let rules = InjectionRules::of(&load(document).unwrap(), Some(&runtime));
        assert_eq!(rules.not_injectable("GPU-1", &cdi).is_some(), is_withheld, "{document}");
    }
    let broken = CdiState {
        problem: Some("write /var/run/cdi: read-only file system".to_owned()),
        ..CdiState::default()
    };
    let said = rules("deviceListStrategy: [CdiCri]").not_injectable("GPU-0", &broken);
    assert!(said.unwrap().ends_with(": write /var/run/cdi: read-only file system"));
}
