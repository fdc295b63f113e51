//! The API server restarts, and no watch can continue.

use crate::{
    Fleet,
    api::{NODES, PatchForm},
    audit::{OperatorRequest, OperatorRequests, seconds_between},
    objects::{GPUS, node_name},
    operator_process::{memory, reset_peak},
    progress::{WaitProgress, with_progress},
    raw::bare_list,
    scenarios::{KEY, QUIET, await_node, has_taint, label_policy, measured_change, most, steady_memory},
};
use anyhow::{Context, Result, ensure};
use gpunode_crds::UNHEALTHY_TAINT;
use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::json;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Time in which a lost watch must begin anew.
const LIMIT: Duration = Duration::from_secs(90);
/// Longer than the time between two renewals of the Lease.
const RENEWALS: Duration = Duration::from_secs(12);
const LOOK: Duration = Duration::from_millis(100);

/// A restart of the API server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpiredWatches {
    /// Writes of the operators after a restart of the API server without any change.
    pub writes: usize,
    /// From the leader's first list to the answer to a change that the ends of both lists show, of a bare list by two clients.
    pub ratio: f64,
    /// Seconds of the bare list, right after a restart of the API server too.
    pub bare: f64,
    /// Peak of resident memory after a restart of the operators, the greater of both, in MiB.
    pub start_peak: f64,
    /// The same after the restart of the API server.
    pub expired_peak: f64,
    /// Resident memory once it is steady after the restart of the API server, of that before, the greater of both.
    pub resident_ratio: f64,
}

/// Measures two restarts with operators and one without.
pub async fn expired_watches(fleet: &Fleet) -> Result<ExpiredWatches> {
    let pair = fleet.start_pair().await?;
    let (name, mut policy) = label_policy(0);
    policy["unhealthyTaint"] = json!({"after": "0s", "minHealthy": GPUS});
    measured_change(fleet, &pair, &[(name, policy)], fleet.size()).await?;
    drop(pair);
    fleet.restart_api_server().await?;
    let bare = bare_list(fleet, 2).await?;

    // The processes are new, so their peak is that of a restart.
    let mut requests = fleet.requests()?;
    let pair = fleet.start_pair().await?;
    let kinds = lists_by_kind(&mut requests)?;
    let start_peak = most(&pair, |pid| Ok(memory(pid)?.peak))?;
    let steady = steady_memory(&pair).await?;
    pair.pids().into_iter().try_for_each(reset_peak)?;
    let mut requests = fleet.requests()?;
    fleet.restart_api_server().await?;
    await_lists(&mut requests, &kinds, pair.pids().len()).await?;
    fleet.await_quiet(&mut requests, QUIET * 4).await?;
    let writes = requests.writes()?.count();
    let expired_peak = most(&pair, |pid| Ok(memory(pid)?.peak))?;
    let resident_ratio = steady_memory(&pair).await? / steady;

    let mut requests = fleet.requests()?;
    with_progress("a renewal of the Lease", sleep(RENEWALS)).await;
    let renewal = requests.read()?.iter().rfind(|request| request.is_renewal());
    let leader = renewal.context("find the leader's renewal")?.credential().to_owned();
    let restart = Timestamp::now();
    fleet.restart_api_server().await?;
    // The last nodes of both lists, so that both have been read.
    let names = [1, 2].map(|from_end| node_name(fleet.size() - from_end));
    let [labelled, faulty] = &names;
    let change = json!({"metadata": {"labels": {KEY: null}}});
    let path = format!("{NODES}/{labelled}");
    fleet
        .admin()
        .patch::<IgnoredAny>(&path, PatchForm::Merge, &change)
        .await?;
    fleet.agents().set_unhealthy(faulty, true).await?;
    await_node(fleet, labelled, |node| node["metadata"]["labels"][KEY].is_string()).await?;
    await_node(fleet, faulty, |node| has_taint(node, UNHEALTHY_TAINT)).await?;
    let all = requests.read()?.iter();
    let mut of_leader = all.filter(|request| request.credential() == leader && request.stage_timestamp > restart);
    let of_either = ["nodes", "gpunodes"];
    let list = of_leader
        .find(|request| request.is_list() && request.code() < 300 && of_either.contains(&request.resource().as_str()))
        .context("find the leader's list after the restart; did it lose the Lease?")?
        .request_received_timestamp;
    let answer = requests
        .writes()?
        .filter(|write| write.resource() == "nodes" && names.iter().any(|name| write.name() == name))
        .map(|write| write.stage_timestamp)
        .max()
        .context("find the last write of a node")?;
    fleet.agents().set_unhealthy(faulty, false).await?;
    fleet.await_quiet(&mut requests, QUIET).await?;
    Ok(ExpiredWatches {
        writes,
        ratio: seconds_between(list, answer) / bare,
        bare,
        start_peak,
        expired_peak,
        resident_ratio,
    })
}

/// Counts the lists that were answered, by what they list; those of Leases, which are no caches, are left out.
fn lists_by_kind(requests: &mut OperatorRequests) -> Result<BTreeMap<String, usize>> {
    let mut lists = BTreeMap::new();
    let is_answered = |request: &&OperatorRequest| request.is_list() && request.code() < 300 && !request.is_of_lease();
    for list in requests.read()?.iter().filter(is_answered) {
        *lists.entry(list.resource()).or_default() += 1;
    }
    Ok(lists)
}

/// Waits until so many replicas have listed each of these kinds, which they listed when they started.
async fn await_lists(requests: &mut OperatorRequests, kinds: &BTreeMap<String, usize>, replicas: usize) -> Result<()> {
    ensure!(kinds.contains_key("nodes"), "the operators listed no nodes: {kinds:?}");
    let (end, mut progress) = (Instant::now() + LIMIT, WaitProgress::start());
    loop {
        let seen = lists_by_kind(requests)?;
        let is_late = |kind: &&String| seen.get(*kind).is_none_or(|lists| *lists < replicas);
        let late: Vec<&String> = kinds.keys().filter(is_late).collect();
        if late.is_empty() {
            return Ok(());
        }
        let state = || format!("not every replica has listed {late:?} again");
        ensure!(Instant::now() < end, state());
        progress.tick(state);
        sleep(LOOK).await;
    }
}
