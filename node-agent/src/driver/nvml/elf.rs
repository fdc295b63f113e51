//! Computes the complete size of a library's file. Loading one that is still being written kills the process with SIGBUS.

use object::{
    Endianness, Error, ReadRef,
    elf::FileHeader64,
    read::elf::{FileHeader as _, ProgramHeader as _},
};

/// Size of the ELF header in bytes.
const HEADER: u64 = size_of::<FileHeader64<Endianness>>() as u64;

/// Returns the minimum size of the complete file in bytes, as far as its ELF headers are present.
pub fn needed<'data>(file: impl ReadRef<'data>) -> Result<u64, Error> {
    if file.len().is_ok_and(|length| length < HEADER) {
        return Ok(HEADER);
    }
    let header = FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    let table = |offset: u64, entry: u16, count: u16| offset.saturating_add(u64::from(entry) * u64::from(count));
    let programs = table(
        header.e_phoff(endian),
        header.e_phentsize(endian),
        header.e_phnum(endian),
    );
    let sections = table(
        header.e_shoff(endian),
        header.e_shentsize(endian),
        header.e_shnum(endian),
    );
    let mut needed = programs.max(sections);
    if file.len().is_ok_and(|length| length >= programs) {
        for segment in header.program_headers(endian, file)? {
            if segment.p_type(endian) == object::elf::PT_LOAD {
                needed = needed.max(segment.p_offset(endian).saturating_add(segment.p_filesz(endian)));
            }
        }
    }
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{env, fs};

    /// The test program itself, a complete ELF file.
    fn program() -> Vec<u8> {
        fs::read(env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn a_complete_file_is_no_shorter_than_it_needs_to_be() {
        let program = program();
        assert!(needed(program.as_slice()).unwrap() <= program.len() as u64);
    }

    #[test]
    fn a_file_that_was_cut_off_anywhere_is_too_short() {
        let program = program();
        let whole = usize::try_from(needed(program.as_slice()).unwrap()).unwrap();
        for length in [0, 1, 63, 64, 65, 100, 5000, whole / 2, whole - 1] {
            assert!(needed(&program[..length]).unwrap() > length as u64, "{length}");
        }
    }

    #[test]
    fn segments_count_where_there_are_no_sections() {
        let mut program = program();
        program[0x28..0x30].fill(0);
        let whole = usize::try_from(needed(program.as_slice()).unwrap()).unwrap();
        assert!(whole > 5000 && whole <= program.len());
        assert!(needed(&program[..whole - 1]).unwrap() > whole as u64 - 1);
    }

    #[test]
    fn what_is_not_elf_is_refused() {
        assert!(needed([0_u8; 5000].as_slice()).is_err());
    }
}
