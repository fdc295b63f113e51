//! Creates, empties and removes the folders of a device's daemon. A tmpfs covers those that containers see ([`memory`]).

use super::{device_folder::DeviceFolder, emptying::empty, memory};
use std::{fs, io, os::unix::fs::MetadataExt as _};

/// Most bytes of a log file: the logs are in memory, and each probe of a daemon adds lines.
const MAX_LOG: u64 = 1024 * 1024;

/// Creates missing folders; blocks. Existing ones stay, because containers mount them.
pub fn provide(place: &DeviceFolder) -> io::Result<()> {
    make(place)?;
    memory::provide(place)
}

fn make(place: &DeviceFolder) -> io::Result<()> {
    [place.pipe(), place.log(), place.shm()]
        .iter()
        .try_for_each(fs::create_dir_all)
}

/// Removes the files of a former daemon and its clients, whose contexts ended with it; blocks.
pub fn empty_for_a_start(place: &DeviceFolder) -> io::Result<()> {
    empty(&place.pipe())?;
    empty(&place.shm())
}

/// Removes all folders; blocks.
pub fn remove(place: &DeviceFolder) -> io::Result<()> {
    memory::remove(place)?;
    match fs::remove_dir_all(place.folder()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Truncates long log files; blocks. The daemon keeps writing to them.
pub fn bound_logs(place: &DeviceFolder) -> io::Result<()> {
    for entry in fs::read_dir(place.log())? {
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
        let folder = tempfile::tempdir().unwrap();
        let place = DeviceFolder::of(folder.path(), "GPU-1").unwrap();
        make(&place).unwrap();
        let inode = fs::metadata(place.pipe()).unwrap().ino();
        for folder in [place.pipe(), place.shm()] {
            fs::write(folder.join("file"), "").unwrap();
        }
        empty_for_a_start(&place).unwrap();
        make(&place).unwrap();
        for folder in [place.pipe(), place.shm()] {
            assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
        }
        assert_eq!(fs::metadata(place.pipe()).unwrap().ino(), inode);
    }

    #[test]
    fn a_long_log_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let place = DeviceFolder::of(folder.path(), "GPU-1").unwrap();
        make(&place).unwrap();
        let (long, short) = (place.log().join("control.log"), place.log().join("server.log"));
        fs::write(&long, vec![b'a'; 2 * 1024 * 1024]).unwrap();
        fs::write(&short, "a").unwrap();
        bound_logs(&place).unwrap();
        assert_eq!([long, short].map(|path| fs::metadata(path).unwrap().len()), [0, 1]);
    }
}
