//! Devices of a shared resource, as the file names them (`api/config/v1/replicas.go`). The plugin reads and discards them.

use super::report::Report;
use serde_yaml::Value;

/// Devices of a shared resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SharedDevices {
    All,
    /// So many of them, no matter which.
    Count(u64),
    List(Vec<DeviceRef>),
}

/// One device of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeviceRef {
    Index(i32),
    /// A MIG device by the index of its GPU and its own.
    MigIndex(String),
    Uuid(String),
}

impl SharedDevices {
    /// Reads `devices`, and refuses what the plugin refuses.
    pub(super) fn read(path: &str, value: &Value, report: &mut Report) -> Option<Self> {
        let devices = match value {
            Value::String(text) if text == "all" => Some(Self::All),
            Value::Number(number) => number.as_u64().filter(|count| *count > 0).map(Self::Count),
            Value::Sequence(list) => list.iter().map(DeviceRef::read).collect::<Option<_>>().map(Self::List),
            _ => None,
        };
        if devices.is_none() {
            report.refuse(
                path,
                "must be all, a number above 0, or a list of indices (0), MIG indices (\"0:1\") and UUIDs",
            );
        }
        devices
    }
}

impl DeviceRef {
    fn read(value: &Value) -> Option<Self> {
        if let Some(index) = value.as_u64() {
            return i32::try_from(index).ok().map(Self::Index);
        }
        let text = value.as_str()?;
        if let Some(index) = number(text) {
            return Some(Self::Index(index));
        }
        if let Some((gpu, part)) = text.split_once(':') {
            return (number(gpu).is_some() && number(part).is_some()).then(|| Self::MigIndex(text.to_owned()));
        }
        let is_uuid = match text.split_once('-') {
            Some(("GPU", uuid)) => is_uuid(uuid),
            Some(("MIG", rest)) => is_uuid(rest) || is_legacy_mig(rest),
            _ => false,
        };
        is_uuid.then(|| Self::Uuid(text.to_owned()))
    }
}

/// A number without a sign, as Go's `strconv.ParseUint` reads it.
fn number(text: &str) -> Option<i32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// The name of a MIG device in drivers before R470: `GPU-UUID/GI/CI`.
fn is_legacy_mig(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    let [gpu, instance, compute] = parts.as_slice() else {
        return false;
    };
    gpu.strip_prefix("GPU-").is_some_and(is_uuid) && number(instance).is_some() && number(compute).is_some()
}

fn is_uuid(text: &str) -> bool {
    let lengths = [8, 4, 4, 4, 12];
    let parts: Vec<&str> = text.split('-').collect();
    parts.len() == lengths.len()
        && parts
            .iter()
            .zip(lengths)
            .all(|(part, length)| part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
