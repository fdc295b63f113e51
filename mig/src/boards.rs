//! The tables of boards whose placements are published.
//!
//! Sources: names, counts and PCI ids are those of mig-parted's `deployments/systemd/config-default.yaml` and of
//! NVIDIA's MIG user guide; profile ids and placements those that `nvidia-smi mig -lgip` and `-lgipp` print on A30,
//! A100, H100, H100 NVL, H200 and RTX PRO 6000 boards. Of a B200 only the former output is known; its ids and counts
//! are those of the other boards with eight memory slices, so its placements are taken from them. Boards whose
//! placements are not known are left out: H100 96GB, H20, GH200, GB200, B300, GB300, RTX PRO 5000 and 4500.

use crate::{
    geometry::MigGeometry,
    profile::{GpuInstanceProfile, SlicePlacement},
};
use thiserror::Error;

/// Vendor part of NVIDIA's PCI ids.
const NVIDIA: u32 = 0x10DE;

/// A kind of board and its profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigBoard {
    /// Name as in mig-parted's file, such as `A100-80GB`.
    pub name: &'static str,
    /// Other names by which it is found.
    pub aliases: &'static [&'static str],
    /// PCI device and vendor, such as `0x20B2_10DE`, as mig-parted's `device-filter` has them.
    pub device_ids: &'static [u32],
    /// Product names in the form of labels, such as `NVIDIA-A100-SXM4-80GB`; drivers may leave out `NVIDIA-`.
    pub products: &'static [&'static str],
    /// Slices and profiles.
    pub geometry: MigGeometry,
}

/// A board without a table.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "`{name}` is no board whose MIG placements gpunode knows; it knows {known}, and their PCI ids, such as 0x20B210DE; \
     `nvidia-smi mig -lgip` and `nvidia-smi mig -lgipp` list the profiles of a GPU on its node"
)]
pub struct UnknownBoard {
    name: String,
    known: String,
}

impl MigBoard {
    /// Returns every board that has a table.
    pub fn all() -> Vec<Self> {
        ROWS.iter().map(BoardRow::board).collect()
    }

    /// Returns the board with a product name in the form of a label; none if it is not known.
    pub fn of_product(product: &str) -> Option<Self> {
        let bare = |name: &'static str| name.strip_prefix("NVIDIA-").unwrap_or(name);
        let is_of = |row: &&BoardRow| {
            row.products
                .iter()
                .any(|name| *name == product || bare(name) == product)
        };
        ROWS.iter().find(is_of).map(BoardRow::board)
    }

    /// Returns the board with a name or a PCI id: `A100-80GB` in any case, `0x20B210DE` or `0x20B2`.
    pub fn named(name: &str) -> Result<Self, UnknownBoard> {
        let id = device_id(name);
        let found = ROWS.iter().find(|row| {
            let mut names = std::iter::once(&row.name).chain(row.aliases);
            names.any(|known| known.eq_ignore_ascii_case(name)) || id.is_some_and(|id| row.device_ids.contains(&id))
        });
        found.map(BoardRow::board).ok_or_else(|| UnknownBoard {
            name: name.to_owned(),
            known: ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", "),
        })
    }
}

/// Parses `0x20B210DE` and `0x20B2`, of which the latter gets NVIDIA's vendor id.
fn device_id(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    let id = u32::from_str_radix(digits, 16).ok()?;
    match digits.len() {
        4 => Some((id << 16) | NVIDIA),
        8 => Some(id),
        _ => None,
    }
}

/// A profile of all boards with one number of slices.
struct ProfileShape {
    id: u32,
    slices: u32,
    /// Attributes, as they end its name.
    attributes: &'static str,
    max_count: u32,
    starts: &'static [u32],
    size: u32,
}

/// A board, and the memory in its profiles' names.
struct BoardRow {
    name: &'static str,
    aliases: &'static [&'static str],
    device_ids: &'static [u32],
    products: &'static [&'static str],
    memory_slices: u32,
    compute_slices: u32,
    shapes: &'static [ProfileShape],
    gigabytes: &'static [u32],
}

const fn shape(
    id: u32,
    (slices, attributes): (u32, &'static str),
    max_count: u32,
    starts: &'static [u32],
    size: u32,
) -> ProfileShape {
    ProfileShape {
        id,
        slices,
        attributes,
        max_count,
        starts,
        size,
    }
}

/// Eight memory and seven compute slices.
const EIGHTHS: &[ProfileShape] = &[
    shape(19, (1, ""), 7, &[0, 1, 2, 3, 4, 5, 6], 1),
    shape(20, (1, "+me"), 1, &[0, 1, 2, 3, 4, 5, 6], 1),
    shape(15, (1, ""), 4, &[0, 2, 4, 6], 2),
    shape(14, (2, ""), 3, &[0, 2, 4], 2),
    shape(9, (3, ""), 2, &[0, 4], 4),
    shape(5, (4, ""), 1, &[0], 4),
    shape(0, (7, ""), 1, &[0], 8),
];

/// Four memory and four compute slices.
const QUARTERS: &[ProfileShape] = &[
    shape(14, (1, ""), 4, &[0, 1, 2, 3], 1),
    shape(21, (1, "+me"), 1, &[0, 1, 2, 3], 1),
    shape(5, (2, ""), 2, &[0, 2], 2),
    shape(6, (2, "+me"), 1, &[0, 2], 2),
    shape(0, (4, ""), 1, &[0], 4),
];

/// Twelve memory slices, of which each compute slice has three.
const TWELFTHS: &[ProfileShape] = &[
    shape(14, (1, ""), 4, &[0, 3, 6, 9], 3),
    shape(21, (1, "+me"), 1, &[0, 3, 6, 9], 3),
    shape(47, (1, "+gfx"), 4, &[0, 3, 6, 9], 3),
    shape(65, (1, "+me.all"), 1, &[0, 3, 6, 9], 3),
    shape(67, (1, "-me"), 4, &[0, 3, 6, 9], 3),
    shape(5, (2, ""), 2, &[0, 6], 6),
    shape(35, (2, "+gfx"), 2, &[0, 6], 6),
    shape(64, (2, "+me.all"), 1, &[0, 6], 6),
    shape(66, (2, "-me"), 2, &[0, 6], 6),
    shape(0, (4, ""), 1, &[0], 12),
    shape(32, (4, "+gfx"), 1, &[0], 12),
];

/// Boards with eight memory slices differ in names alone.
const fn eighths(
    name: &'static str,
    aliases: &'static [&'static str],
    device_ids: &'static [u32],
    products: &'static [&'static str],
    gigabytes: &'static [u32],
) -> BoardRow {
    BoardRow {
        name,
        aliases,
        device_ids,
        products,
        memory_slices: 8,
        compute_slices: 7,
        shapes: EIGHTHS,
        gigabytes,
    }
}

const ROWS: &[BoardRow] = &[
    BoardRow {
        name: "A30-24GB",
        aliases: &["A30"],
        device_ids: &[0x20B7_10DE],
        products: &["NVIDIA-A30"],
        memory_slices: 4,
        compute_slices: 4,
        shapes: QUARTERS,
        gigabytes: &[6, 6, 12, 12, 24],
    },
    eighths(
        "A100-40GB",
        &["A800-40GB"],
        &[0x20B0_10DE, 0x20B1_10DE, 0x20F1_10DE, 0x20F6_10DE],
        &[
            "NVIDIA-A100-SXM4-40GB",
            "NVIDIA-A100-PCIE-40GB",
            "NVIDIA-A800-40GB-Active",
        ],
        &[5, 5, 10, 10, 20, 20, 40],
    ),
    eighths(
        "A100-80GB",
        &["A800-80GB"],
        &[0x20B2_10DE, 0x20B5_10DE, 0x20F3_10DE, 0x20F5_10DE],
        &[
            "NVIDIA-A100-SXM4-80GB",
            "NVIDIA-A100-80GB-PCIe",
            "NVIDIA-A800-SXM4-80GB",
            "NVIDIA-A800-80GB-PCIe",
        ],
        &[10, 10, 20, 20, 40, 40, 80],
    ),
    eighths(
        "H100-80GB",
        &["H800-80GB"],
        &[0x2330_10DE, 0x2331_10DE, 0x2322_10DE, 0x2324_10DE],
        &[
            "NVIDIA-H100-80GB-HBM3",
            "NVIDIA-H100-PCIe",
            "NVIDIA-H800",
            "NVIDIA-H800-PCIe",
        ],
        &[10, 10, 20, 20, 40, 40, 80],
    ),
    eighths(
        "H100-94GB",
        &["H100-NVL", "H800-NVL"],
        &[0x2321_10DE, 0x233A_10DE],
        &["NVIDIA-H100-NVL", "NVIDIA-H800-NVL"],
        &[12, 12, 24, 24, 47, 47, 94],
    ),
    eighths(
        "H200-141GB",
        &["H200", "H200-NVL"],
        &[0x2335_10DE, 0x233B_10DE],
        &["NVIDIA-H200", "NVIDIA-H200-NVL"],
        &[18, 18, 35, 35, 71, 71, 141],
    ),
    eighths(
        "B200-180GB",
        &["B200"],
        &[0x2901_10DE],
        &["NVIDIA-B200"],
        &[23, 23, 45, 45, 90, 90, 180],
    ),
    BoardRow {
        name: "RTX-PRO-6000-96GB",
        aliases: &["RTX-PRO-6000"],
        device_ids: &[0x2BB5_10DE],
        products: &["NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"],
        memory_slices: 12,
        compute_slices: 4,
        shapes: TWELFTHS,
        gigabytes: &[24, 24, 24, 24, 24, 48, 48, 48, 48, 96, 96],
    },
];

impl BoardRow {
    fn board(&self) -> MigBoard {
        let profile = |(shape, gigabytes): (&ProfileShape, &u32)| GpuInstanceProfile {
            id: shape.id,
            name: format!("{}g.{gigabytes}gb{}", shape.slices, shape.attributes),
            slices: shape.slices,
            max_count: shape.max_count,
            placements: shape
                .starts
                .iter()
                .map(|start| SlicePlacement {
                    start: *start,
                    size: shape.size,
                })
                .collect(),
        };
        MigBoard {
            name: self.name,
            aliases: self.aliases,
            device_ids: self.device_ids,
            products: self.products,
            geometry: MigGeometry {
                memory_slices: self.memory_slices,
                compute_slices: self.compute_slices,
                profiles: self.shapes.iter().zip(self.gigabytes).map(profile).collect(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_scenario::Board;
    use std::collections::BTreeSet;

    #[test]
    fn boards_are_found_by_name_alias_and_pci_id() {
        for (name, found) in [
            ("A100-80GB", "A100-80GB"),
            ("a800-80gb", "A100-80GB"),
            ("0x20B210DE", "A100-80GB"),
            ("0x20b010de", "A100-40GB"),
            ("0x2901", "B200-180GB"),
            ("b200", "B200-180GB"),
            ("A30", "A30-24GB"),
        ] {
            assert_eq!(MigBoard::named(name).unwrap().name, found, "{name}");
        }
        for name in ["V100", "", "0x20B2FFFF", "0x", "20B2", "A100"] {
            let error = MigBoard::named(name).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{name}` is no board ")), "{error}");
            assert!(error.contains("A30-24GB, A100-40GB, A100-80GB, "), "{error}");
        }
    }

    #[test]
    fn boards_are_found_by_product_with_and_without_the_vendor() {
        let name = |product: &str| MigBoard::of_product(product).map(|board| board.name);
        assert_eq!(name("NVIDIA-A100-SXM4-40GB"), Some("A100-40GB"));
        assert_eq!(name("A100-SXM4-40GB"), Some("A100-40GB"));
        assert_eq!(name("NVIDIA-H100-NVL"), Some("H100-94GB"));
        for product in ["", "NVIDIA", "Tesla-V100-SXM2-32GB", "NVIDIA-GH200-480GB", "nvidia-a30"] {
            assert_eq!(name(product), None, "{product}");
        }
    }

    #[test]
    fn tables_are_whole() {
        let mut names = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for row in ROWS {
            assert_eq!(row.shapes.len(), row.gigabytes.len(), "{}", row.name);
            for name in std::iter::once(&row.name).chain(row.aliases).chain(row.products) {
                assert!(names.insert(name.to_lowercase()), "{name}");
            }
            for id in row.device_ids {
                assert!(ids.insert(id) && id & 0xFFFF == NVIDIA, "{id:x}");
            }
            let MigGeometry {
                memory_slices,
                compute_slices,
                profiles,
            } = row.board().geometry;
            let unique = |values: Vec<String>| values.iter().collect::<BTreeSet<_>>().len() == profiles.len();
            assert!(unique(profiles.iter().map(|profile| profile.name.clone()).collect()));
            assert!(unique(profiles.iter().map(|profile| profile.id.to_string()).collect()));
            for profile in &profiles {
                assert!(profile.slices <= compute_slices, "{} {}", row.name, profile.name);
                assert!(profile.max_count as usize <= profile.placements.len());
                for placement in &profile.placements {
                    assert_eq!(placement.size, profile.memory_slices());
                    assert!(placement.start + placement.size <= memory_slices);
                }
            }
        }
    }

    #[test]
    fn simulated_boards_have_the_same_tables() {
        let mut compared = 0;
        for simulated in Board::all().iter().filter(|board| board.max_mig_devices > 0) {
            let Ok(board) = MigBoard::named(&format!("0x{:04X}", simulated.pci_device_id)) else {
                continue;
            };
            let product = simulated.name;
            let simulated: Vec<GpuInstanceProfile> = simulated
                .mig_profiles()
                .into_iter()
                .map(|profile| GpuInstanceProfile {
                    id: profile.id,
                    name: profile.name,
                    slices: profile.slices,
                    max_count: profile.max_instances,
                    placements: profile
                        .starts
                        .iter()
                        .map(|start| SlicePlacement {
                            start: *start,
                            size: profile.size,
                        })
                        .collect(),
                })
                .collect();
            assert_eq!(board.geometry.profiles, simulated, "{}", board.name);
            let product = product.replace(' ', "-");
            assert_eq!(MigBoard::of_product(&product).as_ref(), Some(&board), "{product}");
            compared += 1;
        }
        assert!(compared >= 6, "only {compared} boards have both tables");
    }
}
