//! Shared libraries that hold nothing but their names.

/// Address and place of the parts: header, three program headers, dynamic entries, strings.
const HEADERS: u64 = 64;
const DYNAMIC: u64 = 256;
const STRINGS: u64 = 320;

/// Returns a shared library of this machine's processor, whose `DT_SONAME` is `soname`.
pub fn library(soname: &str) -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let shared: u16 = 3;
    file.extend(shared.to_le_bytes());
    file.extend(machine.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    for word in [0, HEADERS, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 2, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    let size = STRINGS + u64::try_from(soname.len()).unwrap() + 2;
    // The address of a byte is its place and 4096.
    for (kind, offset, length) in [(1_u32, 0, size), (2, DYNAMIC, 48)] {
        file.extend(kind.to_le_bytes());
        file.extend(4_u32.to_le_bytes());
        for word in [offset, offset + 4096, offset + 4096, length, length, 8] {
            file.extend(word.to_le_bytes());
        }
    }
    file.resize(usize::try_from(DYNAMIC).unwrap(), 0);
    for word in [5, STRINGS + 4096, 14, 1, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    file.resize(usize::try_from(STRINGS).unwrap() + 1, 0);
    file.extend(soname.as_bytes());
    file.push(0);
    file
}

/// Returns whether a program of 64 bits names a loader, which would read variables before the program does.
pub fn needs_loader(program: &[u8]) -> bool {
    let interpreter = 3_u32.to_le_bytes();
    let table = usize::try_from(u64::from_le_bytes(program[32..40].try_into().unwrap())).unwrap();
    let count = usize::from(u16::from_le_bytes(program[56..58].try_into().unwrap()));
    (0..count).any(|number| program[table + number * 56..].starts_with(&interpreter))
}
