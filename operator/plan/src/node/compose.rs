//! Merges what several policies want: each key goes to the highest priority. Where equal priorities disagree, that key, or the
//! configuration, stays as it is.

use crate::{input::policies::Policy, outcome::PolicyOverride};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Name of the configuration in disagreements.
const DEVICE_PLUGIN: &str = "devicePlugin";

/// Value of a key, and who wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredValue {
    /// The winning value.
    pub value: String,
    /// All policies that want this value, by priority.
    pub policies: Vec<String>,
    /// The first of them that takes over keys that somebody else owns.
    pub taker: Option<String>,
    /// The first of them, as `NAME@GENERATION`.
    pub winner: String,
    priority: i32,
}

/// Policies of equal priority that want different values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// Key they disagree about, such as `label accelerator`, or `devicePlugin`.
    pub about: String,
    /// Value that each policy wants, by name.
    pub values: BTreeMap<String, String>,
}

impl Disagreement {
    /// Returns true if the policies disagree about the configuration of the node.
    pub(crate) fn is_about_configuration(&self) -> bool {
        self.about == DEVICE_PLUGIN
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies: Vec<_> = self.values.keys().map(String::as_str).collect();
        let values: Vec<_> = self
            .values
            .iter()
            .map(|(name, value)| format!("{name} wants \"{value}\""))
            .collect();
        let kept = if self.is_about_configuration() {
            "the node keeps its configuration"
        } else {
            "it stays as it is"
        };
        write!(
            f,
            "policies {} have equal priority and disagree about {}: {}; {kept} until their priorities differ",
            policies.join(", "),
            self.about,
            values.join(", ")
        )
    }
}

/// Keys of one kind that several policies want together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComposedKeys<K: Ord> {
    /// Values to write.
    pub desired: BTreeMap<K, DesiredValue>,
    /// Keys that stay as they are.
    pub disputed: BTreeMap<K, Disagreement>,
    /// Keys that a policy wants and another one of higher priority decides.
    pub overridden: Vec<OverriddenKey>,
}

/// Key that a policy wants and another one of higher priority decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverriddenKey {
    /// Policy that loses.
    pub policy: String,
    /// Key, such as `label accelerator`.
    pub about: String,
    /// Policy that decides.
    pub by: String,
    /// Priority of the policy that decides.
    pub priority: i32,
}

impl fmt::Display for OverriddenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            about, by, priority, ..
        } = self;
        write!(f, "{about} by policy {by} (priority {priority})")
    }
}

impl<K: Ord> Default for ComposedKeys<K> {
    fn default() -> Self {
        Self {
            desired: BTreeMap::new(),
            disputed: BTreeMap::new(),
            overridden: Vec::new(),
        }
    }
}

impl<K: Ord + Clone> ComposedKeys<K> {
    /// Returns the keys that stay as they are.
    pub fn held(&self) -> BTreeSet<K> {
        self.disputed.keys().cloned().collect()
    }
}

/// Merges one kind of keys. `matched` is ordered by falling priority.
pub fn compose<'a, K, V>(
    matched: &[&'a Policy],
    entries: impl Fn(&'a Policy) -> V,
    about: impl Fn(&K) -> String,
) -> ComposedKeys<K>
where
    K: Ord,
    V: IntoIterator<Item = (K, &'a str)>,
{
    let (mut desired, mut disputed) = (BTreeMap::<K, DesiredValue>::new(), BTreeMap::<K, Disagreement>::new());
    let mut overridden = Vec::new();
    for policy in matched {
        for (key, value) in entries(policy) {
            let Some(winner) = desired.get_mut(&key) else {
                desired.insert(key, DesiredValue::by_policy(value, policy));
                continue;
            };
            let is_agreed = winner.value == value;
            if winner.priority == policy.priority && (!is_agreed || disputed.contains_key(&key)) {
                let about = about(&key);
                let agreed = winner.policies.iter().map(|name| (name.clone(), winner.value.clone()));
                let disagreement = disputed.entry(key).or_insert_with(|| Disagreement {
                    about,
                    values: agreed.collect(),
                });
                disagreement.values.insert(policy.name.clone(), value.to_owned());
            } else if is_agreed && !disputed.contains_key(&key) {
                winner.policies.push(policy.name.clone());
                winner.taker = winner.taker.take().or_else(|| taker(policy));
            } else {
                overridden.extend(winner.policies.first().map(|by| OverriddenKey {
                    policy: policy.name.clone(),
                    about: about(&key),
                    by: by.clone(),
                    priority: winner.priority,
                }));
            }
        }
    }
    desired.retain(|key, _| !disputed.contains_key(key));
    ComposedKeys {
        desired,
        disputed,
        overridden,
    }
}

/// Returns the governing policy: of those with a device plugin the one with the highest priority, then the first by name.
pub fn governing<'a>(matched: &[&'a Policy]) -> Result<Option<&'a Policy>, Disagreement> {
    let mut candidates = matched.iter().filter(|policy| policy.device_plugin.is_some());
    let Some(first) = candidates.next() else {
        return Ok(None);
    };
    let others: Vec<_> = candidates
        .take_while(|policy| policy.priority == first.priority)
        .filter(|policy| policy.device_plugin != first.device_plugin)
        .collect();
    if others.is_empty() {
        return Ok(Some(first));
    }
    let values = others
        .into_iter()
        .chain([first])
        .map(|policy| (policy.name.clone(), description(policy)))
        .collect();
    Err(Disagreement {
        about: DEVICE_PLUGIN.to_owned(),
        values,
    })
}

/// Returns the configurations that lose to a higher priority: to that of the first policy, or to a disagreement.
pub fn overridden_plugins(matched: &[&Policy]) -> Vec<OverriddenKey> {
    let mut candidates = matched.iter().filter(|policy| policy.device_plugin.is_some());
    let Some(winner) = candidates.next() else {
        return Vec::new();
    };
    let is_disputed = governing(matched).is_err();
    let losing = candidates.filter(|policy| {
        policy.priority < winner.priority && (is_disputed || policy.device_plugin != winner.device_plugin)
    });
    let overridden = losing.map(|policy| OverriddenKey {
        policy: policy.name.clone(),
        about: DEVICE_PLUGIN.to_owned(),
        by: winner.name.clone(),
        priority: winner.priority,
    });
    overridden.collect()
}

/// Sums up what a policy loses on one node.
pub fn sum_of_overridden(policy: &Policy, overridden: &[OverriddenKey]) -> Option<PolicyOverride> {
    let lost: Vec<&OverriddenKey> = overridden.iter().filter(|it| it.policy == policy.name).collect();
    let first = lost.first()?;
    let more = match lost.len() - 1 {
        0 => String::new(),
        1 => " and 1 more key".to_owned(),
        more => format!(" and {more} more keys"),
    };
    let keys = policy.labels.len() + policy.taints.len() + usize::from(policy.device_plugin.is_some());
    let has_more = policy.startup_taint.is_some()
        || policy.unhealthy_taint.is_some()
        || policy.evicts_pods
        || policy.deletes_rejected_pods;
    Some(PolicyOverride {
        message: format!("{first}{more}"),
        is_whole: lost.len() == keys && !has_more,
    })
}

fn taker(policy: &Policy) -> Option<String> {
    policy.takes_over.then(|| policy.name.clone())
}

/// Describes a device plugin so that two of them can be told apart.
fn description(policy: &Policy) -> String {
    let Some(plugin) = &policy.device_plugin else {
        return String::new();
    };
    let hash = plugin
        .document
        .as_ref()
        .map_or("an invalid configuration", |document| document.hash.as_str());
    match &plugin.image {
        Some(image) => format!("{hash} with image {image}"),
        None => hash.to_owned(),
    }
}

impl DesiredValue {
    fn by_policy(value: &str, policy: &Policy) -> Self {
        Self {
            value: value.to_owned(),
            policies: vec![policy.name.clone()],
            taker: taker(policy),
            winner: format!("{}@{}", policy.name, policy.generation.unwrap_or(0)),
            priority: policy.priority,
        }
    }

    /// Returns the value of a key that stays for policies that cannot be read.
    pub fn kept(value: &str, policies: &[String], was_taken_over: bool) -> Self {
        Self {
            value: value.to_owned(),
            policies: policies.to_vec(),
            taker: was_taken_over.then(|| policies.join("+")),
            winner: policies.join("+"),
            priority: 0,
        }
    }

    /// Returns a value that gpunode itself wants, for a policy or for the rest of one. Its keys never conflict.
    pub fn by_gpunode(value: &str, policy: Option<&Policy>) -> Self {
        policy.map_or_else(
            || Self {
                value: value.to_owned(),
                policies: Vec::new(),
                taker: None,
                winner: String::new(),
                priority: 0,
            },
            |policy| Self::by_policy(value, policy),
        )
    }
}
