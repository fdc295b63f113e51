//! NVIDIA's XID catalog: meaning, resolution, effect on health.
//!
//! Source: NVIDIA's XID catalog for Ampere and newer, <https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html>.

use crate::HealthRules as Rules;

/// Repair that clears a fault, mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resolution {
    /// The GPU needs nothing.
    Ignore,
    /// The application that was hit ends.
    RestartApp,
    /// A person checks the links; one of their ends needs a reset.
    CheckLinks,
    /// The GPU is reset.
    ResetGpu,
    /// The virtual machine restarts.
    RestartVm,
    /// The node reboots.
    RebootNode,
}

impl Resolution {
    /// Returns the advice for people.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Ignore => "the GPU needs nothing",
            Self::RestartApp => "delete the pods that use the device",
            Self::CheckLinks => "check the NVLinks of the GPU and reset the GPU",
            Self::ResetGpu => "reset the GPU",
            Self::RestartVm => "restart the virtual machine",
            Self::RebootNode => "reboot the node; if the fault returns, check how the GPU is seated and powered",
        }
    }
}

/// Returns meaning and resolution of an XID, or none if the catalog does not have the number.
pub fn describe_xid(xid: i32) -> Option<(&'static str, Resolution)> {
    use Resolution::{CheckLinks, Ignore, RebootNode, ResetGpu, RestartApp, RestartVm};
    Some(match xid {
        8 => ("GPU stopped processing", RestartApp),
        11 | 25 | 32 => ("invalid or corrupted push buffer", RestartApp),
        13 => ("graphics engine exception", RestartApp),
        14 => ("injected error", Ignore),
        31 => ("GPU memory page fault", RestartApp),
        37 | 38 | 44 | 66 | 67 => ("firmware error or illegal access by the driver", Ignore),
        39..=41 | 70..=72 | 75..=77 | 85 | 126..=135 => ("copy engine error", RestartApp),
        43 => ("GPU stopped processing for one application", Ignore),
        // It follows the XID of the cause, or the end of an application: the other one counts.
        45 => ("channels of an application were removed", RestartApp),
        46 => ("GPU timeout", ResetGpu),
        48 => ("double bit ECC error", ResetGpu),
        60 | 68 | 82..=84 | 86 | 88 | 89 | 96..=105 | 139 => ("video, JPEG or optical flow engine error", RestartApp),
        62 => ("internal micro-controller halt", ResetGpu),
        63 => ("memory row remapped or page retired", Ignore),
        64 => ("memory row remapping or page retirement failed", ResetGpu),
        69 => ("graphics class error", RestartApp),
        74 => ("NVLink error", CheckLinks),
        79 => ("GPU has fallen off the bus", RebootNode),
        92 => ("high rate of single bit ECC errors", Ignore),
        94 => ("contained memory error", RestartApp),
        95 => ("uncontained memory error", ResetGpu),
        109 => ("context switch timeout", ResetGpu),
        110 => ("security fault", ResetGpu),
        119 | 120 => ("error of the GPU's system processor (GSP)", ResetGpu),
        121 => ("corrected chip-to-chip link error", Ignore),
        136 => ("link training failed", ResetGpu),
        137 => ("NVLink privilege error", Ignore),
        140 => ("unrecovered ECC error", ResetGpu),
        143 => ("GPU initialization error", ResetGpu),
        144..=150 => ("NVLink 5 error", CheckLinks),
        151 => ("key rotation error", RestartVm),
        // It accompanies another XID; a probe reads the recovery action that it announces.
        154 => ("recovery action changed", Ignore),
        155 => ("NVLink software defined error", ResetGpu),
        156 => ("resource retirement", ResetGpu),
        157 => ("resource retirement failed", Ignore),
        158 => ("GPU fatal timeout", ResetGpu),
        171 => ("uncorrectable DRAM error", ResetGpu),
        172 => ("uncorrectable SRAM error", ResetGpu),
        _ => return None,
    })
}

/// Returns true if an XID makes a device unhealthy under these rules. An XID that the catalog does not have does.
pub fn is_xid_fault(xid: i32, rules: &Rules) -> bool {
    if rules.watch_xids.contains(&xid) {
        return true;
    }
    !rules.ignore_xids.contains(&xid)
        && describe_xid(xid).is_none_or(|(_, resolution)| resolution > Resolution::RestartApp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_end_of_an_application_cures_is_ignored_unless_watched() {
        let rules = Rules {
            ignore_xids: vec![79],
            watch_xids: vec![94],
            ..Rules::default()
        };
        let counted = |rules: &Rules| {
            [13, 31, 43, 45, 48, 63, 68, 79, 94, 95, 109, 154, 9999]
                .into_iter()
                .filter(|xid| is_xid_fault(*xid, rules))
                .collect::<Vec<_>>()
        };
        assert_eq!(counted(&Rules::default()), [48, 79, 95, 109, 9999]);
        assert_eq!(counted(&rules), [48, 94, 95, 109, 9999]);
    }
}
