//! Device nodes of MIG instances.

use std::{collections::BTreeMap, fmt::Write};

use crate::Gpu;

// The driver numbers what could exist: 15 GPU instances of a GPU, each with 8 compute instances.
const GPU_INSTANCES: u32 = 15;
const COMPUTE_INSTANCES: u32 = 8;
/// `config`.
const CONFIG: u32 = 1;
/// `monitor`.
const MONITOR: u32 = 2;
const FIRST: u32 = 3;

/// Text of the table of every capability that could exist: `mig-minors`.
pub(crate) fn mig_minors(gpus: &[Gpu]) -> String {
    let mut text = format!("config {CONFIG}\nmonitor {MONITOR}\n");
    for gpu in gpus {
        for instance in 0..GPU_INSTANCES {
            let access = access(gpu, instance);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "gpu{}/gi{instance}/access {access}", gpu.minor);
            for compute in 0..COMPUTE_INSTANCES {
                let minor = access + 1 + compute;
                let _ = writeln!(text, "gpu{}/gi{instance}/ci{compute}/access {minor}", gpu.minor);
            }
        }
    }
    text
}

/// Capabilities that exist: the N of `/dev/nvidia-caps/nvidia-capN` by the path of the file that tells it, such as
/// `gpu0/mig/gi7/access`.
pub(crate) fn capabilities(gpus: &[Gpu]) -> BTreeMap<String, u32> {
    let mut minors = BTreeMap::from([("mig/config".to_owned(), CONFIG), ("mig/monitor".to_owned(), MONITOR)]);
    for gpu in gpus {
        for instance in gpu.mig.iter().flatten() {
            let folder = format!("gpu{}/mig/gi{}", gpu.minor, instance.id);
            let access = access(gpu, instance.id);
            for compute in &instance.compute_instances {
                minors.insert(format!("{folder}/ci{}/access", compute.id), access + 1 + compute.id);
            }
            minors.insert(format!("{folder}/access"), access);
        }
    }
    minors
}

fn access(gpu: &Gpu, instance: u32) -> u32 {
    FIRST + (gpu.minor * GPU_INSTANCES + instance) * (1 + COMPUTE_INSTANCES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MigGroup, Scenario, Topology};

    #[test]
    fn numbers_are_those_of_real_nodes() {
        let mut scenario = Scenario::new("n", "NVIDIA A100-SXM4-40GB", 2, Topology::NvSwitch);
        scenario.mig = vec![MigGroup {
            gpus: vec![0],
            instances: vec!["1g.5gb".to_owned()],
        }];
        let gpus = scenario.gpus().unwrap();
        let text = mig_minors(&gpus);
        assert!(text.starts_with("config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n"));
        assert!(text.contains("\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\n"));
        assert!(text.contains("\ngpu1/gi0/access 138\n"));
        assert_eq!(text.lines().count(), 2 + 2 * 135);
        let existing: Vec<_> = capabilities(&gpus).into_iter().collect();
        let expected = [
            ("gpu0/mig/gi7/access", 66),
            ("gpu0/mig/gi7/ci0/access", 67),
            ("mig/config", 1),
            ("mig/monitor", 2),
        ];
        assert_eq!(existing, expected.map(|(path, minor)| (path.to_owned(), minor)));
    }
}
