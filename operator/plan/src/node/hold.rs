//! Reasons to leave a node as it is.

use gpunode_crds::IGNORE_LABEL;
use std::fmt;

/// Reason to leave a node exactly as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeHold {
    /// A person set the label `gpunode.dev/ignore`. Policies do not count the node.
    Ignored,
    /// The record of what gpunode wrote is unreadable, for the reason given.
    RecordUnreadable(String),
    /// The policy of this name owns keys there and is in mode Paused.
    Paused(String),
}

impl fmt::Display for NodeHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ignored => write!(f, "the node has the label {IGNORE_LABEL} and is left as it is"),
            Self::RecordUnreadable(error) => write!(f, "{error}; the node is left as it is until then"),
            Self::Paused(policy) => {
                write!(
                    f,
                    "policy {policy} is paused and owns keys of the node; the node stays as it is until the policy resumes or \
                     is deleted"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_says_what_ends_it() {
        assert_eq!(
            [
                NodeHold::Ignored,
                NodeHold::RecordUnreadable("repair it".to_owned()),
                NodeHold::Paused("p".to_owned()),
            ]
            .map(|hold| hold.to_string()),
            [
                "the node has the label gpunode.dev/ignore and is left as it is",
                "repair it; the node is left as it is until then",
                "policy p is paused and owns keys of the node; the node stays as it is until the policy resumes or is deleted",
            ]
        );
    }
}
