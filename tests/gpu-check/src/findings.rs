//! Comparison of what nvidia-smi, the driver and the agent say. Pure.

use crate::{
    agent::{AgentInventory, AgentRun, Granted},
    driver::{
        Answer, DriverAnswers, FUNCTION_NOT_FOUND, GPU_IS_LOST, GpuAnswers, INVALID_ARGUMENT, NOT_SUPPORTED,
        RECOVERY_ACTION, REMAP_FAILED, REMAP_PENDING,
    },
    nvidia_smi::{NOT_AVAILABLE, SmiGpu, SmiLog},
    raw::FabricAnswer,
    table::{Row, together},
};
use gpunode_crds::{Fabric, GpuDevice, MigMode};
use std::collections::{BTreeMap, BTreeSet};

/// `nvmlGpuFabricState_t` in nvidia-smi's words.
const FABRIC_STATES: [&str; 4] = [NOT_AVAILABLE, "Not Started", "In Progress", "Completed"];
/// Recovery actions in nvidia-smi's words, by number (NVIDIA, "GPU Memory Error Management", recovery action flag). Numbers
/// from 5 on mean different things in different drivers.
const RECOVERY_ACTIONS: [&str; 5] = ["None", "Reset", "Reboot", "Drain P2P", "Drain and Reset"];
/// Said of an element that this driver's nvidia-smi does not have.
const NOT_PRINTED: &str = "not printed";

/// Answers of the three, or why there is none.
#[derive(Debug)]
pub struct Findings {
    /// Output of nvidia-smi.
    pub smi: Result<SmiLog, String>,
    /// Answers of the driver.
    pub driver: Result<DriverAnswers, String>,
    /// Inventory of the agent.
    pub inventory: Result<AgentInventory, String>,
    /// Work of the agent with the kubelet's double.
    pub run: Result<AgentRun, String>,
}

impl Findings {
    /// Returns the devices that the agent has to advertise: whole GPUs, and the MIG devices of the others. From nvidia-smi,
    /// which tells no UUIDs of MIG devices, if the agent has no inventory.
    pub fn devices(smi: &Result<SmiLog, String>, inventory: &Result<AgentInventory, String>) -> BTreeSet<String> {
        match (inventory, smi) {
            (Ok(inventory), _) => inventory.status.gpus.iter().flat_map(advertised).collect(),
            (Err(_), Ok(smi)) => {
                let whole = smi.gpus.iter().filter(|gpu| gpu.mig_mode.as_deref() != Some("Enabled"));
                whole.map(|gpu| gpu.uuid.clone()).collect()
            }
            (Err(_), Err(_)) => BTreeSet::new(),
        }
    }

    /// Returns the machine in one line.
    pub fn title(&self) -> String {
        let status = self
            .inventory
            .as_ref()
            .map(|inventory| inventory.status.clone())
            .unwrap_or_default();
        let parts = [
            status.hardware.filter(|hardware| !hardware.is_empty()),
            status.driver_version.map(|version| format!("driver {version}")),
            status.cuda_version.map(|version| format!("CUDA {version}")),
            self.smi.as_ref().ok().and_then(|smi| smi.timestamp.clone()),
        ];
        let title = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        if title.is_empty() {
            "no GPU was read".to_owned()
        } else {
            title
        }
    }

    /// Returns the rows of the table.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        rows.extend(failed("nvidia-smi -q -x", &self.smi));
        rows.extend(failed("the driver's answers", &self.driver));
        rows.extend(failed("the agent's inventory", &self.inventory));
        rows.extend(failed("the agent with the kubelet's double", &self.run));
        if let Ok(inventory) = &self.inventory {
            let problem = inventory.problem.iter();
            rows.extend(problem.map(|problem| Row::compared("the agent's inventory", "complete", problem, false)));
            if let Ok(smi) = &self.smi {
                rows.extend(inventory_rows(smi, inventory));
            }
        }
        if let Ok(driver) = &self.driver {
            rows.extend(driver_rows(driver));
            if let Ok(smi) = &self.smi {
                rows.extend(reported_rows(smi, driver));
            }
        }
        if let Ok(run) = &self.run {
            let devices = Self::devices(&self.smi, &self.inventory);
            rows.extend(run_rows(&devices, self.smi.as_ref().ok(), run));
        }
        rows
    }
}

fn failed<T>(what: &'static str, answer: &Result<T, String>) -> Option<Row> {
    let error = answer.as_ref().err()?;
    Some(Row::compared(what, "an answer", error, false))
}

fn advertised(gpu: &GpuDevice) -> Vec<String> {
    match gpu.mig_mode {
        Some(MigMode::Enabled) => gpu.mig_devices.iter().map(|device| device.uuid.clone()).collect(),
        _ => vec![gpu.uuid.clone()],
    }
}

/// Both answers to a question about one GPU, and whether they say the same.
type Pair = (String, String, bool);

fn equal(expected: String, measured: String) -> Pair {
    let is_same = expected == measured;
    (expected, measured, is_same)
}

/// Returns the row of a question to every GPU; none without a GPU.
fn row_of_gpus(what: &'static str, pairs: impl IntoIterator<Item = (u32, Pair)>) -> Option<Row> {
    let pairs: Vec<(u32, Pair)> = pairs.into_iter().collect();
    let expected = together(pairs.iter().map(|(gpu, (expected, ..))| (*gpu, expected.as_str())));
    let measured = together(pairs.iter().map(|(gpu, (_, measured, _))| (*gpu, measured.as_str())));
    let is_same = pairs.iter().all(|(_, (.., is_same))| *is_same);
    (!pairs.is_empty()).then(|| Row::compared(what, expected, measured, is_same))
}

/// Compares two sets of names: `8`, or the names that only one of them has.
fn row_of_names(what: &'static str, expected: &BTreeSet<String>, measured: &BTreeSet<String>) -> Row {
    let names = |of: &BTreeSet<String>, without: &BTreeSet<String>| -> String {
        let names: Vec<&str> = of.difference(without).map(String::as_str).collect();
        names.join(", ")
    };
    let (missing, surplus) = (names(expected, measured), names(measured, expected));
    let mut text = measured.len().to_string();
    for (word, names) in [("without", missing), ("also", surplus)] {
        if !names.is_empty() {
            text = format!("{text}, {word} {names}");
        }
    }
    Row::compared(what, expected.len().to_string(), text, expected == measured)
}

fn inventory_rows(smi: &SmiLog, inventory: &AgentInventory) -> Vec<Row> {
    let status = &inventory.status;
    let version = |version: &Option<String>| version.clone().unwrap_or_else(|| NOT_PRINTED.to_owned());
    let mut rows = vec![
        Row::equal(
            "driver version",
            version(&smi.driver_version),
            version(&status.driver_version),
        ),
        Row::compared(
            "CUDA version",
            version(&smi.cuda_version),
            version(&status.cuda_version),
            smi.cuda_version.is_none() || smi.cuda_version == status.cuda_version,
        ),
        row_of_names(
            "GPUs, by UUID",
            &smi.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
            &status.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
        ),
    ];
    let both: Vec<(u32, &SmiGpu, &GpuDevice)> = (0..)
        .zip(&smi.gpus)
        .filter_map(|(index, gpu)| Some((index, gpu, status.gpus.iter().find(|device| device.uuid == gpu.uuid)?)))
        .collect();
    let mut compare = |what, pair: &dyn Fn(u32, &SmiGpu, &GpuDevice) -> Pair| {
        let pairs = both
            .iter()
            .map(|(index, gpu, device)| (*index, pair(*index, gpu, device)));
        rows.extend(row_of_gpus(what, pairs));
    };
    compare("NVML index", &|index, _, device| {
        // Of several GPUs each has its own; only one that differs is of interest.
        let is_same = index == device.index;
        let text = |index: u32| {
            if is_same {
                "by place".to_owned()
            } else {
                index.to_string()
            }
        };
        (text(index), text(device.index), is_same)
    });
    compare("product", &|_, gpu, device| {
        equal(gpunode_gpu::product_label(&gpu.name), device.product.clone())
    });
    compare("memory", &|_, gpu, device| {
        let expected = gpu.memory.clone().unwrap_or_else(|| NOT_PRINTED.to_owned());
        let is_same = match mebibytes(&expected) {
            // Both round the driver's bytes.
            Some(mebibytes) => mebibytes.abs_diff(device.memory_mib) <= 1,
            None => device.memory_mib == 0,
        };
        (expected, format!("{} MiB", device.memory_mib), is_same)
    });
    compare("PCI address", &|_, gpu, device| {
        let (expected, measured) = (pci_address(&gpu.bus_id), device.pci_bus_id.clone().unwrap_or_default());
        let is_same = expected == measured;
        let text = |address| if is_same { "the same".to_owned() } else { address };
        (text(expected), text(measured), is_same)
    });
    compare("MIG mode", &|_, gpu, device| {
        let measured = device
            .mig_mode
            .map_or(NOT_AVAILABLE.to_owned(), |mode| format!("{mode:?}"));
        match &gpu.mig_mode {
            Some(mode) => equal(mode.clone(), measured),
            None => (NOT_PRINTED.to_owned(), measured, true),
        }
    });
    compare("MIG devices, by instance", &|_, gpu, device| {
        let text = |ids: Vec<String>| {
            if ids.is_empty() {
                "none".to_owned()
            } else {
                ids.join(", ")
            }
        };
        let expected = gpu.mig_devices.iter().map(|(gi, ci)| format!("{gi}/{ci}"));
        let measured = device
            .mig_devices
            .iter()
            .map(|mig| format!("{}/{}", mig.gpu_instance, mig.compute_instance));
        let (mut expected, mut measured): (Vec<_>, Vec<_>) = (expected.collect(), measured.collect());
        expected.sort();
        measured.sort();
        equal(text(expected), text(measured))
    });
    compare("fabric beyond the node", &|_, gpu, device| {
        let measured = device.fabric.as_ref().map_or("none".to_owned(), fabric_text);
        match &gpu.fabric_state {
            Some(_) => equal(fabric_beyond(gpu), measured),
            None => (NOT_PRINTED.to_owned(), measured, true),
        }
    });
    rows
}

fn mebibytes(text: &str) -> Option<u64> {
    text.strip_suffix(" MiB")?.parse().ok()
}

/// Returns `0000:07:00.0` for `00000000:07:00.0`.
fn pci_address(bus_id: &str) -> String {
    let bus_id = bus_id.to_lowercase();
    match bus_id
        .split_once(':')
        .map(|(domain, rest)| (u32::from_str_radix(domain, 16), rest))
    {
        Some((Ok(domain), rest)) => format!("{domain:04x}:{rest}"),
        _ => bus_id,
    }
}

fn fabric_text(fabric: &Fabric) -> String {
    format!("clique {} of {}", fabric.clique_id, fabric.cluster_uuid.to_lowercase())
}

/// Returns the fabric that nvidia-smi shows, in the words of [`fabric_text`].
fn fabric_beyond(gpu: &SmiGpu) -> String {
    let is_complete =
        gpu.fabric_state.as_deref() == Some("Completed") && gpu.fabric_status.as_deref() == Some("Success");
    let cluster = gpu.fabric_cluster.as_deref().unwrap_or(NOT_AVAILABLE).to_lowercase();
    let has_cluster = cluster.contains(|digit: char| digit.is_ascii_hexdigit() && digit != '0');
    if is_complete && has_cluster && cluster != NOT_AVAILABLE.to_lowercase() {
        format!(
            "clique {} of {cluster}",
            gpu.fabric_clique.as_deref().unwrap_or_default()
        )
    } else {
        "none".to_owned()
    }
}

/// Rows about the driver alone: times and look-ups.
fn driver_rows(driver: &DriverAnswers) -> Vec<Row> {
    let sessions: Vec<String> = driver.sessions_ms.iter().map(|ms| format!("{ms} ms")).collect();
    let functions = match driver.missing_functions.as_slice() {
        [] => "none".to_owned(),
        missing => missing.join(", "),
    };
    let mut rows = vec![
        Row::measured(
            "nvmlInit to the memory of the last GPU, three times",
            sessions.join(", "),
        ),
        Row::measured("functions that this driver lacks", functions),
    ];
    let is_lost = |gpu: &GpuAnswers| gpu.uuid == Err(GPU_IS_LOST.to_owned());
    let any_is_lost = driver.gpus.iter().any(is_lost);
    rows.extend(row_of_gpus(
        "look-up by UUID",
        driver.gpus.iter().map(|gpu| {
            let (text, found) = look_up(gpu, &gpu.by_uuid);
            // nvml.h: this look-up answers GPU_IS_LOST if any GPU of the node is lost.
            let is_told = any_is_lost && gpu.by_uuid == Err(GPU_IS_LOST.to_owned());
            (gpu.index, ("its GPU".to_owned(), text, found || is_told))
        }),
    ));
    rows.extend(row_of_gpus(
        "look-up by bus id",
        driver.gpus.iter().map(|gpu| {
            let (text, found) = look_up(gpu, &gpu.by_bus_id);
            (gpu.index, ("its GPU".to_owned(), text, found || is_lost(gpu)))
        }),
    ));
    rows
}

/// Returns what a look-up found, and whether it is the GPU itself.
fn look_up(gpu: &GpuAnswers, found: &Answer<String>) -> (String, bool) {
    match (&gpu.uuid, found) {
        (Ok(own), Ok(found)) if own == found => ("its GPU".to_owned(), true),
        (_, Ok(found)) => (found.clone(), false),
        (_, Err(error)) => (error.clone(), false),
    }
}

/// Rows about state that nvidia-smi shows too.
fn reported_rows(smi: &SmiLog, driver: &DriverAnswers) -> Vec<Row> {
    let both: Vec<(&SmiGpu, &GpuAnswers)> = smi
        .gpus
        .iter()
        .filter_map(|gpu| {
            let of_gpu = |answers: &&GpuAnswers| answers.uuid.as_ref() == Ok(&gpu.uuid);
            Some((gpu, driver.gpus.iter().find(of_gpu)?))
        })
        .collect();
    let compare = |what, pair: &dyn Fn(&SmiGpu, &GpuAnswers) -> Pair| {
        row_of_gpus(
            what,
            both.iter().map(|(gpu, answers)| (answers.index, pair(gpu, answers))),
        )
    };
    let field = |answers: &GpuAnswers, id: u32| {
        let missing = || Err("not asked".to_owned());
        answers.fields.get(&id).cloned().unwrap_or_else(missing)
    };
    let rows = [
        compare("persistence mode", &|gpu, answers| {
            let measured = match &answers.persistence {
                Ok(true) => "Enabled",
                Ok(false) => "Disabled",
                Err(error) => error.as_str(),
            };
            match &gpu.persistence {
                Some(mode) => equal(mode.clone(), measured.to_owned()),
                None => (NOT_PRINTED.to_owned(), measured.to_owned(), true),
            }
        }),
        compare("fabric state", &|gpu, answers| fabric_pair(gpu, &answers.fabric)),
        compare("field 144, rows to be remapped", &|gpu, answers| {
            flag_pair(gpu.remap_pending.as_deref(), &field(answers, REMAP_PENDING))
        }),
        compare("field 145, failed row remap", &|gpu, answers| {
            flag_pair(gpu.remap_failed.as_deref(), &field(answers, REMAP_FAILED))
        }),
        compare("field 230, recovery action", &|gpu, answers| {
            recovery_pair(gpu.recovery_action.as_deref(), &field(answers, RECOVERY_ACTION))
        }),
    ];
    rows.into_iter().flatten().collect()
}

/// True if an answer says that the GPU or the driver does not have what was asked for.
fn is_unsupported<T>(answer: &Answer<T>) -> bool {
    // NVML does not document its answer for a field that is newer than the driver.
    let codes = [NOT_SUPPORTED, FUNCTION_NOT_FOUND, INVALID_ARGUMENT];
    matches!(answer, Err(error) if codes.contains(&error.as_str()))
}

fn fabric_pair(gpu: &SmiGpu, answer: &Answer<FabricAnswer>) -> Pair {
    let state = |state: u8| {
        let known = FABRIC_STATES.get(usize::from(state)).map(|state| (*state).to_owned());
        known.unwrap_or_else(|| format!("state {state}"))
    };
    let measured = match answer {
        Ok(fabric) if fabric.state == 3 => format!("Completed, status {}", fabric.status),
        Ok(fabric) => state(fabric.state),
        Err(error) => error.clone(),
    };
    let Some(expected) = &gpu.fabric_state else {
        return (NOT_PRINTED.to_owned(), measured, true);
    };
    let is_same = match answer {
        Ok(fabric) => {
            let status = (fabric.status == 0) == (gpu.fabric_status.as_deref() == Some("Success"));
            state(fabric.state).eq_ignore_ascii_case(expected) && (fabric.state != 3 || status)
        }
        Err(_) => expected == NOT_AVAILABLE && is_unsupported(answer),
    };
    let status = gpu.fabric_status.as_deref().filter(|_| expected == "Completed");
    let expected = status.map_or_else(|| expected.clone(), |status| format!("{expected}, {status}"));
    (expected, measured, is_same)
}

/// Compares `Yes`, `No` or `N/A` with a field.
fn flag_pair(expected: Option<&str>, answer: &Answer<u64>) -> Pair {
    let is_same = match expected {
        None => true,
        Some("Yes") => matches!(answer, Ok(1..)),
        Some("No") => *answer == Ok(0),
        Some(_) => *answer == Ok(0) || is_unsupported(answer),
    };
    (expected.unwrap_or(NOT_PRINTED).to_owned(), number(answer), is_same)
}

fn recovery_pair(expected: Option<&str>, answer: &Answer<u64>) -> Pair {
    let word = |number: &u64| {
        usize::try_from(*number)
            .ok()
            .and_then(|number| RECOVERY_ACTIONS.get(number))
    };
    let is_same = match (expected, answer) {
        (None, _) => true,
        (Some(NOT_AVAILABLE), answer) => *answer == Ok(0) || is_unsupported(answer),
        // An action that one side has no word for is at least not "none".
        (Some(expected), Ok(number)) => match word(number) {
            Some(word) if RECOVERY_ACTIONS.contains(&expected) => *word == expected,
            _ => *number != 0 && expected != "None",
        },
        (Some(_), Err(_)) => false,
    };
    (expected.unwrap_or(NOT_PRINTED).to_owned(), number(answer), is_same)
}

fn number(answer: &Answer<u64>) -> String {
    match answer {
        Ok(number) => number.to_string(),
        Err(error) => error.clone(),
    }
}

fn run_rows(devices: &BTreeSet<String>, smi: Option<&SmiLog>, run: &AgentRun) -> Vec<Row> {
    let gpus = smi.map(|smi| smi.gpus.as_slice()).unwrap_or_default();
    let nodes: BTreeMap<&str, String> = gpus
        .iter()
        .filter_map(|gpu| {
            let minor = gpu.minor.as_deref().filter(|minor| *minor != NOT_AVAILABLE)?;
            Some((gpu.uuid.as_str(), format!("/dev/nvidia{minor}")))
        })
        .collect();
    let unhealthy: Vec<&str> = run
        .devices
        .iter()
        .filter(|(_, healthy)| !**healthy)
        .map(|(id, _)| id.as_str())
        .collect();
    let mut rows = vec![
        Row::measured(
            "agent: start to the list of every device",
            format!("{} ms", run.listed_after.as_millis()),
        ),
        row_of_names(
            "agent: devices of the list",
            devices,
            &run.devices.keys().cloned().collect(),
        ),
        Row::equal(
            "agent: unhealthy devices",
            "none",
            if unhealthy.is_empty() {
                "none".to_owned()
            } else {
                unhealthy.join(", ")
            },
        ),
    ];
    rows.extend(run.allocations.iter().map(|allocation| {
        let node = nodes.get(allocation.device.as_str());
        let measured = match &allocation.answer {
            Ok(granted) => wrong_grant(&allocation.device, node, granted),
            Err(error) => Some(error.clone()),
        };
        let is_same = measured.is_none();
        let expected = "the device and its node";
        Row::compared(
            "agent: Allocate",
            expected,
            measured.unwrap_or_else(|| expected.to_owned()),
            is_same,
        )
    }));
    rows.push(match &run.end {
        Some((status, after)) => Row::compared(
            "agent: end after SIGTERM",
            "exit status: 0",
            format!("{status} after {} ms", after.as_millis()),
            status == "exit status: 0",
        ),
        None => Row::compared("agent: end after SIGTERM", "exit status: 0", "it did not end", false),
    });
    rows
}

/// Returns what is wrong with an allocation.
fn wrong_grant(device: &str, node: Option<&String>, granted: &Granted) -> Option<String> {
    if granted.visible != device {
        return Some(format!("NVIDIA_VISIBLE_DEVICES={} for {device}", granted.visible));
    }
    let node = node.filter(|node| !granted.nodes.contains(*node))?;
    let nodes: Vec<&str> = granted.nodes.iter().map(String::as_str).collect();
    Some(format!("{} for {device}, without {node}", nodes.join(" ")))
}

#[cfg(test)]
mod tests;
