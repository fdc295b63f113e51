//! Judgements of other people's programs on gpunode's CDI file: of the library that container runtimes read it with, of NVIDIA's own
//! generator of such files, and of NVIDIA's container runtime.
//!
//! | module | what it does |
//! |---|---|
//! | `comparison` | differences between two CDI specs of the same node |
//! | `known_differences` | the differences from NVIDIA's generator that are meant, with reasons |
//! | `programs` | builds the Go programs in `check/` and `toolkit/` |
//! | `reference_library` | reads CDI files with the library of container runtimes |
//! | `toolkit` | runs NVIDIA's container runtime and its hook on a bundle |

mod comparison;
mod known_differences;
mod programs;
mod reference_library;
mod toolkit;

pub use comparison::{Comparison, Difference, Side, differences};
pub use known_differences::{KNOWN_DIFFERENCES, KnownDifference};
pub use reference_library::{CdiLibrary, LibraryVerdict, read_cdi_files};
pub use toolkit::{Bundle, RuntimeMode, ToolkitConfig};
