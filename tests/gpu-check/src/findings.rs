//! Comparison of what nvidia-smi, the driver and the agent say. Pure.

use crate::{
    agent::{AgentInventory, AgentRun, Allocation, ROUNDS},
    agent_log::AgentLog,
    driver::{
        Answer, DOUBLE_BIT_PENDING, DriverAnswers, FUNCTION_NOT_FOUND, GPU_IS_LOST, GpuAnswers, INVALID_ARGUMENT,
        NOT_SUPPORTED, RECOVERY_ACTION, REMAP_FAILED, REMAP_PENDING, RETIREMENT_PENDING, SessionTimes, UNKNOWN,
    },
    nvidia_smi::{NOT_AVAILABLE, SmiGpu, SmiLog},
    raw::FabricAnswer,
    table::{Row, together},
};
use gpunode_crds::{Fabric, GpuDevice, MigMode};
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeSet;

/// `nvmlGpuFabricState_t` in nvidia-smi's words.
const FABRIC_STATES: [&str; 4] = [NOT_AVAILABLE, "Not Started", "In Progress", "Completed"];
/// Recovery actions in nvidia-smi's words, by number (NVIDIA, "GPU Memory Error Management", recovery action flag). Numbers
/// from 5 on mean different things in different drivers.
const RECOVERY_ACTIONS: [&str; 5] = ["None", "Reset", "Reboot", "Drain P2P", "Drain and Reset"];
/// Said of an element that this driver's nvidia-smi does not have.
const NOT_PRINTED: &str = "not printed";
/// The GPU whose UUID or address was looked up.
const ITS_GPU: &str = "its GPU";
/// The question of an allocation.
const ALLOCATE: &str = "agent: Allocate";
/// Folder of the device nodes of MIG instances.
const CAPABILITIES: &str = "/dev/nvidia-caps/";
/// Number of them that a container needs for a MIG device: one for the GPU instance, one for the compute instance.
const CAPABILITIES_OF_MIG: usize = 2;

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
    /// Returns the number of GPUs whose events the agent has to follow. From nvidia-smi, if the agent has no inventory.
    pub fn gpus(smi: &Result<SmiLog, String>, inventory: &Result<AgentInventory, String>) -> usize {
        match (inventory, smi) {
            (Ok(inventory), _) => inventory.status.gpus.len(),
            (Err(_), Ok(smi)) => smi.gpus.len(),
            (Err(_), Err(_)) => 0,
        }
    }

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
        rows.extend(self.smi.iter().flat_map(remark_rows));
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
            rows.extend(self.run_rows(run));
        }
        rows
    }

    fn run_rows(&self, run: &AgentRun) -> Vec<Row> {
        let devices = Self::devices(&self.smi, &self.inventory);
        let mut rows = list_rows(&devices, run);
        rows.extend(log_rows(Self::gpus(&self.smi, &self.inventory), run.rounds, &run.log));
        let (smi, inventory) = (self.smi.as_ref().ok(), self.inventory.as_ref().ok());
        let allocations = run.allocations.iter();
        rows.extend(allocations.map(|allocation| allocation_row(allocation, smi, inventory)));
        let withheld = run.withheld.iter();
        rows.extend(withheld.map(|resource| Row::measured(ALLOCATE, format!("{resource}: no device is healthy"))));
        rows.push(end_row(run));
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

/// Rows about what nvidia-smi prints that is neither compared nor an error.
fn remark_rows(smi: &SmiLog) -> Vec<Row> {
    let displays: Vec<&str> = smi.displays.iter().map(|board| board.name.as_str()).collect();
    [
        ("nvidia-smi warns", smi.remarks.clone()),
        ("display boards, which gpunode leaves out", displays.join(", ")),
    ]
    .into_iter()
    .filter(|(_, text)| !text.is_empty())
    .map(|(what, text)| Row::measured(what, text))
    .collect()
}

/// Both answers to a question about one GPU, and whether they say the same; none if nothing was compared.
type Pair = (String, String, Option<bool>);

/// Compares what nvidia-smi prints, if it does, with an answer.
fn against(printed: Option<&str>, measured: String, is_same: impl FnOnce(&str, &str) -> bool) -> Pair {
    let is_same = printed.map(|printed| is_same(printed, &measured));
    (printed.unwrap_or(NOT_PRINTED).to_owned(), measured, is_same)
}

fn equal(printed: Option<&str>, measured: String) -> Pair {
    against(printed, measured, |printed, measured| printed == measured)
}

/// Compares what each GPU has for itself: only a difference is of interest.
fn own(printed: String, measured: String) -> Pair {
    if printed == measured {
        let text = || "each its own".to_owned();
        (text(), text(), Some(true))
    } else {
        (printed, measured, Some(false))
    }
}

/// Returns the row of a question to every GPU; none without a GPU.
fn row_of_gpus(what: &'static str, pairs: impl IntoIterator<Item = (u32, Pair)>) -> Option<Row> {
    let pairs: Vec<(u32, Pair)> = pairs.into_iter().collect();
    let expected = together(pairs.iter().map(|(gpu, (expected, ..))| (*gpu, expected.as_str())));
    let measured = together(pairs.iter().map(|(gpu, (_, measured, _))| (*gpu, measured.as_str())));
    // One that differs counts for all, and so does one that was compared.
    let is_same = pairs.iter().filter_map(|(_, (.., is_same))| *is_same).min();
    (!pairs.is_empty()).then(|| Row::compared(what, expected, measured, is_same))
}

fn list(names: &[impl AsRef<str>]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    names.join(", ")
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
    let version = |what, printed: Option<&str>, measured: Option<&str>| {
        let (expected, measured, is_same) = equal(printed, measured.unwrap_or("none").to_owned());
        Row::compared(what, expected, measured, is_same)
    };
    let (driver, cuda) = (status.driver_version.as_deref(), status.cuda_version.as_deref());
    let mut rows = vec![
        version("driver version", smi.driver_version.as_deref(), driver),
        version("CUDA version", smi.cuda_version.as_deref(), cuda),
        row_of_names(
            "GPUs, by UUID",
            &smi.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
            &status.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
        ),
    ];
    let both: Vec<(&SmiGpu, &GpuDevice)> = smi
        .gpus
        .iter()
        .filter_map(|gpu| Some((gpu, status.gpus.iter().find(|device| device.uuid == gpu.uuid)?)))
        .collect();
    let mut compare = |what, pair: &dyn Fn(&SmiGpu, &GpuDevice) -> Pair| {
        let pairs = both.iter().map(|(gpu, device)| (gpu.index, pair(gpu, device)));
        rows.extend(row_of_gpus(what, pairs));
    };
    compare("NVML index", &|gpu, device| {
        own(gpu.index.to_string(), device.index.to_string())
    });
    compare("product", &|gpu, device| {
        equal(Some(&gpunode_gpu::product_label(&gpu.name)), device.product.clone())
    });
    compare("memory", &|gpu, device| {
        let measured = format!("{} MiB", device.memory_mib);
        against(gpu.memory.as_deref(), measured, |printed, _| match mebibytes(printed) {
            // Both round the driver's bytes.
            Some(mebibytes) => mebibytes.abs_diff(device.memory_mib) <= 1,
            None => device.memory_mib == 0,
        })
    });
    compare("PCI address", &|gpu, device| {
        let measured = device.pci_bus_id.clone().unwrap_or_else(|| "none".to_owned());
        own(pci_address(&gpu.bus_id), measured)
    });
    compare("MIG mode", &|gpu, device| {
        let measured = device
            .mig_mode
            .map_or(NOT_AVAILABLE.to_owned(), |mode| format!("{mode:?}"));
        equal(gpu.mig_mode.as_deref(), measured)
    });
    compare("MIG devices, by instance", &|gpu, device| {
        let expected = gpu.mig_devices.iter().map(|(gi, ci)| format!("{gi}/{ci}"));
        let measured = device
            .mig_devices
            .iter()
            .map(|mig| format!("{}/{}", mig.gpu_instance, mig.compute_instance));
        let (mut expected, mut measured): (Vec<_>, Vec<_>) = (expected.collect(), measured.collect());
        expected.sort();
        measured.sort();
        equal(Some(&list(&expected)), list(&measured))
    });
    compare("fabric beyond the node", &|gpu, device| {
        let measured = device.fabric.as_ref().map_or("none".to_owned(), fabric_text);
        // Older drivers print only the state.
        let printed = gpu.fabric_cluster.as_ref().map(|_| fabric_beyond(gpu));
        equal(printed.as_deref(), measured)
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
    let sessions: Vec<String> = driver.sessions.iter().map(session_text).collect();
    let modes = driver.gpus.iter().map(|gpu| (gpu.index, persistence_text(gpu)));
    let sessions = format!("{} (persistence mode: {})", sessions.join("; "), together(modes));
    let with_open_nodes = match &driver.session_with_open_nodes {
        Ok(times) => session_text(times),
        Err(error) => format!("not measured: {error}"),
    };
    let mut rows = vec![
        Row::measured("nvmlInit + first call about each GPU, by session", sessions),
        Row::measured("the same while /dev/nvidiaN are open", with_open_nodes),
        Row::measured("functions that this driver lacks", list(&driver.missing_functions)),
    ];
    let lost: Vec<&str> = driver.gpus.iter().filter_map(lost_answer).collect();
    rows.extend(row_of_gpus(
        "look-up by UUID",
        driver.gpus.iter().map(|gpu| {
            let (found, is_own) = look_up(gpu, &gpu.by_uuid);
            // nvml.h: this look-up answers GPU_IS_LOST if any GPU of the node is lost.
            let pair = if lost.contains(&found.as_str()) {
                (found.clone(), found, Some(true))
            } else {
                (ITS_GPU.to_owned(), found, Some(is_own))
            };
            (gpu.index, pair)
        }),
    ));
    rows.extend(row_of_gpus(
        "look-up by PCI address",
        driver.gpus.iter().map(|gpu| {
            let (found, is_own) = look_up(gpu, &gpu.by_bus_id);
            let pair = if lost_answer(gpu).is_some() {
                ("none, as it is lost".to_owned(), found, None)
            } else {
                (ITS_GPU.to_owned(), found, Some(is_own))
            };
            (gpu.index, pair)
        }),
    ));
    rows
}

/// Returns the answer of a lost GPU.
fn lost_answer(gpu: &GpuAnswers) -> Option<&str> {
    let answer = gpu.uuid.as_ref().err()?.as_str();
    [GPU_IS_LOST, UNKNOWN].contains(&answer).then_some(answer)
}

/// Returns times such as `5 + 1200, 1180 ms`.
fn session_text(times: &SessionTimes) -> String {
    let gpus: Vec<String> = times.gpus_ms.iter().map(u64::to_string).collect();
    format!("{} + {} ms", times.init_ms, gpus.join(", "))
}

fn persistence_text(answers: &GpuAnswers) -> &str {
    match &answers.persistence {
        Ok(true) => "Enabled",
        Ok(false) => "Disabled",
        Err(error) => error,
    }
}

/// Returns what a look-up found, and whether it is the GPU itself.
fn look_up(gpu: &GpuAnswers, found: &Answer<String>) -> (String, bool) {
    match (&gpu.uuid, found) {
        (Ok(own), Ok(found)) if own == found => (ITS_GPU.to_owned(), true),
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
            equal(gpu.persistence.as_deref(), persistence_text(answers).to_owned())
        }),
        compare("fabric state", &|gpu, answers| fabric_pair(gpu, &answers.fabric)),
        compare("field 31, pages to be retired", &|gpu, answers| {
            flag_pair(gpu.retirement_pending.as_deref(), &field(answers, RETIREMENT_PENDING))
        }),
        // nvidia-smi has no word for it.
        compare(
            "field 93, pages to be retired after a double-bit error",
            &|_, answers| flag_pair(None, &field(answers, DOUBLE_BIT_PENDING)),
        ),
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
    let Some(printed) = &gpu.fabric_state else {
        return equal(None, measured);
    };
    let is_same = match answer {
        Ok(fabric) => {
            let status = (fabric.status == 0) == (gpu.fabric_status.as_deref() == Some("Success"));
            state(fabric.state).eq_ignore_ascii_case(printed) && (fabric.state != 3 || status)
        }
        Err(_) => printed == NOT_AVAILABLE && is_unsupported(answer),
    };
    let status = gpu.fabric_status.as_deref().filter(|_| printed == "Completed");
    let expected = status.map_or_else(|| printed.clone(), |status| format!("{printed}, {status}"));
    (expected, measured, Some(is_same))
}

/// Compares `Yes`, `No` or `N/A` with a field.
fn flag_pair(printed: Option<&str>, answer: &Answer<u64>) -> Pair {
    against(printed, number(answer), |printed, _| match printed {
        "Yes" => matches!(answer, Ok(1..)),
        "No" => *answer == Ok(0),
        _ => *answer == Ok(0) || is_unsupported(answer),
    })
}

fn recovery_pair(printed: Option<&str>, answer: &Answer<u64>) -> Pair {
    let word = |number: &u64| {
        usize::try_from(*number)
            .ok()
            .and_then(|number| RECOVERY_ACTIONS.get(number))
    };
    against(printed, number(answer), |printed, _| match answer {
        answer if printed == NOT_AVAILABLE => *answer == Ok(0) || is_unsupported(answer),
        // An action that one side has no word for is at least not "none".
        Ok(number) => match word(number) {
            Some(word) if RECOVERY_ACTIONS.contains(&printed) => *word == printed,
            _ => *number != 0 && printed != "None",
        },
        Err(_) => false,
    })
}

fn number(answer: &Answer<u64>) -> String {
    match answer {
        Ok(number) => number.to_string(),
        Err(error) => error.clone(),
    }
}

/// Rows about the list that the kubelet gets.
fn list_rows(devices: &BTreeSet<String>, run: &AgentRun) -> Vec<Row> {
    let listed = "agent: devices of the list";
    if devices.is_empty() && run.devices.is_empty() {
        let measured = "none: MIG is on, and no GPU has an instance";
        return vec![Row::measured(listed, measured)];
    }
    let unhealthy = run.devices.iter().filter(|(_, healthy)| !**healthy);
    let unhealthy: Vec<&String> = unhealthy.map(|(id, _)| id).collect();
    vec![
        Row::measured(
            "agent: start to the list of every device",
            format!("{} ms", run.listed_after.as_millis()),
        ),
        row_of_names(listed, devices, &run.devices.keys().cloned().collect()),
        Row::equal("agent: unhealthy devices", "none", list(&unhealthy)),
    ]
}

/// Rows about the probes and the events of a number of GPUs.
fn log_rows(gpus: usize, rounds: usize, log: &AgentLog) -> [Row; 4] {
    let without_events: Vec<String> = log
        .without_events
        .iter()
        .map(|(gpu, why)| format!("{gpu}: {why}"))
        .collect();
    let unsupported = NvmlError::NotSupported.to_string();
    // The agent only probes a GPU without events.
    let is_unsupported = log.without_events.values().all(|why| *why == unsupported);
    let followed = log.followed + if is_unsupported { without_events.len() } else { 0 };
    let mut measured = vec![log.followed.to_string()];
    measured.extend(without_events);
    [
        Row::compared(
            "agent: GPUs whose events are followed",
            gpus.to_string(),
            list(&measured),
            (log.followed >= gpus || followed < gpus).then_some(log.followed >= gpus),
        ),
        Row::equal("agent: rounds of probes", ROUNDS.to_string(), rounds.to_string()),
        Row::equal(
            "agent: calls of the probes that fail",
            "none",
            list(&Vec::from_iter(&log.failed_calls)),
        ),
        Row::equal("agent: faults", "none", list(&Vec::from_iter(&log.faults))),
    ]
}

/// Compares an allocation with the device and its nodes, as far as nvidia-smi and the inventory name them.
fn allocation_row(allocation: &Allocation, smi: Option<&SmiLog>, inventory: Option<&AgentInventory>) -> Row {
    let Allocation {
        resource,
        device,
        answer,
    } = allocation;
    let known = inventory.map(|inventory| inventory.status.gpus.as_slice());
    let parent = known
        .unwrap_or_default()
        .iter()
        .find(|gpu| gpu.mig_devices.iter().any(|mig| mig.uuid == *device));
    let uuid = parent.map_or(device, |gpu| &gpu.uuid);
    let node = smi
        .and_then(|smi| smi.gpus.iter().find(|gpu| gpu.uuid == *uuid)?.minor.as_deref())
        .filter(|minor| *minor != NOT_AVAILABLE)
        .map(|minor| format!("/dev/nvidia{minor}"));
    let mut expected = vec![format!("{resource}: {device}")];
    expected.extend(node.clone());
    if parent.is_some() {
        expected.push(format!("{CAPABILITIES_OF_MIG} in {CAPABILITIES}"));
    }
    let (measured, is_same) = match answer {
        Ok(granted) => {
            let capabilities = granted.nodes.iter().filter(|node| node.starts_with(CAPABILITIES));
            let has_nodes = node.is_none_or(|node| granted.nodes.contains(&node))
                && parent.is_none_or(|_| capabilities.count() == CAPABILITIES_OF_MIG);
            let mut measured = vec![format!("{resource}: {}", granted.visible)];
            measured.extend(granted.nodes.iter().cloned());
            measured.extend(granted.missing.iter().map(|node| format!("{node} does not exist")));
            let is_same = granted.visible == *device && has_nodes && granted.missing.is_empty();
            (list(&measured), is_same)
        }
        Err(error) => (format!("{resource}: {error}"), false),
    };
    Row::compared(ALLOCATE, list(&expected), measured, is_same)
}

fn end_row(run: &AgentRun) -> Row {
    let (what, expected) = ("agent: end after SIGTERM", "exit status: 0");
    match &run.end {
        Some((status, after)) => {
            let measured = format!("{status} after {} ms", after.as_millis());
            Row::compared(what, expected, measured, status == expected)
        }
        None => Row::compared(what, expected, "it did not end", false),
    }
}

#[cfg(test)]
mod tests;
