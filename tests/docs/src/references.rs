//! All generated files.

use crate::{api, command_line, metrics, pictures};
use std::path::{Path, PathBuf};

/// Returns the generated files with their texts, by path from the folder `docs`. Runs the programs of the folder `programs`.
///
/// # Errors
/// When a program or a file of the repository at `root` is missing or not as expected.
pub fn references(root: &Path, programs: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let pages = [
        ("api.md", api::reference()?),
        ("cli.md", command_line::plugin(&programs.join("kubectl-gpunode"))?),
        (
            "operator.md",
            command_line::operator(&programs.join("gpunode-operator"))?,
        ),
        ("agent.md", command_line::agent(&programs.join("gpunode-agent"))?),
        ("metrics.md", metrics::reference(root)?),
    ];
    let pages = pages.map(|(name, text)| (Path::new("reference").join(name), text));
    let pictures = pictures::pictures(root, &programs.join("kubectl-gpunode"))?;
    let pictures = pictures
        .into_iter()
        .map(|(name, svg)| (Path::new("pictures").join(name), svg));
    Ok(pages.into_iter().chain(pictures).collect())
}
