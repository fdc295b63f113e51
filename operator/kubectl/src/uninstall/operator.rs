//! The end of the operator, which would write again what is removed.

use super::{Installed, Removal};
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
/// How long a Lease holds at most, whatever it says; as the operator has it.
const MAX_DURATION: Duration = Duration::from_mins(1);
/// How long a Lease holds that does not say; as the operator has it.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Longest wait for the operator: its pods have 10 s, and a Lease of a lost one holds for 15 s.
const LIMIT: Duration = Duration::from_secs(45);

const STEP: &str = "operator";

impl Removal {
    /// Deletes the operator and waits until no process of it can write.
    pub async fn stop_operator(&mut self) {
        let deployment = Installed {
            kind: ApiResource::erase::<Deployment>(&()),
            namespace: Some(self.namespace.clone()),
            name: NAME.to_owned(),
        };
        self.delete(&deployment).await;
        let end = self.within(LIMIT);
        let mut watch = Watch::default();
        loop {
            match self.look(&mut watch).await {
                Ok(None) => return self.progress.done(STEP, "stopped"),
                Ok(Some(holder)) if Instant::now() >= end => {
                    return self.leave(
                        "the operator",
                        format!("{holder} still renews the Lease {NAME}, so it writes again what goes; stop it, then run this again"),
                    );
                }
                Err(error) => return self.leave("the operator", format!("{error:#}; see that it does not run")),
                Ok(Some(holder)) => self.progress.doing(STEP, &format!("waiting for {holder} to end")),
            }
            self.pause().await;
        }
    }

    /// Who may still write, if anybody.
    async fn look(&self, watch: &mut Watch) -> anyhow::Result<Option<String>> {
        let pods = self
            .names::<Pod>(Some(&self.namespace), &format!("app.kubernetes.io/name={NAME}"))
            .await?;
        let lease: Option<Lease> = self.get(&self.namespace, NAME).await?;
        Ok(watch.look(pods, lease.and_then(|lease| lease.spec), Instant::now()))
    }
}

/// What was seen of the operator.
#[derive(Debug, Default)]
struct Watch {
    pods: BTreeSet<String>,
    renewal: Option<(Option<String>, Option<Timestamp>, Instant)>,
}

impl Watch {
    /// Who may still write, from what is there now: a pod that is there, or a holder of the Lease that was not such a pod,
    /// until the Lease has not been renewed for its duration by this machine's clock.
    fn look(&mut self, pods: Vec<String>, lease: Option<LeaseSpec>, now: Instant) -> Option<String> {
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
        // A pod that is no more does not write, nor does one whose claim has ended, on a node that does not answer.
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
        let (mut watch, now) = (Watch::default(), Instant::now());
        assert_eq!(
            watch
                .look(vec!["a".into(), "b".into()], Some(lease("a", 1)), now)
                .as_deref(),
            Some("pod a")
        );
        assert_eq!(
            watch.look(vec!["b".into()], Some(lease("b", 2)), now).as_deref(),
            Some("pod b")
        );
        assert_eq!(
            watch.look(Vec::new(), Some(lease("b", 2)), now),
            None,
            "it was killed and could not let go"
        );
        assert_eq!(Watch::default().look(Vec::new(), None, now), None, "there was none");
        assert_eq!(
            Watch::default().look(Vec::new(), Some(lease("", 1)), now),
            None,
            "it has let go"
        );
    }

    #[test]
    fn one_that_is_no_pod_has_ended_when_its_lease_has() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(
            watch.look(Vec::new(), Some(lease("laptop", 1)), now).as_deref(),
            Some("laptop")
        );
        assert_eq!(
            watch.look(Vec::new(), Some(lease("laptop", 6)), after(14)).as_deref(),
            Some("laptop")
        );
        assert_eq!(
            watch.look(Vec::new(), Some(lease("laptop", 6)), after(28)).as_deref(),
            Some("laptop")
        );
        assert_eq!(watch.look(Vec::new(), Some(lease("laptop", 6)), after(29)), None);
    }

    #[test]
    fn a_pod_on_a_dead_node_has_ended_when_its_lease_has() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        assert!(watch.look(vec!["a".into()], Some(lease("a", 1)), now).is_some());
        assert_eq!(
            watch.look(vec!["a".into()], Some(lease("a", 1)), now + Duration::from_secs(15)),
            None
        );
    }
}
