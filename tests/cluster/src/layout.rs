//! Paths of the files of clusters.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// Environment variable that names the folder of all clusters.
pub const ROOT_VARIABLE: &str = "GPUNODE_CLUSTER_ROOT";

/// The folder of all clusters: `target/cluster` of the checkout around the current folder, unless
/// [`ROOT_VARIABLE`] says another.
pub fn default_root() -> Result<PathBuf> {
    if let Some(root) = env::var_os(ROOT_VARIABLE) {
        return Ok(PathBuf::from(root));
    }
    Ok(checkout()?.join("target/cluster"))
}

/// The checkout around the current folder: cargo starts tests in the folder of their package.
pub(crate) fn checkout() -> Result<PathBuf> {
    let here = env::current_dir().context("find the current folder")?;
    let found = here
        .ancestors()
        .find(|folder| folder.join("tests/cluster/clusters").is_dir());
    match found {
        Some(folder) => Ok(folder.to_owned()),
        None => bail!(
            "{} is not in a checkout of gpunode: change into one, or set {ROOT_VARIABLE}",
            here.display()
        ),
    }
}

/// Paths of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    root: PathBuf,
    folder: PathBuf,
}

impl Layout {
    /// Makes the folder of the cluster; its path is absolute and without links, as it identifies the cluster.
    pub(crate) fn new(root: &Path, name: &str) -> Result<Self> {
        let usable = !name.is_empty()
            && name.len() <= 40
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !["bin", "images"].contains(&name);
        if !usable {
            bail!("cluster name {name:?}: take 1 to 40 of a-z, 0-9 and -, and neither bin nor images");
        }
        let folder = root.join(name);
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("create the cluster's folder {}", folder.display()))?;
        let root = root
            .canonicalize()
            .with_context(|| format!("resolve {}", root.display()))?;
        Ok(Layout {
            folder: root.join(name),
            root,
        })
    }

    /// Programs, shared by all clusters.
    pub(crate) fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// Image archives that every node gets, shared by all clusters.
    pub(crate) fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.folder.join(".lock")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.join("state.json")
    }

    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// Logs; they outlive the cluster.
    pub(crate) fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    pub(crate) fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    pub(crate) fn node(&self, node: &str) -> PathBuf {
        self.folder.join("nodes").join(node)
    }
}
