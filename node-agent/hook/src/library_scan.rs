//! The shared libraries in the folders of a container: what `ldconfig` finds, by its rules (source: glibc, `elf/ldconfig.c`), without
//! running a program on files that nobody has checked.

use crate::{
    container_root::{ContainerRoot, FileIdentity, FolderName},
    elf::Elf,
    hook_error::{HookError, or_nothing},
    ld_so_cache::{CacheEntry, compare_names},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    env::consts::ARCH,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

/// Limit on the libraries of a container; a large image has some thousand.
const MAX_LIBRARIES: usize = 50_000;

/// Libraries of all folders that were searched.
#[derive(Debug)]
pub struct LibraryScan<'a> {
    root: &'a ContainerRoot,
    entries: Vec<CacheEntry>,
    searched: BTreeSet<FileIdentity>,
    /// Folders in which missing links are made.
    with_links: BTreeSet<FileIdentity>,
    /// Files that were read: a library mostly has some links.
    libraries: BTreeMap<FileIdentity, Option<Library>>,
}

/// Facts about one file.
#[derive(Debug, Clone)]
struct Library {
    /// Empty if it has none.
    soname: String,
    flags: u32,
}

/// The best file of a name in a folder.
#[derive(Debug)]
struct BestFile {
    file: String,
    is_link: bool,
    flags: u32,
}

impl<'a> LibraryScan<'a> {
    /// Starts without libraries. In the folders `with_links`, under whatever path they are searched (`/lib` is mostly a link to
    /// `/usr/lib`), a library gets the link that its users ask for, such as `libcuda.so.1`, where the folder has none.
    pub fn new(root: &'a ContainerRoot, with_links: &[String]) -> Result<Self, HookError> {
        let mut identities = BTreeSet::new();
        for folder in with_links {
            identities.extend(or_nothing(root.folder_identity(Path::new(folder)))?);
        }
        Ok(Self {
            root,
            entries: Vec::new(),
            searched: BTreeSet::new(),
            with_links: identities,
            libraries: BTreeMap::new(),
        })
    }

    /// Returns the libraries of the folders, in the order of the search.
    pub fn into_entries(self) -> Vec<CacheEntry> {
        self.entries
    }

    /// Searches `folder` and its folders of optimised libraries, if it exists and was not searched under another path.
    pub fn search(&mut self, folder: &str) -> Result<(), HookError> {
        let Some(identity) = or_nothing(self.root.folder_identity(Path::new(folder)))? else {
            return Ok(());
        };
        if !self.searched.insert(identity) {
            return Ok(());
        }
        let make_links = self.with_links.contains(&identity);
        self.search_one(folder, None, make_links)?;
        let optimised = format!("{folder}/glibc-hwcaps");
        for FolderName { name, .. } in or_nothing(self.root.names(Path::new(&optimised)))? {
            self.search_one(&format!("{optimised}/{name}"), Some(&name), false)?;
        }
        Ok(())
    }

    fn search_one(&mut self, folder: &str, hwcaps: Option<&str>, make_links: bool) -> Result<(), HookError> {
        let names = or_nothing(self.root.names(Path::new(folder)))?;
        let mut best: BTreeMap<String, BestFile> = BTreeMap::new();
        let mut readable: BTreeSet<&str> = BTreeSet::new();
        for found in names.iter().filter(|found| is_library_name(&found.name)) {
            let Some(library) = self.library(&format!("{folder}/{}", found.name)) else {
                continue;
            };
            readable.insert(&found.name);
            let (name, file) = name_of(found, library);
            match best.get_mut(&name) {
                Some(present) if file.is_better_than(present) => *present = file,
                Some(_) => {}
                None => {
                    best.insert(name, file);
                }
            }
        }
        for (name, BestFile { file, is_link, flags }) in best {
            let path = match hwcaps {
                // There are no links in these folders.
                Some(_) => format!("{folder}/{file}"),
                None => format!("{folder}/{name}"),
            };
            if hwcaps.is_none() && !is_link && !readable.contains(name.as_str()) {
                // As `ldconfig` does, goes on without a link that cannot be made, and never replaces a file.
                let is_file = names.iter().any(|found| found.name == name && !found.is_link);
                if !make_links || is_file || self.root.link(Path::new(&file), Path::new(&path)).is_err() {
                    continue;
                }
            }
            if self.entries.len() < MAX_LIBRARIES {
                self.entries.push(CacheEntry {
                    name,
                    path,
                    flags,
                    hwcaps: hwcaps.map(str::to_owned),
                });
            }
        }
        Ok(())
    }

    /// Returns the library at `path`; `None` for what the loader cannot use and for links to nothing.
    fn library(&mut self, path: &str) -> Option<Library> {
        let file = self.root.file(Path::new(path)).ok()?;
        let metadata = file.metadata().ok()?;
        self.libraries
            .entry((metadata.dev(), metadata.ino()))
            .or_insert_with(|| {
                let elf = Elf::read(&file)?;
                Some(Library {
                    flags: elf.cache_flags(ARCH)?,
                    soname: elf.soname()?,
                })
            })
            .clone()
    }
}

impl BestFile {
    /// A file is better than a link, a greater version than a smaller one.
    fn is_better_than(&self, other: &Self) -> bool {
        match (self.is_link, other.is_link) {
            (false, true) => true,
            (true, false) => false,
            _ => compare_names(&self.file, &other.file).is_gt(),
        }
    }
}

/// Returns the name by which programs ask for a library, and the file that they then get. A link counts under its own name if it is
/// the one that programs or compilers ask for.
fn name_of(found: &FolderName, library: Library) -> (String, BestFile) {
    let file = found.name.clone();
    let soname = if library.soname.is_empty() {
        file.clone()
    } else {
        library.soname
    };
    let for_compilers = || file.strip_suffix(".so").is_some() && soname.starts_with(&file);
    let is_link = found.is_link && (file == soname || for_compilers());
    let name = if is_link { file.clone() } else { soname };
    let best = BestFile {
        file,
        is_link,
        flags: library.flags,
    };
    (name, best)
}

/// Returns whether a file can be a library, or the loader itself.
fn is_library_name(name: &str) -> bool {
    (name.starts_with("lib") || name.starts_with("ld-") || name.starts_with("ld."))
        && name.contains(".so")
        && name.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink, path::PathBuf};

    /// A container with a library folder that has two paths, in which every library is a copy of this machine's C library.
    fn container() -> tempfile::TempDir {
        let container = tempfile::tempdir().unwrap();
        fs::create_dir_all(container.path().join("usr/lib/glibc-hwcaps/fast")).unwrap();
        symlink("usr/lib", container.path().join("lib")).unwrap();
        container
    }

    fn libc() -> PathBuf {
        ["x86_64-linux-gnu", "aarch64-linux-gnu"]
            .iter()
            .map(|folder| PathBuf::from(format!("/lib/{folder}/libc.so.6")))
            .find(|path| path.exists())
            .unwrap()
    }

    fn paths(container: &tempfile::TempDir, make_links: bool) -> Vec<String> {
        let root = ContainerRoot::open(container.path()).unwrap();
        let with_links: Vec<String> = make_links.then(|| "/usr/lib".to_owned()).into_iter().collect();
        let mut scan = LibraryScan::new(&root, &with_links).unwrap();
        for folder in ["/lib", "/none", "/usr/lib"] {
            scan.search(folder).unwrap();
        }
        scan.into_entries().into_iter().map(|entry| entry.path).collect()
    }

    #[test]
    fn a_library_is_found_by_the_name_that_programs_ask_for() {
        let container = container();
        let lib = container.path().join("lib");
        fs::copy(libc(), lib.join("libc-2.36.so")).unwrap();
        fs::copy(libc(), lib.join("glibc-hwcaps/fast/libc-2.37.so")).unwrap();
        fs::write(lib.join("libscript.so"), "INPUT(libc.so.6)").unwrap();
        fs::write(lib.join("readme"), "").unwrap();
        let optimised = "/lib/glibc-hwcaps/fast/libc-2.37.so";
        assert_eq!(paths(&container, false), [optimised]);
        assert_eq!(paths(&container, true), ["/lib/libc.so.6", optimised]);
        assert_eq!(fs::read_link(lib.join("libc.so.6")).unwrap(), Path::new("libc-2.36.so"));
        symlink("libc.so.6", lib.join("libc.so")).unwrap();
        assert_eq!(paths(&container, false), ["/lib/libc.so", "/lib/libc.so.6", optimised]);
    }

    #[test]
    fn a_link_of_the_image_stays_unless_it_leads_nowhere() {
        let container = container();
        let lib = container.path().join("lib");
        for version in ["9", "10"] {
            fs::copy(libc(), lib.join(format!("libc.so.6.{version}"))).unwrap();
        }
        symlink("libc.so.6.9", lib.join("libc.so.6")).unwrap();
        assert_eq!(paths(&container, true), ["/lib/libc.so.6"]);
        assert_eq!(fs::read_link(lib.join("libc.so.6")).unwrap(), Path::new("libc.so.6.9"));
        fs::remove_file(lib.join("libc.so.6")).unwrap();
        symlink("libc.so.6.8", lib.join("libc.so.6")).unwrap();
        assert_eq!(paths(&container, true), ["/lib/libc.so.6"]);
        assert_eq!(fs::read_link(lib.join("libc.so.6")).unwrap(), Path::new("libc.so.6.10"));
    }

    #[test]
    fn a_file_with_the_name_of_the_link_is_not_replaced() {
        let container = container();
        fs::copy(libc(), container.path().join("lib/libc-2.36.so")).unwrap();
        fs::write(container.path().join("lib/libc.so.6"), "text").unwrap();
        assert!(paths(&container, true).is_empty());
        assert_eq!(
            fs::read_to_string(container.path().join("lib/libc.so.6")).unwrap(),
            "text"
        );
    }

    #[test]
    fn libraries_outside_the_root_are_none() {
        let container = container();
        symlink(libc(), container.path().join("lib/libc.so.6")).unwrap();
        let up = PathBuf::from("../".repeat(20)).join(libc().strip_prefix("/").unwrap());
        symlink(up, container.path().join("lib/libother.so")).unwrap();
        assert!(paths(&container, true).is_empty());
    }
}
