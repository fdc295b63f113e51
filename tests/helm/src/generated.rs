//! The generated files of the chart.

use crate::{
    chart, chart_value::ChartValue, manifest_template::ManifestTemplate, repository, value_schema::schema,
    value_tables::tables,
};
use anyhow::{Context, Result};

/// A generated file of the chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedFile {
    /// Path in the folder of the chart.
    pub path: String,
    /// Whole text of the file.
    pub text: String,
}

/// Marks in `README.md` between which its tables are.
const BEGIN: &str = "<!-- make chart writes the values from here -->\n";
const END: &str = "<!-- the values to here -->\n";

/// Templates that are made of manifests: those without options of their own beside a condition.
const TEMPLATES: [ManifestTemplate; 14] = [
    ManifestTemplate {
        is_kept: true,
        ..ManifestTemplate::when(
            "crds/gpunodepolicies.yaml",
            "crd-gpunodepolicies.yaml",
            ".Values.crds.enabled",
        )
    },
    ManifestTemplate {
        is_kept: true,
        ..ManifestTemplate::when("crds/gpunodes.yaml", "crd-gpunodes.yaml", ".Values.crds.enabled")
    },
    ManifestTemplate::when("default/namespace.yaml", "namespace.yaml", ".Values.namespace.create"),
    ManifestTemplate::always("default/operator-rbac.yaml", "operator-rbac.yaml"),
    ManifestTemplate::always("default/agent-rbac.yaml", "agent-rbac.yaml"),
    ManifestTemplate::always("default/people-rbac.yaml", "people-rbac.yaml"),
    ManifestTemplate::always("default/admission-agents.yaml", "admission-agents.yaml"),
    ManifestTemplate::always("default/admission-kubelets.yaml", "admission-kubelets.yaml"),
    ManifestTemplate::always("default/admission-leases.yaml", "admission-leases.yaml"),
    ManifestTemplate::when(
        "default/operator-disruption-budget.yaml",
        "operator-disruption-budget.yaml",
        ".Values.operator.podDisruptionBudget",
    ),
    ManifestTemplate {
        replacement: Some((
            "\"['gpunode.dev/agent']\"",
            "{{ include \"gpunode.allowedImages\" . | quote }}",
        )),
        ..ManifestTemplate::when(
            "admission/allowed-images.yaml",
            "admission-allowed-images.yaml",
            ".Values.agent.refuseOtherImages",
        )
    },
    ManifestTemplate::when(
        "components/api-priority/priority-levels.yaml",
        "api-priority-levels.yaml",
        ".Values.apiPriority.enabled",
    ),
    ManifestTemplate::when(
        "components/api-priority/flow-schemas.yaml",
        "api-priority-flow-schemas.yaml",
        ".Values.apiPriority.enabled",
    ),
    ManifestTemplate::when(
        "components/openshift/scc-rbac.yaml",
        "openshift-scc-rbac.yaml",
        ".Values.openshift.enabled",
    ),
];

/// Alerts and dashboards, which the chart reads as they are.
const MONITORING: &str = "manifests/monitoring";

/// Returns the files that the chart reads as they are; none in a repository without them.
fn monitoring_files() -> Result<Vec<GeneratedFile>> {
    let folder = repository().join(MONITORING);
    let mut names = Vec::new();
    if folder.join("prometheus-rule.yaml").exists() {
        names.push("prometheus-rule.yaml".to_owned());
    }
    let dashboards = folder.join("dashboards");
    if dashboards.exists() {
        let entries = std::fs::read_dir(&dashboards).with_context(|| format!("list {}", dashboards.display()))?;
        for entry in entries {
            names.push(format!("dashboards/{}", entry?.file_name().to_string_lossy()));
        }
    }
    names.sort();
    let read = |name: String| {
        let path = folder.join(&name);
        Ok(GeneratedFile {
            text: std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?,
            path: format!("files/monitoring/{name}"),
        })
    };
    names.into_iter().map(read).collect()
}

/// Returns the generated files as they should be.
///
/// # Errors
/// When a manifest or the values have a form that the generator does not know.
pub fn generated_files() -> Result<Vec<GeneratedFile>> {
    let read =
        |path: &std::path::Path| std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()));
    let mut files = Vec::new();
    for template in &TEMPLATES {
        let manifest = read(&repository().join("manifests").join(template.manifest))?;
        files.push(GeneratedFile {
            path: format!("templates/{}", template.name),
            text: template
                .render(&manifest)
                .with_context(|| format!("make a template of manifests/{}", template.manifest))?,
        });
    }
    files.extend(monitoring_files()?);
    let values = ChartValue::parse(&read(&chart().join("values.yaml"))?).context("read values.yaml of the chart")?;
    files.push(GeneratedFile {
        path: "values.schema.json".to_owned(),
        text: serde_json::to_string_pretty(&schema(&values)?)? + "\n",
    });
    let readme = read(&chart().join("README.md"))?;
    let (before, rest) = readme
        .split_once(BEGIN)
        .context("find the begin of the values in README.md")?;
    let (_, after) = rest
        .split_once(END)
        .context("find the end of the values in README.md")?;
    files.push(GeneratedFile {
        path: "README.md".to_owned(),
        text: format!("{before}{BEGIN}\n{}\n{END}{after}", tables(&values)),
    });
    Ok(files)
}
