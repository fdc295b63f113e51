//! Layouts of MIG instances: which a GPU can have, and where each instance goes.
//!
//! This crate does no IO. A board's profiles come from its table here, or on a node from NVML. Words are those of NVML:
//! a GPU instance takes a range of memory slices and a number of compute slices; its profile says how many and where it
//! may begin.
//!
//! | module | what it does |
//! |---|---|
//! | `profile` | profiles of GPU instances, and the slices that they may take |
//! | `geometry` | slices and profiles of one GPU, and instances on them |
//! | `boards` | the tables of boards whose placements are published |
//! | `limits` | the limits that instances on one GPU share, and what still fits beside them |
//! | `instances` | instances as people write them: `4g.40gb@0` |
//! | `layout` | layouts as people write them: `1g.10gb:3,4g.40gb:1` and presets |
//! | `solver` | places a layout around instances that must stay, or says why that fails and what fits instead |

#![forbid(unsafe_code)]

mod boards;
mod geometry;
mod instances;
mod layout;
mod limits;
mod profile;
mod solver;

pub use boards::{MigBoard, UnknownBoard};
pub use geometry::{MigGeometry, PlacedInstance, PresentInstance};
pub use instances::{InstanceError, parse_instances};
pub use layout::{LayoutError, LayoutPreset, MigLayout, presets};
pub use limits::{PlacementObstacle, largest_fitting, remaining_capacity};
pub use profile::{GpuInstanceProfile, SlicePlacement};
pub use solver::{NoPlacement, PlacedLayout, place, solve};
