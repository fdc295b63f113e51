//! Recovery actions of the driver (NVML field 230): grade, resolution, texts.
//!
//! Source: `nvmlDeviceGpuRecoveryAction_t` in nvml.h 13 (0 to 5), and the change log of NVML 615 (6 and 7),
//! <https://docs.nvidia.com/deploy/nvml-api/change-log.html>. Some headers of r575 give 5 to the bus reset: such a
//! GPU gets no new work, and nobody is evicted.
//!
//! | value | name | grade |
//! |---|---|---|
//! | 0 | `NONE` | none; an XID keeps new work away until a later probe shows it again |
//! | 1 | `GPU_RESET` | Broken |
//! | 2 | `NODE_REBOOT` | Broken |
//! | 3 | `DRAIN_P2P` | `NoNewWork`: running work is safe |
//! | 4 | `DRAIN_AND_RESET` | `NoNewWork`: the GPU has less capacity, running work is safe |
//! | 5 | `RECOVER_IMEX_DOMAIN` | `NoNewWork` |
//! | 6 | `BUS_RESET` | Broken |
//! | 7 | `SYSTEM_REBOOT` | Broken |

use gpunode_config::Resolution;
use gpunode_crds::FaultGrade;

const GPU_RESET: u32 = 1;
const NODE_REBOOT: u32 = 2;
const DRAIN_P2P: u32 = 3;
const DRAIN_AND_RESET: u32 = 4;
const RECOVER_IMEX_DOMAIN: u32 = 5;
const BUS_RESET: u32 = 6;
const SYSTEM_REBOOT: u32 = 7;

/// Returns the grade of a fault on a GPU whose driver reports this action. An action of a newer driver evicts nobody.
pub(super) fn grade(action: u32) -> FaultGrade {
    match action {
        GPU_RESET | NODE_REBOOT | BUS_RESET | SYSTEM_REBOOT => FaultGrade::Broken,
        _ => FaultGrade::NoNewWork,
    }
}

/// Returns the repair that the action asks for.
pub(super) fn resolution(action: u32) -> Resolution {
    match action {
        NODE_REBOOT | SYSTEM_REBOOT => Resolution::RebootNode,
        DRAIN_P2P | RECOVER_IMEX_DOMAIN => Resolution::CheckLinks,
        _ => Resolution::ResetGpu,
    }
}

/// Returns the advice for people.
pub(super) fn advice(action: u32) -> &'static str {
    match action {
        DRAIN_P2P => "end the pods that exchange data between GPUs; the driver then tells what the GPU needs",
        DRAIN_AND_RESET => "let the pods on the GPU end, then reset the GPU",
        RECOVER_IMEX_DOMAIN => "restore the IMEX domain of the node; if pods hold its channels, let them end first",
        action => resolution(action).advice(),
    }
}

/// Returns the request of the driver, such as `the driver asks for a reset of the GPU`.
pub fn request(action: u32) -> String {
    let request = match action {
        GPU_RESET => "for a reset of the GPU",
        NODE_REBOOT | SYSTEM_REBOOT => "for a reboot of the node",
        DRAIN_P2P => "to stop traffic between GPUs",
        DRAIN_AND_RESET => "to drain and reset the GPU, which has less capacity until then",
        RECOVER_IMEX_DOMAIN => "to recover the IMEX domain",
        BUS_RESET => "for a bus reset of the GPU",
        _ => return format!("the driver asks for recovery action {action}, which this version does not know"),
    };
    format!("the driver asks {request}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_that_nobody_knows_keeps_new_work_away_and_evicts_nobody() {
        let broken: Vec<u32> = (0..10).filter(|action| grade(*action) == FaultGrade::Broken).collect();
        assert_eq!(broken, [1, 2, 6, 7]);
        assert_eq!([2, 7].map(resolution), [Resolution::RebootNode; 2]);
        assert!(request(9).ends_with("recovery action 9, which this version does not know"));
    }
}
