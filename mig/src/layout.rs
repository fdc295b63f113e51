//! Layouts as people write them: `1g.10gb:3,4g.40gb:1`, `{}` for MIG without instances, and presets.

#[cfg(test)]
mod tests;

use crate::{
    geometry::{MigGeometry, PlacedInstance},
    limits::PlacementObstacle,
};
use std::{fmt, iter};
use thiserror::Error;

/// GPU instances that are wanted on one GPU, for a board. Written as it is parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigLayout {
    /// In the order of the board's profiles, without those that are not wanted.
    entries: Vec<LayoutEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LayoutEntry {
    /// Profile id.
    profile: u32,
    name: String,
    count: u32,
}

/// A layout that is computed for the board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutPreset {
    /// Name as mig-parted generates it, such as `all-1g.10gb.me`.
    pub name: String,
    /// Its instances.
    pub layout: MigLayout,
}

/// A text that is no layout of the board.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LayoutError {
    /// No `PROFILE:COUNT`.
    #[error("`{part}` is not PROFILE:COUNT; write a layout such as {example}, a preset such as all-balanced, or {{}}")]
    Malformed {
        /// As given.
        part: String,
        /// A layout of the board.
        example: String,
    },
    /// The board has no such profile.
    #[error("the board has no profile `{profile}`; it has {known}")]
    UnknownProfile {
        /// As given.
        profile: String,
        /// Profiles of the board.
        known: String,
    },
    /// A compute instance on a part of a GPU instance.
    #[error(
        "`{profile}` is a compute instance on part of a GPU instance, and a layout has only whole ones: write `{whole}`"
    )]
    PartialCompute {
        /// As given.
        profile: String,
        /// The GPU instance.
        whole: String,
    },
    /// The count is no number from 1.
    #[error("`{count}` is no count of {profile}: write a whole number from 1, or leave the profile out")]
    Count {
        /// Its profile.
        profile: String,
        /// As given.
        count: String,
    },
    /// A profile occurs twice.
    #[error("the layout names {profile} twice; write it once, with the sum of its counts")]
    Repeated {
        /// The profile.
        profile: String,
    },
    /// The board has no such preset.
    #[error("the board has no preset `{preset}`; it has {known}")]
    UnknownPreset {
        /// As given.
        preset: String,
        /// Presets of the board.
        known: String,
    },
}

impl MigLayout {
    /// Parses a layout: `PROFILE:COUNT` with commas, the name of a preset, or `{}` for no instance.
    pub fn parse(text: &str, geometry: &MigGeometry) -> Result<Self, LayoutError> {
        let text = text.trim();
        if text == "{}" {
            return Ok(Self::default());
        }
        if text.starts_with("all-") {
            return preset(text, geometry);
        }
        let mut counts = vec![0; geometry.profiles.len()];
        for part in text.split(',').map(str::trim) {
            let parts = part.split_once(':').map(|(name, count)| (name.trim(), count.trim()));
            let Some((name, count)) = parts.filter(|(name, _)| !name.is_empty()) else {
                return Err(malformed(part, geometry));
            };
            let index = geometry.index_of(name).ok_or_else(|| unknown(name, geometry))?;
            let number = count.parse::<u32>().ok().filter(|number| *number > 0);
            let number = number.ok_or_else(|| LayoutError::Count {
                profile: name.to_owned(),
                count: count.to_owned(),
            })?;
            if let Some(known) = counts.get_mut(index)
                && std::mem::replace(known, number) > 0
            {
                return Err(LayoutError::Repeated {
                    profile: name.to_owned(),
                });
            }
        }
        Ok(Self::of_counts(geometry, &counts))
    }

    /// Creates a layout from counts by the names of profiles.
    pub fn of_profiles<'a>(
        counts: impl IntoIterator<Item = (&'a str, u32)>,
        geometry: &MigGeometry,
    ) -> Result<Self, LayoutError> {
        let mut sums = vec![0; geometry.profiles.len()];
        for (name, count) in counts {
            let index = geometry.index_of(name).ok_or_else(|| unknown(name, geometry))?;
            sums.iter_mut().skip(index).take(1).for_each(|sum| *sum += count);
        }
        Ok(Self::of_counts(geometry, &sums))
    }

    /// Creates the layout that a GPU with `instances` has. Instances of other profiles than its own are left out.
    pub fn of_instances(instances: &[PlacedInstance], geometry: &MigGeometry) -> Self {
        Self::of_counts(geometry, &geometry.counts(instances))
    }

    /// Returns the number of instances that it has of the profile with an id.
    pub fn count_of(&self, profile: u32) -> u32 {
        let entry = self.entries.iter().find(|entry| entry.profile == profile);
        entry.map_or(0, |entry| entry.count)
    }

    /// Creates a layout from counts in the order of the profiles.
    pub(crate) fn of_counts(geometry: &MigGeometry, counts: &[u32]) -> Self {
        let wanted = geometry.profiles.iter().zip(counts).filter(|(_, count)| **count > 0);
        let entries = wanted.map(|(profile, count)| LayoutEntry {
            profile: profile.id,
            name: profile.name.clone(),
            count: *count,
        });
        Self {
            entries: entries.collect(),
        }
    }

    /// Returns its counts in the order of the profiles. A profile of another board is an obstacle.
    pub(crate) fn counts(&self, geometry: &MigGeometry) -> Result<Vec<u32>, PlacementObstacle> {
        let is_foreign = |entry: &&LayoutEntry| geometry.profile(entry.profile).is_none();
        if let Some(foreign) = self.entries.iter().find(is_foreign) {
            return Err(PlacementObstacle::TooMany {
                profile: foreign.name.clone(),
                wanted: foreign.count,
                most: 0,
            });
        }
        Ok(geometry
            .profiles
            .iter()
            .map(|profile| self.count_of(profile.id))
            .collect())
    }

    /// Returns true if no instance is wanted.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl fmt::Display for MigLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("{}");
        }
        for (index, LayoutEntry { name, count, .. }) in self.entries.iter().enumerate() {
            write!(f, "{}{name}:{count}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

fn malformed(part: &str, geometry: &MigGeometry) -> LayoutError {
    let example = geometry
        .profiles
        .first()
        .map_or("1g.10gb", |profile| profile.name.as_str());
    LayoutError::Malformed {
        part: part.to_owned(),
        example: format!("{example}:2"),
    }
}

/// Says why the board has no profile of that name. A compute instance has its own slices before those of its GPU
/// instance, such as `1c.3g.40gb`.
fn unknown(name: &str, geometry: &MigGeometry) -> LayoutError {
    let compute = name.split_once("c.");
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let whole = compute.filter(|(slices, _)| is_number(slices)).map(|(_, whole)| whole);
    match whole.filter(|whole| geometry.index_of(whole).is_some()) {
        Some(whole) => LayoutError::PartialCompute {
            profile: name.to_owned(),
            whole: whole.to_owned(),
        },
        None => LayoutError::UnknownProfile {
            profile: name.to_owned(),
            known: geometry.profile_names(),
        },
    }
}

fn preset(name: &str, geometry: &MigGeometry) -> Result<MigLayout, LayoutError> {
    let presets = presets(geometry);
    let known = || {
        presets
            .iter()
            .map(|preset| preset.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    // Presets are listed with `.`, and the profile in them is known with `+`.
    let listed = name.replace('+', ".");
    match presets.iter().find(|preset| preset.name == listed) {
        Some(preset) => Ok(preset.layout.clone()),
        None => Err(LayoutError::UnknownPreset {
            preset: name.to_owned(),
            known: known(),
        }),
    }
}

/// Returns the presets of a board, with the names and instances that mig-parted generates (`pkg/mig/builder`):
/// `all-enabled` without instances, `all-PROFILE` with as many as the driver allows, where `.` stands for `+`, and
/// `all-balanced`.
pub fn presets(geometry: &MigGeometry) -> Vec<LayoutPreset> {
    let named = |name: &str, counts: Option<Vec<u32>>| {
        counts.map(|counts| LayoutPreset {
            name: format!("all-{name}"),
            layout: MigLayout::of_counts(geometry, &counts),
        })
    };
    let only = |index: usize, count: u32| {
        let mut counts = vec![0; geometry.profiles.len()];
        counts.iter_mut().skip(index).take(1).for_each(|only| *only = count);
        Some(counts)
    };
    let by_profile = geometry
        .profiles
        .iter()
        .enumerate()
        .map(|(index, profile)| named(&profile.name.replace('+', "."), only(index, profile.max_count)));
    iter::once(named("enabled", Some(Vec::new())))
        .chain(by_profile)
        .chain([named("balanced", balanced(geometry))])
        .flatten()
        .collect()
}

/// Returns the counts of `all-balanced` as mig-parted computes them: of seven compute slices twice 1, 2 and 3, of four
/// twice 1 and 2; of the base profiles with that many slices the one of which most fit. None for other boards.
fn balanced(geometry: &MigGeometry) -> Option<Vec<u32>> {
    let parts: &[(u32, u32)] = match geometry.compute_slices {
        7 => &[(1, 2), (2, 1), (3, 1)],
        4 => &[(1, 2), (2, 1)],
        _ => return None,
    };
    let mut counts = vec![0; geometry.profiles.len()];
    for (slices, count) in parts {
        let same = geometry.profiles.iter().zip(&mut counts);
        let base = same.filter(|(profile, _)| profile.slices == *slices && profile.is_base());
        let (_, place) = base.max_by_key(|(profile, _)| profile.max_count)?;
        *place = *count;
    }
    Some(counts)
}
