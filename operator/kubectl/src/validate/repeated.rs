//! Objects of one kind and name in the validated files.

use super::{
    problem::DocumentProblem,
    report::{DocumentReport, ValidationResult},
};
use serde_json::Value;
use std::collections::BTreeMap;

/// Refuses each object that has the kind and name of an earlier one: an apply would keep only the last of them.
pub fn refuse_repeated_names(reports: &mut [DocumentReport]) {
    let mut places: BTreeMap<(String, String), String> = BTreeMap::new();
    for report in reports {
        let name = report.object.pointer("/metadata/name").and_then(Value::as_str);
        let Some((kind, name)) = report.kind.clone().zip(name.map(str::to_owned)) else {
            continue;
        };
        let line = report.name_line.or(report.line);
        let place = match line {
            Some(line) => format!("on line {line} of {}", report.file),
            None => format!("in {}", report.file),
        };
        let Some(first) = places.get(&(kind.clone(), name.clone())) else {
            places.insert((kind, name), place);
            continue;
        };
        let message = format!("{name} is also the name of the {kind} {first}; an apply would keep only one of them");
        report.problems.push(DocumentProblem {
            line,
            ..DocumentProblem::new("metadata.name", message)
        });
        report.problems.sort_by_key(|problem| problem.line);
        report.result = ValidationResult::Invalid;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{KnownKinds, SourceText};

    fn reports(files: &[(&str, &str)]) -> Vec<DocumentReport> {
        let kinds = KnownKinds::new().expect("generated schemas");
        let text = |(name, contents): &(&str, &str)| SourceText {
            name: (*name).to_owned(),
            contents: (*contents).to_owned(),
        };
        let mut reports: Vec<_> = files.iter().flat_map(|file| kinds.validate(&text(file))).collect();
        refuse_repeated_names(&mut reports);
        reports
    }

    #[test]
    fn a_name_given_twice_is_refused_with_the_place_of_the_first() {
        let policy = |name: &str| {
            format!(
                "apiVersion: gpunode.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata:\n  name: {name}\nspec: {{nodeSelector: {{}}}}\n"
            )
        };
        let gpu_node = "apiVersion: gpunode.dev/v1alpha1\nkind: GpuNode\nmetadata: {name: a}\nspec: {}\n";
        let other = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";
        let first = format!("{}---\n{gpu_node}---\n{other}---\n{other}", policy("a"));
        let second = format!("{}---\n{}", policy("b"), policy("a"));
        let reports = reports(&[("one.yaml", &first), ("two.yaml", &second)]);
        let results: Vec<_> = reports.iter().map(|report| report.result).collect();
        assert_eq!(
            results,
            [
                ValidationResult::Valid,
                ValidationResult::Valid,
                ValidationResult::Skipped,
                ValidationResult::Skipped,
                ValidationResult::Valid,
                ValidationResult::Invalid
            ]
        );
        let [problem] = reports[5].problems.as_slice() else {
            panic!("{:?}", reports[5])
        };
        assert_eq!((problem.path.as_str(), problem.line), ("metadata.name", Some(10)));
        assert_eq!(
            problem.message,
            "a is also the name of the GpuNodePolicy on line 4 of one.yaml; an apply would keep only one of them"
        );
    }
}
