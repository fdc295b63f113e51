//! File of NVIDIA's mig-parted: its named configurations as layouts, and a layout as such a file.
//!
//! The format is that of mig-parted 0.15 (`api/spec/v1/spec.go`). Of its entries, later ones override earlier ones
//! (`cmd/nvidia-mig-parted/assert/assert.go` walks them in order); of the groups of a layout, the first that selects a GPU
//! wins. So the order is reversed on the way in and out.

#[cfg(test)]
mod tests;

use crate::{
    FieldProblem, MAX_DOCUMENT_BYTES, MigGpuSelector, MigGroup,
    load::unknown_field_message,
    mig_layout::{MAX_GROUPS, MAX_INSTANCES, MAX_PROFILES},
    validate::{is_profile, unknown_profile},
    yaml_value,
};
use serde::Serialize;
use serde_yaml::{Mapping, Value};
use std::collections::BTreeMap;

/// Version of the format.
const VERSION: &str = "v1";
/// Number of PCI ids in one group, as in the schema of `devices.deviceIds`.
const MAX_IDS: usize = 16;
/// Number of indices in one group, which are below it.
const MAX_INDEX: usize = 64;

const FILE_FIELDS: [&str; 2] = ["version", "mig-configs"];
const ENTRY_FIELDS: [&str; 4] = ["device-filter", "devices", "mig-enabled", "mig-devices"];

/// Reason for which a file of mig-parted, or a layout for one, is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MigPartedError {
    /// The text is longer than [`MAX_DOCUMENT_BYTES`].
    #[error("the file has {0} bytes, more than the limit of {MAX_DOCUMENT_BYTES}; remove configurations")]
    TooLong(usize),
    /// The text is not YAML.
    #[error("the file is not YAML: {0}")]
    Malformed(String),
    /// Fields that cannot be read or have no counterpart.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<FieldProblem>),
}

/// Parses a file of mig-parted, and returns the groups of `mig.layout` for each of its configurations by name.
pub fn mig_parted_layouts(text: &str) -> Result<BTreeMap<String, Vec<MigGroup>>, MigPartedError> {
    if text.len() > MAX_DOCUMENT_BYTES {
        return Err(MigPartedError::TooLong(text.len()));
    }
    let document: Value = yaml_value(text).map_err(|error| MigPartedError::Malformed(error.to_string()))?;
    let mut problems = Problems::default();
    let layouts = problems.file(&document);
    if problems.0.is_empty() {
        Ok(layouts)
    } else {
        Err(MigPartedError::Refused(problems.0))
    }
}

/// Problems of a file, each with its path.
#[derive(Default)]
struct Problems(Vec<FieldProblem>);

impl Problems {
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldProblem::new(path, message));
    }

    /// Returns a mapping's fields by name, and refuses those that are not `known`.
    fn fields<'a>(&mut self, path: &str, mapping: &'a Mapping, known: &[&str]) -> BTreeMap<&'a str, &'a Value> {
        let mut fields = BTreeMap::new();
        for (key, value) in mapping {
            match key.as_str() {
                Some(name) if known.contains(&name) => _ = fields.insert(name, value),
                Some("hooks") if path.is_empty() => self.add(
                    "hooks",
                    "this is a file of hooks for mig-parted, and gpunode runs no hooks; import the file with `mig-configs`",
                ),
                Some("kind") if path.is_empty() => self.add(
                    "kind",
                    "this is an object of Kubernetes; import the file in it, as of \
                     `kubectl get configmap NAME -o jsonpath='{.data.config\\.yaml}'`",
                ),
                Some(name) => self.add(child(path, name), unknown_field_message(name, known)),
                None => self.add(path, "a field has a name that is no text"),
            }
        }
        fields
    }

    fn file(&mut self, document: &Value) -> BTreeMap<String, Vec<MigGroup>> {
        let Some(mapping) = document.as_mapping() else {
            self.add("", "the file must have the fields version and mig-configs");
            return BTreeMap::new();
        };
        let fields = self.fields("", mapping, &FILE_FIELDS);
        if self
            .0
            .iter()
            .any(|problem| problem.path == "hooks" || problem.path == "kind")
        {
            return BTreeMap::new();
        }
        match fields.get("version").map(|version| version.as_str()) {
            Some(Some(VERSION)) => {}
            Some(_) => self.add("version", format!("only {VERSION} is known")),
            None => self.add("version", format!("is missing; write `version: {VERSION}`")),
        }
        let configs = fields.get("mig-configs").and_then(|configs| configs.as_mapping());
        let Some(configs) = configs.filter(|configs| !configs.is_empty()) else {
            self.add("mig-configs", "must name at least one configuration");
            return BTreeMap::new();
        };
        let mut layouts = BTreeMap::new();
        for (name, entries) in configs {
            match name.as_str() {
                Some(name) => _ = layouts.insert(name.to_owned(), self.configuration(name, entries)),
                None => self.add(
                    "mig-configs",
                    "a configuration has a name that is no text; put it in quotes",
                ),
            }
        }
        layouts
    }

    fn configuration(&mut self, name: &str, entries: &Value) -> Vec<MigGroup> {
        let path = child("mig-configs", name);
        let Some(entries) = entries.as_sequence().filter(|entries| !entries.is_empty()) else {
            self.add(path, "must be a list of at least one entry");
            return Vec::new();
        };
        let mut groups = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            groups.extend(self.entry(&format!("{path}[{index}]"), entry).unwrap_or_default());
        }
        groups.reverse();
        // Entries before one for every GPU are overridden everywhere.
        if let Some(last) = groups.iter().position(|group| group.devices.is_none()) {
            groups.truncate(last + 1);
        }
        if groups.len() > MAX_GROUPS {
            self.add(
                path,
                format!(
                    "needs {} groups of mig.layout, of which each has at most {MAX_IDS} PCI ids, and a layout has at most \
                     {MAX_GROUPS}; split it",
                    groups.len()
                ),
            );
        }
        groups
    }

    /// Returns the groups of an entry; several where its filter has more ids than a group.
    fn entry(&mut self, path: &str, entry: &Value) -> Option<Vec<MigGroup>> {
        let Some(mapping) = entry.as_mapping() else {
            self.add(path, "must have the fields devices and mig-enabled");
            return None;
        };
        let fields = self.fields(path, mapping, &ENTRY_FIELDS);
        let ids = match fields.get("device-filter") {
            Some(filter) => self.device_ids(&child(path, "device-filter"), filter),
            None => Vec::new(),
        };
        let indices = if let Some(devices) = fields.get("devices") {
            self.indices(&child(path, "devices"), devices)
        } else {
            self.add(
                child(path, "devices"),
                "is missing; write `devices: all`, or a list of indices",
            );
            None
        };
        let is_enabled = fields.get("mig-enabled").and_then(|enabled| enabled.as_bool());
        if is_enabled.is_none() {
            self.add(child(path, "mig-enabled"), "must be true or false");
        }
        let layout = self.layout(
            &child(path, "mig-devices"),
            fields.get("mig-devices").copied(),
            is_enabled?,
        )?;
        let group = |device_ids: Option<Vec<String>>| {
            let devices = MigGpuSelector {
                indices: indices.clone(),
                device_ids,
                ..MigGpuSelector::default()
            };
            MigGroup {
                devices: Some(devices).filter(|devices| *devices != MigGpuSelector::default()),
                ..layout.clone()
            }
        };
        if ids.is_empty() {
            return Some(vec![group(None)]);
        }
        Some(ids.chunks(MAX_IDS).map(|ids| group(Some(ids.to_vec()))).collect())
    }

    /// Returns the PCI ids of a filter; none of them is no filter, as in mig-parted.
    fn device_ids(&mut self, path: &str, filter: &Value) -> Vec<String> {
        let filters = match filter {
            Value::Null => return Vec::new(),
            Value::String(filter) if filter.is_empty() => return Vec::new(),
            Value::Sequence(filters) => filters.as_slice(),
            one => std::slice::from_ref(one),
        };
        let mut ids = Vec::new();
        for filter in filters {
            let text = filter.as_str().unwrap_or_default();
            if let Some((id, subsystem)) = text.split_once(':') {
                self.add(
                    path,
                    format!(
                        "`{text}` selects by the subsystem {subsystem}, which a layout cannot; write `{id}`, which selects \
                         every board with this PCI id, or list the GPUs in `devices`"
                    ),
                );
                continue;
            }
            let digits = text
                .strip_prefix("0x")
                .or_else(|| text.strip_prefix("0X"))
                .unwrap_or_default();
            match u32::from_str_radix(digits, 16) {
                Ok(id) if digits.len() == 8 => ids.push(format!("0x{id:08X}")),
                _ => self.add(
                    path,
                    "must be a PCI id, or a list of them: device and vendor in hexadecimal and in quotes, such as \
                     \"0x20B210DE\"",
                ),
            }
        }
        ids
    }

    /// Returns indices of GPUs, which count every GPU of the node and not only those that pass the filter; none for `all`.
    fn indices(&mut self, path: &str, devices: &Value) -> Option<Vec<i32>> {
        if devices.as_str() == Some("all") {
            return None;
        }
        let index = |value: &Value| value.as_i64().and_then(|index| usize::try_from(index).ok());
        let list = devices
            .as_sequence()
            .filter(|list| (1..=MAX_INDEX).contains(&list.len()));
        let indices: Option<Vec<i32>> = list.and_then(|list| {
            let indices = list.iter().map(|value| index(value).filter(|index| *index < MAX_INDEX));
            indices.map(|index| i32::try_from(index?).ok()).collect()
        });
        if indices.is_none() {
            self.add(
                path,
                format!(
                    "must be all, or a list of indices from 0 to {}; remove an entry without GPUs",
                    MAX_INDEX - 1
                ),
            );
        }
        indices
    }

    /// Returns the layout of an entry, for every GPU.
    fn layout(&mut self, path: &str, devices: Option<&Value>, is_enabled: bool) -> Option<MigGroup> {
        let devices = devices.filter(|devices| !devices.is_null());
        let empty = Mapping::new();
        let Some(mapping) = devices.map_or(Some(&empty), Value::as_mapping) else {
            self.add(path, "must be a number for each profile, such as {1g.10gb: 7}");
            return None;
        };
        match (is_enabled, devices) {
            (false, _) if mapping.is_empty() => {
                return Some(MigGroup {
                    disabled: Some(true),
                    ..MigGroup::default()
                });
            }
            (false, _) => self.add(path, "must be empty where mig-enabled is false"),
            (true, None) => self.add(path, "is missing; write {} for no instance"),
            (true, Some(_)) => {}
        }
        let mut instances = BTreeMap::new();
        for (profile, count) in mapping {
            let profile = profile.as_str().unwrap_or_default();
            let whole = whole_profile(profile);
            if !is_profile(whole) {
                self.add(path, unknown_profile(profile));
            }
            match count.as_i64().and_then(|count| i32::try_from(count).ok()) {
                Some(count) if (0..=MAX_INSTANCES).contains(&count) => {
                    *instances.entry(whole.to_owned()).or_insert(0) += count;
                }
                _ => self.add(
                    child(path, profile),
                    format!("must be a number from 0 to {MAX_INSTANCES}"),
                ),
            }
        }
        instances.retain(|_, count| *count > 0);
        if instances.is_empty() && !mapping.is_empty() && self.0.is_empty() {
            self.add(path, "names profiles with 0 instances alone; write {} for no instance");
        }
        if instances.len() > MAX_PROFILES {
            self.add(path, format!("must have at most {MAX_PROFILES} profiles"));
        }
        if instances.values().any(|count| *count > MAX_INSTANCES) {
            self.add(path, format!("has more than {MAX_INSTANCES} instances of a profile"));
        }
        Some(MigGroup {
            instances: Some(instances),
            ..MigGroup::default()
        })
    }
}

/// Returns `3g.20gb` for `3c.3g.20gb`: a compute instance that fills its GPU instance, which both write without `c`.
fn whole_profile(profile: &str) -> &str {
    let parts = profile.split_once("c.");
    parts
        .filter(|(slices, whole)| !slices.is_empty() && whole.starts_with(&format!("{slices}g.")))
        .map_or(profile, |(_, whole)| whole)
}

fn child(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct File<'a> {
    version: &'a str,
    mig_configs: BTreeMap<&'a str, Vec<Entry<'a>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Entry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    device_filter: Option<&'a [String]>,
    devices: Devices<'a>,
    mig_enabled: bool,
    mig_devices: BTreeMap<&'a str, i32>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Devices<'a> {
    Named(&'a str),
    Indices(&'a [i32]),
}

/// Writes a layout as a file of mig-parted with one configuration. Groups that select GPUs by UUID or product, and presets,
/// have no counterpart.
pub fn mig_parted_file(name: &str, layout: &[MigGroup]) -> Result<String, MigPartedError> {
    let mut problems = Problems::default();
    let mut entries = Vec::new();
    for (index, group) in layout.iter().enumerate().rev() {
        let devices = group.devices.as_ref();
        if devices.is_some_and(|devices| devices.uuids.is_some() || devices.products.is_some()) {
            problems.add(
                format!("layout[{index}].devices"),
                "mig-parted selects GPUs by index and PCI id alone",
            );
        }
        if group.preset.is_some() {
            problems.add(
                format!("layout[{index}].preset"),
                "mig-parted has no presets within a file; write the instances",
            );
        }
        let indices = devices.and_then(|devices| devices.indices.as_deref());
        let instances = group.instances.iter().flatten();
        entries.push(Entry {
            device_filter: devices.and_then(|devices| devices.device_ids.as_deref()),
            devices: indices.map_or(Devices::Named("all"), Devices::Indices),
            mig_enabled: group.disabled.is_none(),
            mig_devices: instances.map(|(profile, count)| (profile.as_str(), *count)).collect(),
        });
    }
    if !problems.0.is_empty() {
        return Err(MigPartedError::Refused(problems.0));
    }
    let file = File {
        version: VERSION,
        mig_configs: BTreeMap::from([(name, entries)]),
    };
    // Plain strings, numbers and lists always have a form in YAML.
    Ok(serde_yaml::to_string(&file).unwrap_or_default())
}
