//! Summary of what is held and by whom, for a table. Pure.

use gpunode_crds::{ResourceStatus, named};
use gpunode_gpu::DeviceHolder;
use std::collections::{BTreeMap, BTreeSet};

/// Number of resources and pods that are named; the rest is counted.
const NAMED: usize = 3;

/// Returns how much of each resource is held, such as `nvidia.com/gpu 5/8, nvidia.com/gpu.shared 1/16`. A resource that is no
/// longer advertised comes last, without capacity.
pub fn in_use(resources: &[ResourceStatus], holders: &[DeviceHolder]) -> Option<String> {
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    for holder in holders {
        *held.entry(&holder.resource).or_default() += u64::from(holder.count);
    }
    let in_use = resources.iter().map(|resource| {
        let count = held.remove(resource.name.as_str()).unwrap_or_default();
        format!("{} {count}/{}", resource.name, resource.capacity)
    });
    let mut parts: Vec<String> = in_use.collect();
    parts.extend(held.iter().map(|(name, count)| format!("{name} {count}")));
    (!parts.is_empty()).then(|| named(parts, NAMED))
}

/// Returns the pods that hold devices, such as `ml/train-0, ml/notebook`.
pub fn held_by(holders: &[DeviceHolder]) -> Option<String> {
    let pods: BTreeSet<String> = holders
        .iter()
        .map(|holder| format!("{}/{}", holder.namespace, holder.pod))
        .collect();
    (!pods.is_empty()).then(|| named(pods, NAMED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pod: &str, resource: &str, count: u32) -> DeviceHolder {
        DeviceHolder {
            namespace: "ml".to_owned(),
            pod: pod.to_owned(),
            container: "main".to_owned(),
            resource: resource.to_owned(),
            device: "GPU-1".to_owned(),
            count,
        }
    }

    fn resources(names: &[&str]) -> Vec<ResourceStatus> {
        let of = |name: &&str| ResourceStatus {
            name: (*name).to_owned(),
            capacity: 8,
            ..ResourceStatus::default()
        };
        names.iter().map(of).collect()
    }

    #[test]
    fn each_resource_tells_how_much_of_it_is_held() {
        let holders = [
            holder("a", "x/gpu", 2),
            holder("b", "x/gpu", 1),
            holder("b", "x/old", 1),
        ];
        assert_eq!(
            in_use(&resources(&["x/gpu", "x/idle"]), &holders).unwrap(),
            "x/gpu 3/8, x/idle 0/8, x/old 1"
        );
        assert_eq!(in_use(&[], &[]), None);
    }

    #[test]
    fn pods_are_named_once_and_many_are_counted() {
        let holders = ["a", "a", "b", "c", "d", "e"].map(|pod| holder(pod, "x/gpu", 1));
        assert_eq!(held_by(&holders).unwrap(), "ml/a, ml/b, ml/c and 2 more");
        assert_eq!(held_by(&holders[..2]).unwrap(), "ml/a");
        assert_eq!(held_by(&[]), None);
    }
}
