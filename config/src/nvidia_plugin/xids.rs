//! The plugin's rules for XIDs (`internal/rm/health.go`), as rules beside gpunode's own.

use super::{
    options::{DISABLED_XIDS, ENABLED_XIDS},
    report::Report,
    settings::PluginSettings,
};
use crate::{HealthRules, IgnorableFault, is_xid_fault, validate::health::MAX_XID};
use std::collections::BTreeSet;

/// XIDs that never make a GPU unhealthy for the plugin, unless a variable names them.
const IGNORED: [i32; 6] = [13, 31, 43, 45, 68, 109];

/// Faults other than XIDs, which the plugin does not look for.
const OTHER_FAULTS: [IgnorableFault; 7] = [
    IgnorableFault::UncorrectedEcc,
    IgnorableFault::RowRemapPending,
    IgnorableFault::RowRemapFailed,
    IgnorableFault::PageRetirementPending,
    IgnorableFault::NvLinkDown,
    IgnorableFault::RecoveryPending,
    IgnorableFault::FabricNotReady,
];

/// XIDs of one variable.
#[derive(Debug, PartialEq, Eq)]
enum Xids {
    All,
    These(BTreeSet<i32>),
}

/// Returns the rules under which the same XIDs make a GPU unhealthy as with the plugin.
pub(super) fn rules(settings: &PluginSettings, report: &mut Report) -> HealthRules {
    let disabled = read(settings, DISABLED_XIDS, report);
    let enabled = read(settings, ENABLED_XIDS, report);
    // As there, enabling beats disabling. With all disabled and only some enabled nothing is watched, which is a fault of the plugin.
    if disabled == Xids::All && enabled != Xids::All {
        report.differs(
            DISABLED_XIDS,
            "every XID of NVIDIA's catalog is ignored, and every fault that a policy can ignore; an XID that the catalog lacks \
             still counts, and a GPU that does not answer is never given out",
        );
        if matches!(&enabled, Xids::These(xids) if !xids.is_empty()) {
            report.ignored(ENABLED_XIDS, "has no effect where DP_DISABLE_HEALTHCHECKS is all");
        }
        return HealthRules {
            ignore: OTHER_FAULTS.to_vec(),
            ignore_xids: catalogued(true),
            ..HealthRules::default()
        };
    }
    if enabled == Xids::All {
        report.differs(
            ENABLED_XIDS,
            "every XID of NVIDIA's catalog makes a GPU unhealthy, also those that an application causes and its end cures",
        );
        return HealthRules {
            watch_xids: catalogued(false),
            ..HealthRules::default()
        };
    }
    let contains = |xids: &Xids, xid: i32| matches!(xids, Xids::These(xids) if xids.contains(&xid));
    let counts = |xid: i32| contains(&enabled, xid) || !(IGNORED.contains(&xid) || contains(&disabled, xid));
    let default = HealthRules::default();
    let differing: Vec<i32> = (1..=MAX_XID)
        .filter(|xid| counts(*xid) != is_xid_fault(*xid, &default))
        .collect();
    let (watch_xids, ignore_xids) = differing.into_iter().partition(|xid| counts(*xid));
    HealthRules {
        ignore_xids,
        watch_xids,
        ..default
    }
}

/// Returns the XIDs that count by default, or those that do not. An XID that NVIDIA's catalog lacks counts.
fn catalogued(that_count: bool) -> Vec<i32> {
    let default = HealthRules::default();
    let known = (1..=MAX_XID).filter(|xid| crate::describe_xid(*xid).is_some());
    known.filter(|xid| is_xid_fault(*xid, &default) == that_count).collect()
}

fn read(settings: &PluginSettings, variable: &str, report: &mut Report) -> Xids {
    let (text, _) = settings.text(variable).unwrap_or_default();
    let mut xids = BTreeSet::new();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        // XID 0 stands for all of them in the plugin's own list.
        let is_zero = word.bytes().all(|byte| byte == b'0');
        if word.eq_ignore_ascii_case("all") || word.eq_ignore_ascii_case("xids") || is_zero {
            return Xids::All;
        }
        let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
        match word.parse().ok().filter(|xid| is_number && (1..=MAX_XID).contains(xid)) {
            Some(xid) => _ = xids.insert(xid),
            None => report.ignored(variable, format!("`{word}` is no XID, a number from 1 to {MAX_XID}")),
        }
    }
    Xids::These(xids)
}
