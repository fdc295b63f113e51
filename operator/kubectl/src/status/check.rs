//! Checks that gpunode runs. Pure.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::ResourceExt;

/// Describes why gpunode does not run, from its Deployments and the DaemonSets of discovery; nothing where it runs.
pub fn what_does_not_run(operators: &[Deployment], discovery: &[DaemonSet]) -> Option<String> {
    let ready = |operator: &Deployment| {
        let status = operator.status.clone().unwrap_or_default();
        // The status of an earlier spec says nothing of this one.
        let is_current = status.observed_generation >= operator.metadata.generation;
        is_current
            && operator.spec.as_ref().and_then(|spec| spec.replicas) != Some(0)
            && status.ready_replicas > Some(0)
    };
    let Some(operator) = operators.first() else {
        return Some("there is no operator: its Deployment gpunode-operator is missing".to_owned());
    };
    if !operators.iter().any(ready) {
        return Some(format!(
            "no pod of the operator is ready; {}",
            see("deployment", operator)
        ));
    }
    let Some(daemonset) = discovery.first() else {
        return Some("the operator has not created the DaemonSet gpunode-discovery; see its log".to_owned());
    };
    let status = daemonset.status.clone().unwrap_or_default();
    let is_down = status.desired_number_scheduled > 0 && status.number_ready == 0;
    is_down.then(|| format!("no pod of the agents is ready; {}", see("daemonset", daemonset)))
}

/// Names the command that shows an object with its events.
fn see(kind: &str, object: &impl ResourceExt) -> String {
    let namespace = object.namespace().unwrap_or_default();
    format!("see `kubectl -n {namespace} describe {kind} {}`", object.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn operator(replicas: i32, ready: i32, observed: i64) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"name": "gpunode-operator", "namespace": "g", "generation": 2},
            "spec": {"replicas": replicas, "selector": {}, "template": {}},
            "status": {"readyReplicas": ready, "observedGeneration": observed},
        }))
        .expect("a Deployment")
    }

    fn discovery(desired: i32, ready: i32) -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": {"name": "gpunode-discovery", "namespace": "g"},
            "status": {"desiredNumberScheduled": desired, "numberReady": ready, "currentNumberScheduled": 0, "numberMisscheduled": 0},
        }))
        .expect("a DaemonSet")
    }

    #[test]
    fn an_installation_runs_with_a_ready_operator_and_agents() {
        for (operators, daemonsets, expected) in [
            (vec![operator(2, 1, 2)], vec![discovery(3, 2)], None),
            // Every node has a policy.
            (vec![operator(2, 1, 2)], vec![discovery(0, 0)], None),
            (vec![], vec![discovery(3, 3)], Some("there is no operator")),
            (
                vec![operator(2, 0, 2)],
                vec![discovery(3, 3)],
                Some("no pod of the operator is ready; see `kubectl -n g describe deployment"),
            ),
            (
                vec![operator(0, 2, 2)],
                vec![discovery(3, 3)],
                Some("no pod of the operator"),
            ),
            (
                vec![operator(2, 2, 1)],
                vec![discovery(3, 3)],
                Some("no pod of the operator"),
            ),
            (vec![operator(2, 2, 2)], vec![], Some("the operator has not created")),
            (
                vec![operator(2, 2, 2)],
                vec![discovery(3, 0)],
                Some("no pod of the agents is ready"),
            ),
        ] {
            let told = what_does_not_run(&operators, &daemonsets);
            let fits = match (&told, expected) {
                (Some(told), Some(expected)) => told.starts_with(expected),
                (told, expected) => told.is_none() && expected.is_none(),
            };
            assert!(fits, "{told:?}, expected {expected:?}");
        }
    }
}
