//! The differences between gpunode's CDI file and the one that NVIDIA's generator makes, with reasons.
//!
//! The decisions are in `docs/adr`. A test compares both on the nodes of the local cluster; it fails on a difference that is
//! not in this table, and on one of this table that no node has any more.

use crate::comparison::{Difference, Side};

/// A difference that is meant.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownDifference {
    /// Spec that has the fact.
    pub side: Side,
    /// Object of the fact; `*` stands for any text.
    pub of: &'static str,
    /// The fact; `*` stands for any text.
    pub fact: &'static str,
    /// Reason why it is meant.
    pub reason: &'static str,
}

const fn nvidia(fact: &'static str, reason: &'static str) -> KnownDifference {
    KnownDifference {
        side: Side::Nvidia,
        of: "*",
        fact,
        reason,
    }
}

const fn gpunode(fact: &'static str, reason: &'static str) -> KnownDifference {
    KnownDifference {
        side: Side::Gpunode,
        of: "*",
        fact,
        reason,
    }
}

const NUMBERS: &str = "the runtime reads it from the node when the container starts; the driver gives nodes other numbers when it is \
                       loaded again, and an old number would fail or be another device";

/// Each of them.
pub const KNOWN_DIFFERENCES: &[KnownDifference] = &[
    nvidia("node * major *", NUMBERS),
    nvidia("node * minor *", NUMBERS),
    nvidia("node * fileMode *", NUMBERS),
    nvidia("node * permissions *", NUMBERS),
    nvidia(
        "mount /run/nvidia/driver/lib/firmware/* -> /lib/firmware/*",
        "a link of a folder below the driver's root, which a runtime would follow from the host's root if it were absolute",
    ),
    gpunode(
        "mount /run/nvidia/driver/usr/lib/firmware/* -> /lib/firmware/*",
        "the same file without the link",
    ),
    nvidia(
        "hook update-application-profile *",
        "programs of the toolkit before 1.20 do not have it, and fail",
    ),
    KnownDifference {
        of: "GPU-*",
        ..gpunode(
            "exists",
            "a GPU is described while MIG is on: with mig.strategy None it is advertised",
        )
    },
    gpunode(
        "hook create-symlinks --link libnvidia-egl-*",
        "NVIDIA's leaves the links of these libraries to ldconfig; with them nothing depends on it",
    ),
    gpunode(
        "mount * -> /usr/bin/nvidia-xconfig *",
        "later versions of the generator than 1.20.0 have it too",
    ),
];

impl KnownDifference {
    /// Returns true if this is why the specs differ there.
    pub fn explains(&self, difference: &Difference) -> bool {
        self.side == difference.side && matches(self.of, &difference.of) && matches(self.fact, &difference.fact)
    }
}

/// Returns true if `*` in the pattern can stand for texts that make it `text`.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(start) else {
        return false;
    };
    let places = text.char_indices().map(|(place, _)| place).chain([text.len()]);
    places
        .filter_map(|place| text.get(place..))
        .any(|text| matches(rest, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, expected) in [
            ("exists", "exists", true),
            ("exists", "exists not", false),
            ("node * major *", "node /dev/nvidia0 major 195", true),
            ("node * major *", "node /dev/nvidia0 minor 195", false),
            ("mount * -> *", "mount  -> ", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_mig_device_that_nvidia_lacks_is_not_known() {
        let lacking = |of: &str| Difference {
            side: Side::Gpunode,
            of: of.to_owned(),
            fact: "exists".to_owned(),
        };
        let is_known = |of| KNOWN_DIFFERENCES.iter().any(|known| known.explains(&lacking(of)));
        assert_eq!([is_known("GPU-1"), is_known("MIG-1")], [true, false]);
    }

    #[test]
    fn each_has_a_reason_and_is_there_once() {
        for (place, known) in KNOWN_DIFFERENCES.iter().enumerate() {
            assert!(!known.reason.is_empty(), "{known:?}");
            let others = KNOWN_DIFFERENCES.iter().skip(place + 1);
            let same = |other: &&KnownDifference| (other.side, other.fact) == (known.side, known.fact);
            assert!(!others.clone().any(|other| same(&other)), "{known:?}");
        }
    }
}
