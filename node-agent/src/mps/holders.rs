//! Asks the kubelet for the holders of a device: a daemon ends only when there are none.

use crate::kubelet::podresources::{PodResources, PodResourcesError};
use gpunode_gpu::{KubeletObservation, device_of};
use std::{collections::BTreeSet, sync::Arc};

/// Query to the kubelet for holders.
#[derive(Clone, Debug)]
pub struct HolderQuery(Arc<PodResources>);

impl HolderQuery {
    /// Queries this kubelet.
    pub fn new(kubelet: PodResources) -> Self {
        Self(Arc::new(kubelet))
    }

    /// Returns true if a container holds a share of the device.
    pub async fn is_held(&self, device: &str) -> Result<bool, PodResourcesError> {
        Ok(self.held_devices().await?.contains(device))
    }

    /// Reads the kubelet's checkpoint for the next query; blocks. Only a checkpoint of some age shows which pods are gone.
    pub fn note_checkpoint(&self) {
        self.0.note_checkpoint();
    }

    /// Returns every device with a share that a container holds. A container with a claim of a DRA driver holds none: it is no
    /// client of a daemon.
    pub async fn held_devices(&self) -> Result<BTreeSet<String>, PodResourcesError> {
        Ok(held(&self.0.observe().await?))
    }
}

fn held(observation: &KubeletObservation) -> BTreeSet<String> {
    let ids = observation.holders.iter().flat_map(|holding| &holding.ids);
    let in_checkpoint = observation.checkpoint.iter().map(|(_, id)| id);
    ids.chain(in_checkpoint).map(|id| device_of(id).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_gpu::ContainerShares;
    use std::time::Instant;

    #[test]
    fn held_shares_and_the_checkpoint_name_held_devices() {
        let holding = ContainerShares {
            namespace: "a".to_owned(),
            pod: "b".to_owned(),
            container: "c".to_owned(),
            resource: "d.e/f".to_owned(),
            ids: vec!["GPU-1::3".to_owned()],
        };
        let observation = KubeletObservation {
            started: Instant::now(),
            holders: vec![holding],
            allocatable: [("d.e/f".to_owned(), "GPU-3".to_owned())].into(),
            checkpoint: [("d.e/f".to_owned(), "GPU-2".to_owned())].into(),
        };
        assert_eq!(held(&observation), ["GPU-1", "GPU-2"].map(str::to_owned).into());
    }
}
