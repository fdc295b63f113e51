//! Bounds and formats of a device selector.

use super::{list_length::validate_length, problem::FieldProblem};
use crate::{DeviceKind, DeviceSelector, MemoryMiB};

/// Returns true for the UUIDs of GPUs and MIG devices. Drivers before 470 name a MIG device `MIG-GPU-.../1/0`: by its GPU, GPU
/// instance and compute instance.
fn is_uuid(uuid: &str) -> bool {
    let is_hex = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let is_id = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    if let Some(place) = uuid.strip_prefix("MIG-GPU-") {
        let parts: Vec<&str> = place.split('/').collect();
        return matches!(parts.as_slice(), [gpu, instance, part] if is_hex(gpu) && is_id(instance) && is_id(part));
    }
    let digits = uuid.strip_prefix("GPU-").or_else(|| uuid.strip_prefix("MIG-"));
    digits.is_some_and(is_hex)
}

/// Returns true for the UUID of a GPU.
pub fn is_gpu_uuid(uuid: &str) -> bool {
    uuid.len() <= 64 && uuid.starts_with("GPU-") && is_uuid(uuid)
}

/// Adds the problems of the NVML indices of the selector at `path`.
pub fn validate_indices(path: &str, indices: Option<&[i32]>, problems: &mut Vec<FieldProblem>) {
    for (index, gpu) in indices.into_iter().flatten().enumerate() {
        if !(0..64).contains(gpu) {
            problems.push(FieldProblem::new(
                format!("{path}.indices[{index}]"),
                format!("{gpu} is not between 0 and 63"),
            ));
        }
    }
}

/// Adds the problems of globs for products at `path`.
pub fn validate_products(path: &str, globs: Option<&[String]>, problems: &mut Vec<FieldProblem>) {
    validate_globs(path, PRODUCT, globs, problems);
}

/// Adds the problems of the selector at `path`.
pub fn validate(path: &str, devices: &DeviceSelector, problems: &mut Vec<FieldProblem>) {
    if *devices == DeviceSelector::default() {
        problems.push(FieldProblem::new(
            path,
            "must set a condition, such as indices, uuids or products; to select every GPU, leave out devices, or set only sharing.replicas",
        ));
    }
    validate_indices(path, devices.indices.as_deref(), problems);
    for (index, uuid) in devices.uuids.iter().flatten().enumerate() {
        if uuid.len() > 64 || !is_uuid(uuid) {
            problems.push(FieldProblem::new(
                format!("{path}.uuids[{index}]"),
                format!(
                    "`{uuid}` is not the UUID of a GPU or MIG device; `nvidia-smi -L` lists them as GPU-... and MIG-..."
                ),
            ));
        }
    }
    validate_products(&format!("{path}.products"), devices.products.as_deref(), problems);
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
            "selects MIG devices; remove it or set kind to MigDevice",
        ));
    }
    for (name, length, most) in [
        ("indices", devices.indices.as_ref().map(Vec::len), 64),
        ("uuids", devices.uuids.as_ref().map(Vec::len), 64),
        ("products", devices.products.as_ref().map(Vec::len), 16),
        ("architectures", devices.architectures.as_ref().map(Vec::len), 16),
        ("migProfiles", devices.mig_profiles.as_ref().map(Vec::len), 16),
    ] {
        validate_length(format!("{path}.{name}"), length, 1..=most, problems);
    }
}

/// Characters of a product in label form and of a MIG profile, as in the CRD's schema, besides `*` and `?`.
const PRODUCT: (&str, fn(char) -> bool) = ("letters, digits, `-`, `_` and `.`", |c| {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
});
const MIG_PROFILE: (&str, fn(char) -> bool) = ("lowercase letters, digits, `-`, `_`, `.` and `+`", |c| {
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
                format!("`{glob}` is not a valid glob; use at most 63 {characters}, with the wildcards `*` and `?`"),
            ));
        }
    }
}

/// Adds a problem if the memory at `path` is malformed.
pub fn validate_memory(path: &str, memory: Option<&str>, problems: &mut Vec<FieldProblem>) {
    if let Some(text) = memory.filter(|text| MemoryMiB::parse(text).is_none()) {
        problems.push(FieldProblem::new(
            path,
            format!("`{text}` is not an amount of memory; write a whole number of Mi, Gi or Ti, such as 16Gi"),
        ));
    }
}
