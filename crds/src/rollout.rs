//! Pace of a change of configuration across the nodes of a policy.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Default of `maxUnavailable`: a tenth of the policy's nodes.
const MAX_UNAVAILABLE: &str = "10%";

/// Default of `progressDeadline`, equal to the Deployment controller's default `progressDeadlineSeconds`.
const PROGRESS_DEADLINE: SignedDuration = SignedDuration::from_mins(10);

/// Pace of a change of configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutPace {
    /// Maximum number of Ready nodes that may be changing at a time: a number, or a percentage of the nodes that this
    /// policy governs, rounded down but at least one. New images and new taints with the effect `NoExecute` follow the
    /// same limit. Default: 10%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "max_unavailable")]
    #[x_kube(validation = Rule::new("string(self).matches('^([1-9][0-9]{0,4}|([1-9][0-9]?|100)%)$')")
        .message("rollout.maxUnavailable must be a number from 1 to 99999 or a percentage from \"1%\" to \"100%\", such as 2 or \"25%\""))]
    pub max_unavailable: Option<IntOrString>,

    /// Time in which a node must put a new configuration in force, such as `90s`, `10m` or `1h30m`. A node that was
    /// Ready and takes longer stops the rollout. Pods that do not tolerate a new taint with the effect `NoExecute` delay
    /// the next nodes by at most this time. Default: 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 2, max = 16),
        regex(pattern = r"^([1-9][0-9]{0,3}h)?([1-9][0-9]{0,3}m)?([1-9][0-9]{0,4}s)?$")
    )]
    pub progress_deadline: Option<String>,
}

fn max_unavailable(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true})
}

impl RolloutPace {
    /// Returns `maxUnavailable` in the form that a DaemonSet accepts: no number in quotes.
    pub fn max_unavailable(&self) -> IntOrString {
        match &self.max_unavailable {
            None => IntOrString::String(MAX_UNAVAILABLE.to_owned()),
            Some(IntOrString::String(text)) => text
                .parse()
                .map_or_else(|_| IntOrString::String(text.clone()), IntOrString::Int),
            Some(number) => number.clone(),
        }
    }

    /// Returns how many of `nodes` may be changing at a time; at least one.
    pub fn budget(&self, nodes: usize) -> usize {
        let budget = match self.max_unavailable() {
            IntOrString::Int(number) => usize::try_from(number).unwrap_or_default(),
            IntOrString::String(text) => {
                let percent = text.strip_suffix('%').and_then(|percent| percent.parse::<usize>().ok());
                nodes.saturating_mul(percent.unwrap_or_default()) / 100
            }
        };
        budget.max(1)
    }

    /// Returns the deadline in force. A deadline that cannot be parsed, which the CRD refuses, counts as unset.
    pub fn progress_deadline(&self) -> SignedDuration {
        let given = self
            .progress_deadline
            .as_ref()
            .and_then(|text| text.parse::<SignedDuration>().ok());
        given.filter(SignedDuration::is_positive).unwrap_or(PROGRESS_DEADLINE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(text: &str) -> RolloutPace {
        serde_yaml::from_str(text).unwrap()
    }

    #[test]
    fn budget_is_a_number_or_a_percentage_rounded_down_and_at_least_one() {
        for (text, nodes, budget) in [
            ("{}", 40, 4),
            ("{}", 19, 1),
            ("{}", 0, 1),
            ("{maxUnavailable: 3}", 2, 3),
            ("{maxUnavailable: '3'}", 2, 3),
            ("{maxUnavailable: 100%}", 7, 7),
            ("{maxUnavailable: 25%}", 7, 1),
            ("{maxUnavailable: 0}", 7, 1),
            ("{maxUnavailable: nonsense}", 7, 1),
        ] {
            assert_eq!(pace(text).budget(nodes), budget, "{text} of {nodes}");
        }
    }

    #[test]
    fn deadlines_are_go_durations() {
        for (text, seconds) in [
            ("90s", 90),
            ("10m", 600),
            ("1h30m", 5400),
            ("1h1m1s", 3661),
            ("", 600),
            ("nonsense", 600),
        ] {
            let pace = pace(&format!("{{progressDeadline: '{text}'}}"));
            assert_eq!(pace.progress_deadline().as_secs(), seconds, "{text}");
        }
        assert_eq!(pace("{}").progress_deadline(), PROGRESS_DEADLINE);
    }
}
