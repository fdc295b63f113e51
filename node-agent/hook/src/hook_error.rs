//! Errors of the hooks. The container runtime puts the text into the event of the pod that does not start.

use rustix::io::Errno;
use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};
use thiserror::Error;

/// Writes a line for the log of the container runtime; nobody may be there to read it.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "gpunode-hook: {text}");
}

/// Error that ends a hook, and with it the start of the container.
#[derive(Debug, Error)]
pub enum HookError {
    /// The command line is wrong: the CDI file and the program do not fit.
    #[error("{0}; compare the hooks of the CDI file with those of this program")]
    CommandLine(String),
    /// The runtime's description of the container cannot be used.
    #[error("cannot read {0} of the container: {1}")]
    State(String, String),
    /// The kernel cannot resolve paths below a folder.
    #[error("this kernel has no openat2, which resolves paths inside a container: Linux 5.6 or newer is needed")]
    OldKernel,
    /// The place to write is in a volume of the container.
    #[error(
        "cannot {action} {}: it is in a volume; mount the volume elsewhere, hooks change the container's own file system only",
        .path.display()
    )]
    InVolume {
        /// Verb for the text.
        action: &'static str,
        /// Path in the container.
        path: PathBuf,
    },
    /// Something in the container's file system cannot be read or changed.
    #[error("cannot {action} {} of the container: {source}", .path.display())]
    Container {
        /// Verb for the text.
        action: &'static str,
        /// Path in the container.
        path: PathBuf,
        /// Answer of the kernel.
        source: io::Error,
    },
    /// A file of the host cannot be read.
    #[error("cannot {action} {} of the host: {source}", .path.display())]
    Host {
        /// Verb for the text.
        action: &'static str,
        /// Path on the host.
        path: PathBuf,
        /// Answer of the kernel.
        source: io::Error,
    },
}

impl HookError {
    /// Returns the error for `source`, which came when the hook tried to `action` the container's `path`.
    pub fn container(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::NOSYS) => Self::OldKernel,
            Some(Errno::XDEV) => Self::InVolume { action, path },
            _ => Self::Container { action, path, source },
        }
    }
}

/// Returns nothing in place of what the image has and nobody can read, such as links in a circle: its own programs could not read it
/// either.
pub fn or_nothing<T: Default>(result: Result<T, HookError>) -> Result<T, HookError> {
    match result {
        Err(HookError::Container { .. }) => Ok(T::default()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_the_place_and_the_remedy() {
        let text =
            |errno: Errno| HookError::container("write", Path::new("/etc/ld.so.cache"), errno.into()).to_string();
        assert_eq!(
            text(Errno::XDEV),
            "cannot write /etc/ld.so.cache: it is in a volume; mount the volume elsewhere, hooks change the container's own file system \
             only"
        );
        assert_eq!(
            text(Errno::NOSYS),
            "this kernel has no openat2, which resolves paths inside a container: Linux 5.6 or newer is needed"
        );
        assert_eq!(
            text(Errno::ROFS),
            "cannot write /etc/ld.so.cache of the container: Read-only file system (os error 30)"
        );
    }
}
