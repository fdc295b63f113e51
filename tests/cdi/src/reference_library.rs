//! Reads CDI files with `tags.cncf.io/container-device-interface`, the library of containerd, CRI-O, Podman and Docker.

use crate::programs::{GoProgram, succeeded};
use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

/// A version of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CdiLibrary {
    /// 0.8.1 of containerd 1.7 and 2.0, with the JSON schema, which the module has no longer.
    V08,
    /// The version of the containerd of the local cluster.
    Current,
}

impl CdiLibrary {
    /// Each version.
    pub const ALL: [Self; 2] = [Self::V08, Self::Current];
}

/// Verdict of the library on a folder of CDI files.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct LibraryVerdict {
    /// Names of the devices that a container can request.
    pub devices: Vec<String>,
    /// Errors by file.
    pub errors: BTreeMap<String, Vec<String>>,
    /// Error of the injection; empty if there is none.
    pub refused: String,
    /// The OCI spec with the devices; null if none was injected.
    pub spec: Value,
}

/// Reads the CDI files of a folder, and adds `devices` to an OCI spec. Device nodes of the spec are looked for on this machine.
pub fn read_cdi_files(
    library: CdiLibrary,
    folder: &Path,
    devices: &[&str],
    oci_spec: &Value,
) -> Result<LibraryVerdict> {
    let (name, arguments): (_, &[&str]) = match library {
        CdiLibrary::V08 => ("check-0.8", &["-modfile=v0.8.mod", "-tags=schema", "."]),
        CdiLibrary::Current => ("check", &["."]),
    };
    let program = GoProgram {
        name,
        module: "check",
        arguments,
        uses_c: false,
    };
    let mut child = Command::new(program.built()?)
        .arg(folder)
        .args(devices)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {name}"))?;
    if !devices.is_empty() {
        let mut stdin = child
            .stdin
            .take()
            .with_context(|| format!("take the input of {name}"))?;
        // It reads all of its input before it writes.
        let text = oci_spec.to_string();
        stdin
            .write_all(text.as_bytes())
            .with_context(|| format!("write to {name}"))?;
    }
    let output = child.wait_with_output().with_context(|| format!("wait for {name}"))?;
    succeeded(name, &output)?;
    serde_json::from_slice(&output.stdout).with_context(|| format!("read the answer of {name}"))
}
