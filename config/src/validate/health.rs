//! Bounds of the lists of faults and XIDs, and their overlap.

use super::{list_length::validate_length, problem::FieldProblem};
use crate::HealthRules;

const MAX_FAULTS: usize = 16;
const MAX_XIDS: usize = 64;
pub(crate) const MAX_XID: i32 = 65535;

pub(super) fn validate(path: &str, health: &HealthRules, problems: &mut Vec<FieldProblem>) {
    validate_length(format!("{path}.ignore"), health.ignore.len(), 0..=MAX_FAULTS, problems);
    for (field, xids) in [("ignoreXids", &health.ignore_xids), ("watchXids", &health.watch_xids)] {
        validate_length(format!("{path}.{field}"), xids.len(), 0..=MAX_XIDS, problems);
        for (index, xid) in xids.iter().enumerate().filter(|(_, xid)| !(1..=MAX_XID).contains(*xid)) {
            problems.push(FieldProblem::new(
                format!("{path}.{field}[{index}]"),
                format!("{xid} is not between 1 and {MAX_XID}"),
            ));
        }
    }
    for (index, xid) in health
        .watch_xids
        .iter()
        .enumerate()
        .filter(|(_, xid)| health.ignore_xids.contains(xid))
    {
        problems.push(FieldProblem::new(
            format!("{path}.watchXids[{index}]"),
            format!("{xid} is also in ignoreXids; remove it from one of them"),
        ));
    }
}

#[cfg(test)]
mod tests {
    use crate::load;

    #[test]
    fn an_xid_is_ignored_or_watched_and_not_both() {
        let problems = |health: &str| {
            load(&format!("health: {health}")).map_or_else(
                |error| error.problems().iter().map(ToString::to_string).collect(),
                |_| Vec::new(),
            )
        };
        assert_eq!(
            problems("{ignoreXids: [94], watchXids: [13, 43], recovery: Manual}"),
            Vec::<String>::new()
        );
        assert_eq!(
            problems("{ignore: [NvLinkDown, RowRemapFailed, FabricNotReady]}"),
            Vec::<String>::new()
        );
        assert_eq!(
            problems(&format!("{{ignore: [{}]}}", ["NvLinkDown"; 17].join(", "))),
            ["health.ignore: must have at most 16 entries, has 17"]
        );
        assert_eq!(
            problems("{ignoreXids: [94, 0], watchXids: [65536, 94]}"),
            [
                "health.ignoreXids[1]: 0 is not between 1 and 65535",
                "health.watchXids[0]: 65536 is not between 1 and 65535",
                "health.watchXids[1]: 94 is also in ignoreXids; remove it from one of them",
            ]
        );
    }
}
