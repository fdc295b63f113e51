//! The scenario file: which GPUs a node has.

use std::{fs, io, path::Path, path::PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Board, Gpu, MigGroup, PcieLevel, Topology, gpu, mig};

/// Name of the scenario file, in the folder of the library.
pub const SCENARIO_FILE: &str = "gpunode-scenario.yaml";

/// The hardware of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// Name of the node; nodes of one cluster need different ones, or their GPUs share UUIDs.
    #[serde(default = "default_node")]
    pub node: String,
    /// NVML name of the boards, such as `Tesla V100-SXM2-32GB`.
    pub board: String,
    /// Number of GPUs; with 0 the driver is loaded and finds none.
    pub count: u32,
    /// Links between them.
    pub topology: Topology,
    /// Boards of other products in the same node; their indices follow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional: Vec<AdditionalBoards>,
    /// GPUs with MIG on, and their instances.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig: Vec<MigGroup>,
    /// `mig` is there again after each boot, as a boot service makes it, on GPUs whose MIG no program has changed. Otherwise
    /// a boot leaves of it what it leaves of instances that programs have created.
    #[serde(default = "default_divided_at_boot", skip_serializing_if = "is_true")]
    pub divided_at_boot: bool,
    /// UUIDs of MIG devices that programs create.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mig_uuids: MigUuids,
    /// Place of the driver among virtual machines.
    #[serde(default, skip_serializing_if = "is_default")]
    pub virtualization: Virtualization,
    /// The NVLink fabric that the boards of Hopper and newer on an `NVSwitch` have joined. Without it theirs ends at the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// Version of the driver.
    #[serde(default = "default_driver_version")]
    pub driver_version: String,
    /// Newest CUDA version that the driver can run, `MAJOR.MINOR`.
    #[serde(default = "default_cuda_version")]
    pub cuda_version: String,
}

/// UUIDs of the MIG devices that programs create.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigUuids {
    /// A device with GPU instance, compute instance and profile of an earlier one has its UUID.
    #[default]
    Returning,
    /// Every device has a UUID that none had before.
    New,
}

/// `nvmlGpuVirtualizationMode_t`: the place of the driver among virtual machines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum Virtualization {
    /// On the machine itself.
    #[default]
    None = 0,
    /// In a virtual machine that has whole GPUs. It cannot reset them.
    Passthrough = 1,
    /// In a virtual machine that has parts of GPUs. It cannot divide them.
    Vgpu = 2,
    /// On the machine itself, which gives parts of GPUs to virtual machines.
    HostVgpu = 3,
    /// On the machine itself, which gives graphics to virtual machines.
    HostVsga = 4,
}

/// More boards in the same node, on a PCI domain of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdditionalBoards {
    /// NVML name of the boards.
    pub board: String,
    /// Number of GPUs.
    pub count: u32,
    /// Links between them.
    pub topology: Topology,
}

/// A place in an `NVLink` fabric that spans nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fabric {
    /// UUID of the fabric: 32 hexadecimal digits, hyphens between them or not.
    pub cluster_uuid: String,
    /// The part of the fabric within which GPUs reach one another.
    pub clique_id: u32,
}

/// Reason why a scenario cannot be simulated.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// It is not a scenario; the parser names the field.
    #[error("parse the scenario {path}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_yaml::Error,
    },
    /// The board is not in the table.
    #[error("{field}: no board {name:?} is known, nearest is {nearest:?}")]
    UnknownBoard {
        /// Path of the field.
        field: String,
        /// Name in the scenario.
        name: String,
        /// A known board.
        nearest: &'static str,
    },
    /// The wiring takes fewer GPUs.
    #[error("{field}: topology {topology} takes at most {most} GPUs, not {count}")]
    TooMany {
        /// Path of the field.
        field: String,
        /// The topology.
        topology: &'static str,
        /// Its limit.
        most: u32,
        /// Requested number.
        count: u32,
    },
    /// The board cannot be wired so.
    #[error("{field}: {topology} is not possible with {board}: {reason}")]
    Topology {
        /// Path of the field.
        field: String,
        /// The topology.
        topology: &'static str,
        /// The board.
        board: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// The GPUs cannot be divided so.
    #[error("{field}: {reason}")]
    Mig {
        /// Path of the field.
        field: String,
        /// The reason.
        reason: String,
    },
    /// `cudaVersion` is not `MAJOR.MINOR`.
    #[error("cudaVersion: {0:?} is not of the form MAJOR.MINOR")]
    CudaVersion(String),
    /// `fabric.clusterUuid` is no UUID.
    #[error("fabric.clusterUuid: {0:?} has not 32 hexadecimal digits")]
    ClusterUuid(String),
}

/// First driver whose UUIDs of MIG devices tell nothing; before it they name GPU, GPU instance and compute instance.
const OPAQUE_MIG_UUIDS_SINCE: u32 = 470;

fn default_node() -> String {
    "node".to_owned()
}

// Recovery actions need r570, and 580.82 renumbered field ids: a driver of that time has both.
fn default_driver_version() -> String {
    "580.95.05".to_owned()
}

fn default_cuda_version() -> String {
    "13.0".to_owned()
}

fn default_divided_at_boot() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_true(value: &bool) -> bool {
    *value
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The boards of one entry, looked up and checked.
struct Group {
    board: &'static Board,
    count: u32,
    topology: Topology,
    domain: u32,
    first: u32,
}

impl Scenario {
    /// A node with `count` boards of one product and default versions.
    pub fn new(node: impl Into<String>, board: impl Into<String>, count: u32, topology: Topology) -> Self {
        Scenario {
            node: node.into(),
            board: board.into(),
            count,
            topology,
            additional: Vec::new(),
            mig: Vec::new(),
            divided_at_boot: default_divided_at_boot(),
            mig_uuids: MigUuids::default(),
            virtualization: Virtualization::default(),
            fabric: None,
            driver_version: default_driver_version(),
            cuda_version: default_cuda_version(),
        }
    }

    /// Reads the scenario beside the library in `dir`.
    pub fn load(dir: &Path) -> Result<Self, ScenarioError> {
        let path = dir.join(SCENARIO_FILE);
        let text = fs::read_to_string(&path).map_err(|source| ScenarioError::Read {
            path: path.clone(),
            source,
        })?;
        serde_yaml::from_str(&text).map_err(|source| ScenarioError::Parse { path, source })
    }

    /// Writes the scenario into `dir`, where the library is or will be.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        let text = serde_yaml::to_string(self).map_err(io::Error::other)?;
        fs::write(dir.join(SCENARIO_FILE), text)
    }

    /// NVML's number for `cudaVersion`: 13000 for 13.0.
    pub fn cuda_driver_version(&self) -> Result<i32, ScenarioError> {
        self.cuda_version
            .split_once('.')
            .and_then(|(major, minor)| {
                let major = major.parse::<u16>().ok()?;
                let minor = minor.parse::<u8>().ok()?;
                Some(i32::from(major) * 1000 + i32::from(minor) * 10)
            })
            .ok_or_else(|| ScenarioError::CudaVersion(self.cuda_version.clone()))
    }

    /// The driver's major version, 580 for `580.95.05`.
    pub fn driver_major(&self) -> u32 {
        let major = self.driver_version.split('.').next();
        major.and_then(|major| major.parse().ok()).unwrap_or_default()
    }

    /// The UUID of a MIG device with these ids that a program creates, `serial` being a number that no other had.
    pub(crate) fn mig_uuid(&self, gpu: &Gpu, instances: (u32, u32), profile: &str, serial: u64) -> String {
        if self.driver_major() < OPAQUE_MIG_UUIDS_SINCE {
            return mig::name_of_place(&gpu.uuid, instances);
        }
        match self.mig_uuids {
            MigUuids::Returning => gpu::mig_uuid(&self.node, gpu.index, instances, profile),
            MigUuids::New => gpu::mig_uuid(&self.node, gpu.index, instances, &format!("{profile} {serial}")),
        }
    }

    /// UUID and clique of the fabric beyond the node; all zero without one.
    fn fabric(&self) -> Result<(u128, u32), ScenarioError> {
        let Some(fabric) = &self.fabric else { return Ok((0, 0)) };
        let digits = fabric.cluster_uuid.replace('-', "");
        let uuid = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
        let uuid = uuid.ok_or_else(|| ScenarioError::ClusterUuid(fabric.cluster_uuid.clone()))?;
        Ok((uuid, fabric.clique_id))
    }

    /// The GPUs of the node, by index.
    pub fn gpus(&self) -> Result<Vec<Gpu>, ScenarioError> {
        let groups = self.groups()?;
        let fabric = self.fabric()?;
        let mut gpus: Vec<Gpu> = groups
            .iter()
            .flat_map(|group| (0..group.count).map(move |place| (group, place)))
            .map(|(group, place)| Gpu {
                fabric,
                ..self.gpu(&groups, group, place)
            })
            .collect();
        for (at, group) in self.mig.iter().enumerate() {
            self.divide(&mut gpus, &format!("mig[{at}]"), group)?;
        }
        Ok(gpus)
    }

    fn divide(&self, gpus: &mut [Gpu], field: &str, group: &MigGroup) -> Result<(), ScenarioError> {
        let count = gpus.len();
        for (at, index) in group.gpus.iter().enumerate() {
            let refuse = |reason| ScenarioError::Mig {
                field: format!("{field}.gpus[{at}]"),
                reason,
            };
            let is_legacy = self.driver_major() < OPAQUE_MIG_UUIDS_SINCE;
            let gpu = usize::try_from(*index).ok().and_then(|index| gpus.get_mut(index));
            let gpu = gpu.ok_or_else(|| refuse(format!("there is no GPU {index}, only {count} GPUs")))?;
            if gpu.board.max_mig_devices == 0 {
                return Err(refuse(format!("GPU {index} is a {}, which has no MIG", gpu.name)));
            }
            let mut instances = mig::instances(&self.node, *index, gpu.board, &group.instances).map_err(|refusal| {
                let entry = refusal.entry.map(|entry| format!("[{entry}]")).unwrap_or_default();
                ScenarioError::Mig {
                    field: format!("{field}.instances{entry}"),
                    reason: refusal.reason,
                }
            })?;
            if is_legacy {
                for instance in &mut instances {
                    instance.name_by_place(&gpu.uuid);
                }
            }
            if gpu.mig.replace(instances).is_some() {
                return Err(refuse(format!("GPU {index} is named twice")));
            }
        }
        Ok(())
    }

    fn groups(&self) -> Result<Vec<Group>, ScenarioError> {
        let first = (String::new(), &self.board, self.count, self.topology);
        let others = self.additional.iter().enumerate().map(|(at, boards)| {
            let prefix = format!("additional[{at}].");
            (prefix, &boards.board, boards.count, boards.topology)
        });
        let mut groups = Vec::new();
        let mut next_index = 0;
        for (domain, (prefix, board, count, topology)) in (0_u32..).zip([first].into_iter().chain(others)) {
            let board = check(&prefix, board, count, topology)?;
            groups.push(Group {
                board,
                count,
                topology,
                domain,
                first: next_index,
            });
            next_index += count;
        }
        Ok(groups)
    }

    fn gpu(&self, groups: &[Group], group: &Group, place: u32) -> Gpu {
        let index = group.first + place;
        let board = group.board;
        Gpu {
            index,
            board,
            uuid: gpu::uuid(&self.node, index),
            name: board.name.to_owned(),
            minor: index,
            pci_bus_id: format!("{:04x}:{:02x}:00.0", group.domain, group.topology.bus(place)),
            pci_device_id: board.pci_device_id,
            numa_node: group.topology.numa_node(place),
            memory_mib: board.memory_mib,
            compute_capability: board.compute_capability,
            serial: gpu::serial(&self.node, index),
            links: group
                .topology
                .nvlinks(board, group.first, place, group.count, group.domain),
            pcie_levels: groups
                .iter()
                .flat_map(|other| (0..other.count).map(move |at| (other, at)))
                .map(|(other, at)| {
                    if other.domain == group.domain {
                        group.topology.pcie_level(place, at)
                    } else if other.topology.numa_node(at) == group.topology.numa_node(place) {
                        PcieLevel::Node
                    } else {
                        PcieLevel::System
                    }
                })
                .collect(),
            mig: None,
            fabric: (0, 0),
        }
    }
}

fn check(prefix: &str, name: &str, count: u32, topology: Topology) -> Result<&'static Board, ScenarioError> {
    let board = Board::named(name).ok_or_else(|| ScenarioError::UnknownBoard {
        field: format!("{prefix}board"),
        name: name.to_owned(),
        nearest: Board::nearest_name(name),
    })?;
    if count > topology.max_gpus() {
        return Err(ScenarioError::TooMany {
            field: format!("{prefix}count"),
            topology: topology.name(),
            most: topology.max_gpus(),
            count,
        });
    }
    match topology.refuses(board) {
        None => Ok(board),
        Some(reason) => Err(ScenarioError::Topology {
            field: format!("{prefix}topology"),
            topology: topology.name(),
            board: board.name,
            reason,
        }),
    }
}
