//! The last good configuration, kept on the node for a start without the API server.

use crate::in_force::Candidate;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

const FILE: &str = "config.json";
const NEW_FILE: &str = "config.json.new";
/// Version of this file's own format.
const FORMAT: u32 = 1;

#[derive(Deserialize, Serialize)]
struct Saved {
    format: u32,
    node: String,
    version: i32,
    hash: String,
    document: String,
}

/// The configuration that was saved for `node`. A file that cannot be read counts as none: the API server has it too.
pub fn load(state_dir: &Path, node: &str) -> Option<Candidate> {
    let text = fs::read(state_dir.join(FILE)).ok()?;
    let saved: Saved = serde_json::from_slice(&text).ok()?;
    (saved.format == FORMAT && saved.node == node).then_some(Candidate {
        version: saved.version,
        hash: saved.hash,
        document: saved.document,
    })
}

/// Replaces what was saved; nothing with `None`. A reader sees the old file or the new one.
pub fn save(state_dir: &Path, node: &str, candidate: Option<&Candidate>) -> io::Result<()> {
    let path = state_dir.join(FILE);
    let Some(candidate) = candidate else {
        return fs::remove_file(&path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        });
    };
    let saved = Saved {
        format: FORMAT,
        node: node.to_owned(),
        version: candidate.version,
        hash: candidate.hash.clone(),
        document: candidate.document.clone(),
    };
    let new = state_dir.join(NEW_FILE);
    let mut file = File::create(&new)?;
    file.write_all(&serde_json::to_vec(&saved)?)?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    File::open(state_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_read_again_for_the_same_node() {
        let folder = tempfile::tempdir().unwrap();
        let candidate = Candidate::of_file("{}\n".to_owned());
        assert_eq!(load(folder.path(), "a"), None);
        save(folder.path(), "a", Some(&candidate)).unwrap();
        assert_eq!(load(folder.path(), "a"), Some(candidate));
        assert_eq!(load(folder.path(), "b"), None);
        save(folder.path(), "a", None).unwrap();
        save(folder.path(), "a", None).unwrap();
        assert_eq!(load(folder.path(), "a"), None);
    }

    #[test]
    fn a_damaged_file_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "{\"format\":1,").unwrap();
        assert_eq!(load(folder.path(), "a"), None);
    }
}
