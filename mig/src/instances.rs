//! Instances as people write them: `4g.40gb@0`.

use crate::{
    geometry::{MigGeometry, PlacedInstance},
    limits::{Occupancy, PlacementObstacle},
};
use thiserror::Error;

/// Instances that cannot be on a GPU.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InstanceError {
    /// No `PROFILE@START`.
    #[error("`{text}` is no instance: write PROFILE@START with its first memory slice, such as {example}")]
    Malformed {
        /// As given.
        text: String,
        /// An instance of the board.
        example: String,
    },
    /// The board has no such profile.
    #[error("`{text}`: the board has no profile `{profile}`; it has {known}")]
    UnknownProfile {
        /// As given.
        text: String,
        /// Its profile.
        profile: String,
        /// Profiles of the board.
        known: String,
    },
    /// The profile begins at other slices.
    #[error("`{text}`: an instance of {profile} begins at memory slice {starts}")]
    Start {
        /// As given.
        text: String,
        /// Its profile.
        profile: String,
        /// Slices at which it may begin.
        starts: String,
    },
    /// Two instances have a memory slice in common.
    #[error("{first} and {second} overlap: both cannot exist")]
    Overlap {
        /// An instance.
        first: String,
        /// Another one.
        second: String,
    },
    /// They exceed a limit of the GPU.
    #[error("these instances cannot exist together: {0}")]
    Limit(PlacementObstacle),
}

/// Parses instances that exist on one GPU.
pub fn parse_instances<S: AsRef<str>>(
    texts: &[S],
    geometry: &MigGeometry,
) -> Result<Vec<PlacedInstance>, InstanceError> {
    let mut instances: Vec<PlacedInstance> = Vec::new();
    for text in texts {
        let instance = parse(text.as_ref(), geometry)?;
        let overlapping = |other: &&PlacedInstance| other.placement.mask() & instance.placement.mask() != 0;
        if let Some(other) = instances.iter().find(overlapping) {
            return Err(InstanceError::Overlap {
                first: geometry.instance_name(other),
                second: geometry.instance_name(&instance),
            });
        }
        instances.push(instance);
    }
    match Occupancy::new(geometry, geometry.counts(&instances), &[]).obstacle() {
        Some(obstacle) => Err(InstanceError::Limit(obstacle)),
        None => Ok(instances),
    }
}

fn parse(text: &str, geometry: &MigGeometry) -> Result<PlacedInstance, InstanceError> {
    let parts = text.split_once('@');
    let parts = parts.and_then(|(profile, start)| Some((profile, start.parse::<u32>().ok()?)));
    let Some((profile, start)) = parts else {
        let example = geometry
            .profiles
            .first()
            .map_or("1g.10gb", |profile| profile.name.as_str());
        return Err(InstanceError::Malformed {
            text: text.to_owned(),
            example: format!("{example}@0"),
        });
    };
    let Some(profile) = geometry.profiles.iter().find(|known| known.name == profile) else {
        return Err(InstanceError::UnknownProfile {
            text: text.to_owned(),
            profile: profile.to_owned(),
            known: geometry.profile_names(),
        });
    };
    match profile.placements.iter().find(|placement| placement.start == start) {
        Some(placement) => Ok(PlacedInstance {
            placement: *placement,
            profile: profile.id,
        }),
        None => Err(InstanceError::Start {
            text: text.to_owned(),
            profile: profile.name.clone(),
            starts: {
                let starts: Vec<_> = profile
                    .placements
                    .iter()
                    .map(|placement| placement.start.to_string())
                    .collect();
                starts.join(", ")
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boards::MigBoard;

    fn parsed(texts: &[&str]) -> Result<Vec<String>, String> {
        let geometry = MigBoard::named("A100-80GB").unwrap().geometry;
        let instances = parse_instances(texts, &geometry).map_err(|error| error.to_string())?;
        Ok(instances
            .iter()
            .map(|instance| geometry.instance_name(instance))
            .collect())
    }

    #[test]
    fn instances_are_read_with_their_place() {
        assert_eq!(parsed(&[]), Ok(Vec::new()));
        let names = ["4g.40gb@0", "1g.10gb+me@6"];
        assert_eq!(parsed(&names), Ok(names.map(str::to_owned).to_vec()));
    }

    #[test]
    fn wrong_instances_are_refused_by_name() {
        let known = "1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb";
        for (texts, expected) in [
            (
                ["4g.40gb"].as_slice(),
                "`4g.40gb` is no instance: write PROFILE@START with its first memory slice, such as 1g.10gb@0"
                    .to_owned(),
            ),
            (
                &["1g.10gb@-1"],
                "`1g.10gb@-1` is no instance: write PROFILE@START with its first memory slice, such as 1g.10gb@0"
                    .to_owned(),
            ),
            (
                &["1g.5gb@0"],
                format!("`1g.5gb@0`: the board has no profile `1g.5gb`; it has {known}"),
            ),
            (
                &["2g.20gb@6"],
                "`2g.20gb@6`: an instance of 2g.20gb begins at memory slice 0, 2, 4".to_owned(),
            ),
            (
                &["1g.10gb@4", "3g.40gb@4"],
                "1g.10gb@4 and 3g.40gb@4 overlap: both cannot exist".to_owned(),
            ),
            (
                &["1g.10gb+me@0", "1g.10gb+me@1"],
                "these instances cannot exist together: a GPU has at most 1 x 1g.10gb+me, and 2 are wanted".to_owned(),
            ),
        ] {
            assert_eq!(parsed(texts), Err(expected));
        }
    }
}
