//! The ways in which a board can be divided.
//!
//! Engine counts are those of `nvidia-smi mig -lgip` in NVIDIA's user guide. B200 is not documented as a whole; its sizes
//! lie between those of its neighbours, such that the names come out right.

use crate::Board;

/// Engines of a GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Engines {
    /// Copy engines.
    pub copy: u32,
    /// Video decoders.
    pub decoders: u32,
    /// Video encoders.
    pub encoders: u32,
    /// JPEG decoders.
    pub jpegs: u32,
    /// Optical flow accelerators.
    pub ofas: u32,
}

/// One kind of GPU instance of a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigProfile {
    /// NVIDIA's name, such as `1g.10gb+me`.
    pub name: String,
    /// `NVML_GPU_INSTANCE_PROFILE_*`.
    pub kind: u32,
    /// Profile id, which instances carry.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// The most instances of this kind that can exist at once.
    pub max_instances: u32,
    /// Memory slices.
    pub size: u32,
    /// Memory slices at which it can begin.
    pub starts: &'static [u32],
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Streaming multiprocessors of an instance with one slice and no more.
    pub multiprocessors_of_slice: u32,
    /// Engines.
    pub engines: Engines,
}

/// One kind of compute instance of a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeProfile {
    /// NVIDIA's name, such as `1c.3g.40gb`, or that of the GPU instance if it has all of it.
    pub name: String,
    /// `NVML_COMPUTE_INSTANCE_PROFILE_*`; on real boards the profile id is the same number.
    pub kind: u32,
    /// Compute slices.
    pub slices: u32,
    /// Compute slices at which it can begin.
    pub starts: Vec<u32>,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

/// Profiles that all boards with the same number of slices share.
struct Shape {
    kind: u32,
    id: u32,
    slices: u32,
    media: bool,
    max_instances: u32,
    size: u32,
    starts: &'static [u32],
}

/// Sizes by shape.
struct Table {
    shapes: &'static [Shape],
    /// Memory as the name has it.
    gb: &'static [u32],
    mib: &'static [u64],
    multiprocessors: &'static [u32],
    engines: &'static [Engines],
}

macro_rules! shapes {
    ($($kind:literal $id:literal $slices:literal $media:literal $max:literal $starts:expr, $size:literal;)*) => {
        &[$(Shape {
            kind: $kind, id: $id, slices: $slices, media: $media, max_instances: $max, size: $size, starts: &$starts,
        }),*]
    };
}

macro_rules! engines {
    ($($copy:literal $decoders:literal $encoders:literal $jpegs:literal $ofas:literal;)*) => {
        &[$(Engines {
            copy: $copy, decoders: $decoders, encoders: $encoders, jpegs: $jpegs, ofas: $ofas,
        }),*]
    };
}

/// 1g, 1g+me, 1g with double memory, 2g, 3g, 4g, 7g: kind, id, slices, media, most, starts, size.
const EIGHTHS: &[Shape] = shapes! {
    0 19 1 false 7 [0, 1, 2, 3, 4, 5, 6], 1;
    7 20 1 true  1 [0, 1, 2, 3, 4, 5, 6], 1;
    9 15 1 false 4 [0, 2, 4, 6], 2;
    1 14 2 false 3 [0, 2, 4], 2;
    2 9  3 false 2 [0, 4], 4;
    3 5  4 false 1 [0], 4;
    4 0  7 false 1 [0], 8;
};
/// 1g, 1g+me, 2g, 2g+me, 4g.
const QUARTERS: &[Shape] = shapes! {
    0 14 1 false 4 [0, 1, 2, 3], 1;
    7 21 1 true  1 [0, 1, 2, 3], 1;
    1 5  2 false 2 [0, 2], 2;
    8 6  2 true  1 [0, 2], 2;
    3 0  4 false 1 [0], 4;
};

const AMPERE_ENGINES: &[Engines] = engines! {
    1 0 0 0 0; 1 1 0 1 1; 1 1 0 0 0; 2 1 0 0 0; 3 2 0 0 0; 4 2 0 0 0; 7 5 0 1 1;
};
const HOPPER_ENGINES: &[Engines] = engines! {
    1 1 0 1 0; 1 1 0 1 1; 1 1 0 1 0; 2 2 0 2 0; 3 3 0 3 0; 4 4 0 4 0; 8 7 0 7 1;
};
const A30_ENGINES: &[Engines] = engines! {
    1 0 0 0 0; 1 1 0 1 1; 2 2 0 0 0; 2 2 0 1 1; 4 4 0 1 1;
};

const A100_SM: &[u32] = &[14, 14, 14, 28, 42, 56, 98];
const H100_SM: &[u32] = &[16, 16, 26, 32, 60, 64, 132];

const A30: Table = Table {
    shapes: QUARTERS,
    gb: &[6, 6, 12, 12, 24],
    mib: &[5952, 5952, 11968, 11968, 24000],
    multiprocessors: &[14, 14, 28, 28, 56],
    engines: A30_ENGINES,
};
const A100_40: Table = Table {
    shapes: EIGHTHS,
    gb: &[5, 5, 10, 10, 20, 20, 40],
    mib: &[4864, 4864, 9856, 9856, 19968, 19968, 40192],
    multiprocessors: A100_SM,
    engines: AMPERE_ENGINES,
};
const A100_80: Table = Table {
    shapes: EIGHTHS,
    gb: &[10, 10, 20, 20, 40, 40, 80],
    mib: &[9856, 9856, 19968, 19968, 40192, 40192, 80384],
    multiprocessors: A100_SM,
    engines: AMPERE_ENGINES,
};
const H100_80: Table = Table {
    shapes: EIGHTHS,
    gb: &[10, 10, 20, 20, 40, 40, 80],
    mib: &[9984, 9984, 20096, 20096, 40448, 40448, 81152],
    multiprocessors: H100_SM,
    engines: HOPPER_ENGINES,
};
const H200: Table = Table {
    shapes: EIGHTHS,
    gb: &[18, 18, 35, 35, 71, 71, 141],
    mib: &[16384, 16384, 33024, 33024, 71168, 71168, 143_360],
    multiprocessors: H100_SM,
    engines: HOPPER_ENGINES,
};
const B200: Table = Table {
    shapes: EIGHTHS,
    gb: &[23, 23, 45, 45, 90, 90, 180],
    mib: &[20480, 20480, 44032, 44032, 90112, 90112, 181_248],
    multiprocessors: &[18, 18, 32, 38, 70, 76, 148],
    engines: HOPPER_ENGINES,
};
const GB200: Table = Table {
    shapes: EIGHTHS,
    gb: &[23, 23, 47, 47, 93, 93, 186],
    mib: &[20480, 20480, 46592, 46592, 93184, 93184, 187_392],
    multiprocessors: &[18, 18, 32, 38, 70, 76, 152],
    engines: HOPPER_ENGINES,
};

fn table(board: &Board) -> Option<&'static Table> {
    Some(match board.name {
        "NVIDIA A30" => &A30,
        "NVIDIA A100-SXM4-40GB" => &A100_40,
        "NVIDIA A100-SXM4-80GB" | "NVIDIA A100 80GB PCIe" => &A100_80,
        "NVIDIA H100 80GB HBM3" => &H100_80,
        "NVIDIA H200" => &H200,
        "NVIDIA B200" => &B200,
        "NVIDIA GB200" => &GB200,
        _ => return None,
    })
}

impl Board {
    /// Returns the profiles of its GPU instances; none on boards without MIG.
    pub fn mig_profiles(&self) -> Vec<MigProfile> {
        let Some(table) = table(self) else {
            return Vec::new();
        };
        let sizes = table
            .gb
            .iter()
            .zip(table.mib)
            .zip(table.multiprocessors.iter().zip(table.engines));
        table
            .shapes
            .iter()
            .zip(sizes)
            .map(|(shape, ((gb, mib), (multiprocessors, engines)))| MigProfile {
                name: format!("{}g.{gb}gb{}", shape.slices, if shape.media { "+me" } else { "" }),
                kind: shape.kind,
                id: shape.id,
                slices: shape.slices,
                max_instances: shape.max_instances,
                size: shape.size,
                starts: shape.starts,
                memory_mib: *mib,
                multiprocessors: *multiprocessors,
                multiprocessors_of_slice: table.multiprocessors[0],
                engines: *engines,
            })
            .collect()
    }
}

impl MigProfile {
    /// Returns the profiles of its compute instances; the last one has all of it.
    ///
    /// A GPU instance with one slice and more multiprocessors than that has two of one slice: `NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE`
    /// leaves a part of them to others, and `1_SLICE_REV1` of `nvml.h` does not. Which boards have it is not published.
    pub fn compute_profiles(&self) -> Vec<ComputeProfile> {
        if self.slices == 1 && self.multiprocessors > self.multiprocessors_of_slice {
            let of = |name: String, kind: u32, multiprocessors: u32| ComputeProfile {
                name,
                kind,
                slices: 1,
                starts: vec![0],
                multiprocessors,
            };
            return vec![
                of(format!("1c.{}", self.name), 0, self.multiprocessors_of_slice),
                of(self.name.clone(), 7, self.multiprocessors),
            ];
        }
        // `NVML_COMPUTE_INSTANCE_PROFILE_n_SLICE`.
        [(1, 0), (2, 1), (3, 2), (4, 3), (7, 4)]
            .into_iter()
            .filter(|(slices, _)| *slices <= self.slices)
            // A 4g has no compute instance of three slices.
            .filter(|(slices, _)| (*slices, self.slices) != (3, 4))
            .map(|(slices, kind)| {
                let whole = slices == self.slices;
                let step = match slices {
                    1 | 2 => slices,
                    _ => 4,
                };
                let starts = if whole {
                    vec![0]
                } else {
                    (0..=self.slices - slices).step_by(step as usize).collect()
                };
                ComputeProfile {
                    name: if whole {
                        self.name.clone()
                    } else {
                        format!("{slices}c.{}", self.name)
                    },
                    kind,
                    slices,
                    starts,
                    multiprocessors: self.multiprocessors * slices / self.slices,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_board_with_mig_has_a_table_as_long_as_its_shapes() {
        for board in Board::all() {
            let profiles = board.mig_profiles();
            let expected = match board.max_mig_devices {
                0 => 0,
                4 => QUARTERS.len(),
                _ => EIGHTHS.len(),
            };
            assert_eq!(profiles.len(), expected, "{}", board.name);
        }
    }

    /// go-nvlib makes the name from the memory; it must come out as the table has it.
    #[test]
    fn names_follow_from_the_memory() {
        for board in Board::all() {
            for profile in board.mig_profiles() {
                let eighths = (profile.memory_mib * 8).div_ceil(board.memory_mib);
                let gb = (eighths * board.memory_mib.div_ceil(1024) * 2 + 8) / 16;
                let name = profile.name.trim_end_matches("+me");
                assert_eq!(name, format!("{}g.{gb}gb", profile.slices), "{}", board.name);
            }
        }
    }

    #[test]
    fn one_slice_with_more_multiprocessors_has_a_compute_instance_that_leaves_some() {
        let board = Board::named("NVIDIA H100 80GB HBM3").unwrap();
        let profiles = board.mig_profiles();
        let double = profiles.iter().find(|profile| profile.name == "1g.20gb").unwrap();
        let compute: Vec<_> = double
            .compute_profiles()
            .into_iter()
            .map(|compute| (compute.name, compute.kind, compute.multiprocessors))
            .collect();
        assert_eq!(
            compute,
            [("1c.1g.20gb".to_owned(), 0, 16), ("1g.20gb".to_owned(), 7, 26)]
        );
    }

    #[test]
    fn compute_instances_are_those_of_real_boards() {
        let board = Board::named("NVIDIA A100-SXM4-40GB").unwrap();
        let of = |name: &str| {
            let profile = board
                .mig_profiles()
                .into_iter()
                .find(|profile| profile.name == name)
                .unwrap();
            let compute = profile.compute_profiles().into_iter();
            compute
                .map(|compute| (compute.name, compute.starts, compute.multiprocessors))
                .collect::<Vec<_>>()
        };
        assert_eq!(of("1g.5gb+me"), [("1g.5gb+me".to_owned(), vec![0], 14)]);
        assert_eq!(
            of("3g.20gb"),
            [
                ("1c.3g.20gb".to_owned(), vec![0, 1, 2], 14),
                ("2c.3g.20gb".to_owned(), vec![0], 28),
                ("3g.20gb".to_owned(), vec![0], 42)
            ]
        );
        let of_7g: Vec<_> = of("7g.40gb")
            .into_iter()
            .map(|(name, starts, _)| (name, starts))
            .collect();
        assert_eq!(of_7g[2], ("3c.7g.40gb".to_owned(), vec![0, 4]));
        assert_eq!(of_7g.len(), 5);
    }
}
