//! Guarantees for C callers: names, sizes, versions, NULL.

use std::{collections::BTreeSet, fs, path::Path};

use gpunode_scenario::{ReturnCode, Topology};
use nvml_wrapper::error::NvmlError;

use crate::{node::TestNode, raw};

/// Names that nvml-wrapper-sys 0.10 looks up when it loads a library.
const SYMBOLS: &str = include_str!("../../scenario/nvml-symbols.txt");

/// `NVML_STRUCT_VERSION` of `nvml.h`.
fn struct_version(size: u32, version: u32) -> u32 {
    size | version << 24
}

fn t4() -> TestNode {
    TestNode::new("Tesla T4", 1, Topology::Pcie)
}

#[test]
fn every_name_resolves() {
    let node = t4();
    let names: BTreeSet<_> = SYMBOLS.lines().collect();
    assert_eq!(names.len(), 396);
    let missing: Vec<_> = names
        .into_iter()
        .filter(|name| !raw::has_symbol(node.nvml(), name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(!raw::has_symbol(node.nvml(), "nvmlNoSuchFunction"));
}

/// A fault is asked for by the name that a function gives for itself: it must be its own.
#[test]
fn functions_know_their_names() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ffi");
    for file in fs::read_dir(sources).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for function in text.split("extern \"C\" fn ").skip(1) {
            let name = function.split('(').next().unwrap();
            let body = function.split("\n}\n").next().unwrap();
            for named in body.split("\"nvml").skip(1) {
                let named = format!("nvml{}", named.split('"').next().unwrap());
                assert_eq!(named, name);
            }
        }
    }
}

#[test]
fn null_is_refused() {
    let node = t4();
    for (function, code) in raw::into_null(node.nvml(), &node.device(0)) {
        assert_eq!(code, ReturnCode::InvalidArgument.code(), "{function}");
    }
    for address in [0, 1, 0x7667_7000_0001_0000, 0x7667_7000_0000_0008, usize::MAX] {
        let answer = raw::index_of_no_handle(node.nvml(), address);
        assert_eq!(answer, Err(ReturnCode::InvalidArgument.code()), "{address:#x}");
    }
}

#[test]
fn small_buffers_are_refused() {
    let node = t4();
    let length = u32::try_from("Tesla T4".len()).unwrap();
    let device = node.device(0);
    assert_eq!(
        raw::name_into(node.nvml(), &device, length),
        Err(ReturnCode::InsufficientSize.code())
    );
    assert_eq!(raw::name_into(node.nvml(), &device, length + 1), Ok(()));
}

#[test]
fn structures_of_other_versions_are_refused() {
    let node = TestNode::new("NVIDIA H100 80GB HBM3", 1, Topology::NvSwitch);
    let (nvml, device) = (node.nvml(), node.device(0));
    let mismatch = ReturnCode::ArgumentVersionMismatch.code();

    assert!(raw::memory_v2(nvml, &device, struct_version(40, 2)).is_ok());
    for version in [
        0,
        2,
        40,
        struct_version(40, 1),
        struct_version(40, 3),
        struct_version(24, 2),
    ] {
        assert_eq!(
            raw::memory_v2(nvml, &device, version).map(|_| ()),
            Err(mismatch),
            "{version:#x}"
        );
    }
    for (version, accepted) in [
        (struct_version(36, 2), true),
        (struct_version(40, 3), true),
        (struct_version(40, 2), false),
        (0, false),
    ] {
        let answer = raw::fabric(nvml, &device, version).map(|info| info.state);
        assert_eq!(answer, if accepted { Ok(3) } else { Err(mismatch) }, "{version:#x}");
    }
}

#[test]
fn what_is_not_simulated_says_so() {
    let node = t4();
    assert!(matches!(node.device(0).fan_speed(0), Err(NvmlError::NotSupported)));
    node.state().lose(0).unwrap();
    assert!(matches!(node.nvml().unit_count(), Err(NvmlError::NotSupported)));
}

/// Pods see the driver root read-only.
#[test]
fn the_library_writes_no_file() {
    let node = t4();
    let set = raw::RawEventSet::new(node.nvml());
    set.register(&node.device(0), 8).unwrap();
    assert!(set.wait(0).is_err());
    assert_eq!(node.device(0).name().unwrap(), "Tesla T4");
    let mut files: Vec<_> = fs::read_dir(node.dir())
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["gpunode-scenario.yaml", "libnvidia-ml.so.1"]);
}
