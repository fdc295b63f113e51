//! Folders of `/etc/ld.so.conf` and of the files that it includes (source: ldconfig(8)).

use crate::{
    container_root::ContainerRoot,
    hook_error::{HookError, or_nothing},
};
use std::{collections::VecDeque, path::Path};

/// Configuration of the loader in a container.
pub const LD_SO_CONF: &str = "/etc/ld.so.conf";
/// Folder of the files that it usually includes.
pub const LD_SO_CONF_D: &str = "/etc/ld.so.conf.d";

/// Limit on a configuration file in bytes.
const MAX_BYTES: u64 = 256 * 1024;
/// Limit on the files, on the lines of each, and on the folders that they name.
const MAX_FILES: usize = 500;

/// A line of a configuration file.
#[derive(Debug, PartialEq, Eq)]
enum ConfLine {
    /// Absolute path, without a slash at its end.
    Folder(String),
    /// Path of other files, with `*` and `?` in its last part.
    Include(String),
}

/// Returns the folders in their order, each once.
pub fn folders(root: &ContainerRoot) -> Result<Vec<String>, HookError> {
    let mut folders: Vec<String> = Vec::new();
    let mut open = VecDeque::from([ConfLine::Include(LD_SO_CONF.to_owned())]);
    let mut files: Vec<String> = Vec::new();
    while let Some(line) = open.pop_front() {
        match line {
            ConfLine::Folder(folder) if folders.contains(&folder) || folders.len() == MAX_FILES => {}
            ConfLine::Folder(folder) => folders.push(folder),
            ConfLine::Include(pattern) => {
                for file in matching(root, &pattern)?.into_iter().rev() {
                    // A file that includes itself is read once.
                    if files.contains(&file) || files.len() == MAX_FILES {
                        continue;
                    }
                    // The lines of an included file count where it is included.
                    let bytes = or_nothing(root.read(Path::new(&file), MAX_BYTES))?;
                    for line in lines(bytes.as_deref(), &file).into_iter().rev() {
                        open.push_front(line);
                    }
                    files.push(file);
                }
            }
        }
    }
    Ok(folders)
}

/// Returns the folders that the file at `path` names itself, to write the file again; none without a file.
pub fn folders_of_own_file(root: &ContainerRoot, path: &str) -> Result<Vec<String>, HookError> {
    let folder = |line| match line {
        ConfLine::Folder(folder) => Some(folder),
        ConfLine::Include(_) => None,
    };
    let bytes = or_nothing(root.read_own(Path::new(path), MAX_BYTES))?;
    Ok(lines(bytes.as_deref(), path).into_iter().filter_map(folder).collect())
}

fn lines(bytes: Option<&[u8]>, file: &str) -> Vec<ConfLine> {
    let text = String::from_utf8_lossy(bytes.unwrap_or_default());
    let folder_of_file = file.rsplit_once('/').map_or("", |(folder, _)| folder);
    text.lines()
        .take(MAX_FILES)
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .flat_map(|line| match line.strip_prefix("include") {
            Some(patterns) if patterns.starts_with(char::is_whitespace) => patterns
                .split_whitespace()
                .map(|pattern| {
                    let is_absolute = pattern.starts_with('/');
                    ConfLine::Include(if is_absolute {
                        pattern.to_owned()
                    } else {
                        format!("{folder_of_file}/{pattern}")
                    })
                })
                .collect(),
            _ => folder_of(line).map(ConfLine::Folder).into_iter().collect::<Vec<_>>(),
        })
        .collect()
}

/// Returns the folder that a line names: `hwcap` lines name none, and the type of libraries after `=` is of the past.
fn folder_of(line: &str) -> Option<String> {
    let folder = line.split('=').next()?.trim().trim_end_matches('/');
    folder.starts_with('/').then(|| folder.to_owned())
}

/// Returns the files that match `pattern`, in order.
fn matching(root: &ContainerRoot, pattern: &str) -> Result<Vec<String>, HookError> {
    let (folder, last) = pattern.rsplit_once('/').unwrap_or_default();
    if !last.contains(['*', '?']) {
        return Ok(vec![pattern.to_owned()]);
    }
    let names = or_nothing(root.names(Path::new(&format!("{folder}/"))))?;
    Ok(names
        .into_iter()
        .filter(|found| !found.name.starts_with('.') && is_match(last.as_bytes(), found.name.as_bytes()))
        .map(|found| format!("{folder}/{}", found.name))
        .collect())
}

/// Returns whether `name` matches `pattern`: `*` stands for any text, `?` for one byte. Goes back to the last `*` alone.
fn is_match(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name, mut star) = (0, 0, None);
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, in_name));
                at += 1;
            }
            Some(byte) if *byte == b'?' || Some(byte) == name.get(in_name) => {
                at += 1;
                in_name += 1;
            }
            _ => match star {
                Some((place, from)) => {
                    star = Some((place, from + 1));
                    at = place + 1;
                    in_name = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(at).all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn folders_come_in_the_order_of_the_files() {
        let container = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = container.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let root = ContainerRoot::open(container.path()).unwrap();
        assert!(folders(&root).unwrap().is_empty());
        put(
            "etc/ld.so.conf",
            "/first/ # comment\ninclude ld.so.conf.d/*.conf\nhwcap 0 nosegneg\n/last=libc6\n/first\n",
        );
        put("etc/ld.so.conf.d/b.conf", "# of b\n/opt/b\n");
        put(
            "etc/ld.so.conf.d/a.conf",
            "/opt/a\ninclude /etc/more\ninclude /etc/ld.so.conf\nrelative\n",
        );
        put("etc/ld.so.conf.d/c.txt", "/opt/c\n");
        put("etc/more", "/opt/more");
        // What nobody can read is left out.
        fs::create_dir(container.path().join("etc/ld.so.conf.d/folder.conf")).unwrap();
        std::os::unix::fs::symlink("circle.conf", container.path().join("etc/ld.so.conf.d/circle.conf")).unwrap();
        assert_eq!(
            folders(&root).unwrap(),
            ["/first", "/opt/a", "/opt/more", "/opt/b", "/last"]
        );
        assert_eq!(
            folders_of_own_file(&root, "/etc/ld.so.conf.d/a.conf").unwrap(),
            ["/opt/a"]
        );
        assert!(folders_of_own_file(&root, "/etc/none").unwrap().is_empty());
    }

    #[test]
    fn patterns_match_as_those_of_a_shell() {
        for (pattern, name, expected) in [
            ("*.conf", "a.conf", true),
            ("*.conf", "a.conf.bak", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?.conf", "a.conf", true),
            ("?.conf", "ab.conf", false),
            ("*", "", true),
        ] {
            assert_eq!(
                is_match(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
        let many = "a".repeat(200);
        assert!(!is_match(format!("{}b", "*a".repeat(100)).as_bytes(), many.as_bytes()));
    }
}
