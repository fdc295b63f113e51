//! Companions: devices that are files of the node. A container gets their files instead of a GPU; everything else about
//! them is as for GPUs.
//!
//! | module | what it does |
//! |---|---|
//! | `file` | files that the globs of a configuration match |
//! | `device` | a device: one file, or files that belong together |
//! | `desired` | configuration and files to desired devices |

mod desired;
mod device;
mod file;

pub use desired::{DesiredCompanion, DesiredCompanions, desired_companions};
pub use device::{CompanionDevice, is_companion};
pub use file::{CompanionFile, CompanionFiles, MatchedFiles};

#[cfg(test)]
mod tests;
