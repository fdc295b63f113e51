//! What a selector of devices can say.

use super::problem::FieldProblem;
use crate::{DeviceKind, DeviceSelector, MemoryMiB};

/// Adds what is wrong with the selector at `path`.
pub fn validate(path: &str, devices: &DeviceSelector, problems: &mut Vec<FieldProblem>) {
    if *devices == DeviceSelector::default() {
        problems.push(FieldProblem::new(
            path,
            "must name a condition, such as indices, uuids or products; for every GPU, leave devices out of the resource, or set sharing.replicas alone",
        ));
    }
    for (index, gpu) in devices.indices.iter().flatten().enumerate() {
        if !(0..64).contains(gpu) {
            problems.push(FieldProblem::new(
                format!("{path}.indices[{index}]"),
                format!("{gpu} is not between 0 and 63"),
            ));
        }
    }
    for (index, uuid) in devices.uuids.iter().flatten().enumerate() {
        let digits = uuid
            .strip_prefix("GPU-")
            .or_else(|| uuid.strip_prefix("MIG-"))
            .unwrap_or_default();
        if digits.is_empty() || uuid.len() > 64 || !digits.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
            problems.push(FieldProblem::new(
                format!("{path}.uuids[{index}]"),
                format!(
                    "`{uuid}` is no UUID of a GPU or MIG device; `nvidia-smi -L` lists them as GPU-... and MIG-..."
                ),
            ));
        }
    }
    validate_globs(
        &format!("{path}.products"),
        PRODUCT,
        devices.products.as_deref(),
        problems,
    );
    validate_globs(
        &format!("{path}.migProfiles"),
        MIG_PROFILE,
        devices.mig_profiles.as_deref(),
        problems,
    );
    validate_memory(&format!("{path}.minMemory"), devices.min_memory.as_deref(), problems);
    if devices.mig_profiles.is_some() && devices.kind == Some(DeviceKind::FullGpu) {
        problems.push(FieldProblem::new(
            format!("{path}.migProfiles"),
            "selects MIG devices; remove it, or set kind to MigDevice",
        ));
    }
    for (name, length, most) in [
        ("indices", devices.indices.as_ref().map(Vec::len), 64),
        ("uuids", devices.uuids.as_ref().map(Vec::len), 64),
        ("products", devices.products.as_ref().map(Vec::len), 16),
        ("architectures", devices.architectures.as_ref().map(Vec::len), 16),
        ("migProfiles", devices.mig_profiles.as_ref().map(Vec::len), 16),
    ] {
        if let Some(length) = length.filter(|length| *length == 0 || *length > most) {
            problems.push(FieldProblem::new(
                format!("{path}.{name}"),
                format!("{length} entries are not between 1 and {most}"),
            ));
        }
    }
}

/// The characters of a product in label form, and of a MIG profile, as the schema of the CRD has them, beside `*` and `?`.
const PRODUCT: (&str, fn(char) -> bool) = ("letters, digits, `-`, `_` and `.`", |c| {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
});
const MIG_PROFILE: (&str, fn(char) -> bool) = ("lower case letters, digits, `-`, `_`, `.` and `+`", |c| {
    c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.+".contains(c)
});

fn validate_globs(
    path: &str,
    (characters, known): (&str, fn(char) -> bool),
    globs: Option<&[String]>,
    problems: &mut Vec<FieldProblem>,
) {
    for (index, glob) in globs.into_iter().flatten().enumerate() {
        if glob.is_empty() || glob.len() > 63 || !glob.chars().all(|c| known(c) || c == '*' || c == '?') {
            problems.push(FieldProblem::new(
                format!("{path}[{index}]"),
                format!(
                    "`{glob}` is not a glob of at most 63 characters: {characters}, and `*` and `?` for any others"
                ),
            ));
        }
    }
}

/// Adds what is wrong with the amount of memory at `path`.
pub fn validate_memory(path: &str, memory: Option<&str>, problems: &mut Vec<FieldProblem>) {
    if let Some(text) = memory.filter(|text| MemoryMiB::parse(text).is_none()) {
        problems.push(FieldProblem::new(
            path,
            format!("`{text}` is no amount of memory; write a whole number of Mi, Gi or Ti, such as 16Gi"),
        ));
    }
}
