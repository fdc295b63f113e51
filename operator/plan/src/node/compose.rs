//! Merges what several policies want: each key goes to the highest priority; equal priorities must agree.

use crate::input::policies::Policy;
use std::collections::BTreeMap;

/// Value of a key, and who wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredValue {
    /// The winning value.
    pub value: String,
    /// All policies that want this value, by priority.
    pub policies: Vec<String>,
    /// True if one of them takes over keys that somebody else owns.
    pub take_over: bool,
    /// The first of them, as `NAME@GENERATION`.
    pub winner: String,
    priority: i32,
}

/// Policies of equal priority that want different values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// Key they disagree about, such as `label accelerator`.
    pub about: String,
    /// Value that each policy wants, by name.
    pub values: BTreeMap<String, String>,
}

/// Merges one kind of keys. `matched` is ordered by falling priority.
pub fn compose<'a, K, V>(
    matched: &[&'a Policy],
    entries: impl Fn(&'a Policy) -> V,
    about: impl Fn(&K) -> String,
) -> Result<BTreeMap<K, DesiredValue>, Disagreement>
where
    K: Ord,
    V: IntoIterator<Item = (K, &'a str)>,
{
    let mut desired: BTreeMap<K, DesiredValue> = BTreeMap::new();
    for policy in matched {
        for (key, value) in entries(policy) {
            match desired.get_mut(&key) {
                None => drop(desired.insert(key, DesiredValue::by_policy(value, policy))),
                Some(winner) if winner.value == value => {
                    winner.policies.push(policy.name.clone());
                    winner.take_over |= policy.takes_over;
                }
                Some(winner) if winner.priority == policy.priority => {
                    let agreed = winner.policies.iter().map(|name| (name.clone(), winner.value.clone()));
                    let values = agreed.chain([(policy.name.clone(), value.to_owned())]).collect();
                    return Err(Disagreement {
                        about: about(&key),
                        values,
                    });
                }
                Some(_) => {}
            }
        }
    }
    Ok(desired)
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
        about: "devicePlugin".to_owned(),
        values,
    })
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
            take_over: policy.takes_over,
            winner: format!("{}@{}", policy.name, policy.generation.unwrap_or(0)),
            priority: policy.priority,
        }
    }

    /// Returns the value of a key that stays for policies that cannot be read.
    pub fn kept(value: &str, policies: &[String], was_taken_over: bool) -> Self {
        Self {
            value: value.to_owned(),
            policies: policies.to_vec(),
            take_over: was_taken_over,
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
                take_over: false,
                winner: String::new(),
                priority: 0,
            },
            |policy| Self::by_policy(value, policy),
        )
    }
}
