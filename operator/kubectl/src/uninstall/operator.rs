//! Stops the operator first, because it would recreate what is removed.

use super::{
    installed::InstalledObject,
    removal::{Removal, pause},
};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Pod,
    },
    jiff::Timestamp,
};
use kube::api::ApiResource;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Name of the operator's Deployment and Lease, and the value of the label of its pods.
const NAME: &str = "gpunode-operator";
/// Longest validity of a Lease, whatever it says; the operator uses the same bound.
const MAX_DURATION: Duration = Duration::from_mins(1);
/// Validity of a Lease that does not say; the operator uses the same value.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Longest wait for the operator: its pods have 10 s, and the Lease of a lost pod is valid for 15 s.
const LIMIT: Duration = Duration::from_secs(45);

const STEP: &str = "operator";

/// Deletes the operator's Deployment and waits until no operator process can write.
pub async fn stop_operator(removal: &mut Removal) {
    removal.delete(&deployment(&removal.requests.namespace)).await;
    let end = removal.within(LIMIT);
    let mut watch = OperatorWatch::default();
    loop {
        match possible_writer(removal, &mut watch).await {
            Ok(None) => return removal.progress.done(STEP, "stopped"),
            Ok(Some(holder)) if Instant::now() >= end => {
                return removal.leave(
                    "the operator",
                    format!("{holder} still renews Lease {NAME} and would recreate what is removed; stop it, then run this again"),
                );
            }
            Err(error) => return removal.leave("the operator", format!("{error:#}; make sure that it is not running")),
            Ok(Some(holder)) => removal.progress.doing(STEP, &format!("waiting for {holder} to end")),
        }
        pause().await;
    }
}

/// Names the operator's Deployment in a namespace.
pub fn deployment(namespace: &str) -> InstalledObject {
    InstalledObject {
        kind: ApiResource::erase::<Deployment>(&()),
        namespace: Some(namespace.to_owned()),
        name: NAME.to_owned(),
    }
}

/// Returns the pod or process that may still write, if any.
async fn possible_writer(removal: &Removal, watch: &mut OperatorWatch) -> anyhow::Result<Option<String>> {
    let pods = removal
        .requests
        .names::<Pod>(
            Some(&removal.requests.namespace),
            &format!("app.kubernetes.io/name={NAME}"),
        )
        .await?;
    let lease: Option<Lease> = removal.requests.get(NAME).await?;
    Ok(watch.writer(pods, lease.and_then(|lease| lease.spec), Instant::now()))
}

/// Observations of the operator's pods and Lease.
#[derive(Debug, Default)]
struct OperatorWatch {
    pods: BTreeSet<String>,
    renewal: Option<(Option<String>, Option<Timestamp>, Instant)>,
}

impl OperatorWatch {
    /// Returns who may still write: a pod that exists, or a holder of the Lease that is none of the pods seen, until the
    /// Lease was not renewed for its duration on this machine's clock.
    fn writer(&mut self, pods: Vec<String>, lease: Option<LeaseSpec>, now: Instant) -> Option<String> {
        let lease = lease.unwrap_or_default();
        let holder = lease.holder_identity.filter(|holder| !holder.is_empty());
        let renewed = lease.renew_time.map(|time| time.0);
        let since = match self.renewal.take() {
            Some((who, when, since)) if (&who, when) == (&holder, renewed) => since,
            _ => now,
        };
        self.renewal = Some((holder.clone(), renewed, since));
        let says = lease
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        let duration = Duration::from_secs(says.unwrap_or_default()).clamp(LEASE_DURATION, MAX_DURATION);
        let remaining = pods.first().cloned().map(|pod| format!("pod {pod}"));
        self.pods.extend(pods);
        // A pod that ended does not write, and neither does one on a dead node whose Lease has expired.
        let claims = holder.filter(|holder| !self.pods.contains(holder));
        remaining
            .or(claims)
            .filter(|_| now.saturating_duration_since(since) < duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    fn lease(holder: &str, second: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            renew_time: Timestamp::from_second(second).ok().map(MicroTime),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn the_operator_has_ended_with_its_pods() {
        let (mut watch, now) = (OperatorWatch::default(), Instant::now());
        assert_eq!(
            watch
                .writer(vec!["a".into(), "b".into()], Some(lease("a", 1)), now)
                .as_deref(),
            Some("pod a")
        );
        assert_eq!(
            watch.writer(vec!["b".into()], Some(lease("b", 2)), now).as_deref(),
            Some("pod b")
        );
        assert_eq!(
            watch.writer(Vec::new(), Some(lease("b", 2)), now),
            None,
            "it was killed and could not let go"
        );
        assert_eq!(
            OperatorWatch::default().writer(Vec::new(), None, now),
            None,
            "there was none"
        );
        assert_eq!(
            OperatorWatch::default().writer(Vec::new(), Some(lease("", 1)), now),
            None,
            "it has let go"
        );
    }

    #[test]
    fn one_that_is_no_pod_has_ended_when_its_lease_has() {
        let (mut watch, now) = (OperatorWatch::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(
            watch.writer(Vec::new(), Some(lease("laptop", 1)), now).as_deref(),
            Some("laptop")
        );
        assert_eq!(
            watch.writer(Vec::new(), Some(lease("laptop", 6)), after(14)).as_deref(),
            Some("laptop")
        );
        assert_eq!(
            watch.writer(Vec::new(), Some(lease("laptop", 6)), after(28)).as_deref(),
            Some("laptop")
        );
        assert_eq!(watch.writer(Vec::new(), Some(lease("laptop", 6)), after(29)), None);
    }

    #[test]
    fn a_pod_on_a_dead_node_has_ended_when_its_lease_has() {
        let (mut watch, now) = (OperatorWatch::default(), Instant::now());
        assert!(watch.writer(vec!["a".into()], Some(lease("a", 1)), now).is_some());
        assert_eq!(
            watch.writer(vec!["a".into()], Some(lease("a", 1)), now + Duration::from_secs(15)),
            None
        );
    }
}
