//! Looks for the files that the globs of companions match. Blocks.

use super::{
    host_files::{HostFileError, HostRoot, is_folder, names, open_folder},
    sysfs::{DeviceTopology, device_topology},
};
use globset::{GlobBuilder, GlobMatcher};
use gpunode_config::{AgentConfig, CompanionRootList, MAX_COMPANION_PATH};
use gpunode_gpu::{CompanionFile, CompanionFiles, MatchedFiles};
use rustix::{fd::OwnedFd, fs::FileType};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
};

/// Most files of one companion that are looked at.
const MAX_SCANNED_FILES: usize = 1024;
/// Most folders that the globs of one companion lead to.
const MAX_FOLDERS: usize = 256;
/// Most refusals that are kept of one companion.
const MAX_REFUSED: usize = 64;

/// Files to look for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedFiles {
    /// Resources with their globs, in the order of the configuration.
    pub globs: Vec<(String, Vec<String>)>,
    /// Files that containers may have, by path on the host.
    pub known: BTreeSet<String>,
}

/// Files that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundFiles {
    /// The request that this answers.
    pub wanted: WantedFiles,
    /// Files by resource.
    pub files: CompanionFiles,
    /// The known files that exist.
    pub existing: BTreeSet<String>,
}

/// Looks for files on the host.
#[derive(Clone, Debug)]
pub struct FileScanner {
    /// Mount point of the host's root.
    pub host_root: PathBuf,
    /// Folders whose files may be handed out.
    pub roots: CompanionRootList,
}

impl WantedFiles {
    /// Returns the files of a configuration.
    pub fn of(config: &AgentConfig, known: BTreeSet<String>) -> Self {
        let companions = config.companions.iter();
        Self {
            globs: companions.map(|of| (of.resource.clone(), of.paths.clone())).collect(),
            known,
        }
    }

    /// Returns true if there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.globs.is_empty() && self.known.is_empty()
    }
}

impl FileScanner {
    /// Returns the files, and the folders in which others may appear, as paths in this container.
    pub fn scan(&self, wanted: &WantedFiles) -> Result<(FoundFiles, BTreeSet<PathBuf>), HostFileError> {
        let host = HostRoot::open(&self.host_root)?;
        let (mut files, mut folders) = (BTreeMap::new(), BTreeSet::new());
        for (resource, globs) in &wanted.globs {
            let mut search = FileSearch {
                scanner: self,
                host: &host,
                known: &wanted.known,
                matched: MatchedFiles::default(),
                folders: BTreeSet::new(),
            };
            for (index, glob) in globs.iter().enumerate() {
                search.find(index, glob);
            }
            let watched = search.folders.iter();
            folders.extend(watched.map(|folder| self.host_root.join(folder.trim_start_matches('/'))));
            files.insert(resource.clone(), search.result());
        }
        let existing = wanted.known.iter().filter(|path| host.file(path).is_ok());
        let found = FoundFiles {
            existing: existing.cloned().collect(),
            wanted: wanted.clone(),
            files,
        };
        Ok((found, folders))
    }
}

/// Search for the files of one companion.
struct FileSearch<'a> {
    scanner: &'a FileScanner,
    host: &'a HostRoot,
    known: &'a BTreeSet<String>,
    matched: MatchedFiles,
    /// Folders in which a file may appear, by path on the host.
    folders: BTreeSet<String>,
}

/// A glob that is being followed.
struct FollowedGlob<'a> {
    /// Its index in the configuration.
    index: usize,
    text: &'a str,
}

impl FileSearch<'_> {
    fn find(&mut self, index: usize, glob: &str) {
        if let Some(refusal) = self.scanner.roots.refusal(glob) {
            return self.refuse(refusal);
        }
        let parts: Vec<&str> = glob.split('/').skip(1).collect();
        match self.host.folder() {
            Ok(folder) => {
                let followed = FollowedGlob { index, text: glob };
                self.follow(&followed, &folder, "", &parts);
            }
            Err(error) => self.refuse(format!("/ {error}")),
        }
    }

    /// Follows the parts of a glob below a folder with this path on the host.
    fn follow(&mut self, glob: &FollowedGlob<'_>, folder: &OwnedFd, path: &str, parts: &[&str]) {
        let Some((part, rest)) = parts.split_first() else {
            return;
        };
        if self.folders.len() >= MAX_FOLDERS {
            return self.refuse(format!(
                "{} leads to more than {MAX_FOLDERS} folders; use a narrower glob",
                glob.text
            ));
        }
        let shown = if path.is_empty() { "/" } else { path };
        self.folders.insert(shown.to_owned());
        let names = match matching_names(folder, part) {
            Ok(names) => names,
            Err(error) => return self.refuse(format!("{shown} {error}")),
        };
        if !rest.is_empty() {
            for name in names {
                let below = format!("{path}/{}", shown_name(&name));
                if !is_plain(&name) {
                    self.refuse_name(&below);
                    continue;
                }
                match open_folder(folder, OsStr::from_bytes(&name)) {
                    Ok(next) => self.follow(glob, &next, &below, rest),
                    Err(HostFileError::Missing) => {}
                    Err(error) => self.refuse(format!("{below} {error}")),
                }
            }
            return;
        }
        let (count, most) = (names.len(), MAX_SCANNED_FILES.saturating_sub(self.matched.files.len()));
        let mut names = names;
        if count > most {
            // Files that containers may have come first.
            names.sort_by_key(|name| !self.known.contains(&format!("{path}/{}", shown_name(name))));
            names.truncate(most);
            self.refuse(format!(
                "{} matches {count} files of {shown}, too many to look at; use a narrower glob",
                glob.text
            ));
        }
        for name in names {
            self.add(glob, path, &name);
        }
    }

    fn add(&mut self, glob: &FollowedGlob<'_>, folder: &str, name: &[u8]) {
        let path = format!("{folder}/{}", shown_name(name));
        if !is_plain(name) {
            return self.refuse_name(&path);
        }
        if path.len() > MAX_COMPANION_PATH {
            let start: String = path.chars().take(MAX_COMPANION_PATH).collect();
            return self.refuse(format!("{start}... has more than {MAX_COMPANION_PATH} characters"));
        }
        match self.read(glob, &path) {
            Ok(Some(file)) => self.matched.files.push(file),
            Ok(None) | Err(HostFileError::Missing) => {}
            Err(error) => self.refuse(format!("{path} {error}")),
        }
    }

    /// Reads a file; none for a folder, and for one that is refused otherwise.
    fn read(&mut self, glob: &FollowedGlob<'_>, path: &str) -> Result<Option<CompanionFile>, HostFileError> {
        let file = self.host.file(path)?;
        if is_folder(&file.stat) {
            return Ok(None);
        }
        let host_path = shown_name(file.path.as_os_str().as_bytes());
        if host_path != path {
            if let Some(refusal) = self.link_refusal(&host_path) {
                self.refuse(format!("{path} is a link: {refusal}"));
                return Ok(None);
            }
            self.host.check_folders_of(&file.path)?;
            if let Some((folder, _)) = host_path.rsplit_once('/').filter(|_| self.folders.len() < MAX_FOLDERS) {
                self.folders.insert(folder.to_owned());
            }
        }
        let kind = FileType::from_raw_mode(file.stat.st_mode);
        let is_block = kind == FileType::BlockDevice;
        let is_device = is_block || kind == FileType::CharacterDevice;
        let topology = if is_device {
            device_topology(&self.scanner.host_root, file.stat.st_rdev, is_block)
        } else {
            DeviceTopology::default()
        };
        Ok(Some(CompanionFile {
            path: path.to_owned(),
            host_path,
            globs: [glob.index].into(),
            is_device,
            pci_slot: topology.pci_slot,
            numa_node: topology.numa_node,
        }))
    }

    /// Returns the reason why a link to this path may not be handed out.
    fn link_refusal(&self, target: &str) -> Option<String> {
        if target.len() > MAX_COMPANION_PATH {
            return Some(format!("its target has more than {MAX_COMPANION_PATH} characters"));
        }
        self.scanner.roots.refusal(target)
    }

    fn refuse_name(&mut self, path: &str) {
        self.refuse(format!(
            "{path} has a character other than letters, digits and -_.:@+=~"
        ));
    }

    fn refuse(&mut self, refusal: String) {
        if self.matched.refused.len() < MAX_REFUSED {
            self.matched.refused.push(refusal);
        }
    }

    /// Returns the files, each once, and the refusals.
    fn result(self) -> MatchedFiles {
        let MatchedFiles { mut files, mut refused } = self.matched;
        files.sort();
        let mut by_host_path: BTreeMap<String, CompanionFile> = BTreeMap::new();
        for file in files {
            match by_host_path.get_mut(&file.host_path) {
                Some(same) => same.globs.extend(file.globs),
                None => _ = by_host_path.insert(file.host_path.clone(), file),
            }
        }
        let mut files: Vec<CompanionFile> = by_host_path.into_values().collect();
        files.sort();
        refused.sort();
        refused.dedup();
        MatchedFiles { files, refused }
    }
}

/// Returns the names in a folder that a part of a glob matches; a part without wildcards is one, whatever the folder has.
fn matching_names(folder: &OwnedFd, part: &str) -> Result<Vec<Vec<u8>>, HostFileError> {
    if !part.contains(['*', '?']) {
        return Ok(vec![part.as_bytes().to_owned()]);
    }
    let Some(matcher) = matcher(part) else {
        return Ok(Vec::new());
    };
    // As in shells.
    let is_hidden = |name: &[u8]| name.starts_with(b".") && !part.starts_with('.');
    let mut names = names(folder)?;
    names.retain(|name| !is_hidden(name) && matcher.is_match(OsStr::from_bytes(name)));
    Ok(names)
}

/// Compiles a part of a glob; the loader accepts only globs that compile.
fn matcher(part: &str) -> Option<GlobMatcher> {
    let glob = GlobBuilder::new(part).literal_separator(true).build().ok()?;
    Some(glob.compile_matcher())
}

/// Returns a name for people: one that is not UTF-8 has its bytes escaped.
fn shown_name(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(name) if name.chars().all(|c| !c.is_control()) => name.to_owned(),
        _ => name.escape_ascii().to_string(),
    }
}

/// Returns true for a name of the characters that a glob can have.
fn is_plain(name: &[u8]) -> bool {
    name.iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:@+=~".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt as _, symlink},
    };
    use tempfile::TempDir;

    struct Host(TempDir);

    impl Host {
        fn with(files: &[&str]) -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            for file in files {
                host.write(file);
            }
            host
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path.trim_start_matches('/'))
        }

        fn write(&self, path: &str) {
            let path = self.path(path);
            let folder = path.parent().unwrap();
            fs::create_dir_all(folder).unwrap();
            fs::write(path, "").unwrap();
        }

        fn find(&self, roots: &str, globs: &[&str]) -> MatchedFiles {
            let (found, _) = self.found(roots, globs, &[]);
            found.files["a.b/c"].clone()
        }

        fn found(&self, roots: &str, globs: &[&str], known: &[&str]) -> (FoundFiles, BTreeSet<PathBuf>) {
            let scanner = FileScanner {
                host_root: self.0.path().to_owned(),
                roots: roots.parse().unwrap(),
            };
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            let wanted = WantedFiles {
                globs: vec![("a.b/c".to_owned(), owned(globs))],
                known: owned(known).into_iter().collect(),
            };
            scanner.scan(&wanted).unwrap()
        }
    }

    fn paths(matched: &MatchedFiles) -> Vec<&str> {
        assert!(matched.refused.is_empty(), "{:?}", matched.refused);
        matched.files.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn globs_match_files_as_those_of_a_shell_and_no_folders() {
        let host = Host::with(&[
            "/etc/colas/b",
            "/etc/colas/a",
            "/etc/colas/.hidden",
            "/etc/colas/sub/c",
            "/etc/x",
        ]);
        let find = |globs: &[&str]| host.find("/etc/colas", globs);
        assert_eq!(paths(&find(&["/etc/colas/*"])), ["/etc/colas/a", "/etc/colas/b"]);
        let both = find(&["/etc/colas/b", "/etc/colas/?"]);
        assert_eq!(paths(&both), ["/etc/colas/a", "/etc/colas/b"]);
        let globs: Vec<_> = both
            .files
            .iter()
            .map(|file| Vec::from_iter(file.globs.clone()))
            .collect();
        assert_eq!(globs, [vec![1], vec![0, 1]]);
        assert_eq!(paths(&find(&["/etc/colas/.*"])), ["/etc/colas/.hidden"]);
        assert_eq!(paths(&find(&["/etc/colas/s*/*"])), ["/etc/colas/sub/c"]);
        assert!(paths(&find(&["/etc/colas/z*", "/etc/colas/none/*", "/etc/colas/sub"])).is_empty());
    }

    #[test]
    fn folders_in_which_a_file_may_appear_are_watched() {
        let host = Host::with(&["/dev/x/a/1", "/dev/x/b/1", "/dev/y"]);
        let watched = |glob: &str| {
            let (_, folders) = host.found("/dev/x,/dev/z", &[glob], &[]);
            let root = host.0.path();
            let path = |folder: &PathBuf| format!("/{}", folder.strip_prefix(root).unwrap().display());
            folders.iter().map(path).collect::<Vec<_>>()
        };
        assert_eq!(watched("/dev/x/*/1"), ["/", "/dev", "/dev/x", "/dev/x/a", "/dev/x/b"]);
        assert_eq!(watched("/dev/z/*/1"), ["/", "/dev"], "a folder that is not there yet");
    }

    #[test]
    fn paths_outside_of_the_roots_are_refused_with_the_flag() {
        let host = Host::with(&["/dev/sda", "/dev/x/a"]);
        for glob in ["/dev/sda", "/dev/s*", "/dev/*/a"] {
            let matched = host.find("/dev/x", &[glob]);
            assert!(matched.files.is_empty());
            assert!(
                matched.refused[0].starts_with(&format!("--companion-roots does not allow {glob}; it allows /dev/x;"))
            );
        }
    }

    #[test]
    fn a_link_may_lead_to_a_file_of_any_root_and_the_folder_of_that_is_watched() {
        let host = Host::with(&["/dev/bus/usb/001/004", "/dev/serial/by-id/x"]);
        fs::remove_file(host.path("/dev/serial/by-id/x")).unwrap();
        symlink("../../bus/usb/001/004", host.path("/dev/serial/by-id/x")).unwrap();
        let (found, folders) = host.found("/dev/serial,/dev/bus/usb", &["/dev/serial/by-id/*"], &[]);
        assert_eq!(found.files["a.b/c"].files[0].host_path, "/dev/bus/usb/001/004");
        assert!(folders.contains(&host.path("/dev/bus/usb/001")), "{folders:?}");
    }

    #[test]
    fn links_count_only_within_the_roots_and_a_file_counts_once() {
        let host = Host::with(&["/dev/sda", "/dev/x/card0", "/dev/x/card1"]);
        fs::create_dir(host.path("/dev/x/by-path")).unwrap();
        let link = |target: &str, name: &str| symlink(target, host.path(name)).unwrap();
        link("../card0", "/dev/x/by-path/first");
        link("/dev/x/card1", "/dev/x/by-path/second");
        let linked = host.find("/dev/x", &["/dev/x/by-path/*", "/dev/x/*"]);
        let pairs: Vec<_> = linked
            .files
            .iter()
            .map(|file| (file.path.as_str(), file.host_path.as_str()))
            .collect();
        assert_eq!(
            pairs,
            [
                ("/dev/x/by-path/first", "/dev/x/card0"),
                ("/dev/x/by-path/second", "/dev/x/card1")
            ]
        );
        for target in ["../sda", "/dev/sda", "../../dev/sda", "../../../../../../dev/sda"] {
            link(target, "/dev/x/disk");
            let refused = host.find("/dev/x", &["/dev/x/disk"]);
            assert!(refused.files.is_empty());
            assert_eq!(
                refused.refused,
                [
                    "/dev/x/disk is a link: --companion-roots does not allow /dev/sda; it allows /dev/x; an administrator can add \
                     its folder"
                ]
            );
            fs::remove_file(host.path("/dev/x/disk")).unwrap();
        }
        link("nowhere", "/dev/x/dangling");
        link("loop", "/dev/x/loop");
        link(&format!("/proc/{}/root/etc/passwd", std::process::id()), "/dev/x/magic");
        assert!(
            host.find("/dev/x", &["/dev/x/dangling", "/dev/x/loop", "/dev/x/magic"])
                .files
                .is_empty()
        );
    }

    #[test]
    fn a_folder_that_is_a_link_is_refused() {
        let host = Host::with(&["/dev/real/a"]);
        symlink("real", host.path("/dev/x")).unwrap();
        let refused = host.find("/dev/x", &["/dev/x/*"]);
        assert_eq!(refused.refused, ["/dev/x is a link; name the folder that it leads to"]);
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let host = Host::with(&["/srv/x/devices/a"]);
        for (folder, mode) in [
            ("/srv/x/devices", 0o777),
            ("/srv/x", 0o757),
            ("/srv", 0o1777),
            ("/srv/x", 0o775),
        ] {
            let set = |mode| fs::set_permissions(host.path(folder), Permissions::from_mode(mode)).unwrap();
            set(mode);
            let refused = host.find("/srv/x/devices", &["/srv/x/devices/*"]);
            set(0o755);
            assert!(refused.files.is_empty());
            assert!(
                refused.refused[0].starts_with(&format!("{folder} can be changed by others than root")),
                "{refused:?}"
            );
        }
        assert_eq!(
            paths(&host.find("/srv/x/devices", &["/srv/x/devices/*"])),
            ["/srv/x/devices/a"]
        );
    }

    #[test]
    fn names_that_are_no_text_or_too_long_are_refused_by_name() {
        let host = Host::with(&["/dev/x/good"]);
        fs::write(host.path("/dev/x").join(OsStr::from_bytes(b"b\xff\n")), "").unwrap();
        host.write("/dev/x/a b");
        host.write(&format!("/dev/x/{}", "l".repeat(250)));
        let matched = host.find("/dev/x", &["/dev/x/*"]);
        assert_eq!(matched.files.len(), 1);
        let starts = [
            "/dev/x/a b has a character",
            "/dev/x/b\\xff\\n has a character",
            "/dev/x/lll",
        ];
        assert_eq!(matched.refused.len(), 3);
        for (refused, start) in matched.refused.iter().zip(starts) {
            assert!(refused.starts_with(start), "{refused}");
        }
        assert!(matched.refused[2].ends_with("... has more than 255 characters"));
    }

    #[test]
    fn folders_with_other_names_are_not_entered() {
        let host = Host::with(&["/dev/x/a b/c"]);
        let matched = host.find("/dev/x", &["/dev/x/*/c"]);
        assert!(matched.files.is_empty());
        assert!(
            matched.refused[0].starts_with("/dev/x/a b has a character"),
            "{matched:?}"
        );
    }

    #[test]
    fn ten_thousand_files_are_refused_and_those_of_containers_stay() {
        let host = Host::with(&[]);
        fs::create_dir_all(host.path("/dev/x")).unwrap();
        (0..10_000).for_each(|number| drop(fs::File::create(host.path(&format!("/dev/x/{number:05}"))).unwrap()));
        let (found, _) = host.found("/dev/x", &["/dev/x/*"], &["/dev/x/09999", "/dev/x/gone"]);
        let matched = &found.files["a.b/c"];
        assert_eq!(matched.files.len(), MAX_SCANNED_FILES);
        assert!(matched.files.iter().any(|file| file.path == "/dev/x/09999"));
        assert_eq!(
            matched.refused,
            ["/dev/x/* matches 10000 files of /dev/x, too many to look at; use a narrower glob"]
        );
        assert_eq!(found.existing, ["/dev/x/09999".to_owned()].into());
    }

    #[test]
    fn thousands_of_refusals_and_folders_are_bounded() {
        let host = Host::with(&[]);
        for number in 0..300 {
            host.write(&format!("/dev/x/f{number}/a b"));
        }
        let matched = host.find("/dev/x", &["/dev/x/*/*"]);
        assert!(matched.refused.len() <= MAX_REFUSED, "{}", matched.refused.len());
        let many = host.find("/dev/x", &["/dev/x/*/z"]);
        assert_eq!(
            many.refused,
            ["/dev/x/*/z leads to more than 256 folders; use a narrower glob"]
        );
    }
}
