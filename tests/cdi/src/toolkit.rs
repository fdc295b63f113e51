//! Runs NVIDIA's container runtime and its hook on a bundle, with stand-ins for the programs that they start: for runc, and for
//! `nvidia-container-cli`, which is written in C and no part of the Go module.
//!
//! The decision of the legacy mode is then visible field by field: in the arguments with which the hook starts
//! `nvidia-container-cli`.

use crate::programs::{GoProgram, succeeded};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Mode of NVIDIA's container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeMode {
    /// A hook starts `nvidia-container-cli`: the mode of the toolkit before 1.18.
    Legacy,
    /// Reads CDI files.
    Cdi,
    /// Describes the devices itself.
    JitCdi,
    /// For Jetson.
    Csv,
    /// Chooses one of the others; the default.
    Auto,
}

impl RuntimeMode {
    /// Each mode.
    pub const ALL: [Self; 5] = [Self::Legacy, Self::Cdi, Self::JitCdi, Self::Csv, Self::Auto];

    const fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Cdi => "cdi",
            Self::JitCdi => "jit-cdi",
            Self::Csv => "csv",
            Self::Auto => "auto",
        }
    }
}

/// Settings of NVIDIA's container runtime.
#[derive(Clone, Debug)]
pub struct ToolkitConfig {
    /// Its mode.
    pub mode: RuntimeMode,
    /// Takes devices from the variable of containers that are not privileged.
    pub accepts_variable: bool,
    /// Takes devices from mounts.
    pub accepts_mounts: bool,
    /// Folder of CDI files.
    pub cdi_folder: PathBuf,
}

impl ToolkitConfig {
    /// The defaults of the toolkit, in a mode.
    pub fn new(mode: RuntimeMode) -> Self {
        Self {
            mode,
            accepts_variable: true,
            accepts_mounts: false,
            cdi_folder: "/nowhere".into(),
        }
    }

    fn text(&self, runc: &Path, container_cli: &Path) -> String {
        let quoted = |path: &Path| format!("{:?}", path.display().to_string());
        format!(
            "accept-nvidia-visible-devices-envvar-when-unprivileged = {}
accept-nvidia-visible-devices-as-volume-mounts = {}

[nvidia-container-cli]
path = {}
root = \"/nowhere\"

[nvidia-container-runtime]
mode = {:?}
runtimes = [{}]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = [\"cdi.k8s.io/\"]
spec-dirs = [{}]

[nvidia-container-runtime.modes.jit-cdi]
nvcdi-feature-flags = [\"disable-nvsandboxutils\"]
",
            self.accepts_variable,
            self.accepts_mounts,
            quoted(container_cli),
            self.mode.name(),
            quoted(runc),
            quoted(&self.cdi_folder),
        )
    }
}

/// A bundle of a container: what containerd hands to an OCI runtime.
#[derive(Debug)]
pub struct Bundle {
    folder: PathBuf,
}

impl Bundle {
    /// Writes a bundle into an empty folder.
    pub fn write(folder: &Path, oci_spec: &Value) -> Result<Self> {
        fs::create_dir_all(folder.join("rootfs")).with_context(|| format!("create {}", folder.display()))?;
        let bundle = Self {
            folder: folder.to_owned(),
        };
        fs::write(bundle.path("config.json"), oci_spec.to_string()).context("write the OCI spec")?;
        bundle.script("runc", "exit 0")?;
        bundle.script(
            "nvidia-container-cli",
            &format!(r#"printf '%s\n' "$@" > {}"#, bundle.path("arguments").display()),
        )?;
        Ok(bundle)
    }

    /// Returns the OCI spec after NVIDIA's container runtime has changed it for the creation of the container.
    pub fn created(&self, config: &ToolkitConfig) -> Result<Value> {
        let output = self
            .command("nvidia-container-runtime", config)?
            .args(["create", "--bundle"])
            .arg(&self.folder)
            .arg("container")
            .output()
            .context("start nvidia-container-runtime")?;
        succeeded("nvidia-container-runtime", &output)?;
        let text = fs::read(self.path("config.json")).context("read the OCI spec")?;
        serde_json::from_slice(&text).context("parse the OCI spec")
    }

    /// Returns the arguments with which the hook of the legacy mode starts `nvidia-container-cli`; none if it does not.
    pub fn container_cli_arguments(&self, config: &ToolkitConfig) -> Result<Option<Vec<String>>> {
        let mut child = self
            .command("nvidia-container-runtime-hook", config)?
            .arg("prestart")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start nvidia-container-runtime-hook")?;
        let state = json!({"ociVersion": "1.0.2", "id": "container", "pid": 1, "bundle": self.folder});
        let mut stdin = child.stdin.take().context("take the input of the hook")?;
        stdin
            .write_all(state.to_string().as_bytes())
            .context("write to the hook")?;
        drop(stdin);
        let output = child.wait_with_output().context("wait for the hook")?;
        succeeded("nvidia-container-runtime-hook", &output)?;
        match fs::read_to_string(self.path("arguments")) {
            Ok(text) => Ok(Some(text.lines().map(str::to_owned).collect())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context("read the arguments of nvidia-container-cli"),
        }
    }

    fn command(&self, name: &str, config: &ToolkitConfig) -> Result<Command> {
        let package = format!("github.com/NVIDIA/nvidia-container-toolkit/cmd/{name}");
        let program = GoProgram {
            name,
            module: "toolkit",
            arguments: &["-ldflags=-extldflags=-Wl,-z,lazy", &package],
            uses_c: true,
        };
        let file = self.path("config.toml");
        let text = config.text(&self.path("runc"), &self.path("nvidia-container-cli"));
        fs::write(&file, text).context("write the configuration of the toolkit")?;
        let mut command = Command::new(program.built()?);
        command.env("NVIDIA_CTK_CONFIG_FILE_PATH", file);
        Ok(command)
    }

    fn script(&self, name: &str, line: &str) -> Result<()> {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{line}\n")).with_context(|| format!("write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("make {} a program", path.display()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}
