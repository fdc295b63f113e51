//! The documentation of the repository.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use gpunode_docs::{broken_links, markdown_files, repository, stage, unlisted_pages};
use std::fs;

#[test]
fn every_link_of_every_markdown_file_leads_to_a_file_and_a_heading() {
    let root = repository();
    let broken = broken_links(&root, &markdown_files(&root).unwrap());
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let unlisted = unlisted_pages(&markdown_files(&repository()).unwrap());
    assert!(unlisted.is_empty(), "{}", unlisted.join("\n"));
}

#[test]
fn no_link_leaves_the_site() {
    let site = tempfile::tempdir().unwrap();
    stage(&repository(), site.path()).unwrap();
    let root = site.path().join("docs");
    let broken = broken_links(&root, &markdown_files(&root).unwrap());
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(fs::exists(root.join("repository/CONTRIBUTING.md")).unwrap());
}
