//! The sources of the site: `docs/`, and what its links need from the rest of the repository.

use crate::{
    link_check::{SUMMARY, markdown_files},
    markdown::{links, resolved},
};
use anyhow::Context as _;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Folder of the site for what stands outside of `docs/` in the repository.
const REPOSITORY: &str = "repository";

/// Writes `book.toml` and the sources of the site into `folder`, which is emptied first. Links to files outside of `docs/`
/// lead to copies, and those to folders to a list of the copies.
///
/// # Errors
/// When a file cannot be read or written.
pub fn stage(root: &Path, folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    let site = folder.join("docs");
    let pages = markdown_files(root)?;
    let summary = pages
        .get(Path::new(SUMMARY))
        .with_context(|| format!("{SUMMARY} is missing"))?;
    let mut staged: Vec<PathBuf> = vec![SUMMARY.into()];
    staged.extend(
        links(summary)
            .iter()
            .filter_map(|link| resolved(Path::new(SUMMARY), &link.target)),
    );
    let mut copied = BTreeMap::new();
    for path in &staged {
        let text = pages
            .get(path)
            .with_context(|| format!("{SUMMARY} names {}, which is missing", path.display()))?;
        let text = moved(root, path, text, &staged, &mut copied);
        write(&site.join(place(path)), &text)?;
    }
    for (path, place) in copied {
        copy(&root.join(path), &site.join(place))?;
    }
    for file in files_below(&root.join("docs"))? {
        let is_page = file.extension().is_some_and(|end| end == "md");
        if !is_page {
            copy(&root.join("docs").join(&file), &site.join(&file))?;
        }
    }
    copy(&root.join("book.toml"), &folder.join("book.toml"))
}

/// Returns a page's text with links for its place on the site. Adds what the site has to copy for them.
fn moved(root: &Path, page: &Path, text: &str, pages: &[PathBuf], copied: &mut BTreeMap<PathBuf, PathBuf>) -> String {
    let mut moved = text.to_owned();
    for link in links(text).into_iter().rev() {
        let (file, fragment) = link
            .target
            .split_once('#')
            .map_or((link.target.as_str(), None), |(file, id)| (file, Some(id)));
        if file.is_empty() || file.contains("://") {
            continue;
        }
        let Some(mut path) = resolved(page, file) else { continue };
        let index = path.join("README.md");
        if pages.contains(&index) {
            path = index;
        }
        let mut target = place(&path);
        if !pages.contains(&path) && !path.starts_with("docs") && path != Path::new("README.md") {
            copied.insert(path.clone(), target.clone());
            if root.join(&path).is_dir() {
                target.push("index.html");
            }
        }
        let mut target = relative(&place(page), &target);
        if let Some(id) = fragment {
            // Writing into a string cannot fail.
            let _ = write!(target, "#{id}");
        }
        moved.replace_range(link.place, &target);
    }
    moved
}

/// Returns the place of a file of the repository on the site. The first page of the site stands for the repository's.
fn place(path: &Path) -> PathBuf {
    let place = match path.strip_prefix("docs") {
        Ok(path) => path.to_owned(),
        Err(_) if path == Path::new("README.md") => path.to_owned(),
        Err(_) => Path::new(REPOSITORY).join(path),
    };
    if place.ends_with("README.md") {
        place.with_file_name("index.md")
    } else {
        place
    }
}

/// Returns the link from one file to another.
fn relative(from: &Path, to: &Path) -> String {
    let folder: Vec<_> = from.parent().into_iter().flat_map(Path::components).collect();
    let to: Vec<_> = to.components().collect();
    let shared = folder.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..".to_owned(), folder.len() - shared);
    let down = to[shared..]
        .iter()
        .map(|part| part.as_os_str().to_string_lossy().into_owned());
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// Copies a file, or the files of a folder with a page that lists them.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if !from.is_dir() {
        let content = fs::read(from).with_context(|| format!("read {}", from.display()))?;
        return write(to, content);
    }
    let mut list = String::new();
    for file in files_below(from)? {
        let name = file.display();
        writeln!(list, "<li><a href=\"{name}\">{name}</a></li>")?;
        copy(&from.join(&file), &to.join(&file))?;
    }
    let title = from.file_name().unwrap_or_default().to_string_lossy();
    let head = "<!doctype html><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\">";
    write(
        &to.join("index.html"),
        format!("{head}<title>{title}</title><h1>{title}</h1><ul>\n{list}</ul>\n"),
    )
}

/// Returns the files below a folder, relative to it, in order.
fn files_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        let path = folder.join(&below);
        for entry in fs::read_dir(&path).with_context(|| format!("list {}", path.display()))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn write(path: &Path, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let folder = path.parent().context("a file without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    fs::write(path, content).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_follow_their_files_to_the_site() {
        let pages = ["docs/README.md", "docs/adr/README.md", "docs/mig.md", "CONTRIBUTING.md"].map(PathBuf::from);
        let moved = |page: &str, text: &str| {
            let mut copied = BTreeMap::new();
            let moved = moved(Path::new("/nowhere"), Path::new(page), text, &pages, &mut copied);
            (
                moved,
                copied
                    .into_keys()
                    .map(|path| path.display().to_string())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(
            moved(
                "docs/adr/0001.md",
                "[a](../mig.md#b) [c](../../CONTRIBUTING.md) [d](#e) [f](https://g.io/docs/mig.md)"
            )
            .0,
            "[a](../mig.md#b) [c](../repository/CONTRIBUTING.md) [d](#e) [f](https://g.io/docs/mig.md)"
        );
        assert_eq!(
            moved("CONTRIBUTING.md", "[a](docs/mig.md) [b](docs/adr/) [c](README.md)").0,
            "[a](../mig.md) [b](../adr/index.md) [c](../index.md)"
        );
        assert_eq!(
            moved("docs/mig.md", "[a](../manifests/a.yaml) ![b](pictures/b.svg)"),
            (
                "[a](repository/manifests/a.yaml) ![b](pictures/b.svg)".to_owned(),
                vec!["manifests/a.yaml".to_owned()]
            )
        );
    }
}
