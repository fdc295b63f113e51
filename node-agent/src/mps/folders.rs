//! Creates, empties and removes the folders of a device's daemon. A tmpfs covers those that containers see ([`memory`]).

use super::{device_folder::DeviceFolder, emptying::empty, memory};
use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path};

/// Most bytes of a log file: the logs are in memory, and each probe of a daemon adds lines.
const MAX_LOG: u64 = 1024 * 1024;

/// Creates missing folders; blocks. Existing ones stay, because containers mount them.
pub fn create(folder: &DeviceFolder, host_root: &Path) -> io::Result<()> {
    create_missing(folder)?;
    memory::mount_missing(folder, host_root)
}

fn create_missing(folder: &DeviceFolder) -> io::Result<()> {
    [folder.pipe(), folder.log(), folder.shm()]
        .iter()
        .try_for_each(fs::create_dir_all)
}

/// Removes the files of a former daemon and its clients, whose contexts ended with it; blocks.
pub fn clear(folder: &DeviceFolder) -> io::Result<()> {
    empty(&folder.pipe())?;
    empty(&folder.shm())
}

/// Removes all folders; blocks.
pub fn remove(folder: &DeviceFolder) -> io::Result<()> {
    memory::unmount(folder)?;
    match fs::remove_dir_all(folder.path()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Truncates long log files; blocks. The daemon keeps writing to them.
pub fn truncate_logs(folder: &DeviceFolder) -> io::Result<()> {
    for entry in fs::read_dir(folder.log())? {
        let entry = entry?;
        let meta = entry.metadata()?;
        // Counts blocks, not the length: a writer that does not append keeps its offset, and with it the length.
        if meta.is_file() && meta.blocks() * 512 > MAX_LOG {
            fs::File::options().write(true).open(entry.path())?.set_len(0)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_are_there_stay() {
        let root = tempfile::tempdir().unwrap();
        let folder = DeviceFolder::of(root.path(), "GPU-1").unwrap();
        create_missing(&folder).unwrap();
        let inode = fs::metadata(folder.pipe()).unwrap().ino();
        for path in [folder.pipe(), folder.shm()] {
            fs::write(path.join("file"), "").unwrap();
        }
        clear(&folder).unwrap();
        create_missing(&folder).unwrap();
        for path in [folder.pipe(), folder.shm()] {
            assert_eq!(fs::read_dir(path).unwrap().count(), 0);
        }
        assert_eq!(fs::metadata(folder.pipe()).unwrap().ino(), inode);
    }

    #[test]
    fn a_long_log_is_cut_off() {
        let root = tempfile::tempdir().unwrap();
        let folder = DeviceFolder::of(root.path(), "GPU-1").unwrap();
        create_missing(&folder).unwrap();
        let (long, short) = (folder.log().join("control.log"), folder.log().join("server.log"));
        fs::write(&long, vec![b'a'; 2 * 1024 * 1024]).unwrap();
        fs::write(&short, "a").unwrap();
        truncate_logs(&folder).unwrap();
        assert_eq!([long, short].map(|path| fs::metadata(path).unwrap().len()), [0, 1]);
    }
}
