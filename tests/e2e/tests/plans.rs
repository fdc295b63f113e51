//! The end of the suite: no policy was changed without a comparison of its plan with what came of it, or a reason for none.

use anyhow::{Context, Result, ensure};
use gpunode_e2e::{AuditLog, Lab};

#[test]
#[ignore = "needs the local cluster, after all other tests: make test"]
fn every_policy_change_of_the_suite_was_compared_with_its_plan() -> Result<()> {
    let lab = Lab::enter()?;
    let known = lab.policy_changes()?;
    let audit = AuditLog::entire(lab.cluster().audit_log());
    for write in audit.events()?.iter().filter(|event| event.is_policy_change()) {
        let time = write.time()?;
        let of_it = known.iter().filter(|change| (change.from..=change.to).contains(&time));
        of_it
            .flat_map(|change| &change.policies)
            .find(|policy| *policy == write.name())
            .with_context(|| format!("nobody compared with a plan what came of {write}"))?;
    }
    let differences: u64 = known.iter().map(|change| change.differences).sum();
    println!(
        "{} policy changes, {differences} differences of nodes as planned",
        known.len()
    );
    ensure!(differences > 0, "nothing was compared");
    Ok(())
}
