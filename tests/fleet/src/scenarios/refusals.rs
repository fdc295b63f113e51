//! The API server refuses the operators' lists for a while, with a real priority level that admits nothing.

use crate::{
    Fleet,
    api::{ApiClient, NODES, PatchForm},
    progress::with_progress,
    scenarios::QUIET,
};
use anyhow::{Result, ensure};
use serde::de::IgnoredAny;
use serde_json::json;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::{task::JoinSet, time::sleep};

const NAME: &str = "fleet-refusal";
const COLLECTION: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
/// Time for which lists are refused.
const REFUSED: Duration = Duration::from_secs(20);
/// Lists of the bench at a time. A priority level without seats admits a request if no other one is under way, so these
/// keep it busy: the operators' lists find it empty now and then.
const OCCUPANTS: usize = 3;
/// Pause of an occupant whose list was refused.
const RETRY: Duration = Duration::from_millis(20);

/// Lists that were refused for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refusals {
    /// Lists of nodes that the API server answered with 429.
    pub refused: usize,
    /// Most lists of one kind that one replica tried meanwhile.
    pub most_lists: usize,
    /// Seconds from the end of the refusals until both replicas are ready.
    pub back: f64,
}

/// Restarts both replicas while their lists are refused.
pub async fn refusals(fleet: &Fleet) -> Result<Refusals> {
    refuse(fleet).await?;
    let result = while_refused(fleet).await;
    admit(fleet).await?;
    let (mut pair, refused, most_lists) = result?;
    ensure!(
        refused > 0,
        "the API server refused no list of nodes, so nothing was measured"
    );
    let begin = Instant::now();
    fleet.await_settled(&mut pair).await?;
    let back = begin.elapsed().as_secs_f64();
    let mut requests = fleet.requests()?;
    fleet.await_quiet(&mut requests, QUIET).await?;
    Ok(Refusals {
        refused,
        most_lists,
        back,
    })
}

async fn while_refused(fleet: &Fleet) -> Result<(crate::OperatorPair, usize, usize)> {
    let mut requests = fleet.requests()?;
    let mut occupants = JoinSet::new();
    for _ in 0..OCCUPANTS {
        occupants.spawn(occupy(fleet.account().clone()));
    }
    let pair = fleet.start_unsettled_pair()?;
    with_progress("lists are refused", sleep(REFUSED)).await;
    occupants.shutdown().await;
    let mut lists: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut refused = 0;
    for request in requests.read()?.iter().filter(|request| request.is_list()) {
        // The Lease's lists renew it, and pages of an admitted list are no retries.
        if request.code() != 429 {
            continue;
        }
        *lists
            .entry((request.credential().to_owned(), request.resource()))
            .or_default() += 1;
        refused += usize::from(request.resource() == "nodes");
    }
    Ok((pair, refused, lists.values().copied().max().unwrap_or_default()))
}

/// Lists all nodes again and again.
async fn occupy(api: ApiClient) {
    loop {
        if api.get::<IgnoredAny>(NODES).await.is_err() {
            sleep(RETRY).await;
        }
    }
}

/// Creates a priority level without seats for lists and watches of the operator's account.
async fn refuse(fleet: &Fleet) -> Result<()> {
    let level = json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration", "metadata": {"name": NAME},
        "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Reject"},
        }},
    });
    let schema = json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": NAME},
        "spec": {
            "priorityLevelConfiguration": {"name": NAME},
            "matchingPrecedence": 2,
            "rules": [{
                "subjects": [{
                    "kind": "ServiceAccount",
                    "serviceAccount": {"name": "gpunode-operator", "namespace": "gpunode-system"},
                }],
                "resourceRules": [{
                    "verbs": ["list", "watch"], "apiGroups": ["", "gpunode.dev"], "resources": ["nodes", "gpunodes"],
                    "clusterScope": true,
                }],
            }],
        },
    });
    for (collection, object) in [("prioritylevelconfigurations", level), ("flowschemas", schema)] {
        let path = format!("{COLLECTION}/{collection}/{NAME}?fieldManager=fleet&force=true");
        fleet
            .admin()
            .patch::<IgnoredAny>(&path, PatchForm::Apply, &object)
            .await?;
    }
    // The API server reads its configuration of priorities again.
    sleep(QUIET).await;
    Ok(())
}

async fn admit(fleet: &Fleet) -> Result<()> {
    for collection in ["flowschemas", "prioritylevelconfigurations"] {
        fleet
            .admin()
            .delete(&format!("{COLLECTION}/{collection}/{NAME}"))
            .await?;
    }
    Ok(())
}
