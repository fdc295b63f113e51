//! Which of the available devices a container had best get.
//!
//! Replicas go to the GPU that is used least, whole GPUs in the order of their index. The answer is advice to the
//! kubelet, and an error would fail the pod: there is always an answer.

use crate::Resource;
use std::collections::{BTreeSet, VecDeque};

/// The free replicas of one GPU.
struct Candidate<'a> {
    used: usize,
    free: VecDeque<&'a str>,
}

impl Resource {
    /// `size` of the `available` ids, among them those of `must_include`; fewer where there are not enough.
    pub fn preferred(&self, available: &[String], must_include: &[String], size: usize) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let mut chosen: Vec<String> = must_include.iter().filter(|id| seen.insert(id.as_str())).cloned().collect();

        let mut free: Vec<BTreeSet<(u32, &str)>> = vec![BTreeSet::new(); self.gpus.len()];
        let mut unknown = Vec::new();
        for id in available.iter().filter(|id| seen.insert(id.as_str())) {
            match self.place(id).and_then(|(at, replica)| Some((free.get_mut(at)?, replica))) {
                Some((replicas, replica)) => _ = replicas.insert((replica, id.as_str())),
                // Ids of a list that was sent before: the kubelet asks with what it knows.
                None => unknown.push(id.as_str()),
            }
        }
        let mut candidates: Vec<Candidate<'_>> = free
            .into_iter()
            .map(|replicas| Candidate {
                used: (self.replicas as usize).saturating_sub(replicas.len()),
                free: replicas.into_iter().map(|(_, id)| id).collect(),
            })
            .collect();

        while chosen.len() < size {
            // The first of equals, which is the one with the lowest index.
            let least = candidates.iter_mut().filter(|gpu| !gpu.free.is_empty()).min_by_key(|gpu| gpu.used);
            let Some(gpu) = least else { break };
            gpu.used += 1;
            chosen.extend(gpu.free.pop_front().map(str::to_owned));
        }
        let missing = size.saturating_sub(chosen.len());
        chosen.extend(unknown.into_iter().take(missing).map(str::to_owned));
        chosen
    }
}
