//! The program that the container runtime calls for each container.

use std::path::PathBuf;

/// A program that prepares the root of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookProgram {
    /// Path on the host.
    pub path: PathBuf,
    /// Maker of the program.
    pub kind: HookKind,
}

/// Maker of a hook program. All take the same hooks and options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// `nvidia-cdi-hook` or `nvidia-ctk` of NVIDIA's container toolkit.
    Nvidia,
    /// `gpunode-hook`, which takes several hooks in one call.
    Own,
}
