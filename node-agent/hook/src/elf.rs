//! Shared libraries: for which loader, under which name, with which notes.
//!
//! Source: elf(5). Files of an image can hold anything: every part has a size limit, and nothing is read whole.

use std::{fs::File, os::unix::fs::FileExt as _};

/// Limit on the entries of a table.
const MAX_ENTRIES: u64 = 4096;
/// Limit on a part that is read at once, in bytes.
const MAX_PART: u64 = 256 * 1024;
/// Limit on a name in bytes, that of a file.
const MAX_NAME: usize = 255;

const TYPE_SHARED: u16 = 3;
const SEGMENT_LOAD: u64 = 1;
const SEGMENT_DYNAMIC: u64 = 2;
const DYNAMIC_STRINGS: u64 = 5;
const DYNAMIC_SONAME: u64 = 14;
const SECTION_NOTE: u64 = 7;

/// A shared library, of which the parts are read when they are asked for.
#[derive(Debug)]
pub struct Elf<'a> {
    file: &'a File,
    header: Vec<u8>,
    /// 64 bits, not 32.
    is_wide: bool,
}

/// A piece of a file, and the address at which a program sees it.
#[derive(Debug, Clone, Copy)]
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    size: u64,
}

impl<'a> Elf<'a> {
    /// Reads the header; `None` if `file` is no shared library in little-endian order.
    pub fn read(file: &'a File) -> Option<Self> {
        let mut header = vec![0; 64];
        let length = file.read_at(&mut header, 0).ok()?;
        header.truncate(length);
        let is_wide = match header.get(..6)? {
            [0x7f, b'E', b'L', b'F', 1, 1] => false,
            [0x7f, b'E', b'L', b'F', 2, 1] => true,
            _ => return None,
        };
        let elf = Self { file, header, is_wide };
        (u16_at(&elf.header, 16)? == TYPE_SHARED).then_some(elf)
    }

    /// Returns the flags by which the loader of processor `architecture` knows its libraries in `ld.so.cache`; `None` for those of
    /// others. Source: glibc, `sysdeps/generic/ldconfig.h` and `readelflib.c` of x86_64 and arm.
    pub fn cache_flags(&self, architecture: &str) -> Option<u32> {
        const HARD_FLOAT: u32 = 0x400;
        const SOFT_FLOAT: u32 = 0x200;
        let flags = || u32_at(&self.header, 36).unwrap_or_default();
        match (architecture, u16_at(&self.header, 18)?, self.is_wide) {
            ("x86_64", 62, true) => Some(0x0303),
            ("x86_64", 62, false) => Some(0x0803),
            ("aarch64", 183, true) => Some(0x0a03),
            ("aarch64", 40, false) if flags() & HARD_FLOAT != 0 => Some(0x0903),
            ("aarch64", 40, false) if flags() & SOFT_FLOAT != 0 => Some(0x0b03),
            ("x86_64", 3, false) | ("aarch64", 40, false) => Some(0x0003),
            _ => None,
        }
    }

    /// Returns the name under which programs ask for the library: its `DT_SONAME`, empty if it has none. `None` if it cannot be loaded,
    /// or not under a plain name.
    pub fn soname(&self) -> Option<String> {
        let segments = self.segments()?;
        let dynamic = segments.iter().find(|segment| segment.kind == SEGMENT_DYNAMIC)?;
        let entries = self.part(dynamic.offset, dynamic.size)?;
        let word = if self.is_wide { 8 } else { 4 };
        let value = |tag: u64| {
            entries
                .chunks_exact(2 * word)
                .map(|entry| entry.split_at(word))
                .find(|(found, _)| self.word_at(found, 0) == Some(tag))
                .and_then(|(_, value)| self.word_at(value, 0))
        };
        let Some(name) = value(DYNAMIC_SONAME) else {
            return Some(String::new());
        };
        let address = value(DYNAMIC_STRINGS)?.checked_add(name)?;
        let offset = segments
            .iter()
            .filter(|segment| segment.kind == SEGMENT_LOAD)
            .find_map(|segment| {
                let within = address.checked_sub(segment.address)?;
                (within < segment.size).then(|| segment.offset.checked_add(within))?
            })?;
        let mut text = vec![0; MAX_NAME + 1];
        let length = self.file.read_at(&mut text, offset).ok()?;
        let text = text.get(..length)?.split(|byte| *byte == 0).next()?;
        let is_name = |text: &&str| {
            text.len() <= MAX_NAME && !text.contains('/') && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let text = str::from_utf8(text).ok().filter(is_name)?;
        // A name of dots would be that of a folder.
        (!text.trim_matches('.').is_empty()).then(|| text.to_owned())
    }

    /// Returns the description of the first note in the section `name`, if the note is by `owner`.
    pub fn note(&self, name: &str, owner: &str) -> Option<Vec<u8>> {
        let (offset, entry, count, names) = if self.is_wide {
            (40, 58, 60, 62)
        } else {
            (32, 46, 48, 50)
        };
        let table = self.table(self.word_at(&self.header, offset)?, entry, count)?;
        let strings = usize::from(u16_at(&self.header, names)?);
        let sections: Vec<&[u8]> = table.0.chunks_exact(table.1).collect();
        let place = |section: &[u8]| {
            let (offset, size) = if self.is_wide { (24, 32) } else { (16, 20) };
            Some((self.word_at(section, offset)?, self.word_at(section, size)?))
        };
        let (offset, size) = place(sections.get(strings)?)?;
        let strings = self.part(offset, size)?;
        let has_name = |section: &&&[u8]| {
            let start = u32_at(section, 0).and_then(|start| usize::try_from(start).ok());
            let rest = start.and_then(|start| strings.get(start..)).unwrap_or_default();
            rest.split(|byte| *byte == 0).next() == Some(name.as_bytes())
                && u32_at(section, 4).map(u64::from) == Some(SECTION_NOTE)
        };
        let section = sections.iter().find(has_name)?;
        let (offset, size) = place(section)?;
        let align = self.word_at(section, if self.is_wide { 48 } else { 32 })?;
        first_note(&self.part(offset, size)?, align, owner)
    }

    fn segments(&self) -> Option<Vec<Segment>> {
        let (offset, entry, count) = if self.is_wide { (32, 54, 56) } else { (28, 42, 44) };
        let (table, size) = self.table(self.word_at(&self.header, offset)?, entry, count)?;
        let (offset, address, length) = if self.is_wide { (8, 16, 32) } else { (4, 8, 16) };
        table
            .chunks_exact(size)
            .map(|entry| {
                Some(Segment {
                    kind: u32_at(entry, 0)?.into(),
                    offset: self.word_at(entry, offset)?,
                    address: self.word_at(entry, address)?,
                    size: self.word_at(entry, length)?,
                })
            })
            .collect()
    }

    /// Reads a table at `offset` whose entry size and number are at these places of the header; returns it with the size.
    fn table(&self, offset: u64, entry: usize, count: usize) -> Option<(Vec<u8>, usize)> {
        let size = u16_at(&self.header, entry)?;
        let count = u64::from(u16_at(&self.header, count)?);
        if size == 0 || count > MAX_ENTRIES {
            return None;
        }
        Some((self.part(offset, u64::from(size) * count)?, size.into()))
    }

    fn part(&self, offset: u64, size: u64) -> Option<Vec<u8>> {
        let size = usize::try_from(size).ok().filter(|_| size <= MAX_PART)?;
        let mut bytes = vec![0; size];
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }

    fn word_at(&self, bytes: &[u8], place: usize) -> Option<u64> {
        if self.is_wide {
            let end = place.checked_add(8)?;
            return Some(u64::from_le_bytes(bytes.get(place..end)?.try_into().ok()?));
        }
        u32_at(bytes, place).map(u64::from)
    }
}

/// Returns the description of the note at the start of `bytes`: three numbers of four bytes, the owner, the description.
fn first_note(bytes: &[u8], align: u64, owner: &str) -> Option<Vec<u8>> {
    const NUMBERS: usize = 12;
    let align = usize::try_from(align)
        .ok()
        .filter(|align| align.is_power_of_two() && *align <= 16)?;
    let owner_size = usize::try_from(u32_at(bytes, 0)?).ok()?;
    let size = usize::try_from(u32_at(bytes, 4)?).ok()?;
    let owner_end = NUMBERS.checked_add(owner_size)?;
    let found = bytes.get(NUMBERS..owner_end)?.split(|byte| *byte == 0).next()?;
    let start = NUMBERS.checked_add(owner_size.checked_next_multiple_of(align)?)?;
    let description = bytes.get(start..start.checked_add(size)?)?;
    (found == owner.as_bytes()).then(|| description.to_owned())
}

fn u16_at(bytes: &[u8], place: usize) -> Option<u16> {
    let end = place.checked_add(2)?;
    Some(u16::from_le_bytes(bytes.get(place..end)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], place: usize) -> Option<u32> {
    let end = place.checked_add(4)?;
    Some(u32::from_le_bytes(bytes.get(place..end)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{env::consts::ARCH, fs, io::Write as _};

    /// The C library of this machine.
    fn libc() -> Vec<u8> {
        let folders = ["x86_64-linux-gnu", "aarch64-linux-gnu"];
        let read = |folder: &&str| fs::read(format!("/lib/{folder}/libc.so.6")).ok();
        folders.iter().find_map(read).unwrap()
    }

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn a_library_says_its_name_and_its_loader() {
        let file = file(&libc());
        let elf = Elf::read(&file).unwrap();
        assert_eq!(elf.soname(), Some("libc.so.6".into()));
        let flags = if ARCH == "x86_64" { 0x0303 } else { 0x0a03 };
        assert_eq!(elf.cache_flags(ARCH), Some(flags));
        assert_eq!(elf.cache_flags("riscv64"), None);
        let owner = elf.note(".note.gnu.build-id", "GNU").unwrap();
        assert_eq!(owner.len(), 20);
        assert_eq!(elf.note(".note.gnu.build-id", "NVIDIA Corporation"), None);
        assert_eq!(elf.note(".note.cuda.fwd_compatibility", "NVIDIA Corporation"), None);
    }

    #[test]
    fn a_damaged_library_is_none() {
        let whole = libc();
        for length in (0..4096).step_by(7) {
            let file = file(&whole[..length]);
            if let Some(elf) = Elf::read(&file) {
                let _ = (elf.soname(), elf.note(".note.gnu.build-id", "GNU"));
            }
        }
        // Each byte of the header in turn says too much.
        for place in 0..64 {
            let mut damaged = whole.clone();
            damaged[place] = 0xff;
            let file = file(&damaged);
            if let Some(elf) = Elf::read(&file) {
                let _ = (elf.soname(), elf.note(".note.gnu.build-id", "GNU"));
            }
        }
        assert!(Elf::read(&file(b"INPUT(libc.so.6)")).is_none());
        assert!(Elf::read(&file(b"")).is_none());
    }
}
