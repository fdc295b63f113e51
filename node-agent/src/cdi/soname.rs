//! Reads the name of a library from its ELF headers, without reading the rest of the file.

use object::{
    Endianness, ReadCache, ReadRef,
    elf::{DT_SONAME, DT_STRSZ, DT_STRTAB, FileHeader64, PT_LOAD},
    read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _},
};
use std::{fs::File, path::Path};

/// Returns the `soname` of the library at `path`; none where it has none, or is no 64-bit library. Blocks.
pub fn soname(path: &Path) -> Option<String> {
    let file = ReadCache::new(File::open(path).ok()?);
    read(&file)
}

fn read<'data>(file: impl ReadRef<'data>) -> Option<String> {
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, file).ok()?;
    let mut dynamic = segments
        .iter()
        .filter_map(|segment| segment.dynamic(endian, file).ok().flatten());
    let entries = dynamic.next()?;
    let value = |tag: i64| {
        let mut entries = entries.iter().filter(|entry| entry.tag(endian) == tag);
        entries.next().map(|entry| entry.val(endian))
    };
    let (name, address, size) = (value(DT_SONAME)?, value(DT_STRTAB)?, value(DT_STRSZ)?);
    // The table is named by its address in memory.
    let mut offsets = segments.iter().filter_map(|segment| {
        let within = address.checked_sub(segment.p_vaddr(endian))?;
        let is_here = segment.p_type(endian) == PT_LOAD && within < segment.p_filesz(endian);
        segment.p_offset(endian).checked_add(within).filter(|_| is_here)
    });
    let table = offsets.next()?;
    let range = table.checked_add(name)?..table.checked_add(size)?;
    let name = file.read_bytes_at_until(range, 0).ok()?;
    String::from_utf8(name.to_vec())
        .ok()
        .filter(|name| !name.is_empty() && !name.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpunode_scenario::shared_library;
    use std::fs;

    #[test]
    fn name_of_a_library_is_that_in_its_headers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libcuda.so.580.95.05");
        let library = shared_library("libcuda.so.1");
        fs::write(&path, &library).unwrap();
        assert_eq!(soname(&path).as_deref(), Some("libcuda.so.1"));
    }

    #[test]
    fn what_is_cut_off_or_no_library_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("library");
        assert_eq!(soname(&path), None);
        let library = shared_library("libcuda.so.1");
        for length in 0..100 {
            fs::write(&path, library.get(..length).unwrap()).unwrap();
            assert_eq!(soname(&path), None, "{length}");
        }
        fs::write(&path, "INPUT(libcuda.so.1)").unwrap();
        assert_eq!(soname(&path), None);
    }

    proptest::proptest! {
        #[test]
        fn no_file_is_a_reason_to_fail(at in 0_usize..600, byte in 0_u8..) {
            let mut library = shared_library("libcuda.so.1");
            if let Some(there) = library.get_mut(at) {
                *there = byte;
            }
            _ = read(library.as_slice());
        }
    }
}
