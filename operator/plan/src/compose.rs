//! What several policies want together: each key goes to the highest priority; equal priorities must agree.

use crate::policies::Policy;
use std::collections::{BTreeMap, BTreeSet};

/// A value and who wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The winning value.
    pub value: String,
    /// Every policy that wants this value, by priority.
    pub policies: Vec<String>,
    priority: i32,
}

/// Policies of equal priority that want different things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// About what, such as `label accelerator`.
    pub about: String,
    /// The policies, by name.
    pub policies: BTreeSet<String>,
}

/// Composes one kind of keys. `matched` is ordered by falling priority.
pub fn compose<'a, K, V>(
    matched: &[&'a Policy],
    entries: impl Fn(&'a Policy) -> V,
    about: impl Fn(&K) -> String,
) -> Result<BTreeMap<K, Wanted>, Disagreement>
where
    K: Ord,
    V: IntoIterator<Item = (K, &'a str)>,
{
    let mut wanted: BTreeMap<K, Wanted> = BTreeMap::new();
    for policy in matched {
        for (key, value) in entries(policy) {
            match wanted.get_mut(&key) {
                None => {
                    let policies = vec![policy.name.clone()];
                    wanted.insert(key, Wanted { value: value.to_owned(), policies, priority: policy.priority });
                }
                Some(winner) if winner.value == value => winner.policies.push(policy.name.clone()),
                Some(winner) if winner.priority == policy.priority => {
                    let mut policies: BTreeSet<_> = winner.policies.iter().cloned().collect();
                    policies.insert(policy.name.clone());
                    return Err(Disagreement { about: about(&key), policies });
                }
                Some(_) => {}
            }
        }
    }
    Ok(wanted)
}

/// The policy that governs: of those with a device plugin the one with the highest priority, then the first by name.
pub fn governing<'a>(matched: &[&'a Policy]) -> Result<Option<&'a Policy>, Disagreement> {
    let mut candidates = matched.iter().filter(|policy| policy.device_plugin.is_some());
    let Some(first) = candidates.next() else { return Ok(None) };
    let policies: BTreeSet<_> = candidates
        .take_while(|policy| policy.priority == first.priority)
        .filter(|policy| policy.device_plugin != first.device_plugin)
        .map(|policy| policy.name.clone())
        .collect();
    if policies.is_empty() {
        return Ok(Some(first));
    }
    let policies = policies.into_iter().chain([first.name.clone()]).collect();
    Err(Disagreement { about: "devicePlugin".to_owned(), policies })
}

impl Wanted {
    /// A value that gpunode itself wants, for a policy or for what is left of one. Nobody conflicts about its keys.
    pub fn by_gpunode(value: &str, policy: Option<&Policy>) -> Self {
        Self {
            value: value.to_owned(),
            policies: policy.map(|policy| policy.name.clone()).into_iter().collect(),
            priority: policy.map_or(0, |policy| policy.priority),
        }
    }
}
