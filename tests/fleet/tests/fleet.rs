//! Five hundred simulated nodes on a real API server. Writes and their order are judged strictly, times by a factor, since
//! other clusters run on the machine.

use anyhow::{Context, Result};
use futures::FutureExt as _;
use gpunode_fleet_tests::{
    Fleet, client_limit, configuration_change, expired_watches, failover, idle, label_change, many_policies, number,
    refusals, silent_agents, slow_api_server,
};
use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::{Mutex, PoisonError},
    time::Duration,
};

const NODES: usize = 500;
/// Factor of times by which other work on the machine slows the fleet at most.
const BUSY: f64 = 3.0;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a test on the fleet of the cluster that `GPUNODE_FLEET_CLUSTER` names, and takes its policies back afterwards.
fn on_fleet(test: impl AsyncFnOnce(&mut Fleet) -> Result<()>) -> Result<()> {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let name = std::env::var("GPUNODE_FLEET_CLUSTER").unwrap_or_else(|_| "e2e-fleet".to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start a runtime")?;
    // On this thread, which lives as long as the operators of the test.
    runtime.block_on(async {
        let mut fleet = Fleet::on_cluster(&name, NODES).await?;
        // What one that failed leaves must not be counted by the next one.
        let result = AssertUnwindSafe(test(&mut fleet)).catch_unwind().await;
        let cleaned = fleet.clean().await;
        match result {
            Ok(result) => result.and(cleaned),
            Err(panic) => resume_unwind(panic),
        }
    })
}

#[test]
#[ignore = "needs the fleet's cluster: CONTRIBUTING.md"]
fn label_and_taint_change_is_one_write_per_node() -> Result<()> {
    on_fleet(async |fleet| {
        let change = label_change(fleet, 1).await?;
        println!("{change:#?}");
        assert_eq!(change.most_writes, 1);
        assert!((change.writes_per_node - 1.0).abs() < 1e-9);
        assert_eq!(change.node_lines, 0, "5,000 nodes would fill the log");
        assert!(change.policy_lines >= 2 && number(change.policy_lines) < change.elapsed + 3.0);
        assert!(change.ratio > 0.5, "a bare client is more than twice as fast");
        assert!(change.leader < 5.0 && change.standby < change.leader);
        // 16 to 20 MiB. Each node whole would be 25 MiB more.
        assert!(change.resident < 32.0);
        Ok(())
    })
}

#[test]
#[ignore = "needs the fleet's cluster: CONTRIBUTING.md"]
fn limit_of_the_client_sets_the_pace_of_writes() -> Result<()> {
    const QPS: u32 = 50;
    on_fleet(async |fleet| {
        let change = client_limit(fleet, QPS).await?;
        println!("{change:#?}");
        assert_eq!(change.most_writes, 1);
        // As many as in one second go at once.
        let least = number(NODES) / f64::from(QPS) - 1.0;
        assert!(change.seconds > least && change.seconds < least * BUSY);
        Ok(())
    })
}

#[test]
#[ignore = "needs the fleet's cluster: CONTRIBUTING.md"]
fn configuration_change_is_one_write_of_the_operator_and_one_of_the_agent_per_node() -> Result<()> {
    on_fleet(async |fleet| {
        let change = configuration_change(fleet).await?;
        println!("{change:#?}");
        assert_eq!((change.most_spec_writes, change.node_writes), (1, 0));
        assert!((change.spec_writes_per_node - 1.0).abs() < 1e-9);
        assert!((change.status_writes_per_node - 1.0).abs() < 1e-9);
        assert!(change.ratio < 1.2 * BUSY);
        Ok(())
    })
}

#[test]
#[ignore = "needs the fleet's cluster: CONTRIBUTING.md"]
fn agents_that_never_answer_hold_up_nobody_until_the_deadline_and_then_stop_the_rollout() -> Result<()> {
    on_fleet(async |fleet| {
        let change = silent_agents(fleet, 100).await?;
        println!("{change:#?}");
        assert_eq!((change.nodes, change.silent), (NODES, 5));
        assert_eq!(change.most_spec_writes, 1);
        assert!((change.spec_writes_per_node - 1.0).abs() < 1e-9);
        assert!(change.budget <= 1.0, "more nodes changed than maxUnavailable allows");
        assert!(change.stopped < change.deadline + 10.0 * BUSY);
        assert!(change.recovered < 10.0 * BUSY);
        Ok(())
    })
}

#[test]
#[ignore = "needs the fleet's cluster: CONTRIBUTING.md"]
fn change_ends_and_the_lease_stays_although_every_request_is_late() -> Result<()> {
    on_fleet(async |fleet| {
        let change = slow_api_server(fleet).await?;
        println!("{change:#?}");
        assert_eq!((change.nodes, change.most_requests), (NODES, 1));
        assert!(change.renewals < 10.0, "the leader may not write after this time");
        assert!(change.livez < 500.0);
        assert!(change.ratio < 1.2 * BUSY);
        Ok(())
    })
}

#[test]
#[ignore = "needs the fleet's cluster: CONTRIBUTING.md"]
fn nobody_waits_while_fifty_policies_change() -> Result<()> {
    on_fleet(async |fleet| {
        let change = many_policies(fleet).await?;
        println!("{change:#?}");
        assert_eq!(change.most_writes, 1);
        assert!(change.samples > 0);
        assert!(change.lease_late < 1000.0 && change.livez < 500.0);
        assert!(change.served < BUSY);
        assert!(change.resident < 40.0);
        Ok(())
    })
}

#[test]
#[ignore = "needs the fleet's cluster: CONTRIBUTING.md"]
fn watches_that_expire_together_lead_to_no_write() -> Result<()> {
    on_fleet(async |fleet| {
        let restart = expired_watches(fleet).await?;
        println!("{restart:#?}");
        assert_eq!(restart.writes, 0);
        // A bare list of 500 nodes takes less than the operator's pauses.
        assert!(restart.ratio * restart.bare < 10.0 * BUSY);
        assert!(restart.start_peak.max(restart.expired_peak) < 40.0);
        assert!(restart.resident_ratio < 1.5, "memory goes back after a peak");
        Ok(())
    })
}

#[test]
#[ignore = "needs the fleet's cluster: CONTRIBUTING.md"]
fn change_that_loses_its_leader_is_finished_and_writes_no_node_twice() -> Result<()> {
    on_fleet(async |fleet| {
        let lost = failover(fleet, 1).await?;
        println!("{lost:#?}");
        assert_eq!(lost.most_writes, 1);
        // A bare list of 500 nodes takes less than the start of a process. The Lease ends after 15 s.
        assert!(lost.restart_ratio * lost.bare < 3.0 * BUSY);
        assert!(lost.standby < 17.0 * BUSY);
        assert!(lost.hand_over < BUSY);
        Ok(())
    })
}

#[test]
#[ignore = "needs the fleet's cluster: CONTRIBUTING.md"]
fn refused_lists_are_repeated_slower_and_slower() -> Result<()> {
    on_fleet(async |fleet| {
        let refused = refusals(fleet).await?;
        println!("{refused:#?}");
        // Pauses of 1, 2, 4 and 8 s with jitter, the first try and one list in another form.
        assert!((1..=8).contains(&refused.most_lists));
        assert!(refused.back < 60.0);
        Ok(())
    })
}

#[test]
#[ignore = "needs the fleet's cluster: CONTRIBUTING.md"]
fn heartbeats_lead_to_no_write() -> Result<()> {
    on_fleet(async |fleet| {
        let idle = idle(fleet, Duration::from_secs(20)).await?;
        println!("{idle:#?}");
        assert_eq!(idle.writes, 0);
        assert!(idle.leader < 5.0 && idle.standby < 5.0 && idle.heartbeats > 0.0);
        Ok(())
    })
}
