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

    /// A change of this hash is a rollout on every node of every cluster: no update of a library may change it.
    #[test]
    fn text_and_hash_of_a_full_configuration_never_change() {
        let config = crate::load(FULL).expect("a configuration");
        let document = ConfigDocument::of(&config);
        assert_eq!(document.text, FULL);
        assert_eq!(document.hash, "9b108ad3d82228ad");
        assert_eq!(ConfigDocument::of(&AgentConfig::default()).hash, "ca3d163bab055381");
    }

    const FULL: &str = "\
resources:
- name: nvidia.com/gpu
  devices:
    indices:
    - 0
    - 1
    uuids:
    - GPU-0c1b5e0a-0000-0000-0000-000000000000
    products:
    - Tesla-V100*
    - '*'
    architectures:
    - volta
    - ada-lovelace
    minMemory: 30Gi
    kind: FullGpu
  allocation: Packed
- name: nvidia.com/gpu.shared
  sharing:
    strategy: TimeSlicing
    replicas: 4
    replicasPerDevice:
    - devices:
        indices:
        - 2
      replicas: 8
    renameByDefault: false
    failRequestsGreaterThanOne: true
- name: example.com/mem
  devices:
    migProfiles:
    - 1g.10gb
    - 1g.10gb+me
  sharing:
    strategy: Memory
    unit: 512Mi
    placement: Spread
mig:
  strategy: Mixed
passDeviceSpecs: true
health:
  ignoreXids:
  - 13
  watchXids:
  - 63
  recovery: Manual
failOnInitError: false
";

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
