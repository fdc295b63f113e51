//! Profiles of GPU instances, and the slices that they may take.

use serde::{Deserialize, Serialize};

/// A range of memory slices, as `nvmlGpuInstancePlacement_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlicePlacement {
    /// First memory slice, from 0.
    pub start: u32,
    /// Number of memory slices.
    pub size: u32,
}

impl SlicePlacement {
    /// Returns its slices as bits, slice 0 lowest. Slices from 64 on are left out; boards have 4 to 12.
    pub(crate) fn mask(self) -> u64 {
        let ones = 1_u64.checked_shl(self.size).unwrap_or_default().wrapping_sub(1);
        ones.checked_shl(self.start).unwrap_or_default()
    }
}

/// A kind of GPU instance, as `nvmlDeviceGetGpuInstanceProfileInfo` and `nvmlDeviceGetGpuInstancePossiblePlacements`
/// describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInstanceProfile {
    /// Profile id, which instances carry; not NVML's `NVML_GPU_INSTANCE_PROFILE_*`.
    pub id: u32,
    /// NVIDIA's name, such as `1g.10gb+me`.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// The most instances of this profile on one GPU.
    pub max_count: u32,
    /// Ranges that an instance may take. All have the same size.
    pub placements: Vec<SlicePlacement>,
}

impl GpuInstanceProfile {
    /// Returns the number of memory slices of an instance.
    pub fn memory_slices(&self) -> u32 {
        self.placements.first().map_or(0, |placement| placement.size)
    }

    /// Returns compute and memory slices, by which profiles are compared: the larger profile has the larger pair.
    pub(crate) fn magnitude(&self) -> (u32, u32) {
        (self.slices, self.memory_slices())
    }

    /// Returns true for a profile without attributes, such as `+me`, `+gfx` or `-me`.
    pub(crate) fn is_base(&self) -> bool {
        !self.name.contains(['+', '-'])
    }

    /// Returns the media engines of an instance, which NVIDIA's names say (go-nvlib,
    /// `pkg/nvlib/device/mig_profile.go`).
    pub(crate) fn media(&self) -> MediaEngines {
        if self.name.ends_with("-me") {
            MediaEngines::Excluded
        } else if self.name.ends_with("+me.all") {
            MediaEngines::All
        } else if self.name.ends_with("+me") {
            MediaEngines::Extensions
        } else {
            MediaEngines::Share
        }
    }
}

/// The media engines of an instance: decoders, encoders, JPEG decoders and the one optical flow accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediaEngines {
    /// `-me`: none.
    Excluded,
    /// Without a suffix: decoders and encoders by size.
    Share,
    /// `+me`: with the optical flow accelerator.
    Extensions,
    /// `+me.all`: all of them.
    All,
}

impl MediaEngines {
    /// Returns true if one GPU cannot have both. As `nvidia-smi mig -lgip` counts the engines of A30, A100, H100 and
    /// RTX PRO 6000, only one instance can have the accelerator, and beside all engines only instances without any can
    /// be.
    pub(crate) fn excludes(self, other: Self) -> bool {
        match (self, other) {
            (Self::All, other) | (other, Self::All) => other != Self::Excluded,
            (Self::Extensions, Self::Extensions) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_a_placement_are_bits() {
        let mask = |start, size| SlicePlacement { start, size }.mask();
        assert_eq!(
            [mask(0, 8), mask(4, 2), mask(7, 1), mask(3, 0)],
            [0xff, 0b11_0000, 0x80, 0]
        );
        assert_eq!([mask(0, 64), mask(63, 1), mask(64, 1)], [u64::MAX, 1 << 63, 0]);
    }

    #[test]
    fn only_one_instance_has_the_media_extensions_and_all_engines_leave_none() {
        use MediaEngines::{All, Excluded, Extensions, Share};
        for (first, second, excludes) in [
            (Share, Share, false),
            (Share, Extensions, false),
            (Extensions, Extensions, true),
            (All, Extensions, true),
            (Share, All, true),
            (All, All, true),
            (All, Excluded, false),
            (Excluded, Extensions, false),
        ] {
            assert_eq!(first.excludes(second), excludes, "{first:?} {second:?}");
            assert_eq!(second.excludes(first), excludes, "{second:?} {first:?}");
        }
    }
}
