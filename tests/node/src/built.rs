//! The programs under test, built by the cargo that runs the tests and into the same folder.

use anyhow::{Context as _, Result, ensure};
use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
    sync::OnceLock,
};

/// The agent and the simulated NVML library.
#[derive(Debug)]
pub struct Built {
    /// The program `gpunode-agent`.
    pub agent: PathBuf,
    /// The simulated `libnvidia-ml.so.1`.
    pub nvml: PathBuf,
}

/// Builds both once per test program.
pub fn built() -> Result<&'static Built> {
    static BUILT: OnceLock<Result<Built, String>> = OnceLock::new();
    BUILT
        .get_or_init(|| build().map_err(|error| format!("{error:#}")))
        .as_ref()
        .map_err(|error| anyhow::anyhow!("{error}"))
}

fn build() -> Result<Built> {
    // `make check` and `make test` have built them.
    if let Some(folder) = env::var_os("GPUNODE_BUILT").map(PathBuf::from) {
        let (agent, nvml) = (folder.join("gpunode-agent"), folder.join("libgpunode_fake_nvml.so"));
        return Ok(Built { agent, nvml });
    }
    // A test program is TARGET/PROFILE/deps/NAME.
    let program = env::current_exe().context("find this test program")?;
    let target = program.ancestors().nth(3).context("find the target folder")?;
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .arg("build")
        .arg("--target-dir")
        .arg(target);
    // What this cargo tells the tests about themselves would make build scripts (ring's) run again, and again under the
    // next cargo from a shell. So would the variable by which tests/timed.sh makes tests say how long they take.
    let about_tests = |name: &str| {
        name.starts_with("CARGO_PKG_")
            || name.starts_with("CARGO_MANIFEST_")
            || ["OUT_DIR", "RUSTC_BOOTSTRAP"].contains(&name)
    };
    for (name, _) in env::vars_os().filter(|(name, _)| about_tests(&name.to_string_lossy())) {
        cargo.env_remove(name);
    }
    // Of the whole workspace and with a test, so that dependencies have the features that `cargo test --workspace` has
    // compiled them with.
    cargo.args([
        "--workspace",
        "--lib",
        "--bin",
        "gpunode-agent",
        "--bin",
        "gpunode-hook",
        "--test",
        "node",
    ]);
    cargo.args(["--locked", "--message-format=json-render-diagnostics"]);
    let output = cargo.stderr(Stdio::inherit()).output().context("run cargo build")?;
    ensure!(
        output.status.success(),
        "cargo build of the agent and the simulated NVML failed"
    );
    let artifacts: Vec<serde_json::Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|message: &serde_json::Value| message["reason"] == "compiler-artifact")
        .collect();
    let file = |target: &str, end: &str| {
        artifacts
            .iter()
            .filter(|artifact| artifact["target"]["name"] == target)
            .filter_map(|artifact| artifact["filenames"].as_array())
            .flatten()
            .filter_map(|file| file.as_str())
            .find(|file| file.ends_with(end))
            .map(PathBuf::from)
            .with_context(|| format!("find what cargo built for {target}"))
    };
    Ok(Built {
        agent: file("gpunode-agent", "gpunode-agent")?,
        nvml: file("gpunode_fake_nvml", ".so")?,
    })
}
