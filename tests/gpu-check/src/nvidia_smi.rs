//! The output of `nvidia-smi -q -x`, as far as it is compared. Names of elements: drivers 460 (`nvsmi_device_v11.dtd`) to 580
//! (`nvsmi_device_v12.dtd`).

use crate::xml::{self, Element, XmlError};

/// Mark of nvidia-smi for what a GPU does not have or does not tell.
pub const NOT_AVAILABLE: &str = "N/A";
/// Names of boards that draw on the monitor of a DGX Station. The agent leaves them out.
const DISPLAYS: [&str; 2] = ["DGX Display", "NVIDIA DGX Display"];
/// End of the document.
const END: &str = "</nvidia_smi_log>";

/// The driver and its GPUs. An element that this driver's nvidia-smi does not print is none; what a GPU does not have is
/// [`NOT_AVAILABLE`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SmiLog {
    /// Time of the output.
    pub timestamp: Option<String>,
    /// Version of the driver.
    pub driver_version: Option<String>,
    /// Newest CUDA version that the driver supports.
    pub cuda_version: Option<String>,
    /// The GPUs, in the order of their NVML index.
    pub gpus: Vec<SmiGpu>,
    /// Boards that compute nothing.
    pub displays: Vec<SmiGpu>,
    /// Text after the document, such as a warning about an infoROM.
    pub remarks: String,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SmiGpu {
    /// NVML index.
    pub index: u32,
    /// UUID.
    pub uuid: String,
    /// Product name in NVML's form.
    pub name: String,
    /// PCI address, such as `00000000:07:00.0`.
    pub bus_id: String,
    /// The N of `/dev/nvidiaN`.
    pub minor: Option<String>,
    /// Total memory, such as `143771 MiB`.
    pub memory: Option<String>,
    /// `Enabled` or `Disabled`.
    pub persistence: Option<String>,
    /// `Enabled` or `Disabled`.
    pub mig_mode: Option<String>,
    /// Ids of GPU instance and compute instance of each MIG device, ordered.
    pub mig_devices: Vec<(String, String)>,
    /// `Completed`, `In Progress`, ...
    pub fabric_state: Option<String>,
    /// `Success`, or an error of the fabric.
    pub fabric_status: Option<String>,
    /// Id of the part of the fabric.
    pub fabric_clique: Option<String>,
    /// UUID of the fabric; zeros where it ends at the node.
    pub fabric_cluster: Option<String>,
    /// `Yes` or `No`.
    pub retirement_pending: Option<String>,
    /// `Yes` or `No`.
    pub remap_pending: Option<String>,
    /// `Yes` or `No`.
    pub remap_failed: Option<String>,
    /// `None`, `Reset`, ...
    pub recovery_action: Option<String>,
}

/// Reason why an output cannot be compared.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SmiError {
    /// It is not XML.
    #[error("read the output of nvidia-smi -q -x")]
    Xml(#[from] XmlError),
    /// It is another document.
    #[error("read the output of nvidia-smi -q -x: the root is <{0}>, not <nvidia_smi_log>")]
    Root(String),
    /// A GPU has no identity.
    #[error("read the output of nvidia-smi -q -x: GPU {gpu} has no <{element}>")]
    Missing {
        /// Place of the GPU in the output.
        gpu: u32,
        /// The element.
        element: &'static str,
    },
}

impl SmiLog {
    /// Parses an output.
    pub fn parse(text: &str) -> Result<Self, SmiError> {
        let end = text.rfind(END).map_or(text.len(), |at| at + END.len());
        let (document, remarks) = text.split_at_checked(end).unwrap_or((text, ""));
        let root = xml::parse(&without_process_names(document))?;
        if root.name != "nvidia_smi_log" {
            return Err(SmiError::Root(root.name));
        }
        let value = |name| owned(&root, &[name]);
        let boards = (0..).zip(root.all("gpu")).map(|(index, gpu)| SmiGpu::read(index, gpu));
        let boards: Vec<SmiGpu> = boards.collect::<Result<_, _>>()?;
        let (displays, gpus) = boards
            .into_iter()
            .partition(|board| DISPLAYS.contains(&board.name.as_str()));
        Ok(Self {
            timestamp: value("timestamp"),
            driver_version: value("driver_version"),
            cuda_version: value("cuda_version"),
            gpus,
            displays,
            remarks: remarks.trim().to_owned(),
        })
    }
}

impl SmiGpu {
    fn read(index: u32, gpu: &Element) -> Result<Self, SmiError> {
        let value = |path: &[&str]| owned(gpu, path);
        let needed = |path: &[&str], element| value(path).ok_or(SmiError::Missing { gpu: index, element });
        let mut mig_devices: Vec<(String, String)> = gpu
            .all("mig_devices")
            .flat_map(|devices| devices.all("mig_device"))
            .map(|device| {
                let id = |name| owned(device, &[name]).unwrap_or_default();
                (id("gpu_instance_id"), id("compute_instance_id"))
            })
            .collect();
        mig_devices.sort();
        Ok(Self {
            index,
            uuid: needed(&["uuid"], "uuid")?,
            name: needed(&["product_name"], "product_name")?,
            bus_id: needed(&["pci", "pci_bus_id"], "pci_bus_id")?,
            minor: value(&["minor_number"]),
            memory: value(&["fb_memory_usage", "total"]),
            persistence: value(&["persistence_mode"]),
            mig_mode: value(&["mig_mode", "current_mig"]),
            mig_devices,
            fabric_state: value(&["fabric", "state"]),
            fabric_status: value(&["fabric", "status"]),
            fabric_clique: value(&["fabric", "cliqueId"]),
            fabric_cluster: value(&["fabric", "clusterUuid"]),
            retirement_pending: value(&["retired_pages", "pending_retirement"]),
            remap_pending: value(&["remapped_rows", "remapped_row_pending"]),
            remap_failed: value(&["remapped_rows", "remapped_row_failure"]),
            recovery_action: value(&["gpu_recovery_action"]),
        })
    }
}

/// Leaves the names of processes out: nvidia-smi prints them as they are, with any `<`.
fn without_process_names(document: &str) -> String {
    let mut parts = document.split("<process_name>");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once("</process_name>").map_or(part, |(_, rest)| rest));
    }
    text
}

fn owned(element: &Element, path: &[&str]) -> Option<String> {
    element.value(path).map(str::to_owned)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The output for the simulated node with a V100.
    pub const V100: &str = include_str!("../testdata/v100.xml");
    /// The output for the simulated node with an H200.
    pub const H200: &str = include_str!("../testdata/h200.xml");

    #[test]
    fn a_board_without_fabric_and_row_remapping_says_so() {
        let log = SmiLog::parse(V100).unwrap();
        assert_eq!(log.driver_version.as_deref(), Some("580.95.05"));
        assert_eq!(log.cuda_version.as_deref(), Some("13.0"));
        let [gpu] = &log.gpus[..] else { panic!("{log:?}") };
        assert_eq!(gpu.name, "Tesla V100-SXM2-32GB");
        assert_eq!(gpu.bus_id, "00000000:11:00.0");
        assert_eq!(
            (gpu.memory.as_deref(), gpu.minor.as_deref()),
            (Some("32768 MiB"), Some("0"))
        );
        let told = [&gpu.mig_mode, &gpu.fabric_state, &gpu.remap_pending, &gpu.remap_failed];
        assert_eq!(told.map(|value| value.as_deref()), [Some(NOT_AVAILABLE); 4]);
        assert_eq!(gpu.retirement_pending.as_deref(), Some("No"));
        assert!(gpu.mig_devices.is_empty());
    }

    #[test]
    fn a_board_on_an_nvswitch_has_its_fabric() {
        let log = SmiLog::parse(H200).unwrap();
        let [gpu] = &log.gpus[..] else { panic!("{log:?}") };
        assert_eq!(gpu.fabric_state.as_deref(), Some("Completed"));
        assert_eq!(gpu.fabric_status.as_deref(), Some("Success"));
        assert_eq!(gpu.remap_pending.as_deref(), Some("No"));
        assert_eq!(gpu.recovery_action.as_deref(), Some("None"));
    }

    #[test]
    fn an_older_driver_leaves_elements_out() {
        let text = "<nvidia_smi_log><gpu id=\"0\"><uuid>GPU-1</uuid><product_name>Tesla T4</product_name>\
                    <pci><pci_bus_id>00000000:00:1E.0</pci_bus_id></pci></gpu></nvidia_smi_log>";
        let log = SmiLog::parse(text).unwrap();
        assert_eq!(log.gpus[0].fabric_state, None);
        assert_eq!(log.gpus[0].recovery_action, None);
        assert_eq!(log.cuda_version, None);
    }

    #[test]
    fn mig_devices_are_known_by_their_instances() {
        let device = |gi, ci| {
            format!(
                "<mig_device><index>0</index><gpu_instance_id>{gi}</gpu_instance_id>\
                 <compute_instance_id>{ci}</compute_instance_id></mig_device>"
            )
        };
        let divided = format!("<mig_devices>{}{}</mig_devices>", device(9, 0), device(2, 1));
        let text = V100.replace("<mig_devices>None</mig_devices>", &divided);
        let instances = [("2", "1"), ("9", "0")].map(|(gi, ci)| (gi.to_owned(), ci.to_owned()));
        assert_eq!(SmiLog::parse(&text).unwrap().gpus[0].mig_devices, instances);
    }

    #[test]
    fn a_warning_may_follow_the_document() {
        let warning = "WARNING: infoROM is corrupted at gpu 0000:11:00.0";
        let log = SmiLog::parse(&format!("{V100}{warning}\n")).unwrap();
        assert_eq!(log.remarks, warning);
        assert_eq!(log.gpus, SmiLog::parse(V100).unwrap().gpus);
    }

    #[test]
    fn a_process_may_have_any_name() {
        let text = V100.replace("a && b", "a < b > c </d>");
        assert_eq!(SmiLog::parse(&text), SmiLog::parse(V100));
    }

    #[test]
    fn a_display_board_is_no_gpu_but_has_an_index() {
        let gpu = |name| {
            format!(
                "<gpu><product_name>{name}</product_name><uuid>GPU-{name}</uuid>\
                 <pci><pci_bus_id>00000000:00:1E.0</pci_bus_id></pci></gpu>"
            )
        };
        let (display, other) = (gpu("NVIDIA DGX Display"), gpu("NVIDIA A100-SXM4-80GB"));
        let log = SmiLog::parse(&format!("<nvidia_smi_log>{display}{other}</nvidia_smi_log>")).unwrap();
        let indices = |gpus: &[SmiGpu]| gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>();
        assert_eq!((indices(&log.displays), indices(&log.gpus)), (vec![0], vec![1]));
    }

    #[test]
    fn what_cannot_be_compared_is_an_error() {
        let error = |text: &str| format!("{:#}", anyhow::Error::from(SmiLog::parse(text).unwrap_err()));
        assert!(error("NVIDIA-SMI has failed").contains("line 1: the end is missing"));
        assert!(error("<html></html>").contains("the root is <html>"));
        assert!(error("<nvidia_smi_log><gpu></gpu></nvidia_smi_log>").contains("GPU 0 has no <uuid>"));
    }
}
