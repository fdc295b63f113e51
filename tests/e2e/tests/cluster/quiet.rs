//! Shown 6: in an unchanged world gpunode writes nothing but its Lease.

use crate::samples;
use anyhow::Result;
use gpunode_e2e::{Lab, NAMESPACE, V100};
use std::time::Duration;

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_restarted_operator_in_an_unchanged_world_writes_nothing_for_a_minute() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&samples::policy("v100-reserved")?)?;
    lab.apply(&samples::policy("t4-time-slicing")?)?;
    lab.await_ready("v100-reserved")?;
    lab.await_ready("t4-time-slicing")?;
    lab.await_allocatable(V100, "nvidia.com/gpu", 8)?;

    // A start reads every object anew and reconciles each of them.
    lab.kubectl(&["-n", NAMESPACE, "rollout", "restart", "deployment/gpunode-operator"])?;
    lab.kubectl(&["-n", NAMESPACE, "rollout", "status", "deployment/gpunode-operator", "--timeout=120s"])?;
    let audit = lab.audit()?;
    // The one wait for a time in this suite: the claim is about a minute in which nothing happens.
    std::thread::sleep(Duration::from_mins(1));
    let writes: Vec<String> = audit.gpunode_writes()?.iter().map(ToString::to_string).collect();
    assert_eq!(writes, Vec::<String>::new());
    let renewals = audit
        .events()?
        .iter()
        .filter(|event| event.is_gpunode() && event.resource() == "leases" && event.is_write())
        .count();
    assert!(renewals > 0, "somebody leads in that minute");
    Ok(())
}
