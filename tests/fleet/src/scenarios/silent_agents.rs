//! One policy changes the configuration of agents of which a few never answer: they use up their part of the budget,
//! and all others get the configuration meanwhile. Then `progressDeadline` becomes short: the rollout counts as stopped,
//! and goes on when they answer after all.

use crate::{
    Fleet, number,
    progress::WaitProgress,
    scenarios::{NodeSample, QUIET, most_writes},
    simulated_agents::AgentBehaviour,
};
use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use tokio::time::sleep;

const POLICY: &str = "silent-agents";
/// Time that an agent takes to answer.
const DELAY: Duration = Duration::from_secs(1);
/// Percentage of `maxUnavailable`.
const BUDGET: usize = 10;
/// `progressDeadline` until all others have answered.
const LONG: &str = "1h";
/// `progressDeadline` afterwards, in seconds.
const DEADLINE: usize = 15;
const LOOK: Duration = Duration::from_millis(200);

/// A change of configuration with agents that never answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SilentAgents {
    /// Number of nodes that the policy selects.
    pub nodes: usize,
    /// Number of agents that never answer.
    pub silent: usize,
    /// Most writes of the operators to one `GpuNode` whose agent answers.
    pub most_spec_writes: usize,
    /// Writes of the operators to `GpuNode`s for each node whose agent answers.
    pub spec_writes_per_node: f64,
    /// Most nodes that changed at the same time, silent ones too, of the budget.
    pub budget: f64,
    /// From the edit until the policy counts every node as ready whose agent answers.
    pub seconds: f64,
    /// `progressDeadline` in the end, in seconds.
    pub deadline: f64,
    /// From the edit of `progressDeadline` until the policy says that its rollout stopped.
    pub stopped: f64,
    /// From the first answer of the silent agents until the policy counts every node as ready.
    pub recovered: f64,
}

/// Measures one change, with one of so many agents silent, at least one.
pub async fn silent_agents(fleet: &Fleet, one_in: usize) -> Result<SilentAgents> {
    let _pair = fleet.start_pair().await?;
    let sample = NodeSample::of(fleet);
    let nodes = sample.names.len();
    let budget = (nodes * BUDGET / 100).max(1);
    // The first ones by name get the configuration first.
    let silent: BTreeSet<String> = sample.names.iter().step_by(one_in.max(1)).cloned().collect();
    ensure!(
        silent.len() < budget,
        "{} silent agents use up the budget of {budget} nodes: let one in more than {one_in} be silent",
        silent.len()
    );
    let policy = |xids: &[i32], deadline: &str| {
        json!({
            "nodeSelector": sample.selector,
            "devicePlugin": {"health": {"ignoreXids": xids}},
            "rollout": {"maxUnavailable": format!("{BUDGET}%"), "progressDeadline": deadline},
        })
    };
    fleet.agents().behave(AgentBehaviour::default());
    let mut requests = fleet.requests()?;
    fleet.apply_policy(POLICY, &policy(&[13], LONG)).await?;
    fleet.await_ready_nodes(POLICY, nodes).await?;
    fleet.await_quiet(&mut requests, QUIET).await?;

    fleet.agents().behave(AgentBehaviour {
        delay: DELAY,
        silent: silent.clone(),
    });
    let mut requests = fleet.requests()?;
    let (edit, begin) = (Timestamp::now(), Instant::now());
    fleet.apply_policy(POLICY, &policy(&[13, 31], LONG)).await?;
    let answering = sample.names.iter().filter(|name| !silent.contains(*name)).cloned();
    let answers = await_answers(fleet, answering.collect(), edit).await?;
    fleet.await_ready_nodes(POLICY, nodes - silent.len()).await?;
    let seconds = begin.elapsed().as_secs_f64();
    let mut specs = requests.writes_by_name("gpunodes")?;
    let mut written = BTreeMap::new();
    for write in requests.writes()?.filter(|write| write.resource() == "gpunodes") {
        written.entry(write.name().to_owned()).or_insert(write.stage_timestamp);
    }
    let most_changing = most_at_once(&written, &answers);
    specs.retain(|name, _| !silent.contains(name));

    // The time of a node begins anew with an edit.
    let begin = Instant::now();
    let short = policy(&[13, 31], &format!("{DEADLINE}s"));
    fleet.apply_policy(POLICY, &short).await?;
    let status = fleet
        .await_status(POLICY, "its rollout has stopped", has_stopped)
        .await?;
    let stopped = begin.elapsed().as_secs_f64();
    let message = condition(&status, "Stalled").map(|stalled| stalled["message"].as_str().unwrap_or_default());
    let message = message.context("find the condition Stalled")?;
    ensure!(
        silent.iter().any(|name| message.contains(name)),
        "the rollout stopped for another reason: {message}"
    );
    ensure!(
        stopped >= number(DEADLINE) - 1.0,
        "the rollout stopped after {stopped:.0} s"
    );

    let begin = Instant::now();
    fleet.agents().behave(AgentBehaviour::default());
    fleet.await_ready_nodes(POLICY, nodes).await?;
    Ok(SilentAgents {
        nodes,
        silent: silent.len(),
        most_spec_writes: most_writes(&specs),
        spec_writes_per_node: number(specs.values().sum()) / number(nodes - silent.len()),
        budget: number(most_changing) / number(budget),
        seconds,
        deadline: number(DEADLINE),
        stopped,
        recovered: begin.elapsed().as_secs_f64(),
    })
}

/// Waits until these agents have answered after a moment. Returns when each did, just before it sent its answer.
async fn await_answers(
    fleet: &Fleet,
    agents: BTreeSet<String>,
    after: Timestamp,
) -> Result<BTreeMap<String, Timestamp>> {
    let (end, mut progress) = (Instant::now() + fleet.limit(), WaitProgress::start());
    loop {
        let mut answers = fleet.agents().answered();
        answers.retain(|name, at| *at > after && agents.contains(name));
        if answers.len() == agents.len() {
            return Ok(answers);
        }
        let state = || format!("{} of {} agents have answered", answers.len(), agents.len());
        ensure!(Instant::now() < end, state());
        progress.tick(state);
        sleep(LOOK).await;
    }
}

/// Returns the most nodes that certainly changed at the same time: from the end of the write of their configuration to
/// just before their answer was sent, if there is one.
fn most_at_once(written: &BTreeMap<String, Timestamp>, answers: &BTreeMap<String, Timestamp>) -> usize {
    let mut moments = Vec::new();
    for (name, begin) in written {
        let answer = answers.get(name);
        if answer.is_none_or(|end| begin < end) {
            moments.push((*begin, true));
            moments.extend(answer.map(|end| (*end, false)));
        }
    }
    // Of two at the same moment the end is first.
    moments.sort_unstable();
    let (mut now, mut most) = (0_usize, 0);
    for (_, is_begin) in moments {
        now = if is_begin { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == kind)
}

fn has_stopped(status: &Value) -> bool {
    condition(status, "Stalled")
        .is_some_and(|stalled| stalled["status"] == "True" && stalled["reason"] == "RolloutStopped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_change_from_their_write_to_their_answer_and_silent_ones_for_ever() {
        let moments = |entries: &[(&str, i64)]| -> BTreeMap<String, Timestamp> {
            let moment = |(name, second): &(&str, i64)| ((*name).to_owned(), Timestamp::from_second(*second).unwrap());
            entries.iter().map(moment).collect()
        };
        let written = moments(&[("a", 1), ("b", 1), ("silent", 2), ("d", 4), ("e", 5)]);
        let answers = moments(&[("a", 3), ("b", 4), ("d", 9), ("e", 9)]);
        assert_eq!(most_at_once(&written, &answers), 3);
        assert_eq!(most_at_once(&written, &BTreeMap::new()), 5);
        assert_eq!(most_at_once(&BTreeMap::new(), &answers), 0);
    }

    #[test]
    fn rollout_has_stopped_by_the_condition_alone() {
        let status = |reason: &str| {
            let stalled = json!({"type": "Stalled", "status": "True", "reason": reason});
            json!({"conditions": [{"type": "Ready", "status": "False"}, stalled]})
        };
        assert!(has_stopped(&status("RolloutStopped")) && !has_stopped(&status("InvalidSpec")));
        assert!(!has_stopped(&json!({})));
    }
}
