//! Hand-overs between agents of a node, as its kubelet and the API server see them.

use crate::{KubeletLog, Lab, NodeWatch};
use anyhow::{Result, ensure};
use gpunode_node_tests::Stopwatch;
use std::time::Duration;

/// The longest gap that passes. It takes some 10 ms; `make bench` measures it and allows 100 ms.
const LONGEST: Duration = Duration::from_millis(100);

/// A record of a node's resource from one moment on.
#[derive(Debug)]
pub struct HandOvers {
    resource: &'static str,
    log: KubeletLog,
    watch: NodeWatch,
    stopwatch: Stopwatch,
}

impl HandOvers {
    /// Starts the record.
    pub fn record(lab: &Lab, node: &str, resource: &'static str) -> Result<Self> {
        Ok(Self {
            resource,
            log: KubeletLog::from_now(lab, node)?,
            watch: NodeWatch::start(lab, node)?,
            stopwatch: Stopwatch::start(),
        })
    }

    /// The record of the Node.
    pub fn watch(&self) -> &NodeWatch {
        &self.watch
    }

    /// Makes sure that the kubelet has lost no plugin so far, and that the Node has offered `count` all the time.
    pub fn ensure_none(&self, lab: &Lab, count: u64) -> Result<()> {
        let (lost, offered) = (self.log.lost_endpoints()?, self.watch.allocatable(lab, self.resource)?);
        ensure!(lost.is_empty(), "the kubelet lost a plugin: {lost:?}");
        ensure!(offered == [Some(count)], "the node offered {offered:?}");
        Ok(())
    }

    /// Makes sure that the kubelet has seen exactly so many hand-overs, each with a short gap.
    ///
    /// The Node may have shown 0 in between: a report of the kubelet that falls into a gap does, until the next report, and no
    /// kubelet up to 1.36 can promise otherwise (`docs/staying-up.md`). At no moment may it have shown another number.
    pub fn ensure_seamless(&self, lab: &Lab, hand_overs: usize, count: u64) -> Result<()> {
        let (gaps, offered) = (
            self.log.gaps(self.resource)?,
            self.watch.allocatable(lab, self.resource)?,
        );
        ensure!(
            gaps.len() == hand_overs,
            "{hand_overs} hand-overs made the gaps {gaps:?}"
        );
        // A process that waits for a processor makes the gap longer.
        let longest = LONGEST + self.stopwatch.stalled();
        ensure!(gaps.iter().all(|gap| *gap <= longest), "the gaps are {gaps:?}");
        let zeros = offered.iter().filter(|number| **number == Some(0)).count();
        ensure!(
            zeros <= hand_overs && offered.iter().all(|number| [Some(0), Some(count)].contains(number)),
            "the node offered {offered:?}"
        );
        ensure!(offered.last() == Some(&Some(count)), "the node offered {offered:?}");
        Ok(())
    }
}
