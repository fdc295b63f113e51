//! MIG instances of a GPU, and those of a scenario, placed as its board allows.

use serde::{Deserialize, Serialize};

use crate::{Board, ComputeProfile, Gpu, MigProfile, gpu};

/// GPUs with MIG on, all divided in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MigGroup {
    /// Indices of the GPUs.
    pub gpus: Vec<u32>,
    /// Their instances by NVIDIA's names, such as `1g.10gb`, `1g.10gb+me` and `1c.3g.40gb`. Entries with part of the
    /// compute slices share a GPU instance with those of the same kind before them, as far as there is room. Without
    /// any, MIG is on and nothing is created.
    #[serde(default)]
    pub instances: Vec<String>,
}

/// A GPU instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstance {
    /// Its id, which follows from its place as on real boards.
    pub id: u32,
    /// Its kind.
    pub profile: MigProfile,
    /// First memory slice.
    pub start: u32,
    /// Tells it from earlier ones with its id; 0 for those of the scenario.
    pub serial: u64,
    /// Its compute instances by id, each of which is a MIG device.
    pub compute_instances: Vec<ComputeInstance>,
}

/// A compute instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeInstance {
    /// Its id within the GPU instance.
    pub id: u32,
    /// Its kind.
    pub profile: ComputeProfile,
    /// First compute slice.
    pub start: u32,
    /// Tells it from earlier ones with its id; 0 for those of the scenario.
    pub serial: u64,
    /// UUID of the MIG device: `MIG-` and five groups of hexadecimal digits, or its place with drivers before 470.
    pub uuid: String,
}

impl GpuInstance {
    /// Gives its MIG devices the UUIDs of drivers before 470: `MIG-GPU-.../GPU INSTANCE/COMPUTE INSTANCE`.
    pub(crate) fn name_by_place(&mut self, gpu: &str) {
        for compute in &mut self.compute_instances {
            compute.uuid = name_of_place(gpu, (self.id, compute.id));
        }
    }
}

/// UUID of a MIG device with drivers before 470.
pub(crate) fn name_of_place(gpu: &str, (gpu_instance, compute_instance): (u32, u32)) -> String {
    format!("MIG-{gpu}/{gpu_instance}/{compute_instance}")
}

/// The id of a GPU instance, as on real boards: 0 is the whole, 1 and 2 the halves, then the quarters.
pub(crate) fn instance_id(board: &Board, profile: &MigProfile, start: u32) -> u32 {
    // A GPU with one instance of everything: 8 memory slices, and 4 on boards that have 4 compute slices.
    let axis = if board.max_mig_devices == 4 { 4 } else { 8 };
    axis / profile.size - 1 + start / profile.size
}

/// Reason why instances do not fit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The entry; none when it is all of them together.
    pub(crate) entry: Option<usize>,
    pub(crate) reason: String,
}

impl Gpu {
    /// MIG devices in the order of their NVML index: by GPU instance, then by compute instance.
    pub fn mig_devices(&self) -> impl Iterator<Item = (&GpuInstance, &ComputeInstance)> {
        self.mig.iter().flatten().flat_map(|instance| {
            instance
                .compute_instances
                .iter()
                .map(move |compute| (instance, compute))
        })
    }
}

/// One GPU instance before it has a place.
struct Wanted {
    profile: MigProfile,
    compute: Vec<ComputeProfile>,
}

/// The instances named `names` on a board; their UUIDs derive from the node and the GPU's index.
pub(crate) fn instances(node: &str, index: u32, board: &Board, names: &[String]) -> Result<Vec<GpuInstance>, Refusal> {
    let wanted = wanted(board, names)?;
    let refuse = |reason: String| Refusal { entry: None, reason };
    let slices: u32 = wanted.iter().map(|wanted| wanted.profile.slices).sum();
    if slices > board.max_mig_devices {
        let most = board.max_mig_devices;
        return Err(refuse(format!(
            "they need {slices} compute slices, and {} has {most}",
            board.name
        )));
    }
    for Wanted { profile, .. } in &wanted {
        let count = wanted.iter().filter(|other| other.profile.id == profile.id).count();
        let most = profile.max_instances;
        if u32::try_from(count).is_ok_and(|count| count > most) {
            return Err(refuse(format!(
                "{count} x {} are asked for, and {} takes {most}",
                profile.name, board.name
            )));
        }
    }
    let shapes: Vec<_> = wanted
        .iter()
        .map(|wanted| (wanted.profile.starts, wanted.profile.size))
        .collect();
    let starts = place(&shapes).ok_or_else(|| {
        refuse(format!(
            "there are no places for all of them in the memory of {} at once",
            board.name
        ))
    })?;

    let mut instances = Vec::new();
    for (Wanted { profile, compute }, start) in wanted.into_iter().zip(starts) {
        let id = instance_id(board, &profile, start);
        let shapes: Vec<_> = compute
            .iter()
            .map(|compute| (compute.starts.as_slice(), compute.slices))
            .collect();
        let starts = place(&shapes).unwrap_or_default();
        let compute_instances = (0..)
            .zip(compute.into_iter().zip(starts))
            .map(|(compute_id, (profile, start))| ComputeInstance {
                id: compute_id,
                uuid: gpu::mig_uuid(node, index, (id, compute_id), &profile.name),
                profile,
                start,
                serial: 0,
            })
            .collect();
        instances.push(GpuInstance {
            id,
            profile,
            start,
            serial: 0,
            compute_instances,
        });
    }
    instances.sort_by_key(|instance| instance.id);
    Ok(instances)
}

/// Parses the names of instances.
fn wanted(board: &Board, names: &[String]) -> Result<Vec<Wanted>, Refusal> {
    let profiles = board.mig_profiles();
    let mut wanted: Vec<Wanted> = Vec::new();
    for (entry, name) in names.iter().enumerate() {
        let found = profiles.iter().find_map(|profile| {
            let compute = profile
                .compute_profiles()
                .into_iter()
                .find(|compute| compute.name == *name)?;
            Some((profile, compute))
        });
        let Some((profile, compute)) = found else {
            let known: Vec<_> = profiles.iter().map(|profile| profile.name.as_str()).collect();
            let reason = format!("{} has no MIG profile {name:?}, only {}", board.name, known.join(", "));
            return Err(Refusal {
                entry: Some(entry),
                reason,
            });
        };
        match wanted.iter_mut().rev().find(|other| other.profile.id == profile.id) {
            Some(last) if has_room(last, &compute) => last.compute.push(compute),
            _ => wanted.push(Wanted {
                profile: profile.clone(),
                compute: vec![compute],
            }),
        }
    }
    Ok(wanted)
}

fn has_room(wanted: &Wanted, more: &ComputeProfile) -> bool {
    let shapes = wanted
        .compute
        .iter()
        .chain([more])
        .map(|compute| (compute.starts.as_slice(), compute.slices));
    place(&shapes.collect::<Vec<_>>()).is_some()
}

/// Returns a start for each piece, given as possible starts and length, so that no two overlap.
fn place(pieces: &[(&[u32], u32)]) -> Option<Vec<u32>> {
    fn beside(taken: u32, pieces: &[(&[u32], u32)], found: &mut Vec<u32>) -> bool {
        let Some(((starts, length), rest)) = pieces.split_first() else {
            return true;
        };
        starts.iter().any(|start| {
            let own = ((1_u32 << length) - 1) << start;
            if taken & own != 0 {
                return false;
            }
            found.push(*start);
            beside(taken | own, rest, found) || {
                found.pop();
                false
            }
        })
    }
    let mut found = Vec::new();
    beside(0, pieces, &mut found).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(board: &str, names: &[&str]) -> Result<Vec<(u32, u32, Vec<String>)>, Refusal> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let found = instances("n", 0, Board::named(board).unwrap(), &names)?;
        Ok(found
            .into_iter()
            .map(|instance| {
                let compute = instance
                    .compute_instances
                    .iter()
                    .map(|compute| compute.profile.name.clone());
                (instance.id, instance.start, compute.collect())
            })
            .collect())
    }

    const A100: &str = "NVIDIA A100-SXM4-80GB";

    #[test]
    fn instances_are_placed_where_all_fit() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let small = on(A100, &["1g.10gb"; 7]).unwrap();
        assert_eq!(
            small.iter().map(|(id, ..)| *id).collect::<Vec<_>>(),
            [7, 8, 9, 10, 11, 12, 13]
        );
        // 3g at 0 would leave no place for 4g.
        assert_eq!(
            on(A100, &["3g.40gb", "4g.40gb"]).unwrap(),
            [(1, 0, names(&["4g.40gb"])), (2, 4, names(&["3g.40gb"]))]
        );
        assert_eq!(
            on(A100, &["1g.10gb", "1g.10gb+me", "2g.20gb", "3g.40gb"]).unwrap(),
            [
                (2, 4, names(&["3g.40gb"])),
                (4, 2, names(&["2g.20gb"])),
                (7, 0, names(&["1g.10gb"])),
                (8, 1, names(&["1g.10gb+me"]))
            ]
        );
        assert_eq!(on("NVIDIA A30", &["1g.6gb"; 4]).unwrap()[0], (3, 0, names(&["1g.6gb"])));
        assert!(on(A100, &[]).unwrap().is_empty());
    }

    #[test]
    fn compute_instances_share_a_gpu_instance_while_there_is_room() {
        let found = on(A100, &["1c.3g.40gb", "2c.3g.40gb", "1c.3g.40gb", "1c.3g.40gb"]).unwrap();
        let compute: Vec<_> = found.iter().map(|(_, _, compute)| compute.len()).collect();
        assert_eq!(compute, [2, 2]);
        let whole = on(A100, &["3g.40gb", "3g.40gb"]).unwrap();
        assert_eq!(whole.len(), 2);
    }

    #[test]
    fn what_no_board_can_hold_is_refused() {
        let reason = |names: &[&str]| on(A100, names).unwrap_err().reason;
        assert_eq!(
            reason(&["1g.10gb"; 8]),
            "they need 8 compute slices, and NVIDIA A100-SXM4-80GB has 7"
        );
        assert_eq!(
            reason(&["3g.40gb", "3g.40gb", "1g.10gb"]),
            "there are no places for all of them in the memory of NVIDIA A100-SXM4-80GB at once"
        );
        assert_eq!(
            reason(&["1g.10gb+me", "1g.10gb+me"]),
            "2 x 1g.10gb+me are asked for, and NVIDIA A100-SXM4-80GB takes 1"
        );
        let unknown = on(A100, &["1g.10gb", "1g.5gb"]).unwrap_err();
        assert_eq!(unknown.entry, Some(1));
        assert!(
            unknown
                .reason
                .starts_with("NVIDIA A100-SXM4-80GB has no MIG profile \"1g.5gb\", only 1g.10gb, ")
        );
        assert!(on(A100, &["3c.4g.40gb"]).is_err());
    }
}
