//! Options of the plugin that are set, and where.

use super::{
    options::{OptionKind, PluginOption},
    report::Report,
};
use serde_yaml::Value;
use std::collections::BTreeMap;

/// Texts that Go's `strconv.ParseBool` reads.
const TRUE: [&str; 6] = ["1", "t", "T", "TRUE", "true", "True"];
const FALSE: [&str; 6] = ["0", "f", "F", "FALSE", "false", "False"];
/// More words for the two that the plugin's parser reads (`go.yaml.in/yaml/v2`, `resolve.go`).
const TRUE_IN_YAML: [&str; 10] = ["y", "Y", "yes", "Yes", "YES", "True", "TRUE", "on", "On", "ON"];
const FALSE_IN_YAML: [&str; 10] = ["n", "N", "no", "No", "NO", "False", "FALSE", "off", "Off", "OFF"];

/// Options that are set, by key.
#[derive(Debug, Default)]
pub(super) struct PluginSettings(BTreeMap<&'static str, Setting>);

/// Value of an option.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// Key of the file, flag or variable that sets it.
    pub source: String,
    value: SettingValue,
}

#[derive(Debug, PartialEq, Eq)]
enum SettingValue {
    Text(String),
    Switch(bool),
    List(Vec<String>),
}

impl PluginSettings {
    /// Takes an option from a flag or variable, in place of an earlier one.
    pub(super) fn set_text(&mut self, option: &PluginOption, source: String, text: &str, report: &mut Report) {
        let value = match option.kind {
            OptionKind::Text => SettingValue::Text(text.to_owned()),
            OptionKind::List => SettingValue::List(text.split(',').map(|part| part.trim().to_owned()).collect()),
            OptionKind::Switch => match switch_of(text) {
                Some(is_on) => SettingValue::Switch(is_on),
                None => return report.refuse(source, format!("must be true or false, not `{text}`")),
            },
        };
        self.0.insert(option.key, Setting { source, value });
    }

    /// Takes an option from the file. A null is an option that is not set.
    pub(super) fn set_value(&mut self, option: &PluginOption, value: &Value, report: &mut Report) {
        if value.is_null() {
            return;
        }
        let read = match option.kind {
            OptionKind::Text => scalar(value).map(SettingValue::Text),
            OptionKind::Switch => yaml_switch(value).map(SettingValue::Switch),
            OptionKind::List => match value {
                Value::Sequence(items) => items.iter().map(scalar).collect::<Option<_>>().map(SettingValue::List),
                one => scalar(one).map(|one| SettingValue::List(vec![one])),
            },
        };
        let source = option.key.to_owned();
        match read {
            Some(value) => _ = self.0.insert(option.key, Setting { source, value }),
            None => report.refuse(
                source,
                match option.kind {
                    OptionKind::Text => "must be a text",
                    OptionKind::Switch => "must be true or false",
                    OptionKind::List => "must be a text or a list of texts",
                },
            ),
        }
    }

    pub(super) fn text(&self, key: &str) -> Option<(&str, &str)> {
        match self.0.get(key)? {
            Setting {
                source,
                value: SettingValue::Text(text),
            } => Some((text, source)),
            _ => None,
        }
    }

    pub(super) fn switch(&self, key: &str) -> Option<(bool, &str)> {
        match self.0.get(key)? {
            Setting {
                source,
                value: SettingValue::Switch(is_on),
            } => Some((*is_on, source)),
            _ => None,
        }
    }

    pub(super) fn list(&self, key: &str) -> Option<(&[String], &str)> {
        match self.0.get(key)? {
            Setting {
                source,
                value: SettingValue::List(list),
            } => Some((list, source)),
            _ => None,
        }
    }
}

/// Reads a switch as a flag or variable has it. A variable that is empty is false, as in `urfave/cli`.
fn switch_of(text: &str) -> Option<bool> {
    match text {
        "" => Some(false),
        text if TRUE.contains(&text) => Some(true),
        text if FALSE.contains(&text) => Some(false),
        _ => None,
    }
}

/// Reads a switch as YAML has it.
pub(super) fn yaml_switch(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(is_on) => Some(*is_on),
        Value::String(text) if TRUE_IN_YAML.contains(&text.as_str()) => Some(true),
        Value::String(text) if FALSE_IN_YAML.contains(&text.as_str()) => Some(false),
        _ => None,
    }
}

/// Reads a text; a number or switch becomes one, as in `sigs.k8s.io/yaml`.
pub(super) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is_on) => Some(is_on.to_string()),
        _ => None,
    }
}
