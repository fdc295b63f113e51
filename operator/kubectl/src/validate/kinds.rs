//! The validation of one document: the problems of every layer, each field once.

use super::{
    layouts, metadata, nulls,
    problem::{DocumentProblem, child, parent},
    report::{DocumentReport, ValidationResult},
    schema::KindSchema,
    source::SourceText,
    yaml,
};
use anyhow::Context;
use gpunode_config::{DiscardedParts, PluginContainer, is_nvidia_plugin_file, nvidia_plugin_config};
use gpunode_crds::{GROUP, GpuNode, GpuNodePolicy};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResourceExt, Resource};
use serde_json::Value;

/// Path of the agent configuration in a policy.
const CONFIGURATION: &str = "spec.devicePlugin";

/// The gpunode kinds, with their generated schemas.
#[derive(Debug)]
pub struct KnownKinds(Vec<KnownKind>);

#[derive(Debug)]
struct KnownKind {
    api_version: String,
    name: String,
    schema: KindSchema,
}

impl KnownKinds {
    /// Returns the kinds of this version.
    ///
    /// # Errors
    /// When a generated CRD holds no schema, which is a fault of this program.
    pub fn new() -> anyhow::Result<Self> {
        let kind = |crd: CustomResourceDefinition, api_version: String| -> anyhow::Result<KnownKind> {
            let name = crd.spec.names.kind.clone();
            let schema = KindSchema::of(&crd).with_context(|| format!("read the generated schema of {name}"))?;
            Ok(KnownKind {
                api_version,
                name,
                schema,
            })
        };
        Ok(Self(vec![
            kind(GpuNodePolicy::crd(), GpuNodePolicy::api_version(&()).into_owned())?,
            kind(GpuNode::crd(), GpuNode::api_version(&()).into_owned())?,
        ]))
    }

    /// Validates each document of a file.
    pub fn validate(&self, text: &SourceText) -> Vec<DocumentReport> {
        let (documents, unreadable) = yaml::read(&text.contents);
        let mut reports = Vec::new();
        if documents.is_empty() && unreadable.is_none() {
            reports.push(DocumentReport::of_file(
                &text.name,
                DocumentProblem::new("", "contains no object"),
            ));
        }
        for document in &documents {
            reports.extend(self.document(&text.name, document));
        }
        reports.extend(unreadable.map(|problem| DocumentReport::of_file(&text.name, problem)));
        reports
    }

    fn document(&self, file: &str, document: &yaml::YamlDocument) -> Vec<DocumentReport> {
        let is_list = document.value.get("kind").is_some_and(|kind| kind == "List");
        let Some(items) = document
            .value
            .get("items")
            .and_then(Value::as_array)
            .filter(|_| is_list)
        else {
            let finding = self.object(&document.value, document.duplicates.clone());
            return vec![report(file, &document.value, finding, |path| document.line_of(path))];
        };
        let reports = items.iter().enumerate().map(|(index, item)| {
            let place = format!("items[{index}]");
            let own = document.duplicates.iter().filter_map(|problem| {
                let path = problem.path.strip_prefix(&place)?.strip_prefix('.')?;
                Some(DocumentProblem {
                    path: path.to_owned(),
                    ..problem.clone()
                })
            });
            report(file, item, self.object(item, own.collect()), |path| {
                document.line_of(&child(&place, path))
            })
        });
        reports.collect()
    }

    /// Returns the rules about changes that an object breaks when it replaces `old`.
    pub fn validate_change(&self, object: &Value, old: &Value) -> Vec<DocumentProblem> {
        let kind = self
            .0
            .iter()
            .find(|kind| object.get("kind").is_some_and(|name| *name == kind.name));
        kind.map(|kind| kind.schema.broken_rules(object, Some(old)))
            .unwrap_or_default()
    }

    /// Checks an object; none where it is not a gpunode kind.
    fn object(&self, object: &Value, duplicates: Vec<DocumentProblem>) -> Option<ObjectFindings> {
        let refuse = |field: &str, message: String| {
            let problems = vec![DocumentProblem::new(field, message)];
            Some(ObjectFindings {
                problems,
                ..ObjectFindings::default()
            })
        };
        let text = |name: &str| object.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let (Some(api_version), Some(name)) = (text("apiVersion"), text("kind")) else {
            let missing = if text("apiVersion").is_none() {
                "apiVersion"
            } else {
                "kind"
            };
            let message = "is required; to validate an agent configuration, use --agent-config FILE";
            return refuse(missing, message.to_owned());
        };
        let kind = self.0.iter().find(|kind| kind.name == name);
        if api_version.split('/').next() != Some(GROUP) {
            // A misspelled group is an error, not a foreign kind to skip.
            let kind = kind?;
            let message = format!("{api_version} has no kind {name}; did you mean {}?", kind.api_version);
            return refuse("apiVersion", message);
        }
        let Some(kind) = kind else {
            let known: Vec<&str> = self.0.iter().map(|kind| kind.name.as_str()).collect();
            return refuse("kind", format!("unknown kind {name}; use {}", known.join(" or ")));
        };
        if kind.api_version != api_version {
            let message = format!("{api_version} has no kind {name}; use {}", kind.api_version);
            return refuse("apiVersion", message);
        }
        let mut problems = duplicates;
        let mut findings = kind.schema.check(object.clone());
        add(&mut problems, metadata::check(&findings.object));
        add(&mut problems, std::mem::take(&mut findings.problems));
        let mut rules_unchecked = !findings.misshapen.is_empty();
        if name == GpuNodePolicy::kind(&()) {
            match findings.broken_in_all(own_rules) {
                Ok(mut later) => {
                    let is_misshapen = |path: &str| findings.misshapen.iter().any(|misshapen| misshapen == path);
                    let refused = problems.iter().filter(|problem| !is_misshapen(&problem.path));
                    let refused: Vec<&str> = refused.filter_map(|problem| part(&problem.path)).collect();
                    // Where the schema refuses a part, gpunode's own rules would only repeat it.
                    later.retain(|problem| !is_repeated(part(&problem.path), &refused));
                    add(&mut problems, later);
                }
                // The schema's problems say it better.
                Err(_) if !problems.is_empty() => rules_unchecked = true,
                Err(problem) => problems.push(problem),
            }
        }
        let mut warnings = nulls::warnings(object);
        if name == GpuNodePolicy::kind(&()) && problems.is_empty() {
            warnings.extend(layouts::warnings(object));
        }
        Some(ObjectFindings {
            problems,
            warnings,
            rules_unchecked,
            object: findings.object,
        })
    }
}

#[derive(Default)]
struct ObjectFindings {
    problems: Vec<DocumentProblem>,
    warnings: Vec<DocumentProblem>,
    rules_unchecked: bool,
    object: Value,
}

/// Returns the part of the agent configuration that a path is in: one of its resources, or all of it.
fn part(path: &str) -> Option<&str> {
    let rest = path.strip_prefix(CONFIGURATION)?;
    let resource = rest.strip_prefix(".resources[").and_then(|index| index.find(']'));
    let end = resource.map_or(0, |end| ".resources[".len() + end + 1);
    path.get(..CONFIGURATION.len() + end)
}

/// Returns true where a problem is in a part that is already refused, or one of them is about the whole configuration.
fn is_repeated(part: Option<&str>, refused: &[&str]) -> bool {
    let is_whole = |part: &str| part == CONFIGURATION;
    part.is_some_and(|part| {
        let mut refused = refused.iter().copied();
        refused.any(|refused| is_whole(refused) || is_whole(part) || refused == part)
    })
}

/// Returns the rules of the agent configuration that a policy breaks.
///
/// # Errors
/// When gpunode's own type cannot read the object.
fn own_rules(object: &Value) -> Result<Vec<DocumentProblem>, DocumentProblem> {
    let policy = serde_path_to_error::deserialize::<_, GpuNodePolicy>(object)
        .map_err(|error| DocumentProblem::new(error.path().to_string(), error.inner().to_string()))?;
    let problems = policy
        .spec
        .device_plugin
        .map(|config| config.validate())
        .unwrap_or_default();
    let path = |path: &str| child(CONFIGURATION, path);
    Ok(problems
        .into_iter()
        .map(|problem| DocumentProblem::new(path(&problem.path), problem.message))
        .collect())
}

/// Adds the problems of a later layer, except where an earlier one has a problem of the same field or list entry.
fn add(problems: &mut Vec<DocumentProblem>, later: Vec<DocumentProblem>) {
    for problem in later {
        let around = Some(parent(&problem.path)).filter(|path| path.ends_with(']'));
        let known = |earlier: &DocumentProblem| earlier.path == problem.path || Some(earlier.path.as_str()) == around;
        if !problems.iter().any(known) {
            problems.push(problem);
        }
    }
}

fn report(
    file: &str,
    object: &Value,
    finding: Option<ObjectFindings>,
    line_of: impl Fn(&str) -> usize,
) -> DocumentReport {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let (file, line, kind) = (file.to_owned(), Some(line_of("")), text("/kind"));
    let name = text("/metadata/name").or_else(|| text("/metadata/generateName"));
    let judge = |findings: &ObjectFindings| ValidationResult::of(&findings.problems);
    let result = finding.as_ref().map_or(ValidationResult::Skipped, judge);
    let ObjectFindings {
        mut problems,
        mut warnings,
        rules_unchecked,
        object,
    } = finding.unwrap_or_default();
    for problem in problems.iter_mut().chain(&mut warnings) {
        problem.line.get_or_insert_with(|| line_of(&problem.path));
    }
    problems.sort_by_key(|problem| problem.line);
    DocumentReport {
        file,
        line,
        kind,
        name,
        result,
        problems,
        warnings,
        rules_unchecked,
        name_line: Some(line_of("metadata.name")),
        object,
    }
}

/// Validates an agent configuration as `gpunode-agent run --config FILE` reads it: gpunode's, or a file of NVIDIA's plugin.
pub fn validate_agent_config(text: &SourceText) -> DocumentReport {
    let (problems, warnings) = if is_nvidia_plugin_file(&text.contents) {
        match nvidia_plugin_config(&text.contents, &PluginContainer::default(), DiscardedParts::Ignore) {
            Ok(imported) => (Vec::new(), imported.remarks),
            Err(error) => (error.problems(), Vec::new()),
        }
    } else {
        let error = gpunode_config::load(&text.contents).err();
        (error.map(|error| error.problems()).unwrap_or_default(), Vec::new())
    };
    let documents = yaml::read(&text.contents).0;
    let problem = |path: String, message: String| DocumentProblem {
        line: documents.first().map(|document| document.line_of(&path)),
        path,
        message,
    };
    let problems = problems.into_iter().map(|found| problem(found.path, found.message));
    let problems: Vec<DocumentProblem> = problems.collect();
    let warnings = warnings
        .into_iter()
        .map(|remark| problem(remark.setting, remark.message));
    let warnings = warnings.collect();
    let result = ValidationResult::of(&problems);
    let (file, kind) = (text.name.clone(), Some("AgentConfig".to_owned()));
    DocumentReport {
        file,
        line: None,
        kind,
        name: None,
        result,
        problems,
        warnings,
        rules_unchecked: false,
        name_line: None,
        object: Value::Null,
    }
}
