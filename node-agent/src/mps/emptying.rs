//! Empties a folder that containers write to. Deep trees cost neither stack nor open files, and symbolic links are not
//! followed.

use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, openat, renameat_with, unlinkat},
    io::Errno,
};
use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// Most files to remove or move: more than the folder can hold, unless a container creates more meanwhile.
const MAX_STEPS: u32 = 256 * 1024;

/// Removes the content of `folder`; blocks. Moves the content of a subfolder up before it removes the subfolder, so that it
/// never descends.
pub fn empty(folder: &Path) -> io::Result<()> {
    let folder = open(CWD, folder)?;
    let mut steps = 0..MAX_STEPS;
    loop {
        let names = names(&folder)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            next_step(&mut steps)?;
            if !remove(folder.as_fd(), &name)? {
                flatten(&folder, &name, &mut steps)?;
            }
        }
    }
}

/// Moves the content of a subfolder up into `folder`, and removes the subfolder. One that gets new content meanwhile stays for
/// now.
fn flatten(folder: &OwnedFd, name: &CString, steps: &mut impl Iterator<Item = u32>) -> io::Result<()> {
    let inner = match open(folder, name.as_c_str()) {
        // It is another file by now.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        inner => inner?,
    };
    for name in names(&inner)? {
        if remove(inner.as_fd(), &name)? {
            next_step(steps)?;
            continue;
        }
        loop {
            let above = next_step(steps)?.to_string();
            match renameat_with(&inner, &name, folder, above, RenameFlags::NOREPLACE) {
                Ok(()) | Err(Errno::NOENT) => break,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    match unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes a file; returns false for a folder, which stays.
fn remove(folder: impl AsFd, name: &CString) -> io::Result<bool> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::ISDIR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn open(folder: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    openat(
        folder,
        name,
        OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

fn names(folder: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if ![c".", c".."].contains(&entry.file_name()) {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

fn next_step(steps: &mut impl Iterator<Item = u32>) -> io::Result<u32> {
    steps
        .next()
        .ok_or_else(|| io::Error::other("a container creates files as fast as they are removed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::{
        fs::mkdirat,
        process::{Resource, Rlimit, getrlimit, setrlimit},
    };
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, symlink},
    };

    #[test]
    fn a_link_leads_nowhere_and_the_folder_stays_the_same() {
        let root = tempfile::tempdir().unwrap();
        let (folder, other) = (root.path().join("folder"), root.path().join("other"));
        for made in [&folder, &other] {
            fs::create_dir(made).unwrap();
        }
        let inode = fs::metadata(&folder).unwrap().ino();
        fs::write(other.join("file"), "").unwrap();
        symlink(&other, folder.join("link")).unwrap();
        fs::create_dir_all(folder.join("a/b/c")).unwrap();
        symlink(&other, folder.join("a/b/link")).unwrap();
        // Names that what is moved up would have.
        for name in 0..20 {
            fs::create_dir_all(folder.join(name.to_string()).join("a/b")).unwrap();
            fs::write(folder.join(name.to_string()).join("a/file"), "").unwrap();
        }
        empty(&folder).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        assert!(other.join("file").exists());
        assert_eq!(fs::metadata(&folder).unwrap().ino(), inode);
    }

    #[test]
    fn depth_costs_neither_open_files_nor_stack() {
        let root = tempfile::tempdir().unwrap();
        let mut folder = open(CWD, root.path()).unwrap();
        for _ in 0..20_000 {
            mkdirat(&folder, "d", Mode::RWXU).unwrap();
            folder = open(&folder, "d").unwrap();
        }
        // Of a container, as a rule.
        let limit = getrlimit(Resource::Nofile);
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(1024),
                ..limit
            },
        )
        .unwrap();
        let emptied = std::thread::Builder::new().stack_size(256 * 1024);
        let path = root.path().to_owned();
        emptied.spawn(move || empty(&path)).unwrap().join().unwrap().unwrap();
        setrlimit(Resource::Nofile, limit).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
