//! Device nodes of MIG instances.

use std::fmt::Write;

use crate::{Gpu, Scenario, ScenarioError};

/// File in which the driver lists the device node of each capability, below the host's root.
pub const MIG_MINORS_FILE: &str = "proc/driver/nvidia-caps/mig-minors";

/// Folder of the files of existing capabilities, below the host's root.
const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";

// The driver numbers what could exist: 15 GPU instances of a GPU, each with 8 compute instances.
const GPU_INSTANCES: u32 = 15;
const COMPUTE_INSTANCES: u32 = 8;
/// `config`.
const CONFIG: u32 = 1;
/// `monitor`.
const MONITOR: u32 = 2;
const FIRST: u32 = 3;

impl Scenario {
    /// Text of [`MIG_MINORS_FILE`].
    pub fn mig_minors(&self) -> Result<String, ScenarioError> {
        let mut text = format!("config {CONFIG}\nmonitor {MONITOR}\n");
        for gpu in self.gpus()? {
            for instance in 0..GPU_INSTANCES {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "gpu{}/gi{instance}/access {}", gpu.minor, access(&gpu, instance));
                for compute in 0..COMPUTE_INSTANCES {
                    let minor = access(&gpu, instance) + 1 + compute;
                    let _ = writeln!(text, "gpu{}/gi{instance}/ci{compute}/access {minor}", gpu.minor);
                }
            }
        }
        Ok(text)
    }

    /// Paths below the host's root, and texts, of the files in which the driver tells the device node of each MIG instance.
    pub fn capability_files(&self) -> Result<Vec<(String, String)>, ScenarioError> {
        let mut files = vec![("mig/config".to_owned(), CONFIG), ("mig/monitor".to_owned(), MONITOR)];
        for gpu in self.gpus()? {
            for instance in gpu.mig.iter().flatten() {
                let folder = format!("gpu{}/mig/gi{}", gpu.minor, instance.id);
                let minor = access(&gpu, instance.id);
                let compute = instance.compute_instances.iter();
                files.extend(
                    compute.map(|compute| (format!("{folder}/ci{}/access", compute.id), minor + 1 + compute.id)),
                );
                files.push((format!("{folder}/access"), minor));
            }
        }
        let file = |(path, minor): (String, u32)| {
            let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n");
            (format!("{CAPABILITIES}/{path}"), text)
        };
        Ok(files.into_iter().map(file).collect())
    }

    /// The N of every `/dev/nvidia-caps/nvidia-capN` of the node, ascending: those of the instances that exist, and the
    /// two of the node as a whole.
    pub fn capability_minors(&self) -> Result<Vec<u32>, ScenarioError> {
        let gpus = self.gpus()?;
        let instances = gpus
            .iter()
            .flat_map(|gpu| gpu.mig.iter().flatten().map(move |instance| (gpu, instance)));
        let of_instances = instances.flat_map(|(gpu, instance)| {
            let access = access(gpu, instance.id);
            let compute = instance
                .compute_instances
                .iter()
                .map(move |compute| access + 1 + compute.id);
            [access].into_iter().chain(compute)
        });
        let mut minors: Vec<u32> = [CONFIG, MONITOR].into_iter().chain(of_instances).collect();
        minors.sort_unstable();
        Ok(minors)
    }
}

fn access(gpu: &Gpu, instance: u32) -> u32 {
    FIRST + (gpu.minor * GPU_INSTANCES + instance) * (1 + COMPUTE_INSTANCES)
}

#[cfg(test)]
mod tests {
    use crate::{MigGroup, Scenario, Topology};

    #[test]
    fn numbers_are_those_of_real_nodes() {
        let mut scenario = Scenario::new("n", "NVIDIA A100-SXM4-40GB", 2, Topology::NvSwitch);
        scenario.mig = vec![MigGroup {
            gpus: vec![0],
            instances: vec!["1g.5gb".to_owned()],
        }];
        let text = scenario.mig_minors().unwrap();
        assert!(text.starts_with("config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n"));
        assert!(text.contains("\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\n"));
        assert!(text.contains("\ngpu1/gi0/access 138\n"));
        assert_eq!(text.lines().count(), 2 + 2 * 135);
        assert_eq!(scenario.capability_minors().unwrap(), [1, 2, 66, 67]);
        let files = scenario.capability_files().unwrap();
        let (path, text) = files.last().unwrap();
        assert_eq!(path, "proc/driver/nvidia/capabilities/gpu0/mig/gi7/access");
        assert!(text.starts_with("DeviceFileMinor: 66\n"), "{text}");
        assert_eq!(files.len(), 4);
    }
}
