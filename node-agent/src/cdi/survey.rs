//! Describes the devices of the node with its driver.

use super::{
    capability_nodes::make_missing,
    content::{self, ContentError},
    demand::CdiOptions,
    device_nodes::DeviceNodeFinder,
    hook_program::{self, HookProgramError},
};
use crate::driver::{hardware::Hardware, hardware_probe::DriverRoots};
use gpunode_cdi::{CdiDescription, CdiGpu, HookKind, HookProgram, describe};
use gpunode_gpu::Inventory;
use std::path::Path;

/// Devices of the node and their description.
#[derive(Clone, Debug, Default)]
pub struct CdiSurvey {
    /// Each GPU and each MIG device.
    pub gpus: Vec<CdiGpu>,
    /// Their description; empty if there is a problem.
    pub description: CdiDescription,
    /// Reason why no device can be described.
    pub problem: Option<String>,
}

/// Reason why no device can be described.
#[derive(Debug, thiserror::Error)]
enum SurveyError {
    #[error("no entry of deviceListStrategy uses CDI")]
    NotUsed,
    #[error("the driver is not found; no file of it can be given to containers")]
    NoDriver,
    #[error("the driver tells no version, which its files have in their names")]
    NoVersion,
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error(transparent)]
    HookProgram(#[from] HookProgramError),
}

impl CdiSurvey {
    /// Describes the devices, and makes device nodes that are missing. Without `options` no strategy uses CDI. Blocks.
    pub fn of(roots: &DriverRoots, state_dir: &Path, hardware: &Hardware, options: Option<&CdiOptions>) -> Self {
        let hooks = || hook_program::find(&roots.host_root, state_dir);
        Self::prepared(roots, hardware, options, make_missing, hooks)
    }

    /// Describes the devices as if a program for hooks were installed, and installs none. Blocks.
    pub fn without_install(roots: &DriverRoots, hardware: &Hardware, options: Option<&CdiOptions>) -> Self {
        let hooks = || {
            Ok(HookProgram {
                path: "/gpunode-hook".into(),
                kind: HookKind::Own,
            })
        };
        Self::prepared(roots, hardware, options, |_, _| {}, hooks)
    }

    /// Describes the devices once `prepare` is done with the host's device nodes.
    fn prepared(
        roots: &DriverRoots,
        hardware: &Hardware,
        options: Option<&CdiOptions>,
        prepare: impl FnOnce(&DeviceNodeFinder<'_>, &Inventory),
        hooks: impl FnOnce() -> Result<HookProgram, HookProgramError>,
    ) -> Self {
        let Some(inventory) = hardware.inventory().filter(|found| !found.gpus.is_empty()) else {
            let problem = options.is_none().then(|| SurveyError::NotUsed.to_string());
            return Self {
                problem,
                ..Self::default()
            };
        };
        let nodes = DeviceNodeFinder::of(roots);
        prepare(&nodes, inventory);
        let gpus = nodes.gpus(inventory);
        match describe_gpus(roots, &nodes, inventory, &gpus, options, hooks) {
            Ok(description) => Self {
                gpus,
                description,
                problem: None,
            },
            Err(error) => Self {
                gpus,
                problem: Some(error.to_string()),
                ..Self::default()
            },
        }
    }
}

fn describe_gpus(
    roots: &DriverRoots,
    nodes: &DeviceNodeFinder<'_>,
    inventory: &Inventory,
    gpus: &[CdiGpu],
    options: Option<&CdiOptions>,
    hooks: impl FnOnce() -> Result<HookProgram, HookProgramError>,
) -> Result<CdiDescription, SurveyError> {
    let options = options.ok_or(SurveyError::NotUsed)?;
    let driver = roots.find().ok_or(SurveyError::NoDriver)?;
    let version = inventory.driver_version.as_deref().ok_or(SurveyError::NoVersion)?;
    let content = content::read(nodes, &driver, version, options)?;
    Ok(describe(&content, gpus, &hooks()?))
}
