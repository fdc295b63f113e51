use super::*;
use crate::{DriverLibrary, HookKind, qualified_name};
use proptest::{collection, prelude::*};
use std::path::PathBuf;

const CONTROL: [&str; 2] = ["/dev/nvidiactl", "/dev/nvidia-uvm"];

fn at(root: &str, path: &str) -> HostFile {
    HostFile {
        host: format!("{root}{path}"),
        container: path.to_owned(),
    }
}

fn content(root: &str) -> DriverContent {
    let library = |name: &str, soname: &str, links: &[&str]| DriverLibrary {
        file: at(root, &format!("/usr/lib64/{name}.so.580.95.05")),
        soname: Some(soname.to_owned()),
        links: links.iter().map(|link| (*link).to_owned()).collect(),
    };
    DriverContent {
        version: "580.95.05".to_owned(),
        library_folders: vec!["/usr/lib64".to_owned()],
        libraries: vec![
            library("libcuda", "libcuda.so.1", &["libcuda.so.1"]),
            library("libnvidia-ml", "libnvidia-ml.so.1", &["libnvidia-ml.so.1"]),
        ],
        files: vec![at(root, "/usr/bin/nvidia-smi")],
        sockets: vec![at(root, "/run/nvidia-persistenced/socket")],
        device_nodes: CONTROL.map(|path| at("", path)).into(),
    }
}

fn program(path: &str) -> HookProgram {
    HookProgram {
        path: PathBuf::from(path),
        kind: HookKind::Nvidia,
    }
}

fn gpu(uuid: &str, nodes: &[&str]) -> CdiGpu {
    CdiGpu {
        uuid: uuid.to_owned(),
        nodes: nodes.iter().map(|path| at("", path)).collect(),
        ..CdiGpu::default()
    }
}

fn described(devices: &[CdiGpu]) -> CdiDescription {
    describe(&content(""), devices, &program("/usr/bin/nvidia-cdi-hook"))
}

fn in_use(uuids: &[&str]) -> DevicesInUse {
    let assigned: BTreeSet<String> = uuids.iter().map(|uuid| (*uuid).to_owned()).collect();
    DevicesInUse {
        held: assigned.clone(),
        assigned,
        is_complete: true,
    }
}

fn names(description: &CdiDescription) -> Vec<&str> {
    let devices = description.spec.iter().flat_map(|spec| &spec.devices);
    devices.map(|device| device.name.as_str()).collect()
}

#[test]
fn a_container_gets_its_device_and_the_parts_of_the_driver() {
    let spec = described(&[gpu("GPU-1", &["/dev/nvidia0"])]).spec.unwrap();
    assert_eq!((spec.kind.as_str(), spec.version.as_str()), (KIND, "0.3.0"));
    assert_eq!(spec.devices[0].container_edits.device_nodes[0].path, "/dev/nvidia0");
    let edits = &spec.container_edits;
    assert_eq!(
        edits.env,
        ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64", "NVIDIA_VISIBLE_DEVICES=void"]
    );
    let nodes: Vec<_> = edits.device_nodes.iter().map(|node| node.path.as_str()).collect();
    assert_eq!(nodes, CONTROL);
    let mounts: Vec<_> = edits
        .mounts
        .iter()
        .map(|mount| format!("{} {}", mount.container_path, mount.options.join(",")))
        .collect();
    assert_eq!(
        mounts,
        [
            "/usr/lib64/libcuda.so.580.95.05 ro,nosuid,nodev,rbind,rprivate",
            "/usr/lib64/libnvidia-ml.so.580.95.05 ro,nosuid,nodev,rbind,rprivate",
            "/usr/bin/nvidia-smi ro,nosuid,nodev,rbind,rprivate",
            "/run/nvidia-persistenced/socket nosuid,nodev,rbind,rprivate,noexec",
        ]
    );
    assert_eq!(qualified_name("GPU-1"), "gpunode.dev/gpu=GPU-1");
}

#[test]
fn hooks_have_the_arguments_of_nvidias_programs() {
    let texts = |path: &str| {
        let spec = describe(&content(""), &[gpu("GPU-1", &["/dev/nvidia0"])], &program(path)).spec;
        let hooks = spec.unwrap().container_edits.hooks.into_iter();
        assert!(
            hooks
                .clone()
                .all(|hook| hook.hook_name == "createContainer" && hook.path == path && !hook.env.is_empty())
        );
        hooks.map(|hook| hook.args.join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(
        texts("/usr/bin/nvidia-cdi-hook"),
        [
            "nvidia-cdi-hook create-symlinks --link libcuda.so.1::/usr/lib64/libcuda.so \
             --link libcuda.so.580.95.05::/usr/lib64/libcuda.so.1 \
             --link libnvidia-ml.so.580.95.05::/usr/lib64/libnvidia-ml.so.1",
            "nvidia-cdi-hook enable-cuda-compat --host-driver-version=580.95.05",
            "nvidia-cdi-hook update-ldcache --folder /usr/lib64",
            "nvidia-cdi-hook disable-device-node-modification",
        ]
    );
    assert_eq!(
        texts("/usr/local/nvidia/toolkit/nvidia-ctk")[3],
        "nvidia-ctk hook disable-device-node-modification"
    );
}

#[test]
fn gpunodes_program_runs_all_hooks_in_one_call() {
    let own = HookProgram {
        path: "/var/lib/gpunode/bin/gpunode-hook".into(),
        kind: HookKind::Own,
    };
    let hooks_of = |program: &HookProgram| {
        let spec = describe(&content(""), &[gpu("GPU-1", &["/dev/nvidia0"])], program).spec;
        spec.unwrap().container_edits.hooks
    };
    let nvidias = hooks_of(&program("/usr/bin/nvidia-cdi-hook"));
    let calls: Vec<String> = nvidias.iter().map(|hook| hook.args[1..].join(" ")).collect();
    let [own] = &hooks_of(&own)[..] else {
        panic!("several hooks")
    };
    assert_eq!(own.args.join(" "), format!("gpunode-hook {}", calls.join(" then ")));
}

#[test]
fn files_of_a_driver_container_have_their_place_on_the_host_and_the_usual_one_in_the_container() {
    let root = "/run/nvidia/driver";
    let device = CdiGpu {
        nodes: vec![at(root, "/dev/nvidia0")],
        ..gpu("GPU-1", &[])
    };
    let spec = describe(&content(root), &[device], &program("/usr/bin/nvidia-cdi-hook"))
        .spec
        .unwrap();
    assert_eq!(spec.version, "0.5.0");
    let mount = &spec.container_edits.mounts[0];
    assert_eq!(mount.host_path, format!("{root}{}", mount.container_path));
    let node = &spec.devices[0].container_edits.device_nodes[0];
    assert_eq!(node.host_path.as_deref(), Some("/run/nvidia/driver/dev/nvidia0"));
}

#[test]
fn a_device_that_cannot_be_described_is_left_out_and_others_are_not() {
    let missing = CdiGpu {
        missing: vec!["/dev/nvidia1".to_owned()],
        ..gpu("GPU-1", &[])
    };
    let devices = [
        gpu("GPU-0", &["/dev/nvidia0"]),
        missing,
        gpu("GPU-2", &[]),
        gpu("MIG-GPU-3/7/0", &["/dev/nvidia3"]),
    ];
    let description = described(&devices);
    assert_eq!(names(&description), ["GPU-0"]);
    assert_eq!(description.described, ["GPU-0".to_owned()].into());
    assert!(description.left_out["GPU-1"].contains("/dev/nvidia1"));
    assert_eq!(description.left_out.len(), 3);
    assert_eq!(
        described(&devices[1..]).spec,
        None,
        "a runtime refuses a file without devices"
    );
}

#[test]
fn graphics_nodes_belong_to_their_gpu_with_a_link_by_pci_address() {
    let device = CdiGpu {
        graphics_nodes: vec![at("", "/dev/dri/card1"), at("", "/dev/dri/renderD128")],
        graphics_links: vec![SymbolicLink {
            target: "../card1".to_owned(),
            path: "/dev/dri/by-path/pci-0000:07:00.0-card".to_owned(),
        }],
        ..gpu("GPU-1", &["/dev/nvidia0"])
    };
    let edits = described(&[device]).spec.unwrap().devices.remove(0).container_edits;
    assert_eq!(edits.device_nodes.len(), 3);
    assert_eq!(
        edits.hooks[0].args[2..],
        ["--link", "../card1::/dev/dri/by-path/pci-0000:07:00.0-card"]
    );
}

#[test]
fn a_held_device_stays_until_its_last_holder_is_known_to_be_gone() {
    let before = described(&[gpu("GPU-0", &["/dev/nvidia0"]), gpu("GPU-1", &["/dev/nvidia1"])]).spec;
    let present = [gpu("GPU-0", &["/dev/nvidia0"])];
    let kept = |in_use: &DevicesInUse| described(&present).keep(before.clone(), &present, in_use);
    let held = kept(&in_use(&["GPU-1"]));
    assert_eq!(names(&held), ["GPU-0", "GPU-1"]);
    assert!(!held.described.contains("GPU-1") && held.left_out.contains_key("GPU-1"));
    let unknown = DevicesInUse::default();
    assert_eq!(
        names(&kept(&unknown)),
        ["GPU-0", "GPU-1"],
        "its holders are not known yet"
    );
    assert_eq!(names(&kept(&in_use(&[]))), ["GPU-0"]);
    let remembered = DevicesInUse {
        assigned: BTreeSet::new(),
        ..in_use(&["GPU-1", "mlx5_0"])
    };
    let kept = kept(&remembered);
    assert_eq!(names(&kept), ["GPU-0", "GPU-1"]);
    assert!(
        kept.left_out.is_empty(),
        "devices of other plugins are nobody's problem"
    );
}

#[test]
fn without_a_driver_held_devices_stay_with_what_they_had_and_nothing_stays_without_them() {
    let before = described(&[gpu("GPU-0", &["/dev/nvidia0"]), gpu("GPU-1", &["/dev/nvidia1"])]).spec;
    let kept = CdiDescription::default().keep(before.clone(), &[], &in_use(&["GPU-1"]));
    assert_eq!(names(&kept), ["GPU-1"]);
    assert_eq!(
        kept.spec.unwrap().container_edits,
        before.clone().unwrap().container_edits
    );
    let none = CdiDescription::default().keep(before, &[], &in_use(&[]));
    assert_eq!(none, CdiDescription::default());
}

#[test]
fn a_name_never_leads_to_the_nodes_of_another_device() {
    let mig = |uuid: &str, capability: u32| {
        let nodes = [
            "/dev/nvidia0".to_owned(),
            "/dev/nvidia-caps/nvidia-cap66".to_owned(),
            format!("/dev/nvidia-caps/nvidia-cap{capability}"),
        ];
        gpu(uuid, &nodes.each_ref().map(String::as_str))
    };
    let divided = CdiGpu {
        is_divided: true,
        ..gpu("GPU-0", &["/dev/nvidia0"])
    };
    let before = described(&[divided.clone(), mig("MIG-old", 67)]).spec;
    let after = |present: &[CdiGpu]| {
        let kept = described(present).keep(before.clone(), present, &in_use(&["MIG-old"]));
        names(&kept).contains(&"MIG-old")
    };
    assert!(
        after(std::slice::from_ref(&divided)),
        "the GPU's own node lets nobody compute"
    );
    assert!(
        after(&[divided.clone(), mig("MIG-other", 68)]),
        "another part of the GPU"
    );
    let incomplete = CdiGpu {
        missing: vec!["/dev/nvidia-caps/nvidia-cap68".to_owned()],
        ..gpu("MIG-other", &["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap66"])
    };
    assert!(after(&[divided.clone(), incomplete]), "what it lacks is not this one's");
    assert!(!after(&[divided, mig("MIG-new", 67)]), "its part has been made again");
    assert!(!after(&[gpu("GPU-0", &["/dev/nvidia0"])]), "the GPU is whole again");
    let number_taken = [gpu("GPU-9", &["/dev/nvidia0"])];
    let before = described(&[gpu("GPU-0", &["/dev/nvidia0"])]).spec;
    let kept = described(&number_taken).keep(before, &number_taken, &in_use(&["GPU-0"]));
    assert_eq!(names(&kept), ["GPU-9"], "another GPU has its number");
}

#[test]
fn a_file_of_somebody_else_is_not_taken_over() {
    let mut before = described(&[gpu("GPU-0", &["/dev/nvidia0"])]).spec;
    before.as_mut().unwrap().kind = "example.com/gpu".to_owned();
    let kept = CdiDescription::default().keep(before, &[], &in_use(&["GPU-0"]));
    assert_eq!(kept.spec, None);
}

/// One moment of a node with six GPUs.
#[derive(Clone, Debug)]
struct Moment {
    present: [bool; 6],
    has_node: [bool; 6],
    held: [bool; 6],
    knows_holders: bool,
    has_driver: bool,
    /// The agent is killed before the new file has its name.
    is_killed: bool,
}

fn moment() -> impl Strategy<Value = Moment> {
    let flags = || any::<[bool; 6]>();
    (flags(), flags(), flags(), any::<[bool; 3]>()).prop_map(|(present, has_node, held, [knows, driver, killed])| {
        Moment {
            present,
            has_node,
            held,
            knows_holders: knows,
            has_driver: driver,
            is_killed: killed,
        }
    })
}

proptest! {
    #[test]
    fn whatever_happens_each_held_device_stays_named(moments in collection::vec(moment(), 1..30)) {
        let uuids: [String; 6] = std::array::from_fn(|number| format!("GPU-{number}"));
        let mut file: Option<CdiSpec> = None;
        let mut held = [false; 6];
        for moment in moments {
            let named = |file: Option<&CdiSpec>, number: usize| {
                file.into_iter().flat_map(|spec| &spec.devices).any(|device| device.name == uuids[number])
            };
            // A container gets a device only while the file has it, and may end at any time.
            for (number, held) in held.iter_mut().enumerate() {
                *held = moment.held[number] && (*held || named(file.as_ref(), number));
            }
            let of = |number: usize| {
                let path = format!("/dev/nvidia{number}");
                let nodes: Vec<&str> = moment.has_node[number].then_some(path.as_str()).into_iter().collect();
                gpu(&uuids[number], &nodes)
            };
            let present: Vec<CdiGpu> = (0..6).filter(|number| moment.present[*number]).map(of).collect();
            let in_use = DevicesInUse {
                assigned: BTreeSet::new(),
                held: (0..6).filter(|number| moment.knows_holders && held[*number]).map(|number| uuids[number].clone()).collect(),
                is_complete: moment.knows_holders,
            };
            let fresh = if moment.has_driver { described(&present) } else { CdiDescription::default() };
            let next = fresh.clone().keep(file.clone(), &present, &in_use);
            prop_assert_eq!(&fresh.keep(next.spec.clone(), &present, &in_use), &next, "a second look changes nothing");
            let listed = names(&next);
            prop_assert_eq!(listed.iter().collect::<BTreeSet<_>>().len(), listed.len(), "each name once");
            prop_assert!(next.described.iter().all(|uuid| listed.contains(&uuid.as_str())));
            prop_assert!(next.spec.as_ref().is_none_or(|spec| !spec.devices.is_empty()));
            if !moment.is_killed {
                file = next.spec;
            }
            for (number, held) in held.iter().enumerate() {
                prop_assert!(!held || named(file.as_ref(), number), "GPU {number} is held and not named");
            }
        }
    }
}
