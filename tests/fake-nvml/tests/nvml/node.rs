//! A simulated node: a folder with the library, its scenario and its state.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use gpunode_scenario::{Scenario, StateFile, Topology};
use nvml_wrapper::{Device, Nvml};
use tempfile::TempDir;

/// Name of the library on real nodes.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// A node and the library loaded on it.
pub(crate) struct TestNode {
    // Before the folder, which must outlive the library.
    nvml: Nvml,
    dir: TempDir,
}

impl TestNode {
    pub(crate) fn new(board: &str, count: u32, topology: Topology) -> Self {
        Self::with(&Scenario::new("test", board, count, topology))
    }

    pub(crate) fn with(scenario: &Scenario) -> Self {
        let dir = folder(Some(scenario));
        let nvml = load(dir.path()).unwrap();
        TestNode { nvml, dir }
    }

    pub(crate) fn dgx1() -> Self {
        Self::new("Tesla V100-SXM2-32GB", 8, Topology::Dgx1Volta)
    }

    pub(crate) fn nvml(&self) -> &Nvml {
        &self.nvml
    }

    pub(crate) fn device(&self, index: u32) -> Device<'_> {
        self.nvml.device_by_index(index).unwrap()
    }

    pub(crate) fn state(&self) -> StateFile {
        StateFile::open(self.dir.path()).unwrap()
    }

    /// Ends the session, and returns the folder.
    pub(crate) fn close(self) -> TempDir {
        self.dir
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// A folder with the library and perhaps a scenario. The library is a copy: the loader takes two
/// names of one file for one library, which then has one scenario.
pub(crate) fn folder(scenario: Option<&Scenario>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(built_library(), dir.path().join(LIBRARY)).unwrap();
    if let Some(scenario) = scenario {
        scenario.save(dir.path()).unwrap();
    }
    dir
}

/// Loads the library of a folder.
pub(crate) fn load(dir: &Path) -> Result<Nvml, nvml_wrapper::error::NvmlError> {
    Nvml::builder().lib_path(dir.join(LIBRARY).as_os_str()).init()
}

/// The library as built from the sources of now. Cargo does not build a cdylib for the tests of
/// its own package, so it is asked to.
fn built_library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // `make check` and `make test` have built it.
        if let Some(folder) = std::env::var_os("GPUNODE_BUILT") {
            return Path::new(&folder).join("libgpunode_fake_nvml.so");
        }
        let output = Command::new(env!("CARGO"))
            .args(["build", "--offline", "--quiet", "--package", env!("CARGO_PKG_NAME")])
            .args(["--lib", "--message-format", "json"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            // For this test program (tests/timed.sh); crates would be compiled anew with it.
            .env_remove("RUSTC_BOOTSTRAP")
            .output()
            .unwrap();
        let messages = String::from_utf8(output.stdout).unwrap();
        messages
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .filter(|message| message["target"]["name"] == "gpunode_fake_nvml")
            .find_map(|message| Some(PathBuf::from(message["filenames"][0].as_str()?)))
            .unwrap_or_else(|| panic!("no library: {}", String::from_utf8_lossy(&output.stderr)))
    })
}
