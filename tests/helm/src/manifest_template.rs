//! Turns a manifest into a template of the chart. Pure.

use anyhow::{Result, bail, ensure};

/// Namespace of the manifests.
const NAMESPACE: &str = "gpunode-system";
const LABELS: &str = "    {{- include \"gpunode.labels\" . | nindent 4 }}";

/// A template of the chart that is made of a manifest.
#[derive(Clone, Copy, Debug)]
pub struct ManifestTemplate {
    /// Path below `manifests`.
    pub manifest: &'static str,
    /// Name of the template.
    pub name: &'static str,
    /// Value that the objects depend on.
    pub condition: Option<&'static str>,
    /// Objects that may stay when the chart is uninstalled.
    pub is_kept: bool,
    /// Text of the manifest, and the action that stands for it.
    pub replacement: Option<(&'static str, &'static str)>,
}

impl ManifestTemplate {
    /// Names a template whose objects are always there.
    pub const fn always(manifest: &'static str, name: &'static str) -> Self {
        Self {
            manifest,
            name,
            condition: None,
            is_kept: false,
            replacement: None,
        }
    }

    /// Names a template whose objects depend on a value.
    pub const fn when(manifest: &'static str, name: &'static str, condition: &'static str) -> Self {
        Self {
            condition: Some(condition),
            ..Self::always(manifest, name)
        }
    }

    /// Returns the template of a manifest: without comments, with the labels of the chart and the namespace of the release.
    /// ServiceAccounts are left out; their template has options.
    ///
    /// # Errors
    /// When the manifest has a form that the chart cannot take over.
    pub fn render(&self, manifest: &str) -> Result<String> {
        ensure!(!manifest.contains("{{"), "it has an action of a template");
        let mut manifest = manifest.to_owned();
        if let Some((text, action)) = self.replacement {
            ensure!(manifest.matches(text).count() == 1, "{text} is not in it once");
            manifest = manifest.replace(text, action);
        }
        let mut documents = Vec::new();
        for document in manifest.split("\n---\n") {
            let lines: Vec<&str> = document
                .lines()
                .filter(|line| !line.trim_start().starts_with('#'))
                .collect();
            if !lines.contains(&"kind: ServiceAccount") {
                documents.push(self.object(&lines)?);
            }
        }
        let source = format!(
            "{{{{- /* Generated from manifests/{}: change that, then run `make chart`. */ -}}}}\n",
            self.manifest
        );
        let objects = documents.join("---\n");
        Ok(match self.condition {
            Some(condition) => format!("{source}{{{{- if {condition} }}}}\n{objects}{{{{- end }}}}\n"),
            None => source + &objects,
        })
    }

    /// Returns the template of one object.
    fn object(&self, lines: &[&str]) -> Result<String> {
        let mut text = String::new();
        let mut is_metadata = false;
        let mut is_labelled = false;
        for (at, line) in lines.iter().enumerate() {
            is_metadata = line.starts_with("metadata:") || (is_metadata && line.starts_with(' '));
            let line = line.replace(NAMESPACE, "{{ .Release.Namespace | quote }}");
            text.push_str(&line);
            text.push('\n');
            let has_labels = is_metadata && line == "  labels:";
            let ends_metadata = is_metadata && !lines.get(at + 1).is_some_and(|next| next.starts_with(' '));
            if has_labels {
                text.push_str(LABELS);
                text.push('\n');
                is_labelled = true;
            } else if ends_metadata {
                ensure!(line.starts_with("  "), "its metadata is in one line");
                if !is_labelled {
                    text.extend(["  labels:\n", LABELS, "\n"]);
                    is_labelled = true;
                }
                if self.is_kept {
                    text.push_str("  {{- if .Values.crds.keep }}\n  annotations:\n    helm.sh/resource-policy: keep\n  {{- end }}\n");
                }
            }
        }
        if !is_labelled {
            bail!("an object has no metadata");
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str = "# Why.\nkind: Role\nmetadata:\n  name: a\n  namespace: gpunode-system\nrules: []\n";

    #[test]
    fn an_object_gets_the_labels_and_the_namespace_of_the_release() {
        let template = ManifestTemplate::when("a.yaml", "a.yaml", ".Values.a");
        assert_eq!(
            template.render(ROLE).unwrap(),
            "{{- /* Generated from manifests/a.yaml: change that, then run `make chart`. */ -}}\n{{- if .Values.a }}\nkind: Role\n\
             metadata:\n  name: a\n  namespace: {{ .Release.Namespace | quote }}\n  labels:\n    {{- include \"gpunode.labels\" . \
             | nindent 4 }}\nrules: []\n{{- end }}\n"
        );
    }

    #[test]
    fn labels_of_the_manifest_stay_beside_those_of_the_chart_and_accounts_are_left_out() {
        let manifest = format!(
            "kind: ServiceAccount\nmetadata:\n  name: a\n---\n{}",
            ROLE.replace("namespace: gpunode-system", "labels:\n    b: c")
        );
        let text = ManifestTemplate::always("a.yaml", "a.yaml").render(&manifest).unwrap();
        assert!(
            text.ends_with(
                "  name: a\n  labels:\n    {{- include \"gpunode.labels\" . | nindent 4 }}\n    b: c\nrules: []\n"
            ),
            "{text}"
        );
        assert!(!text.contains("ServiceAccount"), "{text}");
    }

    #[test]
    fn empty_lines_of_texts_stay() {
        let manifest = ROLE.replace("rules: []", "text: |-\n  a\n\n  b");
        let text = ManifestTemplate::always("a.yaml", "a.yaml").render(&manifest).unwrap();
        assert!(text.ends_with("text: |-\n  a\n\n  b\n"), "{text}");
    }

    #[test]
    fn a_manifest_that_the_chart_cannot_take_over_is_refused() {
        for manifest in [
            "kind: A\nmetadata: {name: a}\nspec: {}\n",
            "kind: A\nspec: {}\n",
            "kind: A\nmetadata:\n  name: '{{'\n",
        ] {
            assert!(
                ManifestTemplate::always("a", "a").render(manifest).is_err(),
                "{manifest}"
            );
        }
        let replacing = ManifestTemplate {
            replacement: Some(("absent", "")),
            ..ManifestTemplate::always("a", "a")
        };
        assert!(replacing.render(ROLE).is_err());
    }
}
