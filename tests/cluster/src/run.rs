//! Running a program to its end.

use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a command and returns its standard output; a failure carries what it said.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = finished(command)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command that must succeed.
pub(crate) fn finished(command: &mut Command) -> Result<Output> {
    let output = command
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("start {}", line(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}: {}", line(command), output.status, said.trim());
    }
    Ok(output)
}

/// The command as one would type it.
fn line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|word| word.to_string_lossy()));
    words.join(" ")
}
