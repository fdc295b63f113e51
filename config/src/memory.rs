//! Amounts of GPU memory.

use serde::{Deserialize, Serialize};
use std::fmt;

/// CEL rule for texts that [`MemoryMiB::parse`] accepts. A schema `pattern` would show users the bare expression.
pub const MEMORY_RULE: &str = "self.matches('^[1-9][0-9]{0,8}(Mi|Gi|Ti)$')";

/// An amount of memory in MiB, the unit to which figures from NVML are rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemoryMiB(pub u64);

impl MemoryMiB {
    /// Parses a whole number followed by `Mi`, `Gi` or `Ti`.
    ///
    /// Other Kubernetes quantities are refused: `30G` and `30` are more often typos of `30Gi` than intended.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let mib = match text.get(digits.len()..)? {
            "Mi" => 1,
            "Gi" => 1024,
            "Ti" => 1024 * 1024,
            _ => return None,
        };
        if digits.starts_with('0') || digits.len() > 9 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Self(digits.parse::<u64>().ok()?.checked_mul(mib)?))
    }
}

impl fmt::Display for MemoryMiB {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1024) {
            write!(f, "{} GiB", self.0 / 1024)
        } else {
            write!(f, "{} MiB", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_with_a_binary_suffix_are_read() {
        for (text, mib) in [
            ("512Mi", 512),
            ("1Gi", 1024),
            ("30Gi", 30 * 1024),
            ("2Ti", 2 * 1024 * 1024),
        ] {
            assert_eq!(MemoryMiB::parse(text), Some(MemoryMiB(mib)), "{text}");
        }
        for text in [
            "",
            "Gi",
            "0Gi",
            "01Gi",
            "1.5Gi",
            "1G",
            "1024",
            "-1Gi",
            " 1Gi",
            "9999999999Mi",
            "1Gi Gi",
        ] {
            assert_eq!(MemoryMiB::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_amount_reads_in_the_largest_whole_unit() {
        assert_eq!(MemoryMiB(2048).to_string(), "2 GiB");
        assert_eq!(MemoryMiB(2500).to_string(), "2500 MiB");
    }
}
