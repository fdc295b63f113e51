//! Links between the GPUs of a node.

use serde::{Deserialize, Serialize};

use crate::{Board, BoardNvLink, NvLink, NvLinkEnd};

/// A known way of wiring GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topology {
    /// Cards in `PCIe` slots, two per NUMA node, no `NVLink`.
    Pcie,
    /// Cards in `PCIe` slots, joined two by two with `NVLink` bridges.
    Bridge,
    /// The hybrid cube mesh of eight V100.
    #[serde(rename = "DGX-1-Volta")]
    Dgx1Volta,
    /// Every `NVLink` leads to an `NVSwitch`: DGX-2, DGX A100, HGX H100 and newer.
    #[serde(rename = "NVSwitch")]
    NvSwitch,
}

/// Level of the `PCIe` path between two GPUs, with NVML's number for it (`nvmlGpuTopologyLevel_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum PcieLevel {
    /// The same board.
    Internal = 0,
    /// One `PCIe` switch (PIX).
    Single = 10,
    /// Several `PCIe` switches (PXB).
    Multiple = 20,
    /// A host bridge (PHB).
    HostBridge = 30,
    /// The same NUMA node (NODE).
    Node = 40,
    /// The interconnect between NUMA nodes (SYS).
    System = 50,
}

/// `NVLinks` between the GPUs of a DGX-1 Volta: a hybrid cube mesh.
pub const DGX1_VOLTA_LINKS: [[u32; 8]; 8] = [
    [0, 1, 1, 2, 2, 0, 0, 0],
    [1, 0, 2, 1, 0, 2, 0, 0],
    [1, 2, 0, 2, 0, 0, 1, 0],
    [2, 1, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 1, 1, 2],
    [0, 2, 0, 0, 1, 0, 2, 1],
    [0, 0, 1, 0, 1, 2, 0, 2],
    [0, 0, 0, 1, 2, 1, 2, 0],
];

/// PCI buses of the GPUs of a DGX-1.
const DGX1_BUSES: [u8; 8] = [0x06, 0x07, 0x0a, 0x0b, 0x85, 0x86, 0x89, 0x8a];
/// PCI buses of the GPUs of a DGX A100, then of a second base board (DGX-2 has two).
const SWITCHED_BUSES: [u8; 16] = [
    0x07, 0x0f, 0x47, 0x4e, 0x87, 0x90, 0xb7, 0xbd, 0x17, 0x1f, 0x57, 0x5e, 0x97, 0xa0, 0xd7, 0xdd,
];
/// First PCI bus of the `NVSwitches`; they follow one another.
const FIRST_SWITCH_BUS: u32 = 0xc4;

impl Topology {
    /// The name in a scenario file.
    pub fn name(self) -> &'static str {
        match self {
            Topology::Pcie => "Pcie",
            Topology::Bridge => "Bridge",
            Topology::Dgx1Volta => "DGX-1-Volta",
            Topology::NvSwitch => "NVSwitch",
        }
    }

    /// The most GPUs that can be wired so.
    pub fn max_gpus(self) -> u32 {
        match self {
            Topology::Pcie | Topology::Bridge | Topology::NvSwitch => 16,
            Topology::Dgx1Volta => 8,
        }
    }

    /// Returns the reason why `board` cannot have this topology; none if it can.
    pub(crate) fn refuses(self, board: &Board) -> Option<&'static str> {
        match (self, board.nvlink) {
            (Topology::Dgx1Volta, nvlink) if nvlink.is_none_or(|ports| ports.links != 6 || !ports.base_board) => {
                Some("it needs a board with 6 NVLinks (V100-SXM2)")
            }
            (Topology::Bridge, nvlink) if nvlink.is_none_or(|ports| ports.base_board) => {
                Some("it needs cards that take a bridge (A30, A100 PCIe)")
            }
            (Topology::NvSwitch, nvlink) if nvlink.is_none_or(|ports| !ports.base_board) => {
                Some("it needs an SXM board")
            }
            _ => None,
        }
    }

    /// PCI bus number of the GPU at `place`.
    pub(crate) fn bus(self, place: u32) -> u8 {
        let at = |buses: &[u8]| {
            buses
                .get(usize::try_from(place).unwrap_or(usize::MAX))
                .copied()
                .unwrap_or_default()
        };
        match self {
            // 0x11, 0x1a, 0x31, 0x3a, ...: each NUMA node has its own range of buses.
            Topology::Pcie | Topology::Bridge => {
                u8::try_from(0x11 + place / 2 * 0x20 + place % 2 * 9).unwrap_or(u8::MAX)
            }
            Topology::Dgx1Volta => at(&DGX1_BUSES),
            Topology::NvSwitch => at(&SWITCHED_BUSES),
        }
    }

    /// NUMA node of the GPU at `place`, on boards with 4 GPUs per socket or cards two by two.
    pub(crate) fn numa_node(self, place: u32) -> i32 {
        let node = match self {
            Topology::Pcie | Topology::Bridge => place / 2,
            Topology::Dgx1Volta => place / 4,
            Topology::NvSwitch => place % 8 / 4,
        };
        i32::try_from(node).unwrap_or(-1)
    }

    /// `PCIe` path between the GPUs at two places.
    pub(crate) fn pcie_level(self, a: u32, b: u32) -> PcieLevel {
        if a == b {
            PcieLevel::Internal
        } else if self.numa_node(a) != self.numa_node(b) {
            PcieLevel::System
        } else {
            match self {
                Topology::Dgx1Volta if a / 2 == b / 2 => PcieLevel::Single,
                Topology::Pcie | Topology::Bridge | Topology::Dgx1Volta => PcieLevel::HostBridge,
                Topology::NvSwitch if a / 2 == b / 2 => PcieLevel::Multiple,
                Topology::NvSwitch => PcieLevel::Node,
            }
        }
    }

    /// `NVLinks` of the GPU at `place` among `count` GPUs, the first of which has index `first`.
    pub(crate) fn nvlinks(self, board: &Board, first: u32, place: u32, count: u32, domain: u32) -> Vec<NvLink> {
        let Some(ports) = board.nvlink else {
            return Vec::new();
        };
        match self {
            Topology::Pcie => Vec::new(),
            Topology::Bridge => bridge(ports, first, place, count),
            Topology::Dgx1Volta => cube_mesh(ports, first, place, count),
            Topology::NvSwitch => (0..ports.links)
                .map(|port| NvLink {
                    version: ports.version,
                    remote: NvLinkEnd::Switch {
                        pci_bus_id: format!("{domain:04x}:{:02x}:00.0", FIRST_SWITCH_BUS + port % switches(ports)),
                    },
                })
                .collect(),
        }
    }
}

/// `NVSwitches` of one base board: 6 on DGX-2 and DGX A100, 4 on HGX H100 and newer.
fn switches(ports: BoardNvLink) -> u32 {
    if ports.version <= 3 { 6 } else { 4 }
}

/// All ports lead to the other card of the pair; the last of an odd number has none.
fn bridge(ports: BoardNvLink, first: u32, place: u32, count: u32) -> Vec<NvLink> {
    let peer = place ^ 1;
    let link = NvLink {
        version: ports.version,
        remote: NvLinkEnd::Gpu { index: first + peer },
    };
    let links = if peer < count { ports.links } else { 0 };
    (0..links).map(|_| link.clone()).collect()
}

/// Ports are numbered in the order of the peers' indices, parallel links side by side.
fn cube_mesh(ports: BoardNvLink, first: u32, place: u32, count: u32) -> Vec<NvLink> {
    let row = usize::try_from(place)
        .ok()
        .and_then(|place| DGX1_VOLTA_LINKS.get(place));
    (0..count)
        .zip(row.into_iter().flatten())
        .flat_map(|(peer, links)| {
            (0..*links).map(move |_| NvLink {
                version: ports.version,
                remote: NvLinkEnd::Gpu { index: first + peer },
            })
        })
        .collect()
}
