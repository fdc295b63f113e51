//! Options from the flags and the environment of the plugin's container.

use super::{
    options::{CONFIG_FILE, IMEX_CHANNELS, OPTIONS, OptionKind, PluginOption},
    report::Report,
    settings::PluginSettings,
};
use crate::MAX_DOCUMENT_BYTES;
use std::collections::BTreeMap;

/// Flags and environment of the plugin's container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginContainer {
    /// Arguments after the program.
    pub args: Vec<String>,
    /// Variables by name; none is one whose value is not in the manifest.
    pub env: BTreeMap<String, Option<String>>,
}

impl PluginContainer {
    /// Returns the file that the plugin reads.
    pub fn config_file(&self) -> Option<String> {
        let mut settings = PluginSettings::default();
        self.read(&mut settings, &mut Report::default());
        let (file, _) = settings.text(CONFIG_FILE)?;
        Some(file.to_owned()).filter(|file| !file.is_empty())
    }

    /// Reads the environment, then the flags, which beat it.
    pub(super) fn read(&self, settings: &mut PluginSettings, report: &mut Report) {
        for option in OPTIONS {
            // Of several variables of an option the first that is set counts.
            let set = option
                .variables
                .iter()
                .find_map(|name| Some((*name, self.env.get(*name)?)));
            match set {
                // Empty numbers are not set.
                Some((_, Some(text))) if text.is_empty() && option.key == IMEX_CHANNELS => {}
                Some((name, Some(text))) => settings.set_text(option, name.to_owned(), &self.expanded(text), report),
                Some((name, None)) => report.differs(
                    name,
                    "its value comes from another object (valueFrom); add it to the file, or write it into the manifest",
                ),
                None => {}
            }
        }
        let visible = self.env.get("NVIDIA_VISIBLE_DEVICES");
        // A value from another object is not known.
        if visible.is_some_and(|visible| visible.as_deref() != Some("all")) {
            report.differs(
                "NVIDIA_VISIBLE_DEVICES",
                "the plugin serves only the GPUs that its container has; select them by `devices` of the resources",
            );
        }
        self.read_flags(settings, report);
    }

    /// Puts variables of the container in the place of `$(NAME)`, as the kubelet does.
    fn expanded(&self, value: &str) -> String {
        if !value.contains("$(") {
            return value.to_owned();
        }
        let known = self.env.iter().filter_map(|(name, text)| Some((name, text.as_ref()?)));
        known.fold(value.to_owned(), |value, (name, text)| {
            let reference = format!("$({name})");
            // Variables that name each other could make a value as large as the memory.
            let length = value.matches(&reference).count() * text.len() + value.len();
            if length > MAX_DOCUMENT_BYTES {
                return value;
            }
            value.replace(&reference, text)
        })
    }

    fn read_flags(&self, settings: &mut PluginSettings, report: &mut Report) {
        let mut lists: BTreeMap<&str, (&PluginOption, String, Vec<String>)> = BTreeMap::new();
        let mut used: BTreeMap<&str, &str> = BTreeMap::new();
        let expanded: Vec<String> = self.args.iter().map(|arg| self.expanded(arg)).collect();
        let mut args = expanded.iter();
        while let Some(arg) = args.next() {
            let flag = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'));
            let Some(flag) = flag.filter(|flag| !flag.is_empty()) else {
                // Go's flag package stops at the first word that is no flag.
                for word in std::iter::once(arg).chain(args) {
                    report.ignored(word, "is an argument after the flags, which the plugin does not read");
                }
                break;
            };
            let (name, value) = flag
                .split_once('=')
                .map_or((flag, None), |(name, value)| (name, Some(value)));
            let Some(option) = OPTIONS.iter().find(|option| option.flags.contains(&name)) else {
                report.refuse(format!("--{name}"), "is no flag of NVIDIA's device plugin 0.20");
                continue;
            };
            let source = format!("--{name}");
            if *used.entry(option.key).or_insert(name) != name {
                report.refuse(
                    source,
                    "is another name of a flag that is there already; the plugin takes one form",
                );
                continue;
            }
            if option.kind == OptionKind::Switch && value == Some("") {
                report.refuse(source, "must be true or false");
                continue;
            }
            let value = match (option.kind, value) {
                (_, Some(value)) => value.to_owned(),
                (OptionKind::Switch, None) => "true".to_owned(),
                (_, None) => {
                    if let Some(value) = args.next() {
                        value.clone()
                    } else {
                        report.refuse(source, "needs a value");
                        continue;
                    }
                }
            };
            if option.kind == OptionKind::List {
                // A list can be given in several flags.
                let (.., values) = lists.entry(option.key).or_insert((option, source, Vec::new()));
                values.push(value);
            } else {
                settings.set_text(option, source, &value, report);
            }
        }
        for (option, source, values) in lists.into_values() {
            settings.set_text(option, source, &values.join(","), report);
        }
    }
}
