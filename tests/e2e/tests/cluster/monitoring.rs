//! Rules and dashboards of `manifests/monitoring` name metrics that agents and operators expose.
//!
//! On the cluster of `mig.yaml`, whose GPUs can be divided.

use crate::samples;
use anyhow::{Context, Result, ensure};
use gpunode_e2e::{Lab, MIG_A100, NAMESPACE, eventually};
use gpunode_monitoring_tests::{Scrape, dashboards, metric_names, rules};
use gpunode_scenario::ReturnCode;
use std::{collections::BTreeSet, time::Duration};

const LIMIT: Duration = Duration::from_mins(3);

/// An admission policy that refuses what the operator writes to Nodes, until it is dropped.
struct RefusedNodes<'a>(&'a Lab);

impl<'a> RefusedNodes<'a> {
    fn begin(lab: &'a Lab) -> Result<Self> {
        let refused = Self(lab);
        let file = Lab::repository().join("tests/monitoring/story/refuse-nodes.yaml");
        lab.kubectl(&["apply", "-f", &file.to_string_lossy()])?;
        Ok(refused)
    }
}

impl Drop for RefusedNodes<'_> {
    fn drop(&mut self) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            self.0.remove_after_test(&[kind, "refuse-nodes"]);
        }
    }
}

/// Metrics in the queries of all rules and dashboards, but that of Prometheus itself.
fn used() -> Result<BTreeSet<String>> {
    let mut names: BTreeSet<String> = rules()?.iter().flat_map(|rule| metric_names(&rule.expr)).collect();
    for dashboard in dashboards()? {
        for query in dashboard.panels().iter().flat_map(|panel| &panel.queries) {
            names.extend(metric_names(query));
        }
        for query in dashboard.variable_queries() {
            names.extend(metric_names(query));
        }
    }
    ensure!(names.remove("up"), "nothing looks for pods that do not answer");
    Ok(names)
}

/// Names of the samples that all pods of gpunode answer now.
fn scraped(lab: &Lab) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for (app, port) in [("gpunode-agent", 8081), ("gpunode-operator", 8080)] {
        let selector = format!("app.kubernetes.io/name={app}");
        let pods = lab.get(&[
            "pods",
            "-n",
            NAMESPACE,
            "-l",
            &selector,
            "--field-selector",
            "status.phase=Running",
        ])?;
        for pod in gpunode_e2e::names(&pods) {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:{port}/proxy/metrics");
            let text = lab.kubectl(&["get", "--raw", &path])?;
            let scrape = Scrape::read(&text).with_context(|| format!("read the metrics of {pod}"))?;
            let samples = scrape.samples.into_keys();
            names.extend(samples.filter_map(|series| series.split('{').next().map(str::to_owned)));
        }
    }
    Ok(names)
}

#[test]
#[ignore = "needs the local cluster: make test"]
fn metrics_of_rules_and_dashboards_are_scraped_from_agents_and_operators() -> Result<()> {
    let lab = Lab::enter_undivided()?;
    let used = used()?;
    // Most appear with what they count: devices, a layout, a pod, an XID, a driver's error, and writes that are refused.
    lab.put_layout(
        MIG_A100,
        "{mig: {strategy: Mixed, layout: [{devices: {indices: [0]}, instances: {1g.10gb: 3}}]}}",
    )?;
    lab.await_layout(MIG_A100, 0, "1g.10gb:3")?;
    lab.apply(&samples::holding("monitored", MIG_A100, 1, "nvidia.com/gpu", 1))?;
    lab.await_running("monitored", 1)?;
    let driver = lab.driver_state(MIG_A100)?;
    driver.inject_xid(1, 79)?;
    driver.fail(2, "nvmlDeviceGetMemoryInfo", ReturnCode::Unknown)?;
    let refused = RefusedNodes::begin(&lab)?;
    let value = std::cell::Cell::new(0);
    let seen = eventually("every metric of a rule or dashboard is scraped", LIMIT, || {
        // An admission policy is in force some seconds after its creation, and counts with the next write only.
        value.set(value.get() + 1);
        let labels = format!("{{\"spec\": {{\"labels\": {{\"monitored\": \"v{}\"}}}}}}", value.get());
        // Nothing comes of it on nodes whose writes are refused.
        lab.unplanned("sharing", || {
            lab.kubectl(&["patch", "gpunodepolicy", "sharing", "--type", "merge", "-p", &labels])
        })?;
        let scraped = scraped(&lab)?;
        let missing: Vec<&String> = used.difference(&scraped).collect();
        ensure!(missing.is_empty(), "{missing:?} are not");
        Ok(())
    });
    drop(refused);
    driver.repair(1)?;
    driver.repair(2)?;
    seen
}
