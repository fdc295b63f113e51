//! Changes of policies, each compared with the prediction of `kubectl gpunode plan`.
//!
//! The plan is taken before the change, the objects before and after it; the plan must be their difference. Each comparison
//! is written down for the end of the suite (`tests/plans.rs`), which finds the changes that had none. Tests about something
//! else than a plan can say so ([`Lab::unplanned`]).

use crate::{
    Lab,
    difference::{Differences, ensure_equal, ensure_previewed, predicted},
    eventually,
    fleet::Fleet,
};
use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

/// Timeout for all nodes, one after the other.
const SETTLE: Duration = Duration::from_mins(3);

/// Exit code of a plan that running pods would notice, or that something is in the way of.
const DISRUPTIVE: i32 = 2;

/// Policies that were written, with what was planned and seen before.
#[must_use = "compare it with its plan"]
pub struct PolicyChange<'a> {
    lab: &'a Lab,
    /// Those of the manifest that are not in mode Preview, and the plan for them.
    enforced: Option<Value>,
    previews: Vec<Value>,
    names: Vec<String>,
    before: Fleet,
    written: (Timestamp, Timestamp),
}

/// Policies that did what was planned, or whose change has no plan.
#[derive(Debug)]
pub struct Compared {
    /// Names of the policies.
    pub policies: Vec<String>,
    /// Time of the writes.
    pub from: Timestamp,
    /// The end of that.
    pub to: Timestamp,
    /// Number of predicted differences.
    pub differences: u64,
}

impl Lab {
    /// `kubectl apply` of a manifest, which must succeed. Policies in it must do what was planned.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        if policies_of(manifest)?.is_empty() {
            return succeeded(&self.kubectl_with_input(&["apply", "-f", "-"], manifest)?);
        }
        self.begin(manifest)?.check()
    }

    /// `kubectl apply` of a manifest with policies, for tests that act before all of it has happened.
    pub fn begin(&self, manifest: &str) -> Result<PolicyChange<'_>> {
        self.change(policies_of(manifest)?, || {
            self.kubectl_with_input(&["apply", "-f", "-"], manifest)
        })
    }

    /// `kubectl apply -k` of a folder with policies.
    pub fn apply_folder(&self, folder: &str, how: &[&str]) -> Result<()> {
        let policies = policies_of(&self.kubectl(&["kustomize", folder])?)?;
        self.change(policies, || self.try_kubectl(&[&["apply", "-k", folder], how].concat()))?
            .check()
    }

    /// `kubectl patch` of a policy with a merge patch.
    pub fn patch_policy(&self, name: &str, patch: &str) -> Result<PolicyChange<'_>> {
        let command = ["patch", "gpunodepolicy", name, "--type=merge", "-p", patch];
        let patched = self.kubectl(&[&command[..], &["--dry-run=server", "-o", "json"]].concat())?;
        let patched: Value = serde_json::from_str(&patched).context("parse the patched policy")?;
        let policy = json!({"apiVersion": patched["apiVersion"], "kind": patched["kind"], "metadata": {"name": name},
            "spec": patched["spec"]});
        self.change(vec![policy], || self.try_kubectl(&command))
    }

    /// Applies a manifest that must be refused, by the API server and by `kubectl gpunode plan`, and gives the former's words.
    pub fn refusal(&self, manifest: &str) -> Result<String> {
        let planned = self.try_plan(&policies_of(manifest)?)?;
        ensure!(
            planned.status.code() == Some(1),
            "a plan was made: {planned:?}\n{manifest}"
        );
        let output = self.kubectl_with_input(&["apply", "-f", "-"], manifest)?;
        ensure!(!output.status.success(), "it was accepted: {manifest}");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Changes a policy without a comparison. The caller says why there is no plan.
    pub fn unplanned<T>(&self, policy: &str, write: impl FnOnce() -> Result<T>) -> Result<T> {
        let from = Timestamp::now();
        let result = write()?;
        self.log_change(&[policy.to_owned()], (from, Timestamp::now()), 0)?;
        Ok(result)
    }

    fn change(&self, policies: Vec<Value>, write: impl FnOnce() -> Result<Output>) -> Result<PolicyChange<'_>> {
        let names = policies
            .iter()
            .filter_map(|policy| policy["metadata"]["name"].as_str())
            .map(str::to_owned);
        let names: Vec<String> = names.collect();
        ensure!(!names.is_empty(), "there is no policy in it");
        let (previews, enforced): (Vec<_>, Vec<_>) = policies
            .into_iter()
            .partition(|policy| policy["spec"]["mode"] == "Preview");
        let enforced = if enforced.is_empty() {
            None
        } else {
            Some(self.plan(&enforced)?)
        };
        // Previews write nothing, so they are planned later, on top of what is in force by then.
        let before = Fleet::read(self)?;
        let from = Timestamp::now();
        succeeded(&write()?)?;
        Ok(PolicyChange {
            lab: self,
            enforced,
            previews,
            names,
            before,
            written: (from, Timestamp::now()),
        })
    }

    fn try_plan(&self, policies: &[Value]) -> Result<Output> {
        let mut command = self.gpunode_command(&["plan", "-f", "-", "-o", "json"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context("start kubectl-gpunode")?;
        let mut input = child.stdin.take().context("open standard input of kubectl-gpunode")?;
        for policy in policies {
            writeln!(input, "---\n{policy}").context("write to kubectl-gpunode")?;
        }
        drop(input);
        child.wait_with_output().context("wait for kubectl-gpunode")
    }

    /// Plans policies with `kubectl gpunode plan`, whose exit code must fit what it says.
    pub fn plan(&self, policies: &[Value]) -> Result<Value> {
        let output = self.try_plan(policies)?;
        let shown = || String::from_utf8_lossy(&output.stderr).into_owned();
        let plan: Value =
            serde_json::from_slice(&output.stdout).with_context(|| format!("parse a plan: {}", shown()))?;
        let nodes = plan["nodes"].as_array().context("find the nodes of a plan")?;
        let is_disruptive = |node: &Value| node.get("disruptions").is_some() || node["obstacles"] != json!([]);
        let expected = if nodes.iter().any(is_disruptive) { DISRUPTIVE } else { 0 };
        ensure!(
            output.status.code() == Some(expected),
            "plan ended with {}: {plan}{}",
            output.status,
            shown()
        );
        Ok(plan)
    }

    fn log_path(&self) -> PathBuf {
        self.cluster().folder().join("policy-changes.jsonl")
    }

    fn log_change(&self, policies: &[String], (from, to): (Timestamp, Timestamp), differences: usize) -> Result<()> {
        let line = json!({"policies": policies, "from": from, "to": to, "differences": differences});
        let path = self.log_path();
        let mut file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file
            .as_mut()
            .map_err(|error| anyhow::anyhow!("open {}: {error}", path.display()))?;
        writeln!(file, "{line}").with_context(|| format!("write {}", path.display()))
    }

    /// Every change of policies on this cluster that was compared with its plan or has none, in order.
    pub fn policy_changes(&self) -> Result<Vec<Compared>> {
        let path = self.log_path();
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        text.lines().map(Compared::read).collect()
    }
}

impl PolicyChange<'_> {
    /// Waits until no policy is progressing. The plan must equal the difference, and the resources that agents advertise.
    pub fn check(self) -> Result<()> {
        let planned = self.planned()?;
        eventually(
            &format!("policies {:?} are in force as planned", self.names),
            SETTLE,
            || {
                let after = Fleet::read(self.lab)?;
                after.ensure_settled()?;
                ensure_equal(&planned, &self.before.difference(&after))?;
                self.ensure_resources(&after)?;
                self.ensure_policies(&after)
            },
        )?;
        self.ensure_previews()?;
        self.log_success(planned.len())
    }

    /// Like [`Self::check`] where agents cannot follow: the writes must be as planned.
    pub fn check_written(self) -> Result<()> {
        let planned = self.planned()?;
        eventually(
            &format!("policies {:?} are written as planned", self.names),
            SETTLE,
            || {
                let after = Fleet::read(self.lab)?;
                self.names.iter().try_for_each(|name| after.ensure_observed(name))?;
                ensure_equal(&planned, &self.before.difference(&after))
            },
        )?;
        self.log_success(planned.len())
    }

    /// Like [`Self::check`] for a rollout that stops early: `nodes` must change as planned, and no others.
    pub fn check_on(self, nodes: &[&str]) -> Result<()> {
        let mut planned = self.planned()?;
        planned.retain(|difference| nodes.contains(&difference.node.as_str()));
        eventually(
            &format!("policies {:?} are in force as planned on {nodes:?}", self.names),
            SETTLE,
            || {
                let after = Fleet::read(self.lab)?;
                after.ensure_settled()?;
                ensure_equal(&planned, &self.before.difference(&after))
            },
        )?;
        self.log_success(planned.len())
    }

    fn planned(&self) -> Result<Differences> {
        self.enforced.as_ref().map_or_else(|| Ok(Differences::new()), predicted)
    }

    /// Checks the predicted resources of nodes on which no pod holds a device.
    fn ensure_resources(&self, after: &Fleet) -> Result<()> {
        let nodes = self
            .enforced
            .iter()
            .filter_map(|plan| plan["nodes"].as_array())
            .flatten();
        for node in nodes {
            let name = node["name"].as_str().unwrap_or_default();
            for offer in node["offers"].as_array().into_iter().flatten() {
                let resource = offer["resource"].as_str().unwrap_or_default();
                let advertised = self
                    .before
                    .advertised(name, resource)
                    .and_then(|_| after.advertised(name, resource));
                ensure!(
                    advertised.is_none_or(|advertised| offer["then"] == advertised),
                    "{name} advertises {advertised:?} {resource}; the plan was {offer}"
                );
            }
        }
        Ok(())
    }

    /// Checks the predicted actions on the policies.
    fn ensure_policies(&self, after: &Fleet) -> Result<()> {
        let policies = self
            .enforced
            .iter()
            .filter_map(|plan| plan["policies"].as_array())
            .flatten();
        for policy in policies {
            let name = policy["name"].as_str().unwrap_or_default();
            let (action, nodes) = (self.before.action_on(name, after), after.status(name, "nodes"));
            ensure!(
                policy["action"] == action,
                "{action} happened to the policy; the plan was {policy}"
            );
            ensure!(
                policy["matched"] == nodes["matched"],
                "the policy counts {nodes}; the plan was {policy}"
            );
        }
        Ok(())
    }

    fn ensure_previews(&self) -> Result<()> {
        for policy in &self.previews {
            let name = policy["metadata"]["name"].as_str().unwrap_or_default();
            let plan = self.lab.plan(std::slice::from_ref(policy))?;
            eventually(&format!("policy {name} previews what is planned"), SETTLE, || {
                let now = Fleet::read(self.lab)?;
                now.ensure_observed(name)?;
                ensure_previewed(&plan, &now.status(name, "preview"))
            })?;
        }
        Ok(())
    }

    fn log_success(&self, differences: usize) -> Result<()> {
        self.lab.log_change(&self.names, self.written, differences)
    }
}

impl Compared {
    fn read(line: &str) -> Result<Self> {
        let line: Value = serde_json::from_str(line).context("parse a line about a change of policies")?;
        let time = |field: &str| line[field].as_str().unwrap_or_default().parse().context("parse a time");
        let policies = line["policies"].as_array().into_iter().flatten();
        Ok(Self {
            policies: policies.filter_map(Value::as_str).map(str::to_owned).collect(),
            from: time("from")?,
            to: time("to")?,
            differences: line["differences"].as_u64().unwrap_or_default(),
        })
    }
}

/// The policies of a manifest.
fn policies_of(manifest: &str) -> Result<Vec<Value>> {
    let mut policies = Vec::new();
    for document in serde_yaml::Deserializer::from_str(manifest) {
        let object: Value = serde::Deserialize::deserialize(document).context("read a manifest")?;
        if object["kind"] == "GpuNodePolicy" {
            policies.push(object);
        }
    }
    Ok(policies)
}

fn succeeded(output: &Output) -> Result<()> {
    ensure!(
        output.status.success(),
        "kubectl: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
