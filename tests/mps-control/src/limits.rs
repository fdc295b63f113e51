//! Limits of clients: the smaller of the daemon's default and what the client's environment asks for.

use std::{collections::BTreeMap, fmt};

/// Limits on pinned device memory in MiB, by index of the device as the client sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimits(pub BTreeMap<u32, u64>);

/// Limits of a client.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Part of the threads in percent.
    pub active_thread_percentage: f32,
    /// Pinned device memory; a device that is not named has no limit.
    pub pinned_device_memory: MemoryLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            active_thread_percentage: 100.0,
            pinned_device_memory: MemoryLimits::default(),
        }
    }
}

impl Limits {
    /// The smaller of two, limit by limit.
    #[must_use]
    pub fn smaller(&self, other: &Self) -> Self {
        let mut memory = self.pinned_device_memory.0.clone();
        for (device, limit) in &other.pinned_device_memory.0 {
            memory
                .entry(*device)
                .and_modify(|own| *own = (*own).min(*limit))
                .or_insert(*limit);
        }
        Self {
            active_thread_percentage: self.active_thread_percentage.min(other.active_thread_percentage),
            pinned_device_memory: MemoryLimits(memory),
        }
    }
}

/// A percentage above 0 and at most 100.
pub fn parse_percentage(text: &str) -> Option<f32> {
    text.trim()
        .parse()
        .ok()
        .filter(|percentage| *percentage > 0.0 && *percentage <= 100.0)
}

/// An amount with `M` or `G` behind it, in MiB.
pub fn parse_memory(text: &str) -> Option<u64> {
    let (number, mib) = match text.strip_suffix('M') {
        Some(number) => (number, 1),
        None => (text.strip_suffix('G')?, 1024),
    };
    number.parse::<u64>().ok()?.checked_mul(mib)
}

impl MemoryLimits {
    /// `0=1024M,1=2G`; nothing is no limit.
    pub fn parse(text: &str) -> Option<Self> {
        let parts = text.split(',').filter(|part| !part.is_empty());
        let limits = parts.map(|part| {
            let (device, limit) = part.split_once('=')?;
            Some((device.parse().ok()?, parse_memory(limit)?))
        });
        limits.collect::<Option<_>>().map(Self)
    }
}

impl fmt::Display for MemoryLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits: Vec<String> = self
            .0
            .iter()
            .map(|(device, limit)| format!("{device}={limit}M"))
            .collect();
        f.write_str(&limits.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_limit_counts_whoever_set_it() {
        let limits = |percentage, memory: &str| Limits {
            active_thread_percentage: percentage,
            pinned_device_memory: MemoryLimits::parse(memory).unwrap(),
        };
        assert_eq!(
            limits(100.0, "").smaller(&limits(20.0, "0=8G")),
            limits(20.0, "0=8192M")
        );
        assert_eq!(
            limits(10.0, "0=4G").smaller(&limits(20.0, "0=8G,1=1G")),
            limits(10.0, "0=4G,1=1G")
        );
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        for text in ["0", "0=", "0=5", "0=5K", "x=5M", "0=-1M"] {
            assert_eq!(MemoryLimits::parse(text), None, "{text}");
        }
        for text in ["", "0", "101", "-1", "nan", "a"] {
            assert_eq!(parse_percentage(text), None, "{text}");
        }
    }
}
