//! Differences between two CDI specs of the same node.
//!
//! A spec becomes a set of facts, one line each: `mount /a -> /b ro,nosuid`, `hook create-symlinks --link a::b`. Order does not count,
//! nor the number of calls that share the links or the hooks.

use crate::known_differences::KnownDifference;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The edits of all devices.
const COMMON: &str = "every device";
/// The fact that there is a device.
const EXISTS: &str = "exists";
/// Options of hooks that may be given more than once.
const REPEATED: [&str; 2] = ["--link", "--folder"];

/// UUID of the device or `every device`, and the fact.
type Fact = (String, String);

/// Spec that has a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// gpunode's alone.
    Gpunode,
    /// NVIDIA's alone.
    Nvidia,
}

/// A fact that one of two specs has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Spec that has it.
    pub side: Side,
    /// UUID of the device, or `every device`.
    pub of: String,
    /// The fact.
    pub fact: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} alone: {}: {}", self.side, self.of, self.fact)
    }
}

/// Returns the differences between gpunode's spec and NVIDIA's. A device that one of them lacks is one difference.
pub fn differences(gpunode: &Value, nvidia: &Value) -> BTreeSet<Difference> {
    let (ours, theirs) = (facts(gpunode), facts(nvidia));
    let mut all = alone(Side::Gpunode, &ours, &theirs);
    all.append(&mut alone(Side::Nvidia, &theirs, &ours));
    all
}

fn alone(side: Side, of: &BTreeSet<Fact>, other: &BTreeSet<Fact>) -> BTreeSet<Difference> {
    let facts: BTreeSet<&Fact> = of.difference(other).collect();
    let is_lacking = |device: &str| facts.iter().any(|(of, fact)| of == device && fact == EXISTS);
    let told = facts.iter().filter(|(of, fact)| fact == EXISTS || !is_lacking(of));
    told.map(|(of, fact)| Difference {
        side,
        of: of.clone(),
        fact: fact.clone(),
    })
    .collect()
}

fn facts(spec: &Value) -> BTreeSet<Fact> {
    let version = text(&spec["cdiVersion"]);
    let kind = text(&spec["kind"]);
    let mut facts: BTreeSet<_> = [format!("cdiVersion {version}"), format!("kind {kind}")]
        .into_iter()
        .chain(facts_of_edits(&spec["containerEdits"]))
        .map(|fact| (COMMON.to_owned(), fact))
        .collect();
    for device in list(&spec["devices"]) {
        let name = text(&device["name"]);
        let own = facts_of_edits(&device["containerEdits"]);
        facts.extend(
            own.into_iter()
                .chain([EXISTS.to_owned()])
                .map(|fact| (name.clone(), fact)),
        );
    }
    facts
}

fn facts_of_edits(edits: &Value) -> BTreeSet<String> {
    let mut facts = BTreeSet::new();
    for (name, value) in edits.as_object().into_iter().flatten() {
        match name.as_str() {
            "env" => facts.extend(list(value).map(|variable| format!("env {}", text(variable)))),
            "mounts" => facts.extend(list(value).map(mount)),
            "deviceNodes" => facts.extend(list(value).flat_map(device_node)),
            "hooks" => facts.extend(list(value).flat_map(hook)),
            _ if value.is_null() => {}
            // A field that this comparison does not know is a difference, and not overlooked.
            _ => {
                facts.insert(format!("{name} {value}"));
            }
        }
    }
    facts
}

fn mount(mount: &Value) -> String {
    let options: BTreeSet<String> = list(&mount["options"]).map(text).collect();
    let options: Vec<String> = options.into_iter().collect();
    let (host, container) = (text(&mount["hostPath"]), text(&mount["containerPath"]));
    format!("mount {host} -> {container} {}", options.join(","))
}

/// Returns the node, and one fact for each field beside its path.
fn device_node(node: &Value) -> Vec<String> {
    let path = text(&node["path"]);
    let others = node
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| *name != "path");
    let others = others.map(|(name, value)| format!("node {path} {name} {value}"));
    [format!("node {path}")].into_iter().chain(others).collect()
}

/// Returns the facts of each hook in a call; gpunode's program takes several, with `then` between two.
fn hook(hook: &Value) -> Vec<String> {
    let time = text(&hook["hookName"]);
    let mut arguments: Vec<String> = list(&hook["args"]).map(text).skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == "hook") {
        arguments.remove(0);
    }
    let env: Vec<String> = list(&hook["env"]).map(text).collect();
    let calls = arguments.split(|argument| argument == "then");
    calls.flat_map(|call| call_facts(call, &time, &env)).collect()
}

/// Returns one fact for each repeated option and each variable, and one for the rest of the call.
fn call_facts(call: &[String], time: &str, env: &[String]) -> Vec<String> {
    let mut arguments = call.iter();
    let name = arguments.next().map_or("", String::as_str);
    let (mut facts, mut rest) = (Vec::new(), Vec::new());
    while let Some(argument) = arguments.next() {
        if REPEATED.contains(&argument.as_str()) {
            let value = arguments.next().map_or("", String::as_str);
            facts.push(format!("hook {name} {argument} {value}"));
        } else {
            rest.push(argument.as_str());
        }
    }
    let rest = format!("hook {name} at {time} {}", rest.join(" "));
    facts.push(rest.trim_end().to_owned());
    facts.extend(env.iter().map(|variable| format!("hook {name} env {variable}")));
    facts
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Differences found on several nodes, compared with those that are known.
#[derive(Debug, Default)]
pub struct Comparison {
    unknown: BTreeSet<Difference>,
    /// Number of differences by the place of a known one.
    found: BTreeMap<usize, usize>,
}

impl Comparison {
    /// Adds the specs of a node.
    pub fn add(&mut self, known: &[KnownDifference], gpunode: &Value, nvidia: &Value) {
        for difference in differences(gpunode, nvidia) {
            match known.iter().position(|known| known.explains(&difference)) {
                Some(place) => *self.found.entry(place).or_default() += 1,
                None => {
                    self.unknown.insert(difference);
                }
            }
        }
    }

    /// Returns what the table of known differences lacks, and what in it no node has.
    pub fn complaints(&self, known: &[KnownDifference]) -> Vec<String> {
        let unknown = self.unknown.iter().map(|difference| format!("not known: {difference}"));
        let gone = known
            .iter()
            .enumerate()
            .filter(|(place, _)| !self.found.contains_key(place));
        let gone = gone.map(|(_, known)| format!("no node has it any more: {known:?}"));
        unknown.chain(gone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(edits: &Value) -> Value {
        let device = json!({"name": "GPU-1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}});
        json!({"cdiVersion": "0.5.0", "kind": "gpunode.dev/gpu", "devices": [device], "containerEdits": edits})
    }

    fn texts(gpunode: &Value, nvidia: &Value) -> Vec<String> {
        differences(gpunode, nvidia).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn order_and_the_number_of_calls_are_no_differences() {
        let hook = |args: &[&str]| json!({"hookName": "createContainer", "path": "/p", "args": args});
        let one = json!({"hooks": [
            hook(&["p", "create-symlinks", "--link", "a::b", "--link", "c::d", "then", "enable-cuda-compat", "--host-driver-version=580.95.05"]),
        ]});
        let two = json!({"hooks": [
            hook(&["nvidia-ctk", "hook", "enable-cuda-compat", "--host-driver-version=580.95.05"]),
            hook(&["p", "create-symlinks", "--link", "c::d"]),
            hook(&["p", "create-symlinks", "--link", "a::b"]),
        ]});
        assert_eq!(texts(&spec(&one), &spec(&two)), [""; 0]);
    }

    #[test]
    fn every_field_counts_also_one_that_nobody_knows() {
        let ours = json!({
            "env": ["A=1"],
            "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "nodev"]}],
        });
        let theirs = json!({
            "env": ["A=2"],
            "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["nodev"]}],
            "additionalGids": [44],
            "hooks": [{"hookName": "createContainer", "args": ["p", "chmod", "--mode", "755"], "env": ["D=1"]}],
        });
        assert_eq!(
            texts(&spec(&ours), &spec(&theirs)),
            [
                "Gpunode alone: every device: env A=1",
                "Gpunode alone: every device: mount /h -> /c nodev,ro",
                "Nvidia alone: every device: additionalGids [44]",
                "Nvidia alone: every device: env A=2",
                "Nvidia alone: every device: hook chmod at createContainer --mode 755",
                "Nvidia alone: every device: hook chmod env D=1",
                "Nvidia alone: every device: mount /h -> /c nodev",
            ]
        );
    }

    #[test]
    fn a_device_that_one_side_lacks_is_one_difference() {
        let mut none = spec(&json!({}));
        none["devices"] = json!([]);
        assert_eq!(texts(&spec(&json!({})), &none), ["Gpunode alone: GPU-1: exists"]);
    }

    #[test]
    fn what_is_not_known_and_what_is_gone_is_said() {
        let known = [
            KnownDifference {
                side: Side::Nvidia,
                of: "*",
                fact: "node * major *",
                reason: "numbers change",
            },
            KnownDifference {
                side: Side::Gpunode,
                of: "*",
                fact: "env A=*",
                reason: "nobody has it",
            },
        ];
        let mut theirs = spec(&json!({"env": ["B=1"]}));
        theirs["devices"][0]["containerEdits"]["deviceNodes"][0]["major"] = json!(195);
        let mut comparison = Comparison::default();
        comparison.add(&known, &spec(&json!({})), &theirs);
        let complaints = comparison.complaints(&known);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert_eq!(complaints[0], "not known: Nvidia alone: every device: env B=1");
        assert!(complaints[1].starts_with("no node has it any more"), "{complaints:?}");
    }
}
