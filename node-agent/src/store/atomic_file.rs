//! Files that are replaced as a whole: a reader gets the old content or the new one, even after a power cut.

use crate::runtime::bounded_file;
use serde::{Deserialize, de::DeserializeOwned, de::Error as _};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write as _},
    mem,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tracing::{error, warn};

/// Maximum wait for the disk, during which the agent handles no signal.
pub const DISK_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum size of a state file, much more than any node needs.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// Maximum number of unreported files that were set aside.
const MAX_UNREPORTED: usize = 8;
static SET_ASIDE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Returns a text for each file that this process has set aside since the last call, for an Event.
pub fn take_set_aside() -> Vec<String> {
    mem::take(&mut *SET_ASIDE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Replaces the file at `path`; blocks. Uses the file with `.new` appended to the name.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = with_suffix(path, ".new");
    let mut file = File::create(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Like [`replace`], but a power cut may leave any content: for files that mean nothing after a reboot.
pub fn replace_unsynced(path: &Path, content: &str) -> io::Result<()> {
    let new = with_suffix(path, ".new");
    fs::write(&new, content)?;
    fs::rename(&new, path)
}

/// Returns the content of the file at `path`; blocks. A damaged file, and one with another number in the field
/// `format`, is set aside and returns none; an unreadable file returns none too.
pub fn load<T: DeserializeOwned>(path: &Path, format: u32) -> Option<T> {
    try_load(path, format).unwrap_or_else(|error| {
        warn!(%error, file = %path.display(), "cannot read a state file; continuing without it");
        None
    })
}

/// Like [`load`], but an unreadable file is an error: for files that must not be replaced because of a moment without a disk.
pub fn try_load<T: DeserializeOwned>(path: &Path, format: u32) -> io::Result<Option<T>> {
    match read(path) {
        Ok(text) => Ok(parse(&text, format).inspect_err(|error| set_aside(path, error)).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the bytes of the file at `path`; blocks. A file that is too long is cut, and is no valid JSON then.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    bounded_file::start(path, MAX_BYTES)
}

fn parse<T: DeserializeOwned>(text: &[u8], known: u32) -> serde_json::Result<T> {
    #[derive(Deserialize)]
    struct Stamp {
        format: u32,
    }
    let Stamp { format } = serde_json::from_slice(text)?;
    if format == known {
        return serde_json::from_slice(text);
    }
    Err(serde_json::Error::custom(format!(
        "format {format} is not {known}, the format that this agent reads"
    )))
}

/// Renames a damaged file to its name with `.corrupt` appended, so that the next write does not destroy the evidence;
/// blocks. Replaces an earlier `.corrupt` file.
pub fn set_aside(path: &Path, why: &dyn std::error::Error) {
    let aside = with_suffix(path, ".corrupt");
    let text = match fs::rename(path, &aside) {
        Ok(()) => format!(
            "{} is damaged and was renamed to {}: {why}",
            path.display(),
            aside.display()
        ),
        Err(rename) => format!(
            "{} is damaged and will be replaced: {why}; cannot rename it: {rename}",
            path.display()
        ),
    };
    error!(reason = "StateFileCorrupt", "{text}");
    let mut unreported = SET_ASIDE.lock().unwrap_or_else(PoisonError::into_inner);
    if unreported.len() < MAX_UNREPORTED {
        unreported.push(text);
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_is_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        for content in ["a long one", "short"] {
            replace(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_too_long_is_set_aside_without_being_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        fs::write(&path, r#"{"format": 1, "more": ""#).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(100 * MAX_BYTES)
            .unwrap();
        assert_eq!(load::<serde_json::Value>(&path, 1), None);
        assert!(!path.exists() && folder.path().join("a.json.corrupt").exists());
    }

    #[test]
    fn what_is_set_aside_keeps_its_content_under_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        for content in ["{", "["] {
            fs::write(&path, content).unwrap();
            set_aside(&path, &io::Error::other("damaged"));
            assert!(!path.exists());
            assert_eq!(
                fs::read_to_string(folder.path().join("a.json.corrupt")).unwrap(),
                content
            );
        }
    }
}
