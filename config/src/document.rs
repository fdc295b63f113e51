//! YAML document that carries a configuration from the operator to an agent, and its hash.

use crate::AgentConfig;
use sha2::{Digest, Sha256};

/// Version of the configuration document that this build writes. An agent reports the versions it can read.
pub const CONFIG_VERSION: i32 = 1;

/// A configuration as text, with the hash that identifies it in a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDocument {
    /// YAML, in the format that `gpunode-agent run --config FILE` reads.
    pub text: String,
    /// First 16 hexadecimal digits of the SHA-256 of `text`.
    pub hash: String,
}

impl ConfigDocument {
    /// Serializes a configuration. Unset fields are left out, so that a new field in a later version changes no hash.
    pub fn of(config: &AgentConfig) -> Self {
        // Serialising plain strings, numbers and lists into a string has no error to report.
        let text = serde_yaml::to_string(config).unwrap_or_default();
        let hash = Self::hash_of(&text);
        Self { text, hash }
    }

    /// Returns the hash of a document's text.
    pub fn hash_of(text: &str) -> String {
        use std::fmt::Write as _;
        Sha256::digest(text.as_bytes())
            .iter()
            .take(8)
            .fold(String::new(), |mut hash, byte| {
                let _ = write!(hash, "{byte:02x}");
                hash
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_fields_are_left_out() {
        assert_eq!(ConfigDocument::of(&AgentConfig::default()).text, "{}\n");
    }

    #[test]
    fn hash_depends_on_the_text_alone() {
        let one = ConfigDocument::of(&AgentConfig {
            pass_device_specs: Some(true),
            ..AgentConfig::default()
        });
        assert_eq!(one.hash, ConfigDocument::hash_of("passDeviceSpecs: true\n"));
        assert_ne!(one.hash, ConfigDocument::of(&AgentConfig::default()).hash);
        assert_eq!(one.hash.len(), 16);
    }
}
