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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ResourceGpu;
    use proptest::prelude::*;

    fn resource(gpus: u32, replicas: u32) -> Resource {
        let gpu = |index| ResourceGpu { index, uuid: format!("GPU-{index}"), ..ResourceGpu::default() };
        Resource {
            name: "a.b/c".to_owned(),
            gpus: (0..gpus).map(gpu).collect(),
            replicas,
            fail_requests_greater_than_one: false,
        }
    }

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn whole_gpus_come_in_the_order_of_their_index() {
        let available = ids(&["GPU-3", "GPU-1", "GPU-2"]);
        assert_eq!(resource(4, 1).preferred(&available, &[], 2), ["GPU-1", "GPU-2"]);
        assert_eq!(resource(4, 1).preferred(&available, &ids(&["GPU-3"]), 2), ["GPU-3", "GPU-1"]);
    }

    #[test]
    fn replicas_are_spread_over_the_gpus_that_are_used_least() {
        let shared = resource(2, 3);
        let all: Vec<String> = shared.devices().map(|device| device.id).collect();
        assert_eq!(shared.preferred(&all, &[], 3), ["GPU-0::0", "GPU-1::0", "GPU-0::1"]);
        let one_used = ids(&["GPU-0::1", "GPU-0::2", "GPU-1::0", "GPU-1::1", "GPU-1::2"]);
        assert_eq!(shared.preferred(&one_used, &[], 1), ["GPU-1::0"]);
    }

    #[test]
    fn too_few_available_gives_what_there_is() {
        assert_eq!(resource(2, 1).preferred(&ids(&["GPU-1"]), &[], 2), ["GPU-1"]);
        assert!(resource(0, 1).preferred(&[], &[], 1).is_empty());
    }

    #[test]
    fn ids_of_an_earlier_list_are_taken_last() {
        assert_eq!(resource(2, 1).preferred(&ids(&["GPU-9", "GPU-1"]), &[], 2), ["GPU-1", "GPU-9"]);
    }

    proptest! {
        #[test]
        fn the_choice_fits_the_request_and_does_not_depend_on_the_order(
            (gpus, replicas) in (1..5_u32, 1..5_u32),
            picks in proptest::collection::vec(any::<bool>(), 25),
            required in 0..3_usize,
            size in 0..12_usize,
        ) {
            let resource = resource(gpus, replicas);
            let available: Vec<String> = resource
                .devices()
                .zip(&picks)
                .filter_map(|(device, pick)| pick.then_some(device.id))
                .collect();
            let must: Vec<String> = available.iter().rev().take(required.min(size)).cloned().collect();
            let chosen = resource.preferred(&available, &must, size);
            prop_assert_eq!(chosen.len(), size.min(available.len()));
            let set: BTreeSet<&String> = chosen.iter().collect();
            prop_assert_eq!(set.len(), chosen.len());
            prop_assert!(chosen.iter().all(|id| available.contains(id)));
            prop_assert!(must.iter().all(|id| chosen.contains(id)));
            let reversed: Vec<String> = available.iter().rev().cloned().collect();
            prop_assert_eq!(chosen, resource.preferred(&reversed, &must, size));
        }
    }
}
