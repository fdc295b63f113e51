//! The profiles and presets of a board. Pure.

use gpunode_mig::{MigBoard, PlacedInstance, presets, remaining_capacity};
use serde::Serialize;

/// A board, and what it can be divided into.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BoardListing {
    pub board: &'static str,
    pub aliases: &'static [&'static str],
    /// PCI device and vendor, such as `0x20B210DE`.
    pub device_ids: Vec<String>,
    pub memory_slices: u32,
    pub compute_slices: u32,
    pub profiles: Vec<ProfileListing>,
    pub presets: Vec<PresetListing>,
}

/// A profile of GPU instances.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProfileListing {
    pub profile: String,
    pub id: u32,
    pub compute_slices: u32,
    pub memory_slices: u32,
    /// The most instances on one GPU.
    pub max: u32,
    /// Instances that fit beside those in use, if no other profile is added.
    pub free: u32,
    /// Memory slices at which an instance may begin.
    pub starts: Vec<u32>,
}

/// A preset, and its layout on this board.
#[derive(Debug, Serialize)]
pub struct PresetListing {
    pub name: String,
    pub layout: String,
}

impl BoardListing {
    /// Lists a board of which `in_use` instances stay.
    pub fn new(board: &MigBoard, in_use: &[PlacedInstance]) -> Self {
        let geometry = &board.geometry;
        let free = remaining_capacity(geometry, in_use);
        let profiles = geometry
            .profiles
            .iter()
            .zip(free)
            .map(|(profile, free)| ProfileListing {
                profile: profile.name.clone(),
                id: profile.id,
                compute_slices: profile.slices,
                memory_slices: profile.memory_slices(),
                max: profile.max_count,
                free,
                starts: profile.placements.iter().map(|placement| placement.start).collect(),
            });
        let presets = presets(geometry).into_iter().map(|preset| PresetListing {
            name: preset.name,
            layout: preset.layout.to_string(),
        });
        Self {
            board: board.name,
            aliases: board.aliases,
            device_ids: board.device_ids.iter().map(|id| format!("0x{id:08X}")).collect(),
            memory_slices: geometry.memory_slices,
            compute_slices: geometry.compute_slices,
            profiles: profiles.collect(),
            presets: presets.collect(),
        }
    }
}
