//! The last step of a rollout that the agent finished. The operator waits for it, and needs no write to end the step. Pure.

use gpunode_crds::{AgentMode, ConditionType, GpuNodeSpec, GpuNodeStatus};

/// Sets the start of the step in `spec` if `status` says that it is over, else that of `before`: a step that is over stays
/// over, whatever happens to the agent later.
pub fn set_finished_step(status: &mut GpuNodeStatus, before: &GpuNodeStatus, spec: &GpuNodeSpec) {
    let step = spec.step.as_ref().filter(|step| step.failed.is_none());
    let finished = step.filter(|_| serves_configuration(status, spec));
    status.finished_step = finished
        .map(|step| step.started_at.clone())
        .or_else(|| before.finished_step.clone());
}

/// Returns true if the agent is Ready with the configuration in `spec`, and belongs to the policy of it.
fn serves_configuration(status: &GpuNodeStatus, spec: &GpuNodeSpec) -> bool {
    let (Some(config), Some(agent)) = (&spec.config, &status.agent) else {
        return false;
    };
    let is_ready = ConditionType::Ready
        .find(&status.conditions)
        .is_some_and(|condition| condition.status == "True");
    let is_of_policy = agent.policy.as_ref().is_none_or(|policy| *policy == config.policy);
    let is_in_force = status.config_hash.as_ref() == Some(&config.hash);
    agent.mode == AgentMode::DevicePlugin && is_of_policy && is_in_force && is_ready
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::{Agent, Configuration, ConfigurationStep};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn spec(failed: Option<&str>) -> GpuNodeSpec {
        GpuNodeSpec {
            config: Some(Configuration {
                policy: "p".to_owned(),
                hash: "two".to_owned(),
                ..Configuration::default()
            }),
            step: Some(ConfigurationStep {
                started_at: at(7),
                generation: Some(1),
                failed: failed.map(str::to_owned),
            }),
            ..GpuNodeSpec::default()
        }
    }

    fn status(mode: AgentMode, policy: Option<&str>, hash: &str, ready: &str) -> GpuNodeStatus {
        let agent = Agent {
            policy: policy.map(str::to_owned),
            mode,
            ..Agent::default()
        };
        let ready = Condition {
            type_: "Ready".to_owned(),
            status: ready.to_owned(),
            reason: "R".to_owned(),
            message: String::new(),
            last_transition_time: at(0),
            observed_generation: None,
        };
        GpuNodeStatus {
            agent: Some(agent),
            config_hash: Some(hash.to_owned()),
            conditions: vec![ready],
            ..GpuNodeStatus::default()
        }
    }

    /// Returns the finished step of a status that follows one with the finished step 3.
    fn finished(mut status: GpuNodeStatus, spec: &GpuNodeSpec) -> Option<Time> {
        let before = GpuNodeStatus {
            finished_step: Some(at(3)),
            ..GpuNodeStatus::default()
        };
        set_finished_step(&mut status, &before, spec);
        status.finished_step
    }

    #[test]
    fn step_is_finished_once_the_agent_of_the_policy_is_ready_with_its_configuration() {
        let plugin = AgentMode::DevicePlugin;
        for (status, expected) in [
            (status(plugin, Some("p"), "two", "True"), 7),
            (status(plugin, None, "two", "True"), 7),
            (status(plugin, Some("q"), "two", "True"), 3),
            (status(plugin, Some("p"), "one", "True"), 3),
            (status(plugin, Some("p"), "two", "False"), 3),
            (status(AgentMode::Discovery, Some("p"), "two", "True"), 3),
            (GpuNodeStatus::default(), 3),
        ] {
            assert_eq!(finished(status.clone(), &spec(None)), Some(at(expected)), "{status:?}");
        }
    }

    #[test]
    fn step_that_failed_is_not_finished_later() {
        let serving = status(AgentMode::DevicePlugin, Some("p"), "two", "True");
        assert_eq!(finished(serving.clone(), &spec(Some("late"))), Some(at(3)));
        assert_eq!(finished(serving, &GpuNodeSpec::default()), Some(at(3)));
    }
}
