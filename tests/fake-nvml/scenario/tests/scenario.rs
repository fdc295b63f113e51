//! Scenario files: what they mean and what is refused.

use std::{collections::BTreeSet, fs};

use gpunode_scenario::{Fabric, NvLinkEnd, PcieLevel, SCENARIO_FILE, Scenario, ScenarioError, Topology};

fn dgx1() -> Scenario {
    Scenario::new("dgx-1", "Tesla V100-SXM2-32GB", 8, Topology::Dgx1Volta)
}

#[test]
fn file_and_value_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join(SCENARIO_FILE),
        "node: n\nboard: NVIDIA A100-SXM4-40GB\ncount: 8\ntopology: NVSwitch\n\
         additional: [{board: Tesla T4, count: 1, topology: Pcie}]\ncudaVersion: '12.8'\n\
         mig: [{gpus: [1, 3], instances: [1g.5gb, 1c.3g.20gb]}, {gpus: [2]}]\n\
         fabric: {clusterUuid: 7b968a6d-c8aa-45e1-9e07-e1e51be99c31, cliqueId: 4}\n",
    )
    .unwrap();
    let scenario = Scenario::load(dir.path()).unwrap();
    let gpus = scenario.gpus().unwrap();
    assert_eq!(gpus.len(), 9);
    let divided: Vec<_> = gpus
        .iter()
        .filter(|gpu| gpu.mig.is_some())
        .map(|gpu| gpu.mig_devices().count())
        .collect();
    assert_eq!(divided, [2, 0, 2]);
    assert_eq!(gpus[8].fabric, (0x7b96_8a6d_c8aa_45e1_9e07_e1e5_1be9_9c31, 4));
    assert_eq!(scenario.cuda_driver_version().unwrap(), 12_080);

    scenario.save(dir.path()).unwrap();
    assert_eq!(Scenario::load(dir.path()).unwrap(), scenario);
}

#[test]
fn unknown_field_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join(SCENARIO_FILE),
        "board: Tesla T4\ncount: 1\ntopology: Pcie\ndriver: 1\n",
    )
    .unwrap();
    let Err(ScenarioError::Parse { source, .. }) = Scenario::load(dir.path()) else {
        panic!("an unknown field is no scenario");
    };
    assert!(source.to_string().contains("unknown field `driver`"), "{source}");
}

#[test]
fn what_is_impossible_is_refused_with_the_field() {
    let refused = |board, count, topology| {
        Scenario::new("n", board, count, topology)
            .gpus()
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused("Tesla V100-32GB", 1, Topology::Pcie),
        "board: no board \"Tesla V100-32GB\" is known, nearest is \"Tesla V100-SXM2-32GB\""
    );
    assert_eq!(
        refused("Tesla V100-SXM2-32GB", 9, Topology::Dgx1Volta),
        "count: topology DGX-1-Volta takes at most 8 GPUs, not 9"
    );
    assert_eq!(
        refused("Tesla T4", 4, Topology::NvSwitch),
        "topology: NVSwitch is not possible with Tesla T4: it needs an SXM board"
    );
    let fabric = Some(Fabric {
        cluster_uuid: "7b968a6d".to_owned(),
        clique_id: 1,
    });
    let error = Scenario { fabric, ..dgx1() }.gpus().unwrap_err();
    assert_eq!(
        error.to_string(),
        "fabric.clusterUuid: \"7b968a6d\" has not 32 hexadecimal digits"
    );
}

#[test]
fn dgx1_links_are_symmetric_and_full() {
    let gpus = dgx1().gpus().unwrap();
    let count = |from: usize, to: u32| {
        gpus[from]
            .links
            .iter()
            .filter(|link| link.remote == NvLinkEnd::Gpu { index: to })
            .count()
    };
    for a in 0..8_u32 {
        assert_eq!(gpus[a as usize].links.len(), 6);
        for b in 0..8_u32 {
            assert_eq!(count(a as usize, b), count(b as usize, a), "{a} and {b}");
        }
    }
    assert_eq!(gpus[0].pcie_levels[1], PcieLevel::Single);
    assert_eq!(gpus[0].pcie_levels[2], PcieLevel::HostBridge);
    assert_eq!(gpus[0].pcie_levels[4], PcieLevel::System);
}

#[test]
fn identities_are_stable_and_unique() {
    let first = dgx1().gpus().unwrap();
    let again = dgx1().gpus().unwrap();
    assert_eq!(first, again);
    let other = Scenario {
        node: "dgx-2".to_owned(),
        ..dgx1()
    }
    .gpus()
    .unwrap();
    let uuids: BTreeSet<_> = first.iter().chain(&other).map(|gpu| gpu.uuid.clone()).collect();
    assert_eq!(uuids.len(), 16);
    for uuid in uuids {
        let groups: Vec<_> = uuid.split('-').map(str::len).collect();
        assert_eq!(groups, [3, 8, 4, 4, 4, 12], "{uuid}");
    }
}

#[test]
fn every_topology_gives_every_gpu_its_own_address() {
    for (board, count, topology) in [
        ("Tesla T4", 16, Topology::Pcie),
        ("Tesla V100-SXM2-32GB", 8, Topology::Dgx1Volta),
        ("Tesla V100-SXM2-32GB", 16, Topology::NvSwitch),
    ] {
        let mut scenario = Scenario::new("n", board, count, topology);
        scenario.additional = vec![gpunode_scenario::AdditionalBoards {
            board: "NVIDIA L4".to_owned(),
            count: 16,
            topology: Topology::Pcie,
        }];
        let gpus = scenario.gpus().unwrap();
        let addresses: BTreeSet<_> = gpus.iter().map(|gpu| &gpu.pci_bus_id).collect();
        assert_eq!(addresses.len(), gpus.len(), "{board}");
        for gpu in &gpus {
            assert_eq!(gpu.pcie_levels.len(), gpus.len());
            for peer in &gpus {
                let back = peer.pcie_levels[gpu.index as usize];
                assert_eq!(gpu.pcie_levels[peer.index as usize], back);
            }
        }
    }
}
