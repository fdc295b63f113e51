//! Options, resources and sharing from the plugin's file (`api/config/v1/config.go`, `resources.go` and `replicas.go`).
//!
//! The plugin's parser does not mind unknown keys, and reads those of its structures in any case (Go's `encoding/json`).

use super::{
    devices::SharedDevices,
    options::{DISCOVERY_KEYS, OPTIONS, PluginOption},
    report::Report,
    settings::{PluginSettings, scalar, yaml_switch},
};
use crate::{load::unknown_field_message, validate::is_dns_subdomain};
use serde_yaml::{Mapping, Value};

/// Version of the format.
const VERSION: &str = "v1";
/// Domain of the plugin's resources, which a name in the file may lack.
const DOMAIN: &str = "nvidia.com/";
/// Longest name of a resource, with its domain.
const MAX_NAME: usize = 63;
/// Number of entries of one list of a file; a configuration has at most 32 resources.
const MAX_ENTRIES: usize = 64;

const FILE_KEYS: [&str; 5] = ["version", "flags", "resources", "sharing", "imex"];
const RESOURCES_KEYS: [&str; 2] = ["gpus", "mig"];
const RESOURCE_KEYS: [&str; 2] = ["pattern", "name"];
const SHARING_KEYS: [&str; 2] = ["timeSlicing", "mps"];
const REPLICATED_KEYS: [&str; 3] = ["renameByDefault", "failRequestsGreaterThanOne", "resources"];
const SHARED_KEYS: [&str; 4] = ["name", "rename", "devices", "replicas"];

/// Parts of a file that are no options.
#[derive(Debug, Default)]
pub(super) struct PluginFile {
    pub gpus: Vec<NamedPattern>,
    pub mig: Vec<NamedPattern>,
    pub time_slicing: Option<SharedResources>,
    pub mps: Option<SharedResources>,
}

/// Name of the resource of the devices that match a pattern.
#[derive(Debug)]
pub(super) struct NamedPattern {
    pub path: String,
    pub pattern: String,
    pub name: String,
}

/// Resources shared by one strategy.
#[derive(Debug)]
pub(super) struct SharedResources {
    pub path: String,
    pub rename_by_default: bool,
    pub fail_requests_greater_than_one: Option<bool>,
    pub resources: Vec<SharedResource>,
}

/// One shared resource.
#[derive(Debug)]
pub(super) struct SharedResource {
    pub path: String,
    pub name: String,
    pub rename: Option<String>,
    pub devices: SharedDevices,
    pub replicas: i32,
}

/// Ways in which the plugin's parser compares the keys of a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyCase {
    Exact,
    Any,
}

impl PluginFile {
    /// Reads the file; options go into `settings`.
    pub(super) fn read(document: &Value, settings: &mut PluginSettings, report: &mut Report) -> Self {
        let mut file = Self::default();
        let Some(document) = mapping("", document, report) else {
            return file;
        };
        for (key, value) in known(document, "", &FILE_KEYS, KeyCase::Any, report) {
            match key {
                "version" => read_version(value, report),
                "flags" => read_flags(key, value, settings, report),
                "imex" => read_options(key, value, settings, report),
                "resources" => file.read_resources(value, report),
                _ => file.read_sharing(value, report),
            }
        }
        file
    }

    fn read_resources(&mut self, value: &Value, report: &mut Report) {
        let Some(resources) = mapping("resources", value, report) else {
            return;
        };
        for (key, value) in known(resources, "resources", &RESOURCES_KEYS, KeyCase::Any, report) {
            let path = format!("resources.{key}");
            let entries = entries(&path, value, report);
            let patterns = entries
                .into_iter()
                .filter_map(|(path, entry)| named_pattern(path, entry, report))
                .collect();
            if key == "mig" {
                self.mig = patterns;
            } else {
                self.gpus = patterns;
            }
        }
    }

    fn read_sharing(&mut self, value: &Value, report: &mut Report) {
        let Some(sharing) = mapping("sharing", value, report) else {
            return;
        };
        for (key, value) in known(sharing, "sharing", &SHARING_KEYS, KeyCase::Any, report) {
            let path = format!("sharing.{key}");
            if key == "timeSlicing" && value.is_null() {
                report.refuse(format!("{path}.resources"), "must name at least one resource");
                continue;
            }
            let shared = shared_resources(&path, value, report);
            if key == "mps" {
                self.mps = shared;
            } else {
                self.time_slicing = shared;
            }
        }
    }
}

fn read_version(value: &Value, report: &mut Report) {
    match scalar(value).as_deref() {
        Some("" | VERSION) => {}
        None if value.is_null() => {}
        _ => report.refuse("version", format!("only {VERSION} is known")),
    }
}

/// Reads the options below `flags`, and those below `flags.plugin`.
fn read_flags(path: &str, value: &Value, settings: &mut PluginSettings, report: &mut Report) {
    let Some(flags) = mapping(path, value, report) else {
        return;
    };
    let (groups, options): (Vec<_>, Vec<_>) = flags.iter().partition(|(key, _)| {
        let key = key.as_str().unwrap_or_default();
        ["plugin", "gfd"].iter().any(|group| group.eq_ignore_ascii_case(key))
    });
    read_option_keys(path, options, settings, report);
    for (key, value) in groups {
        let group = key.as_str().unwrap_or_default().to_ascii_lowercase();
        read_options(&format!("{path}.{group}"), value, settings, report);
    }
}

fn read_options(path: &str, value: &Value, settings: &mut PluginSettings, report: &mut Report) {
    if let Some(options) = mapping(path, value, report) {
        read_option_keys(path, options.iter().collect(), settings, report);
    }
}

fn read_option_keys(path: &str, keys: Vec<(&Value, &Value)>, settings: &mut PluginSettings, report: &mut Report) {
    for (key, value) in keys {
        let Some(name) = key.as_str() else {
            report.ignored(path, "a key is no text");
            continue;
        };
        let full = format!("{path}.{name}");
        let is_named = |key: &&str| key.eq_ignore_ascii_case(&full);
        if let Some(option) = OPTIONS.iter().find(|option: &&PluginOption| is_named(&option.key)) {
            settings.set_value(option, value, report);
        } else if DISCOVERY_KEYS.iter().any(is_named) {
            if !value.is_null() {
                report.differs(
                    full,
                    "an option of GPU feature discovery; gpunode labels nodes by itself, see docs/labels.md",
                );
            }
        } else {
            let prefix = format!("{path}.");
            let all = OPTIONS
                .iter()
                .map(|option| option.key)
                .chain(DISCOVERY_KEYS.iter().copied());
            let known: Vec<&str> = all
                .filter_map(|key| key.strip_prefix(prefix.as_str()))
                .filter(|key| !key.contains('.'))
                .collect();
            report.ignored(full, unknown_field_message(name, &known));
        }
    }
}

fn named_pattern(path: String, value: &Value, report: &mut Report) -> Option<NamedPattern> {
    let entry = mapping(&path, value, report)?;
    let fields = known(entry, &path, &RESOURCE_KEYS, KeyCase::Exact, report);
    let field = |name: &str| {
        fields
            .iter()
            .find(|(key, _)| *key == name)
            .and_then(|(_, value)| value.as_str())
    };
    let (Some(pattern), Some(name)) = (field("pattern"), field("name")) else {
        report.refuse(path, "must have a pattern and a name");
        return None;
    };
    Some(NamedPattern {
        name: resource_name(&format!("{path}.name"), name, report)?,
        pattern: pattern.to_owned(),
        path,
    })
}

fn shared_resources(path: &str, value: &Value, report: &mut Report) -> Option<SharedResources> {
    let shared = mapping(path, value, report)?;
    let mut read = SharedResources {
        path: path.to_owned(),
        rename_by_default: false,
        fail_requests_greater_than_one: None,
        resources: Vec::new(),
    };
    for (key, value) in known(shared, path, &REPLICATED_KEYS, KeyCase::Exact, report) {
        let path = format!("{path}.{key}");
        if key == "resources" {
            let entries = entries(&path, value, report).into_iter();
            read.resources = entries
                .filter_map(|(path, entry)| shared_resource(path, entry, report))
                .collect();
            continue;
        }
        match yaml_switch(value) {
            Some(is_on) if key == "renameByDefault" => read.rename_by_default = is_on,
            Some(is_on) => read.fail_requests_greater_than_one = Some(is_on),
            None if value.is_null() => {}
            None => report.refuse(path, "must be true or false"),
        }
    }
    let is_empty = shared
        .get("resources")
        .is_none_or(|resources| resources.as_sequence().is_none_or(Vec::is_empty));
    if is_empty {
        report.refuse(format!("{path}.resources"), "must name at least one resource");
    }
    Some(read)
}

fn shared_resource(path: String, value: &Value, report: &mut Report) -> Option<SharedResource> {
    let entry = mapping(&path, value, report)?;
    let fields = known(entry, &path, &SHARED_KEYS, KeyCase::Exact, report);
    let field = |name: &str| fields.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
    let mut name = |key: &str, value: &Value| {
        let path = format!("{path}.{key}");
        if let Some(name) = value.as_str() {
            resource_name(&path, name, report)
        } else {
            report.refuse(path, "must be the name of a resource, such as nvidia.com/gpu");
            None
        }
    };
    let full = name("name", field("name").unwrap_or(&Value::Null));
    let rename = field("rename");
    let rename = rename.and_then(|rename| name("rename", rename));
    let devices = match field("devices") {
        Some(devices) => SharedDevices::read(&format!("{path}.devices"), devices, report),
        None => Some(SharedDevices::All),
    };
    let replicas = field("replicas").and_then(Value::as_i64);
    let replicas = replicas
        .and_then(|replicas| i32::try_from(replicas).ok())
        .filter(|replicas| *replicas >= 2);
    if replicas.is_none() {
        report.refuse(format!("{path}.replicas"), "must be a number of at least 2");
    }
    Some(SharedResource {
        name: full?,
        rename,
        devices: devices?,
        replicas: replicas?,
        path,
    })
}

/// Returns the full name of a resource, and refuses what the plugin refuses.
fn resource_name(path: &str, name: &str, report: &mut Report) -> Option<String> {
    let full = if name.starts_with(DOMAIN) {
        name.to_owned()
    } else {
        format!("{DOMAIN}{name}")
    };
    let is_name = full.len() <= MAX_NAME && full.strip_prefix(DOMAIN).is_some_and(is_dns_subdomain);
    if !is_name {
        report.refuse(
            path,
            format!("must be {DOMAIN} and a DNS name, at most {MAX_NAME} characters together"),
        );
    }
    is_name.then_some(full)
}

/// Returns the mapping of a value. A null is one that is not set.
fn mapping<'a>(path: &str, value: &'a Value, report: &mut Report) -> Option<&'a Mapping> {
    match value {
        Value::Mapping(mapping) => return Some(mapping),
        Value::Null => {}
        _ => report.refuse(path, "must be a mapping"),
    }
    None
}

/// Returns the entries of a list, each with its path.
fn entries<'a>(path: &str, value: &'a Value, report: &mut Report) -> Vec<(String, &'a Value)> {
    match value {
        Value::Sequence(entries) if entries.len() > MAX_ENTRIES => {
            report.refuse(
                path,
                format!("has {} entries; at most {MAX_ENTRIES} are read", entries.len()),
            );
            Vec::new()
        }
        Value::Sequence(entries) => {
            let numbered = entries.iter().enumerate();
            let (nulls, entries): (Vec<_>, Vec<_>) = numbered
                .map(|(index, entry)| (format!("{path}[{index}]"), entry))
                .partition(|(_, entry)| entry.is_null());
            for (path, _) in nulls {
                report.refuse(path, "must be a mapping");
            }
            entries
        }
        Value::Null => Vec::new(),
        _ => {
            report.refuse(path, "must be a list");
            Vec::new()
        }
    }
}

/// Returns the values of the keys that the plugin knows, and notes the others, which it ignores.
fn known<'a, 'k>(
    mapping: &'a Mapping,
    path: &str,
    names: &'k [&'k str],
    case: KeyCase,
    report: &mut Report,
) -> Vec<(&'k str, &'a Value)> {
    let mut fields = Vec::new();
    for (key, value) in mapping {
        let key = key.as_str().unwrap_or_default();
        let is_same = |name: &&&str| match case {
            KeyCase::Exact => **name == key,
            KeyCase::Any => name.eq_ignore_ascii_case(key),
        };
        match names.iter().find(is_same) {
            Some(name) if fields.iter().any(|(known, _)| known == name) => {
                report.refuse(*name, "is there twice, in capital and in small letters; keep one");
            }
            Some(name) => fields.push((*name, value)),
            None => {
                let full = if path.is_empty() {
                    key.to_owned()
                } else {
                    format!("{path}.{key}")
                };
                report.ignored(full, unknown_field_message(key, names));
            }
        }
    }
    fields
}
