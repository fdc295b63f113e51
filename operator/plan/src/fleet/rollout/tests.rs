use super::*;
use proptest::{collection, prelude::*};

fn pace(max_unavailable: &str) -> RolloutPace {
    serde_json::from_str(&format!(r#"{{"maxUnavailable":{max_unavailable}}}"#)).unwrap()
}

fn pending(count: usize) -> PolicyRollout {
    let mut rollout = PolicyRollout::default();
    for index in 0..count {
        rollout.put(&format!("gpu-{index}"), Some(&RolloutStage::Pending));
    }
    rollout
}

#[test]
fn turns_are_granted_by_name_within_the_budget_and_again_when_a_node_is_done() {
    let mut rollout = pending(5);
    assert_eq!(rollout.advance(&pace("2")), ["gpu-0", "gpu-1"]);
    assert_eq!(rollout.advance(&pace("2")), [""; 0]);
    assert!(rollout.use_permit("gpu-0") && !rollout.use_permit("gpu-2"));
    rollout.put("gpu-0", Some(&RolloutStage::Stepping));
    assert_eq!(rollout.advance(&pace("2")), [""; 0]);
    rollout.put("gpu-0", Some(&RolloutStage::Done));
    assert_eq!(rollout.advance(&pace("2")), ["gpu-2"]);
    assert_eq!(rollout.advance(&pace("\"80%\"")), ["gpu-3", "gpu-4"]);
}

#[test]
fn node_that_fails_stops_the_rollout_until_it_has_another_configuration() {
    let mut rollout = pending(4);
    rollout.advance(&pace("2"));
    rollout.use_permit("gpu-0");
    rollout.put("gpu-0", Some(&RolloutStage::Stopped("broken".to_owned())));
    assert_eq!(rollout.advance(&pace("2")), [""; 0]);
    assert!((0..4).all(|index| !rollout.is_granted(&format!("gpu-{index}"))));
    assert_eq!(rollout.stopped(), Some(("gpu-0", "broken")));
    rollout.put("gpu-0", Some(&RolloutStage::Outside));
    assert_eq!(rollout.advance(&pace("2")), ["gpu-1", "gpu-2"]);
}

#[test]
fn turn_that_was_taken_counts_until_it_is_known_what_became_of_it() {
    let mut rollout = pending(2);
    rollout.advance(&pace("1"));
    assert!(rollout.use_permit("gpu-0"));
    assert_eq!(
        rollout.advance(&pace("1")),
        [""; 0],
        "the answer may be lost and the write may not be"
    );
    assert!(rollout.use_permit("gpu-0"), "it may try again");
}

#[test]
fn refused_node_lets_the_others_go_first() {
    let mut rollout = pending(3);
    for expected in ["gpu-0", "gpu-1", "gpu-2", "gpu-0"] {
        assert_eq!(rollout.advance(&pace("1")), [expected]);
        assert!(rollout.use_permit(expected));
        rollout.return_permit(expected);
    }
}

#[test]
fn node_that_needs_another_turn_comes_after_the_others() {
    let mut rollout = pending(3);
    for name in ["gpu-0", "gpu-1", "gpu-2", "gpu-0"] {
        assert_eq!(rollout.advance(&pace("1")), [name]);
        rollout.use_permit(name);
        rollout.put(name, Some(&RolloutStage::Stepping));
        // Its drain has failed, and the next one is due.
        rollout.put(name, Some(&RolloutStage::Done));
        rollout.put(name, Some(&RolloutStage::Pending));
    }
    for name in ["gpu-0", "gpu-1", "gpu-2"] {
        rollout.put(name, Some(&RolloutStage::Done));
    }
    for name in ["gpu-2", "gpu-0"] {
        rollout.put(name, Some(&RolloutStage::Pending));
    }
    assert_eq!(rollout.advance(&pace("1")), ["gpu-0"], "another rollout begins anew");
}

#[test]
fn node_that_is_refused_for_good_holds_no_other_up() {
    let mut rollout = pending(3);
    for name in ["gpu-0", "gpu-1", "gpu-2"] {
        assert_eq!(rollout.advance(&pace("1")), [name]);
        rollout.use_permit(name);
        rollout.return_permit(name);
    }
    for (name, is_refused) in [("gpu-0", true), ("gpu-1", false), ("gpu-2", false), ("gpu-0", true)] {
        assert_eq!(rollout.advance(&pace("1")), [name]);
        rollout.use_permit(name);
        if is_refused {
            rollout.return_permit(name);
        } else {
            rollout.put(name, Some(&RolloutStage::Done));
        }
    }
}

#[test]
fn write_that_was_lost_before_a_stop_is_made_again_when_that_mends() {
    let mut rollout = pending(3);
    rollout.advance(&pace("2"));
    assert!(rollout.use_permit("gpu-0") && rollout.use_permit("gpu-1"));
    rollout.put("gpu-0", Some(&RolloutStage::Stopped("broken".to_owned())));
    assert!(rollout.advance(&pace("2")).is_empty() && !rollout.use_permit("gpu-1"));
    rollout.put("gpu-0", Some(&RolloutStage::Done));
    assert_eq!(rollout.advance(&pace("2")), ["gpu-1", "gpu-2"]);
    assert!(rollout.use_permit("gpu-1"));
}

#[test]
fn budget_that_shrinks_takes_back_what_is_not_taken() {
    let mut rollout = pending(4);
    rollout.advance(&pace("3"));
    rollout.use_permit("gpu-1");
    rollout.advance(&pace("1"));
    assert!(rollout.is_granted("gpu-1") && !rollout.is_granted("gpu-0") && !rollout.is_granted("gpu-2"));
}

#[test]
fn progress_names_the_nodes_that_change() {
    let mut rollout = pending(2);
    assert_eq!(rollout.progress().unwrap(), "0 of 2 nodes have the new configuration");
    rollout.put("gpu-0", Some(&RolloutStage::Done));
    rollout.put("gpu-1", Some(&RolloutStage::Stepping));
    assert_eq!(
        rollout.progress().unwrap(),
        "1 of 2 nodes has the new configuration; gpu-1 is changing"
    );
    for index in 2..6 {
        rollout.put(&format!("gpu-{index}"), Some(&RolloutStage::Stepping));
    }
    let message = "1 of 6 nodes has the new configuration; gpu-1, gpu-2, gpu-3 and 2 more are changing";
    assert_eq!(rollout.progress().unwrap(), message);
    (1..6).for_each(|index| rollout.put(&format!("gpu-{index}"), Some(&RolloutStage::Done)));
    assert_eq!(rollout.progress(), None);
}

/// Event on real nodes, of which the rollout learns late or never.
#[derive(Clone, Debug)]
enum Event {
    /// The agent of a node that steps gets there.
    Succeeds(usize),
    /// The agent of a node that steps fails.
    Fails(usize),
    /// A node goes down.
    Falls(usize),
    /// A node that is down comes back.
    Returns(usize),
    /// A worker takes up a node; its write goes through, is lost on the way back, or is refused.
    Works(usize, Answer),
    /// The spec changes.
    Edited,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Written,
    WrittenAndLost,
    Lost,
    Refused,
}

/// Real state of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Truth {
    /// Generation that works there.
    Works(usize),
    /// Changing to this generation, having worked before.
    Steps(usize),
    /// Failed with this generation, having worked before.
    Failed(usize),
    /// Down or failing: not waited for.
    Broken,
}

fn event(nodes: usize) -> impl Strategy<Value = Event> {
    let answer = prop::sample::select(vec![
        Answer::Written,
        Answer::Written,
        Answer::WrittenAndLost,
        Answer::Lost,
        Answer::Refused,
    ]);
    prop_oneof![
        6 => (0..nodes, answer).prop_map(|(node, answer)| Event::Works(node, answer)),
        5 => (0..nodes).prop_map(Event::Succeeds),
        1 => (0..nodes).prop_map(Event::Fails),
        1 => (0..nodes).prop_map(Event::Falls),
        1 => (0..nodes).prop_map(Event::Returns),
        1 => Just(Event::Edited),
    ]
}

struct Fleet {
    nodes: Vec<Truth>,
    /// Nodes whose write happened without an answer: the rollout does not learn of it until they move again.
    unheard: BTreeSet<usize>,
    generation: usize,
    budget: usize,
    rollout: PolicyRollout,
}

impl Fleet {
    fn name(node: usize) -> String {
        format!("{node:02}")
    }

    fn stage(&self, node: usize) -> RolloutStage {
        match self.nodes[node] {
            Truth::Works(generation) if generation == self.generation => RolloutStage::Done,
            Truth::Works(_) => RolloutStage::Pending,
            Truth::Steps(_) => RolloutStage::Stepping,
            Truth::Failed(generation) if generation == self.generation => RolloutStage::Stopped("m".to_owned()),
            Truth::Failed(_) | Truth::Broken => RolloutStage::Outside,
        }
    }

    fn tell(&mut self, node: usize) {
        self.unheard.remove(&node);
        self.rollout.put(&Self::name(node), Some(&self.stage(node)));
        self.advance();
    }

    fn advance(&mut self) {
        self.rollout.advance(&pace(&self.budget.to_string()));
    }

    fn tell_all(&mut self) {
        for node in 0..self.nodes.len() {
            self.unheard.remove(&node);
            self.rollout.put(&Self::name(node), Some(&self.stage(node)));
        }
        self.advance();
    }

    fn stepping(&self) -> usize {
        self.nodes
            .iter()
            .filter(|truth| matches!(truth, Truth::Steps(_)))
            .count()
    }

    fn is_stopped(&self) -> bool {
        self.nodes.contains(&Truth::Failed(self.generation))
    }

    /// Writes one node that has a permit; returns true if a node that worked is now changing.
    fn works(&mut self, node: usize, answer: Answer) -> bool {
        let name = Self::name(node);
        if self.rollout.stages.get(&name) != Some(&RolloutStage::Pending) || !self.rollout.use_permit(&name) {
            return false;
        }
        // A write under an old version lost a race and proves nothing.
        if self.unheard.contains(&node) {
            return false;
        }
        match answer {
            Answer::Refused => self.rollout.return_permit(&name),
            Answer::Lost => {}
            Answer::Written | Answer::WrittenAndLost => {
                self.nodes[node] = Truth::Steps(self.generation);
                if matches!(answer, Answer::Written) {
                    self.tell(node);
                } else {
                    self.unheard.insert(node);
                }
                return true;
            }
        }
        self.advance();
        false
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn no_more_than_the_budget_are_ever_changing_and_a_failure_stops_the_rest(
        count in 1..12_usize, budget in 1..4_usize, events in collection::vec(event(12), 0..200),
    ) {
        let mut fleet = Fleet {
            nodes: vec![Truth::Works(0); count], unheard: BTreeSet::new(), generation: 1, budget, rollout: PolicyRollout::default(),
        };
        fleet.tell_all();
        for event in events {
            match event {
                Event::Works(node, answer) if node < count => {
                    let (was_stopped, before) = (fleet.is_stopped(), fleet.stepping());
                    if fleet.works(node, answer) {
                        prop_assert!(!was_stopped, "{node} was changed after another failed");
                        prop_assert!(before < fleet.budget, "{before} were changing already, of {}", fleet.budget);
                    }
                }
                Event::Succeeds(node) if node < count => if let Truth::Steps(generation) = fleet.nodes[node] {
                    fleet.nodes[node] = Truth::Works(generation);
                    fleet.tell(node);
                },
                Event::Fails(node) if node < count => if let Truth::Steps(generation) = fleet.nodes[node] {
                    fleet.nodes[node] = Truth::Failed(generation);
                    fleet.tell(node);
                },
                Event::Falls(node) if node < count => {
                    fleet.nodes[node] = Truth::Broken;
                    fleet.tell(node);
                }
                Event::Returns(node) if node < count && fleet.nodes[node] == Truth::Broken => {
                    fleet.nodes[node] = Truth::Works(0);
                    fleet.tell(node);
                }
                Event::Edited => {
                    fleet.generation += 1;
                    fleet.tell_all();
                }
                _ => {}
            }
        }
        // Whatever happened: nodes that succeed from here on bring it to its end, past those that are broken.
        fleet.generation += 1;
        fleet.tell_all();
        for _ in 0..4 * count {
            for node in 0..count {
                fleet.works(node, Answer::Written);
                if let Truth::Steps(generation) = fleet.nodes[node] {
                    fleet.nodes[node] = if generation == fleet.generation { Truth::Works(generation) } else { Truth::Steps(fleet.generation) };
                    fleet.tell(node);
                }
            }
        }
        let end = Truth::Works(fleet.generation);
        let left: Vec<_> = fleet.nodes.iter().filter(|truth| **truth != end).collect();
        prop_assert!(left.iter().all(|truth| matches!(truth, Truth::Broken | Truth::Failed(_))), "{left:?}");
        prop_assert_eq!(fleet.rollout.progress(), None);
    }
}

#[test]
fn agents_stand_by_on_as_many_nodes_more_as_nobody_waits_for() {
    let mut rollout = pending(10);
    assert_eq!(rollout.surge(&pace("\"20%\"")), IntOrString::String("20%".to_owned()));
    for (down, surge) in [(1, 3), (4, 6)] {
        for index in 0..down {
            rollout.put(&format!("gpu-{index}"), Some(&RolloutStage::Outside));
        }
        assert_eq!(rollout.surge(&pace("\"20%\"")), IntOrString::Int(surge));
    }
    for index in 0..4 {
        rollout.put(&format!("gpu-{index}"), Some(&RolloutStage::Done));
    }
    assert_eq!(rollout.surge(&pace("3")), IntOrString::Int(3));
}
