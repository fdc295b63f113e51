//! The part of gpunode that a removal takes away. Pure.

use crate::cli::UninstallArgs;

/// The part of gpunode that a removal takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalScope {
    /// All of it.
    Everything,
    /// The operator, its agents, and what both wrote to nodes: another tool, such as Helm, deletes the rest.
    Nodes,
}

impl RemovalScope {
    /// Returns what the arguments ask for.
    pub fn of(args: &UninstallArgs) -> Self {
        if args.nodes_only { Self::Nodes } else { Self::Everything }
    }

    /// Says that there is nothing to do.
    pub fn nothing(self) -> &'static str {
        match self {
            Self::Everything => "nothing of gpunode is in this cluster",
            Self::Nodes => "nothing of gpunode is on the nodes",
        }
    }

    /// Says that it is done.
    pub fn done(self, seconds: u64) -> String {
        match self {
            Self::Everything => format!("gpunode was removed in {seconds} s"),
            Self::Nodes => {
                format!("every node was restored in {seconds} s; policies, CRDs, permissions and the namespace stay")
            }
        }
    }
}
