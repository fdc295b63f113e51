//! Checks against the generated schema of a CRD, as the API server does them.
//!
//! Order and paths follow `customResourceStrategy.Validate` in apiextensions-apiserver and the validator of kube-openapi:
//! fields that no schema knows, nulls dropped where a field is not nullable, types and bounds, duplicate entries of
//! list-maps, and CEL rules. The API server checks rules only where the shape of the object is right; here those that are broken
//! whatever the misshapen fields contain are shown too. Rules about a change (`oldSelf`) are left out, as at a create.
//!
//! | module | what it does |
//! |---|---|
//! | `fields` | finds unknown fields, drops nulls and fields that are not stored |
//! | `shape` | checks types, bounds, patterns and required fields |
//! | `repair` | puts values of the right shape in place of others |

mod fields;
mod repair;
mod shape;

use super::problem::DocumentProblem;
use fields::{drop_nulls, prune, unknown_fields};
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::core::cel::Validator;
use repair::{CHOICES, repaired};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};
use shape::ShapeCheck;

/// The schema of one kind, with `metadata` as every kind has it.
#[derive(Debug)]
pub struct KindSchema(Value);

/// The problems of an object by its schema.
#[derive(Debug, Default)]
pub struct SchemaFindings {
    pub problems: Vec<DocumentProblem>,
    /// Paths of the fields with a wrong shape, which prevent the check of rules that depend on them.
    pub misshapen: Vec<String>,
    /// The object as the API server would store it.
    pub object: Value,
    /// The object with other values in its misshapen fields, in several ways; the object itself where there are none.
    shapely: Vec<Value>,
}

impl SchemaFindings {
    /// Returns the problems that `check` finds whatever stands in the misshapen fields.
    ///
    /// # Errors
    /// The first error of `check`.
    pub fn broken_in_all(
        &self,
        check: impl Fn(&Value) -> Result<Vec<DocumentProblem>, DocumentProblem>,
    ) -> Result<Vec<DocumentProblem>, DocumentProblem> {
        let mut broken: Option<Vec<DocumentProblem>> = None;
        for object in &self.shapely {
            let found = check(object)?;
            broken = Some(match broken {
                None => found,
                Some(earlier) => earlier.into_iter().filter(|problem| found.contains(problem)).collect(),
            });
        }
        let is_outside = |problem: &DocumentProblem| !self.misshapen.iter().any(|path| is_within(&problem.path, path));
        Ok(broken.unwrap_or_default().into_iter().filter(is_outside).collect())
    }
}

/// Returns true for the path `around` and the paths of its fields and entries.
fn is_within(path: &str, around: &str) -> bool {
    let rest = path.strip_prefix(around);
    rest.is_some_and(|rest| around.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
}

impl KindSchema {
    /// Returns the schema of the stored version of `crd`; none where the CRD has none.
    pub fn of(crd: &CustomResourceDefinition) -> Option<Self> {
        let version = crd.spec.versions.iter().find(|version| version.storage)?;
        let mut schema = serde_json::to_value(version.schema.as_ref()?.open_api_v3_schema.as_ref()?).ok()?;
        let fields = schema.get_mut("properties")?.as_object_mut()?;
        fields.insert("apiVersion".to_owned(), json!({"type": "string"}));
        fields.insert("kind".to_owned(), json!({"type": "string"}));
        let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
        let mut metadata = Value::from(settings.into_generator().into_root_schema_for::<ObjectMeta>());
        metadata.as_object_mut()?.insert("required".to_owned(), json!(["name"]));
        fields.insert("metadata".to_owned(), metadata);
        Some(Self(schema))
    }

    /// Returns the problems that the API server would report at a create with strict field validation, except those of
    /// metadata's values. Where it would report misshapen fields alone, the rules that other fields break are there too.
    pub fn check(&self, mut object: Value) -> SchemaFindings {
        let mut problems = Vec::new();
        unknown_fields(&self.0, &object, "", &mut problems);
        prune(&self.0, &mut object);
        if let Some(fields) = object.as_object_mut() {
            // A create drops the status of a kind that has it as a subresource before anything is checked.
            fields.remove("status");
            fields.entry("metadata").or_insert_with(|| json!({}));
        }
        let mut checked = ShapeCheck::default();
        checked.value(&self.0, &object, "");
        problems.extend(checked.problems);
        let shapely = if checked.misshapen.is_empty() {
            vec![object.clone()]
        } else {
            (0..CHOICES).map(|choice| repaired(&self.0, &object, choice)).collect()
        };
        let mut findings = SchemaFindings {
            problems,
            misshapen: checked.misshapen,
            object,
            shapely,
        };
        let broken = findings.broken_in_all(|object| Ok(self.broken_rules(object, None)));
        findings.problems.extend(broken.unwrap_or_default());
        findings
    }

    /// Returns the CEL rules that `object` breaks; rules about a change only with the `old` object.
    pub fn broken_rules(&self, object: &Value, old: Option<&Value>) -> Vec<DocumentProblem> {
        // `has` is false for nulls, and no rule tells them from fields that are left out.
        let without_nulls = |object: &Value| {
            let mut object = object.clone();
            drop_nulls(&mut object);
            object
        };
        let failed = Validator::new()
            .validate(&self.0, &without_nulls(object), old.map(without_nulls).as_ref())
            .err();
        let failed = failed.into_iter().flatten();
        failed
            .map(|error| DocumentProblem::new(error.field_path, error.message))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_crds::{GpuNode, GpuNodePolicy};
    use kube::CustomResourceExt;
    use regex::Regex;

    /// Every keyword of the generated schemas, so that none is left unchecked by accident.
    fn visit(schema: &Value, keywords: &mut std::collections::BTreeSet<String>) {
        for (name, value) in schema.as_object().expect("schemas are objects") {
            keywords.insert(name.clone());
            match (name.as_str(), value) {
                ("properties", Value::Object(fields)) => fields.values().for_each(|schema| visit(schema, keywords)),
                ("items" | "additionalProperties", schema) => visit(schema, keywords),
                ("pattern", Value::String(pattern)) => {
                    Regex::new(pattern).expect("patterns compile");
                }
                _ => {}
            }
        }
    }

    #[test]
    fn a_preview_may_name_every_taint_that_gpunode_writes() {
        let schema = KindSchema::of(&GpuNodePolicy::crd()).expect("a schema");
        for key in [
            "gpunode.dev/unhealthy",
            "gpunode.dev/not-ready",
            "startup-taint.cluster-autoscaler.kubernetes.io/gpu",
        ] {
            let taints = json!([{"key": key, "effect": "NoSchedule"}]);
            let preview = json!([{"node": "n", "setTaints": taints, "removeTaints": taints}]);
            let policy = json!({
                "metadata": {"name": "p"}, "spec": {"nodeSelector": {}}, "status": {"preview": preview},
            });
            assert_eq!(schema.broken_rules(&policy, None), [], "{key}");
            let spec = json!({"metadata": {"name": "p"}, "spec": {"nodeSelector": {}, "taints": taints}});
            assert_eq!(schema.broken_rules(&spec, None).len(), 1, "{key}");
        }
    }

    #[test]
    fn every_keyword_of_the_generated_schemas_is_known_here() {
        let mut keywords = std::collections::BTreeSet::new();
        for crd in [GpuNodePolicy::crd(), GpuNode::crd()] {
            let version = &crd.spec.versions[0];
            let schema = version
                .schema
                .as_ref()
                .and_then(|schema| schema.open_api_v3_schema.as_ref());
            let mut schema = serde_json::to_value(schema).expect("JSON");
            // A create drops it before anything is checked.
            schema["properties"].as_object_mut().expect("fields").remove("status");
            visit(&schema, &mut keywords);
        }
        let checked = [
            "additionalProperties",
            "enum",
            "items",
            "maxItems",
            "maxLength",
            "maxProperties",
            "maximum",
            "minItems",
            "minLength",
            "minimum",
            "nullable",
            "pattern",
            "properties",
            "required",
            "type",
            "x-kubernetes-int-or-string",
            "x-kubernetes-list-map-keys",
            "x-kubernetes-list-type",
            "x-kubernetes-validations",
        ];
        // Formats bound only numbers, which have a minimum and maximum wherever a user writes them.
        // How fields are merged is no matter of one object.
        let silent = ["description", "format", "title", "x-kubernetes-map-type"];
        let unknown: Vec<_> = keywords
            .iter()
            .filter(|word| !checked.contains(&word.as_str()) && !silent.contains(&word.as_str()))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
