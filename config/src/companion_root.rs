//! Folders of the nodes whose files companions may hand out. Whoever may write a policy must not choose any file: `/dev/sda` is
//! the node.

use crate::{HostPath, HostPathError};
use std::{fmt, str::FromStr};

/// Most roots.
const MAX_ROOTS: usize = 32;

/// A folder whose files may be handed out, such as `/dev/infiniband`, or the start of names in a folder, such as `/dev/xclmgmt*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompanionRoot {
    /// Text that each path below begins with: a folder with a slash at its end, or a folder and the start of a name.
    start: String,
    is_folder: bool,
}

/// The roots; as text separated by commas. Empty text is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompanionRootList(Vec<CompanionRoot>);

/// Text that is no root.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompanionRootError {
    /// The path is no absolute path.
    #[error(transparent)]
    Path(#[from] HostPathError),
    /// The path is a folder of the root folder, or the root folder itself.
    #[error(
        "{0} is too wide: it has files that are the node itself; name a folder in it, such as /dev/infiniband, or the start of \
         names, such as /dev/xclmgmt*"
    )]
    TooWide(String),
    /// A wildcard is not at the end.
    #[error(
        "{0} has a wildcard elsewhere than at its end; write a folder, or the start of names and *, such as /dev/xclmgmt*"
    )]
    Wildcard(String),
    /// The list is too long.
    #[error("{0} roots are more than {MAX_ROOTS}; name those that your policies use")]
    TooMany(usize),
}

impl CompanionRoot {
    /// Returns true if the path is below the root. A glob is below it if all of its files are.
    pub fn has(&self, path: &str) -> bool {
        path.strip_prefix(&self.start)
            .is_some_and(|rest| !rest.is_empty() && (self.is_folder || !rest.contains('/')))
            && !path.split('/').any(|part| part == "..")
    }
}

impl FromStr for CompanionRoot {
    type Err = CompanionRootError;

    fn from_str(text: &str) -> Result<Self, CompanionRootError> {
        let path = text.parse::<HostPath>()?.to_string();
        let parts = path.split('/').filter(|part| !part.is_empty()).count();
        let start = path.strip_suffix('*');
        let name = start.map(|start| start.rsplit('/').next().unwrap_or_default());
        if parts < 2 || name.is_some_and(str::is_empty) {
            return Err(CompanionRootError::TooWide(path));
        }
        if start.unwrap_or(&path).contains(['*', '?']) {
            return Err(CompanionRootError::Wildcard(path));
        }
        Ok(match start {
            Some(start) => Self {
                start: start.to_owned(),
                is_folder: false,
            },
            None => Self {
                start: format!("{path}/"),
                is_folder: true,
            },
        })
    }
}

impl fmt::Display for CompanionRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.start.strip_suffix('/') {
            Some(folder) if self.is_folder => f.write_str(folder),
            _ => write!(f, "{}*", self.start),
        }
    }
}

impl CompanionRootList {
    /// Returns the reason why companions may not hand out the files of a path or glob, with the next step; none if they may.
    pub fn refusal(&self, path: &str) -> Option<String> {
        if self.0.iter().any(|root| root.has(path)) {
            return None;
        }
        let allowed = if self.0.is_empty() {
            "nothing".to_owned()
        } else {
            self.to_string()
        };
        Some(format!(
            "--companion-roots does not allow {path}; it allows {allowed}; an administrator can add its folder"
        ))
    }
}

impl FromStr for CompanionRootList {
    type Err = CompanionRootError;

    fn from_str(text: &str) -> Result<Self, CompanionRootError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let number = text.split(',').count();
        if number > MAX_ROOTS {
            return Err(CompanionRootError::TooMany(number));
        }
        let roots = text.split(',').map(|root| root.trim().parse());
        Ok(Self(roots.collect::<Result<Vec<CompanionRoot>, CompanionRootError>>()?))
    }
}

impl fmt::Display for CompanionRootList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roots: Vec<String> = self.0.iter().map(CompanionRoot::to_string).collect();
        f.write_str(&roots.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<CompanionRootList, String> {
        text.parse().map_err(|error: CompanionRootError| error.to_string())
    }

    #[test]
    fn a_root_has_the_files_below_a_folder_or_with_the_start_of_a_name() {
        let roots = list("/dev/infiniband/, /dev/xclmgmt*,/etc/colas").unwrap();
        assert_eq!(roots.to_string(), "/dev/infiniband,/dev/xclmgmt*,/etc/colas");
        for inside in [
            "/dev/infiniband/*",
            "/dev/infiniband/by-path/x",
            "/dev/xclmgmt*",
            "/dev/xclmgmt1?",
            "/etc/colas/a",
        ] {
            assert_eq!(roots.refusal(inside), None, "{inside}");
        }
        for outside in [
            "/dev/*",
            "/dev/infiniband*",
            "/dev/infiniband",
            "/dev/infiniband/",
            "/dev/infiniband/../sda",
            "/dev/infinibandx/a",
            "/dev/xclmgm*",
            "/dev/xclmgmt1/a",
            "/dev/xclmgmt",
            "/dev/i*/a",
            "/etc/colas2/a",
            "/etc",
            "",
        ] {
            let refusal = roots
                .refusal(outside)
                .unwrap_or_else(|| panic!("{outside} was accepted"));
            assert!(
                refusal.contains("it allows /dev/infiniband,/dev/xclmgmt*,/etc/colas;"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn without_roots_nothing_is_handed_out() {
        let none = list(" ").unwrap();
        assert_eq!(none, CompanionRootList::default());
        let refusal = none.refusal("/dev/infiniband/*").unwrap();
        assert!(refusal.contains("it allows nothing;"), "{refusal}");
    }

    #[test]
    fn a_root_that_has_the_node_itself_is_refused() {
        for (text, reason) in [
            ("/", "/ is too wide"),
            ("/dev", "/dev is too wide"),
            ("/dev/", "/dev is too wide"),
            ("/etc", "/etc is too wide"),
            ("/dev/*", "/dev/* is too wide"),
            ("/*", "/* is too wide"),
            ("/d*/sda", "a wildcard elsewhere"),
            ("/dev/x?y*", "a wildcard elsewhere"),
            ("dev/infiniband", "is not an absolute path"),
            ("/dev/../etc/x", "contains \"..\""),
            ("/dev/x,", "is not an absolute path"),
        ] {
            let error = list(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(list(&["/dev/a"; 33].join(",")).unwrap_err().starts_with("33 roots"));
        assert!(list(&["/dev/a"; 32].join(",")).is_ok());
    }
}
