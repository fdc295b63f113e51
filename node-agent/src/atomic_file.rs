//! Files that are replaced as a whole: a reader, also after a power cut, sees the old content or the new one.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

/// Replaces `path`; blocks. The file beside it that has `.new` behind its name belongs to this function.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut new = OsString::from(path);
    new.push(".new");
    let mut file = File::create(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
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
}
