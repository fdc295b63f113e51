//! Places a layout on a board. Pure.

use anyhow::{Context, anyhow};
use gpunode_mig::{MigBoard, MigLayout, NoPlacement, PlacedInstance, PresentInstance, remaining_capacity, solve};
use serde::Serialize;
use std::fmt::Write as _;

/// The instances of a layout, and what fits beside them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LayoutDrawing {
    pub board: &'static str,
    pub layout: String,
    pub memory_slices: u32,
    pub compute_slices: u32,
    /// By their place.
    pub instances: Vec<DrawnInstance>,
    /// Memory slices that no instance has.
    pub free_memory_slices: Vec<u32>,
    /// Number of compute slices that no instance has.
    pub free_compute_slices: u32,
    /// Profiles of which more instances fit.
    pub fits: Vec<FittingProfile>,
}

/// A GPU instance.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrawnInstance {
    pub profile: String,
    pub id: u32,
    /// First memory slice.
    pub start: u32,
    pub memory_slices: u32,
    pub compute_slices: u32,
    pub state: InstanceState,
}

/// The change of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum InstanceState {
    /// It is created.
    New,
    /// It stays, and the layout has it.
    InUse,
    /// It stays, and the layout does not have it.
    Surplus,
}

/// Instances of one profile that fit, if no other profile is added.
#[derive(Debug, Serialize)]
pub struct FittingProfile {
    pub profile: String,
    pub count: u32,
}

impl LayoutDrawing {
    /// Places `layout` around the instances in use, of which `names` are the arguments.
    ///
    /// # Errors
    /// When the text is no layout of the board, or the layout does not fit.
    pub fn new(board: &MigBoard, layout: &str, in_use: &[PlacedInstance], names: &[String]) -> anyhow::Result<Self> {
        let geometry = &board.geometry;
        let wanted =
            MigLayout::parse(layout, geometry).with_context(|| format!("read layout `{layout}` for {}", board.name))?;
        let present: Vec<PresentInstance> = in_use
            .iter()
            .map(|instance| PresentInstance {
                instance: *instance,
                in_use: true,
            })
            .collect();
        let placed = solve(geometry, &wanted, &present)
            .map_err(|error| anyhow!("place {wanted} on {}: {}", board.name, advice(board, names, &error)))?;
        let all = placed.instances();
        let drawn = all.iter().filter_map(|instance| {
            let profile = geometry.profile(instance.profile)?;
            Some(DrawnInstance {
                profile: profile.name.clone(),
                id: profile.id,
                start: instance.placement.start,
                memory_slices: instance.placement.size,
                compute_slices: profile.slices,
                state: if placed.created.contains(instance) {
                    InstanceState::New
                } else if placed.kept.contains(instance) {
                    InstanceState::InUse
                } else {
                    InstanceState::Surplus
                },
            })
        });
        let instances: Vec<DrawnInstance> = drawn.collect();
        let is_free = |slice: &u32| !instances.iter().any(|instance| instance.has_memory_slice(*slice));
        let compute: u32 = instances.iter().map(|instance| instance.compute_slices).sum();
        let fits = geometry.profiles.iter().zip(remaining_capacity(geometry, &all));
        Ok(Self {
            board: board.name,
            layout: wanted.to_string(),
            memory_slices: geometry.memory_slices,
            compute_slices: geometry.compute_slices,
            free_memory_slices: (0..geometry.memory_slices).filter(is_free).collect(),
            free_compute_slices: geometry.compute_slices.saturating_sub(compute),
            fits: fits
                .filter(|(_, count)| *count > 0)
                .map(|(profile, count)| FittingProfile {
                    profile: profile.name.clone(),
                    count,
                })
                .collect(),
            instances,
        })
    }
}

impl DrawnInstance {
    pub fn has_memory_slice(&self, slice: u32) -> bool {
        slice >= self.start && slice - self.start < self.memory_slices
    }
}

/// Adds the next command to the reason for which a layout does not fit.
fn advice(board: &MigBoard, in_use: &[String], error: &NoPlacement) -> String {
    let mut command = format!("kubectl gpunode mig --board {}", board.name);
    let is_empty = error.nearest == MigLayout::default();
    if !is_empty {
        let _ = write!(command, " {}", error.nearest);
    }
    for instance in in_use {
        let _ = write!(command, " --in-use {instance}");
    }
    let verb = if is_empty { "see what fits" } else { "draw it" };
    format!("{error}; {verb} with `{command}`")
}
