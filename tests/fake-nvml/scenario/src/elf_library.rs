//! Shared libraries without code, which `ldconfig` and ELF readers take for real ones.

/// Length of the header, of a program header, of a section header, of a symbol and of an entry of the dynamic section.
const HEADER: u64 = 64;
const PROGRAM: u64 = 56;
const SECTION: u64 = 64;
const SYMBOL: u64 = 24;
const ENTRY: u64 = 16;

const PROGRAMS: u64 = 2;
const SECTIONS: u64 = 5;
/// Names of the sections, each after a zero.
const SECTION_NAMES: &[u8] = b"\0.dynstr\0.dynsym\0.dynamic\0.shstrtab\0";
/// Machine of this architecture (`EM_X86_64`, `EM_AARCH64`).
const MACHINE: u64 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Returns a 64-bit library with that `soname`, one segment and no symbol.
pub fn shared_library(soname: &str) -> Vec<u8> {
    let names = [b"\0".as_slice(), soname.as_bytes(), b"\0"].concat();
    let names_at = HEADER + PROGRAMS * PROGRAM;
    let symbols_at = aligned(names_at + length(&names));
    let dynamic_at = symbols_at + SYMBOL;
    // DT_SONAME, DT_STRTAB, DT_STRSZ, DT_SYMTAB, DT_SYMENT, DT_NULL.
    let dynamic: Vec<u64> = [
        (14, 1),
        (5, names_at),
        (10, length(&names)),
        (6, symbols_at),
        (11, SYMBOL),
        (0, 0),
    ]
    .into_iter()
    .flat_map(|(tag, value)| [tag, value])
    .collect();
    let dynamic_length = length(&dynamic) * 8;
    let section_names_at = dynamic_at + dynamic_length;
    let sections_at = aligned(section_names_at + length(SECTION_NAMES));
    let total = sections_at + SECTIONS * SECTION;

    let mut file = Bytes::default();
    // 64 bits, little endian, version 1, System V.
    file.bytes(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // ET_DYN; no entry point.
    file.half(3)
        .half(MACHINE)
        .word(1)
        .long(0)
        .long(HEADER)
        .long(sections_at)
        .word(0);
    file.half(HEADER)
        .half(PROGRAM)
        .half(PROGRAMS)
        .half(SECTION)
        .half(SECTIONS)
        .half(4);
    // PT_LOAD, readable, of the whole file; PT_DYNAMIC.
    for (kind, at, size, alignment) in [(1, 0, total, 0x1000), (2, dynamic_at, dynamic_length, 8)] {
        file.word(kind)
            .word(4)
            .long(at)
            .long(at)
            .long(at)
            .long(size)
            .long(size)
            .long(alignment);
    }
    file.bytes(&names).pad(symbols_at + SYMBOL);
    for number in &dynamic {
        file.long(*number);
    }
    file.bytes(SECTION_NAMES).pad(sections_at + SECTION);
    // Offset of the name, kind (SHT_STRTAB, SHT_DYNSYM, SHT_DYNAMIC), flags, address, place, linked section, entries.
    for (name, kind, flags, at, size, link, local, entry) in [
        (1, 3, 2, names_at, length(&names), 0, 0, 0),
        (9, 11, 2, symbols_at, SYMBOL, 1, 1, SYMBOL),
        (17, 6, 2, dynamic_at, dynamic_length, 1, 0, ENTRY),
        (26, 3, 0, section_names_at, length(SECTION_NAMES), 0, 0, 0),
    ] {
        let address = if flags == 0 { 0 } else { at };
        file.word(name).word(kind).long(flags).long(address).long(at).long(size);
        file.word(link).word(local).long(8).long(entry);
    }
    file.0
}

fn length<T>(items: &[T]) -> u64 {
    items.len() as u64
}

fn aligned(at: u64) -> u64 {
    at.next_multiple_of(8)
}

#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn half(&mut self, number: u64) -> &mut Self {
        self.low_bytes(number, 2)
    }

    fn word(&mut self, number: u64) -> &mut Self {
        self.low_bytes(number, 4)
    }

    fn long(&mut self, number: u64) -> &mut Self {
        self.low_bytes(number, 8)
    }

    fn low_bytes(&mut self, number: u64, count: usize) -> &mut Self {
        self.0.extend(number.to_le_bytes().into_iter().take(count));
        self
    }

    /// Adds zeros up to that length.
    fn pad(&mut self, until: u64) -> &mut Self {
        while length(&self.0) < until {
            self.0.push(0);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_is_as_long_as_its_headers_say() {
        for soname in ["libcuda.so.1", "libnvidia-glcore.so.580.95.05"] {
            let library = shared_library(soname);
            let long = |at: usize| u64::from_le_bytes(library[at..at + 8].try_into().unwrap());
            assert_eq!(
                length(&library),
                long(0x28) + SECTIONS * SECTION,
                "section headers are last"
            );
            assert_eq!(length(&library), long(64 + 32), "the segment is the whole file");
            let name_at = usize::try_from(HEADER + PROGRAMS * PROGRAM + 1).unwrap();
            assert!(library[name_at..].starts_with(soname.as_bytes()));
        }
    }
}
