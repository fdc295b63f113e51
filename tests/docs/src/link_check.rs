//! Links without a target, and pages that the table of contents does not reach.

use crate::markdown::{anchors, html, links, resolved};
use anyhow::Context as _;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The table of contents of the site.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

/// Pages that the site does not have: its own first page, `docs/README.md`, stands for that of the repository, and forms of
/// the repository are no documentation.
const NOT_ON_THE_SITE: [&str; 3] = ["README.md", ".github/PULL_REQUEST_TEMPLATE.md", SUMMARY];

/// Returns the Markdown files of the repository with their texts, by path from its root.
///
/// # Errors
/// When a folder or file cannot be read.
pub fn markdown_files(root: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let path = root.join(&folder);
        for entry in fs::read_dir(&path).with_context(|| format!("list {}", path.display()))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let is_markdown = path.extension().is_some_and(|end| end == "md");
            if entry.file_type()?.is_dir() {
                if path != Path::new("target") && path != Path::new(".git") {
                    folders.push(path);
                }
            } else if is_markdown {
                let text = fs::read_to_string(root.join(&path)).with_context(|| format!("read {}", path.display()))?;
                files.insert(path, text);
            }
        }
    }
    Ok(files)
}

/// Returns the links of `files` that lead nowhere, and HTML that readers would not see, each with its file and line.
pub fn broken_links(root: &Path, files: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let anchors: BTreeMap<&PathBuf, BTreeSet<String>> =
        files.iter().map(|(path, text)| (path, anchors(text))).collect();
    let mut found = Vec::new();
    for (path, text) in files {
        for link in links(text) {
            if let Err(problem) = check(root, path, &link.target, &anchors) {
                let line = text[..link.place.start].lines().count();
                found.push(format!("{}:{line}: {}: {problem}", path.display(), link.target));
            }
        }
        for html in html(text) {
            found.push(format!("{}: {html} is HTML; put it between backticks", path.display()));
        }
    }
    found
}

fn check(
    root: &Path,
    from: &Path,
    target: &str,
    anchors: &BTreeMap<&PathBuf, BTreeSet<String>>,
) -> Result<(), &'static str> {
    if target.contains("://") {
        let address: http::Uri = target.parse().map_err(|_| "is no address")?;
        let has_host = address.host().is_some_and(|host| host.contains('.'));
        return if has_host { Ok(()) } else { Err("has no host") };
    }
    let (file, fragment) = target
        .split_once('#')
        .map_or((target, None), |(file, id)| (file, Some(id)));
    let path = if file.is_empty() {
        from.to_owned()
    } else {
        resolved(from, file).ok_or("leaves the repository")?
    };
    if !root.join(&path).exists() {
        return Err("does not exist");
    }
    match fragment {
        Some(id) if !anchors.get(&path).is_some_and(|of_page| of_page.contains(id)) => Err("has no such heading"),
        _ => Ok(()),
    }
}

/// Returns the pages that the table of contents does not name, and those that it names twice.
pub fn unlisted_pages(files: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let summary = Path::new(SUMMARY);
    let contents = files.get(summary).map(String::as_str).unwrap_or_default();
    let mut listed = BTreeSet::new();
    let mut found = Vec::new();
    for path in links(contents)
        .iter()
        .filter_map(|link| resolved(summary, &link.target))
    {
        if !listed.insert(path.clone()) {
            found.push(format!("{} is listed twice", path.display()));
        }
    }
    let pages = files
        .keys()
        .filter(|path| !NOT_ON_THE_SITE.iter().any(|other| path.as_path() == Path::new(other)));
    let unlisted = pages.filter(|path| !listed.contains(*path));
    found.extend(unlisted.map(|path| format!("{} is not listed", path.display())));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(pages: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
        pages
            .iter()
            .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn link_needs_a_file_and_a_heading() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("docs")).unwrap();
        let pages = files(&[
            (
                "a.md",
                "# A\n\n[ok](docs/b.md#b-c) [ok](#a)\n[gone](docs/c.md) [no heading](docs/b.md#d)",
            ),
            (
                "docs/b.md",
                "# B c\n\n[ok](../a.md) [out](../../x.md) [host](https://) [ok](https://example.com/x?y#z)",
            ),
        ]);
        for (path, text) in &pages {
            fs::write(root.path().join(path), text).unwrap();
        }
        assert_eq!(
            broken_links(root.path(), &pages),
            [
                "a.md:4: docs/c.md: does not exist",
                "a.md:4: docs/b.md#d: has no such heading",
                "docs/b.md:3: ../../x.md: leaves the repository",
                "docs/b.md:3: https://: is no address",
            ]
        );
    }

    #[test]
    fn page_is_listed_once() {
        let pages = files(&[
            (
                SUMMARY,
                "- [a](a.md)\n- [b](adr/b.md)\n- [again](a.md)\n- [root](../C.md)",
            ),
            ("docs/a.md", ""),
            ("docs/adr/b.md", ""),
            ("docs/adr/d.md", ""),
            ("C.md", ""),
            ("README.md", ""),
        ]);
        assert_eq!(
            unlisted_pages(&pages),
            ["docs/a.md is listed twice", "docs/adr/d.md is not listed"]
        );
    }
}
