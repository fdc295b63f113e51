//! A taint and its identity.

use k8s_openapi::api::core::v1::Taint as NodeTaint;
use std::fmt;

/// Identity of a taint: Kubernetes allows one of each key and effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaintKey {
    /// Key, such as `dedicated`.
    pub key: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A taint of a node or of a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// Key and effect.
    pub id: TaintKey,
    /// Value; empty for a taint without one, which Kubernetes treats alike.
    pub value: String,
}

impl From<&NodeTaint> for Taint {
    fn from(taint: &NodeTaint) -> Self {
        Self {
            id: TaintKey {
                key: taint.key.clone(),
                effect: taint.effect.clone(),
            },
            value: taint.value.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for TaintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.key, self.effect)
    }
}
