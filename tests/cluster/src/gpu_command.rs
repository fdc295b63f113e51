//! `gpunode-cluster gpu`: breaks a simulated GPU and mends it.

use anyhow::Result;
use clap::Subcommand;
use gpunode_config::{Resolution, describe_xid};
use gpunode_scenario::{OpenHandle, RecoveryAction, ReturnCode, StateFile};

/// A change of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum GpuChange {
    /// Report an XID, and ask for the repair that NVIDIA's catalog names, as the driver does.
    Xid {
        /// Number of the XID, such as 79.
        number: u64,
    },
    /// Let the GPU fall off the bus.
    Lose,
    /// Let a function of NVML fail on the GPU, such as `fail nvmlDeviceCreateGpuInstance UNKNOWN`.
    Fail {
        /// Name of the function; without a version it stands for all of them.
        function: String,
        /// Return code, such as `IN_USE`.
        code: ReturnCode,
        /// Only while the GPU has so many GPU instances: in the midst of several changes.
        #[arg(long, value_name = "COUNT")]
        instances: Option<usize>,
    },
    /// Let a program keep a handle of the GPU open, as a monitor does. MIG cannot change what it is about.
    Hold {
        /// Name of the program.
        program: String,
        /// GPU instance that the handle is about; the whole GPU by default.
        #[arg(long, value_name = "ID")]
        gpu_instance: Option<u32>,
    },
    /// Close every handle that programs keep open on the GPU.
    LetGo,
    /// End everything that is wrong with the GPU.
    Recover,
}

impl GpuChange {
    /// Changes a GPU and returns a line about it.
    pub fn apply(self, state: &StateFile, gpu: u32) -> Result<String> {
        match self {
            Self::Xid { number } => {
                let action = requested_action(number);
                if action == RecoveryAction::None {
                    // An XID that needs no repair leaves an earlier request of the driver as it is.
                    state.inject_xid(gpu, number)?;
                    return Ok(format!("XID {number}; the driver asks for no repair"));
                }
                state.inject_xid_with_recovery(gpu, number, action)?;
                let repair = match action {
                    RecoveryAction::NodeReboot => "a reboot of the node",
                    _ => "a reset of the GPU",
                };
                Ok(format!("XID {number}; the driver asks for {repair} until `recover`"))
            }
            Self::Lose => {
                state.lose(gpu)?;
                Ok("fell off the bus; agents see it within 15 s".to_owned())
            }
            Self::Fail {
                function,
                code,
                instances,
            } => {
                match instances {
                    Some(count) => state.fail_at(gpu, count, &function, code)?,
                    None => state.fail(gpu, &function, code)?,
                }
                Ok(format!("{function} answers {code} until `recover`"))
            }
            Self::Hold { program, gpu_instance } => {
                let text = format!("{program} keeps a handle open until `let-go`");
                let handle = OpenHandle {
                    program,
                    gpu_instance,
                    compute_instance: None,
                };
                state.update_gpu(gpu, |gpu| gpu.open_handles.push(handle))?;
                Ok(text)
            }
            Self::LetGo => {
                state.set_open_handles(gpu, Vec::new())?;
                Ok("no program keeps a handle open".to_owned())
            }
            Self::Recover => {
                state.repair(gpu)?;
                Ok("works again; agents see it within 15 s".to_owned())
            }
        }
    }
}

/// Returns what a driver asks for after an XID.
fn requested_action(xid: u64) -> RecoveryAction {
    let resolution = i32::try_from(xid).ok().and_then(describe_xid);
    // As for the agent, an XID that the catalog does not have needs a reset.
    match resolution.map_or(Resolution::ResetGpu, |(_, resolution)| resolution) {
        Resolution::Ignore | Resolution::RestartApp => RecoveryAction::None,
        Resolution::CheckLinks | Resolution::ResetGpu => RecoveryAction::GpuReset,
        Resolution::RestartVm | Resolution::RebootNode => RecoveryAction::NodeReboot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_scenario::{Scenario, Topology};

    #[test]
    fn gpu_breaks_and_is_mended() {
        let folder = tempfile::tempdir().unwrap();
        Scenario::new("n", "Tesla T4", 2, Topology::Pcie)
            .save(folder.path())
            .unwrap();
        let state = StateFile::open(folder.path()).unwrap();
        let apply = |change: GpuChange| change.apply(&state, 1).unwrap();

        let text = apply(GpuChange::Xid { number: 79 });
        assert_eq!(text, "XID 79; the driver asks for a reboot of the node until `recover`");
        assert_eq!(
            apply(GpuChange::Xid { number: 31 }),
            "XID 31; the driver asks for no repair"
        );
        apply(GpuChange::Lose);
        let broken = state.read().unwrap().gpu(1);
        assert_eq!(broken.recovery_action, RecoveryAction::NodeReboot);
        assert!(broken.lost);
        assert_eq!(broken.xids.iter().map(|event| event.xid).collect::<Vec<_>>(), [79, 31]);

        let function = "nvmlDeviceCreateGpuInstance";
        let fail = |instances| GpuChange::Fail {
            function: function.to_owned(),
            code: ReturnCode::InUse,
            instances,
        };
        assert_eq!(apply(fail(None)), format!("{function} answers IN_USE until `recover`"));
        apply(fail(Some(2)));
        let monitor = GpuChange::Hold {
            program: "dcgm".to_owned(),
            gpu_instance: Some(9),
        };
        assert_eq!(apply(monitor), "dcgm keeps a handle open until `let-go`");
        let broken = state.read().unwrap().gpu(1);
        assert_eq!(broken.failure(function), Some(ReturnCode::InUse));
        assert_eq!(broken.failure_at(function, 2), Some(ReturnCode::InUse));
        assert!(broken.uses_instance(9, None));
        apply(GpuChange::LetGo);

        apply(GpuChange::Recover);
        let mended = state.read().unwrap().gpu(1);
        assert_eq!((mended.recovery_action, mended.lost), (RecoveryAction::None, false));
        assert_eq!((mended.failure(function), mended.uses_instance(9, None)), (None, false));
        let other = GpuChange::Lose.apply(&state, 2).unwrap_err();
        assert_eq!(other.to_string(), "the scenario has no GPU 2, only 2 GPUs");
    }

    #[test]
    fn driver_asks_for_the_repair_of_the_catalog() {
        for (xid, action) in [
            (13, RecoveryAction::None),
            (48, RecoveryAction::GpuReset),
            (74, RecoveryAction::GpuReset),
            (79, RecoveryAction::NodeReboot),
            (9999, RecoveryAction::GpuReset),
            (u64::MAX, RecoveryAction::GpuReset),
        ] {
            assert_eq!(requested_action(xid), action, "XID {xid}");
        }
    }
}
