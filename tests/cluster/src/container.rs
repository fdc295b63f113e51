//! Finding the processes of containers.

use std::{collections::BTreeMap, iter};

use anyhow::{Result, bail};

use crate::{
    node::Node,
    process::{self, Process},
};

impl Node {
    /// The main process of a running container.
    pub fn container_process(&self, namespace: &str, pod: &str, container: &str) -> Result<Process> {
        let Some(inside) = self.main_pid(namespace, pod, container)? else {
            bail!(
                "container {container} of pod {namespace}/{pod} does not run on node {}",
                self.name()
            );
        };
        match self.outside(inside)? {
            Some(process) => Ok(process),
            None => bail!("container {container} of pod {namespace}/{pod} has just ended"),
        }
    }

    /// All processes of a running container.
    pub fn container_processes(&self, namespace: &str, pod: &str, container: &str) -> Result<Vec<Process>> {
        let mut processes = Vec::new();
        for id in self.container_ids(namespace, pod, container)? {
            // A container without a task has ended.
            let Ok(table) = self.ctr(["tasks", "ps", &id]) else {
                continue;
            };
            for line in table.lines().skip(1) {
                let pid = line.split_ascii_whitespace().next().and_then(|pid| pid.parse().ok());
                if let Some(pid) = pid
                    && let Some(process) = self.outside(pid)?
                {
                    processes.push(process);
                }
            }
        }
        Ok(processes)
    }

    fn main_pid(&self, namespace: &str, pod: &str, container: &str) -> Result<Option<i32>> {
        let ids = self.container_ids(namespace, pod, container)?;
        let tasks = self.ctr(["tasks", "list"])?;
        Ok(tasks.lines().find_map(|line| {
            // TASK PID STATUS; paused means stopped from outside, not ended.
            let mut fields = line.split_ascii_whitespace();
            let (id, pid, status) = (fields.next()?, fields.next()?, fields.next()?);
            let runs = status == "RUNNING" || status == "PAUSED";
            (runs && ids.iter().any(|other| other == id)).then(|| pid.parse().ok())?
        }))
    }

    fn container_ids(&self, namespace: &str, pod: &str, container: &str) -> Result<Vec<String>> {
        let filter = format!(
            "labels.\"io.kubernetes.pod.namespace\"=={namespace},\
             labels.\"io.kubernetes.pod.name\"=={pod},\
             labels.\"io.kubernetes.container.name\"=={container}"
        );
        let ids = self.ctr(["containers", "list", "--quiet", &filter])?;
        Ok(ids.lines().map(str::to_owned).collect())
    }

    /// The process that has this id inside.
    fn outside(&self, inside: i32) -> Result<Option<Process>> {
        let holder = self.sandbox().holder()?.pid();
        let processes = process::all()?;
        let parents: BTreeMap<_, _> = processes
            .iter()
            .filter_map(|process| Some((process.pid(), process.parent()?)))
            .collect();
        // Orphans become children of the holder, so it is an ancestor of every process inside.
        let is_inside = |pid: i32| {
            iter::successors(Some(pid), |pid| parents.get(pid).copied())
                .take(parents.len())
                .any(|ancestor| ancestor == holder)
        };
        Ok(processes.into_iter().find(|process| {
            let pids = process.namespace_pids().unwrap_or_default();
            pids.get(1) == Some(&inside) && is_inside(process.pid())
        }))
    }
}
