//! Quotas of namespaces on the resources that gpunode serves, as `docs/quotas.md` has them.

use crate::samples::sharing;
use anyhow::{Result, ensure};
use gpunode_e2e::{Lab, MIXED, T4, eventually, names, page_file};
use std::time::Duration;

const NAMESPACE: &str = "team";
const GATE: &str = "gpunode.test/all-created";
const LIMIT: Duration = Duration::from_mins(3);

/// A resource, the pool of the nodes that have it, and what the namespace may have of it.
type Allowance = (&'static str, &'static str, u32);

/// Whole GPUs, and every way to share one.
const ALLOWED: [Allowance; 5] = [
    ("nvidia.com/gpu", "inference", 1),
    ("aliyun.com/gpu-mem", "inference", 4),
    ("nvidia.com/gpu.sliced", "inference", 3),
    ("nvidia.com/gpu.mps", "inference", 4),
    ("nvidia.com/mig-3g.40gb", "mixed", 2),
];

const PLUGIN: &str = "{resources: [
    {name: aliyun.com/gpu-mem, devices: {indices: [0]}, sharing: {strategy: Memory}},
    {name: nvidia.com/gpu.sliced, devices: {indices: [1]}, sharing: {strategy: TimeSlicing, replicas: 4}},
    {name: nvidia.com/gpu.mps, devices: {indices: [2]}, sharing: {strategy: Mps, replicas: 5}},
    {name: nvidia.com/gpu}]}";

/// Advertises MIG devices by their profiles.
const MIXED_POLICY: &str = "apiVersion: gpunode.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: mig}
spec:
  nodeSelector: {matchLabels: {pool: mixed}}
  devicePlugin: {mig: {strategy: Mixed}}
";

/// A namespace with a quota, which is removed when this is dropped.
struct Team<'a>(&'a Lab);

impl<'a> Team<'a> {
    fn found(lab: &'a Lab) -> Result<Self> {
        let team = Self(lab);
        lab.kubectl(&["create", "namespace", NAMESPACE])?;
        let page = page_file("quotas.md", "quota.yaml")?;
        let accepted = lab.kubectl_with_input(&["create", "--dry-run=server", "-f", "-"], &page)?;
        ensure!(accepted.status.success(), "the quota of the page: {accepted:?}");
        let hard: Vec<String> = ALLOWED
            .iter()
            .map(|(resource, _, count)| format!("requests.{resource}={count}"))
            .collect();
        lab.kubectl(&[
            "-n",
            NAMESPACE,
            "create",
            "quota",
            "gpus",
            &format!("--hard={}", hard.join(",")),
        ])?;
        // The admission refuses pods until the quota has been counted.
        eventually("the quota is counted", LIMIT, || {
            let quota = lab.get(&["resourcequota", "-n", NAMESPACE, "gpus"])?;
            let used = quota["status"]["used"].as_object().map_or(0, serde_json::Map::len);
            ensure!(used == ALLOWED.len(), "its status is {}", quota["status"]);
            Ok(())
        })?;
        Ok(team)
    }

    /// Creates a pod that is not scheduled yet. Gives the refusal, if there is one.
    ///
    /// Kubernetes counts the pods of a quota anew whenever one starts, without those that its controller has not heard of
    /// (`hasResourcesChanged` in `pkg/quota/v1/install/update_filter.go`). So no pod starts before all are created.
    fn create(&self, name: &str, (resource, pool, _): Allowance, count: u32) -> Result<Option<String>> {
        let pod = format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {NAMESPACE}}}
spec:
  nodeSelector: {{pool: {pool}}}
  tolerations: [{{operator: Exists}}]
  schedulingGates: [{{name: {GATE}}}]
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: gpunode.test/cuda:1
    command: [sleep, '100000']
    resources: {{limits: {{{resource}: {count}}}}}
"
        );
        let output = self.0.kubectl_with_input(&["create", "-f", "-"], &pod)?;
        Ok((!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Lets all pods be scheduled.
    fn schedule(&self) -> Result<()> {
        let pods = names(&self.0.get(&["pods", "-n", NAMESPACE])?);
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        let patch = r#"[{"op": "remove", "path": "/spec/schedulingGates"}]"#;
        let arguments = ["-n", NAMESPACE, "patch", "--type", "json", "-p", patch, "pod"];
        self.0.kubectl(&[&arguments[..], &pods].concat()).map(drop)
    }
}

impl Drop for Team<'_> {
    fn drop(&mut self) {
        self.0.remove_after_test(&["namespace", NAMESPACE]);
    }
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn a_namespace_gets_of_each_resource_what_its_quota_allows() -> Result<()> {
    let lab = Lab::enter()?;
    lab.apply(&sharing("inference", PLUGIN))?;
    lab.apply(MIXED_POLICY)?;
    lab.await_ready("sharing")?;
    lab.await_ready("mig")?;
    for (node, resource, served) in [
        (T4, "nvidia.com/gpu", 1),
        (T4, "aliyun.com/gpu-mem", 15),
        (T4, "nvidia.com/gpu.sliced", 4),
        (T4, "nvidia.com/gpu.mps", 5),
        (MIXED, "nvidia.com/mig-3g.40gb", 3),
    ] {
        lab.await_allocatable(node, resource, served)?;
    }
    let team = Team::found(&lab)?;
    for (place, allowance) in ALLOWED.into_iter().enumerate() {
        let (resource, _, allowed) = allowance;
        if allowed > 1 {
            let refusal = team.create(&format!("first-{place}"), allowance, allowed - 1)?;
            ensure!(refusal.is_none(), "{resource}: {refusal:?}");
        }
        let refusal = team.create(&format!("more-{place}"), allowance, 2)?.unwrap_or_default();
        let expected = [
            format!("exceeded quota: gpus, requested: requests.{resource}=2"),
            format!("used: requests.{resource}={}", allowed - 1),
            format!("limited: requests.{resource}={allowed}"),
        ];
        ensure!(
            expected.iter().all(|part| refusal.contains(part)),
            "{resource}: {refusal}"
        );
        let refusal = team.create(&format!("last-{place}"), allowance, 1)?;
        ensure!(refusal.is_none(), "{resource}: {refusal:?}");
    }
    team.schedule()?;
    eventually("the pods within the quota run", LIMIT, || {
        let pods = lab.get(&["pods", "-n", NAMESPACE])?;
        let phases: Vec<_> = pods["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pod| (pod["metadata"]["name"].clone(), pod["status"]["phase"].clone()))
            .collect();
        ensure!(
            phases.len() == 2 * ALLOWED.len() - 1 && phases.iter().all(|(_, phase)| phase == "Running"),
            "they are {phases:?}"
        );
        Ok(())
    })
}
