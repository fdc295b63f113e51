//! Strict parsing of YAML: an unknown field, a wrong type or an impossible combination is an error with the field's path.

use crate::{AgentConfig, FieldProblem, yaml_value::check_nesting};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Size limit of a document in bytes; a full configuration (32 resources with 64 UUIDs each) needs less.
pub const MAX_DOCUMENT_BYTES: usize = 256 * 1024;

/// Reason for which a document is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LoadError {
    /// The text is longer than [`MAX_DOCUMENT_BYTES`].
    #[error(
        "read configuration: the document has {0} bytes, more than the limit of {MAX_DOCUMENT_BYTES}; remove entries"
    )]
    TooLong(usize),
    /// The text is not YAML, or a value has the wrong type.
    #[error("read configuration: {path}: {message}")]
    Malformed {
        /// Path in the document; `.` for the document itself.
        path: String,
        /// The parser's message.
        message: String,
    },
    /// The document has unknown fields, or a combination of values that cannot work.
    #[error("read configuration: {}", join(.0))]
    Refused(Vec<FieldProblem>),
}

impl LoadError {
    /// Returns each problem with its path.
    pub fn problems(&self) -> Vec<FieldProblem> {
        match self {
            Self::TooLong(_) => vec![FieldProblem::new("", self.to_string())],
            Self::Malformed { path, message } => vec![FieldProblem::new(path.trim_start_matches('.'), message.clone())],
            Self::Refused(problems) => problems.clone(),
        }
    }
}

fn join(problems: &[FieldProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Parses and validates an agent configuration.
pub fn load(text: &str) -> Result<AgentConfig, LoadError> {
    let config: AgentConfig = load_strict(text)?;
    let problems = config.validate();
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(LoadError::Refused(problems))
    }
}

/// Parses one of gpunode's types and refuses unknown fields, each with the nearest known name.
fn load_strict<T: DeserializeOwned + JsonSchema>(text: &str) -> Result<T, LoadError> {
    if text.len() > MAX_DOCUMENT_BYTES {
        return Err(LoadError::TooLong(text.len()));
    }
    // An empty file is a configuration with every default, as `{}` is.
    let text = if text
        .lines()
        .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
    {
        "{}"
    } else {
        text
    };
    check_nesting(text).map_err(|error| malformed(".".to_owned(), &error))?;
    let mut unknown = Vec::new();
    let mut record = |path: serde_ignored::Path<'_>| unknown.push(path.to_string());
    let document = serde_yaml::Deserializer::from_str(text);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(document, &mut track);
    let value = T::deserialize(serde_ignored::Deserializer::new(tracked, &mut record));
    match value {
        Err(error) => Err(malformed(track.path().to_string(), &error)),
        Ok(_) if !unknown.is_empty() => {
            let schema = inlined_schema::<T>();
            Err(LoadError::Refused(
                unknown.iter().map(|path| unknown_field(&schema, path)).collect(),
            ))
        }
        Ok(value) => Ok(value),
    }
}

/// Strips the path that `serde_yaml` repeats at the start of its message.
fn malformed(path: String, error: &serde_yaml::Error) -> LoadError {
    let message = error.to_string();
    let message = message
        .strip_prefix(&format!("{path}: "))
        .map_or(message.clone(), str::to_owned);
    LoadError::Malformed { path, message }
}

fn inlined_schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().into()
}

/// Skips the `?` segments that `serde_ignored` writes for optional values; it writes sequence items by number.
fn unknown_field(schema: &Value, path: &str) -> FieldProblem {
    let segments: Vec<&str> = path.split('.').filter(|segment| *segment != "?").collect();
    let shown = show_path(&segments);
    let Some((field, parents)) = segments.split_last() else {
        return FieldProblem::new(shown, "unknown field");
    };
    let known = parents
        .iter()
        .try_fold(schema, |schema, segment| child(schema, segment))
        .map(properties)
        .unwrap_or_default();
    let message = unknown_field_message(field, &known);
    FieldProblem::new(shown, message)
}

/// Returns the message for a field that is not one of `known`.
pub fn unknown_field_message(field: &str, known: &[&str]) -> String {
    match nearest_name(field, known) {
        Some(name) => format!("unknown field; did you mean `{name}`?"),
        None if known.is_empty() => "unknown field".to_owned(),
        None => format!("unknown field; known fields are {}", known.join(", ")),
    }
}

/// Returns the entry of `known` that `written` is most likely a typo of, ignoring case.
pub fn nearest_name<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|name| {
            (
                strsim::damerau_levenshtein(&name.to_lowercase(), &written.to_lowercase()),
                *name,
            )
        })
        .filter(|(distance, name)| *distance <= name.len().max(written.len()).div_ceil(3))
        .min()
        .map(|(_, name)| name)
}

fn show_path(segments: &[&str]) -> String {
    segments
        .iter()
        .fold(String::new(), |path, segment| match segment.parse::<usize>() {
            Ok(index) => format!("{path}[{index}]"),
            Err(_) if path.is_empty() => (*segment).to_owned(),
            Err(_) => format!("{path}.{segment}"),
        })
}

fn child<'a>(schema: &'a Value, segment: &str) -> Option<&'a Value> {
    alternatives(schema).find_map(|schema| match segment.parse::<usize>() {
        Ok(_) => schema.get("items"),
        Err(_) => schema.get("properties")?.get(segment),
    })
}

fn properties(schema: &Value) -> Vec<&str> {
    alternatives(schema)
        .filter_map(|schema| schema.get("properties")?.as_object())
        .flat_map(|properties| properties.keys().map(String::as_str))
        .collect()
}

/// Yields the schema itself and, for an optional value, the alternatives of its `anyOf`.
fn alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    let any_of = schema.get("anyOf").and_then(Value::as_array).into_iter().flatten();
    std::iter::once(schema).chain(any_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        load(text).map_or_else(|error| error.to_string(), |config| format!("accepted {config:?}"))
    }

    #[test]
    fn an_unknown_field_names_its_path_and_the_nearest_name() {
        assert_eq!(
            message("resources:\n- name: nvidia.com/gpu\n  sharing: {strategy: TimeSlicing, replica: 4}\n"),
            "read configuration: resources[0].sharing.replica: unknown field; did you mean `replicas`?"
        );
        assert_eq!(
            message("passDevicespecs: true\n"),
            "read configuration: passDevicespecs: unknown field; did you mean `passDeviceSpecs`?"
        );
        assert_eq!(
            message("colour: red\n"),
            "read configuration: colour: unknown field; known fields are cdiAnnotationPrefix, companions, deviceIdStrategy, deviceListStrategy, failOnInitError, gdrcopy, gds, health, imexChannels, mig, mofed, passDeviceSpecs, resources, usage"
        );
    }

    #[test]
    fn a_wrong_type_names_its_path() {
        assert_eq!(
            message("resources:\n- name: nvidia.com/gpu\n  sharing: {strategy: TimeSlicing, replicas: many}\n"),
            "read configuration: resources[0].sharing.replicas: invalid type: string \"many\", expected i32 at line 3 column 46"
        );
        let error = message("resources:\n- name: nvidia.com/gpu\n  sharing: {strategy: Timeslicing}\n");
        assert!(
            error.starts_with("read configuration: resources[0].sharing.strategy: unknown variant `Timeslicing`"),
            "{error}"
        );
        assert!(
            message("- a\n- b\n").contains("invalid type: sequence"),
            "{}",
            message("- a\n- b\n")
        );
        assert!(
            message("a: [\n").starts_with("read configuration: "),
            "{}",
            message("a: [\n")
        );
    }

    #[test]
    fn every_problem_is_named_at_once() {
        let error = load("colour: red\nresources:\n- name: nvidia.com/gpu\n  device: {}\n")
            .expect_err("both fields are unknown");
        assert_eq!(
            error
                .problems()
                .iter()
                .map(|problem| problem.path.as_str())
                .collect::<Vec<_>>(),
            ["colour", "resources[0].device"]
        );
    }

    #[test]
    fn an_empty_document_is_every_default() {
        assert_eq!(load(""), Ok(AgentConfig::default()));
        assert_eq!(load("# nothing\n"), Ok(AgentConfig::default()));
        assert_eq!(load("{}"), Ok(AgentConfig::default()));
    }

    #[test]
    fn a_document_beyond_the_limit_is_refused_unread() {
        assert_eq!(
            load(&"#".repeat(MAX_DOCUMENT_BYTES + 1)),
            Err(LoadError::TooLong(MAX_DOCUMENT_BYTES + 1))
        );
    }

    #[test]
    fn a_document_that_is_nested_deeply_is_refused_at_once() {
        let text = format!("resources: {}", "[".repeat(MAX_DOCUMENT_BYTES - 20));
        assert_eq!(
            message(&text),
            "read configuration: .: more than 200 brackets are open at once"
        );
    }
}
