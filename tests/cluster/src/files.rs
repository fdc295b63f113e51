//! Writing files so that a reader never sees half of one.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

/// Writes a file, or replaces it whole. What holds a key is for its owner only.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let secret = path
        .extension()
        .is_some_and(|extension| extension == "key" || extension == "kubeconfig");
    let mode = if secret { 0o600 } else { 0o644 };
    let write = || -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder)?;
        let mut file = NamedTempFile::new_in(folder)?;
        file.write_all(content)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("write {}", path.display()))
}
