//! The format of `/etc/ld.so.cache`, in which the loader finds libraries by their names.
//!
//! Source: glibc, `sysdeps/generic/dl-cache.h` (the layout), `elf/cache.c` (the order) and `elf/dl-cache.c` (the search, which is
//! binary and needs that very order). Every glibc since 2.2 reads the format 1.1; glibc 2.32 and newer write nothing else.

use std::{cmp::Ordering, collections::BTreeSet};

const MAGIC: &[u8; 20] = b"glibc-ld.so.cache1.1";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
const LITTLE_ENDIAN: u8 = 2;
const EXTENSION_MAGIC: u32 = 0xeaa4_2174;
const GENERATOR: u32 = 0;
const HWCAPS: u32 = 1;
/// Marks an entry whose lower bits are the number of a folder of optimised libraries.
const HWCAPS_BIT: u64 = 1 << 62;
const PROGRAM: &str = concat!("gpunode-hook ", env!("CARGO_PKG_VERSION"));

/// A library that the loader can find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheEntry {
    /// Name by which programs ask for it.
    pub name: String,
    /// Its file.
    pub path: String,
    /// Its loader.
    pub flags: u32,
    /// Folder of `glibc-hwcaps` for processors with more instructions, such as `x86-64-v3`.
    pub hwcaps: Option<String>,
}

/// Returns the content of a cache with `entries`; of those with the same name, the first is the one that the loader takes. `None` if
/// they are too many for the format.
pub fn encode(mut entries: Vec<CacheEntry>) -> Option<Vec<u8>> {
    entries.sort_by(order);
    let hwcaps: BTreeSet<&str> = entries.iter().filter_map(|entry| entry.hwcaps.as_deref()).collect();
    let strings_start = entries.len().checked_mul(ENTRY_BYTES)?.checked_add(HEADER_BYTES)?;
    let mut strings = Strings {
        start: strings_start,
        bytes: Vec::new(),
    };
    let mut table = Vec::new();
    for entry in &entries {
        let path = strings.add(&entry.path)?;
        // The name is mostly the end of the path.
        let name = match entry.path.strip_suffix(&entry.name) {
            Some(folder) => path.checked_add(u32::try_from(folder.len()).ok()?)?,
            None => strings.add(&entry.name)?,
        };
        let number = entry
            .hwcaps
            .as_deref()
            .and_then(|name| hwcaps.iter().position(|known| *known == name));
        let hwcap = match number {
            Some(number) => HWCAPS_BIT | u64::try_from(number).ok()?,
            None => 0,
        };
        for word in [entry.flags, name, path, 0] {
            table.extend(word.to_le_bytes());
        }
        table.extend(hwcap.to_le_bytes());
    }
    let hwcaps = hwcaps
        .into_iter()
        .map(|name| strings.add(name))
        .collect::<Option<Vec<u32>>>()?;
    let strings_bytes = u32::try_from(strings.bytes.len()).ok()?;
    // Numbers in the extension are aligned to four bytes.
    let extension = strings_start
        .checked_add(strings.bytes.len())?
        .checked_next_multiple_of(4)?;

    let mut file = MAGIC.to_vec();
    file.extend(u32::try_from(entries.len()).ok()?.to_le_bytes());
    file.extend(strings_bytes.to_le_bytes());
    file.extend([LITTLE_ENDIAN, 0, 0, 0]);
    file.extend(u32::try_from(extension).ok()?.to_le_bytes());
    file.resize(HEADER_BYTES, 0);
    file.extend(table);
    file.extend(strings.bytes);
    file.resize(extension, 0);
    extend(&mut file, &hwcaps)?;
    Some(file)
}

/// Appends the directory of the extension, and what it points to: the folders of optimised libraries, and who wrote the cache.
fn extend(file: &mut Vec<u8>, hwcaps: &[u32]) -> Option<()> {
    const DIRECTORY_BYTES: usize = 8 + 2 * 16;
    let hwcaps_start = u32::try_from(file.len().checked_add(DIRECTORY_BYTES)?).ok()?;
    let hwcaps_bytes = u32::try_from(hwcaps.len().checked_mul(4)?).ok()?;
    let generator_start = hwcaps_start.checked_add(hwcaps_bytes)?;
    let generator_bytes = u32::try_from(PROGRAM.len()).ok()?;
    let directory: [&[u32]; 3] = [
        &[EXTENSION_MAGIC, 2],
        &[GENERATOR, 0, generator_start, generator_bytes],
        &[HWCAPS, 0, hwcaps_start, hwcaps_bytes],
    ];
    for number in directory.concat().iter().chain(hwcaps) {
        file.extend(number.to_le_bytes());
    }
    file.extend(PROGRAM.as_bytes());
    Some(())
}

/// Texts with a zero byte at their end, found by their distance from the start of the file.
struct Strings {
    start: usize,
    bytes: Vec<u8>,
}

impl Strings {
    fn add(&mut self, text: &str) -> Option<u32> {
        let place = self.start.checked_add(self.bytes.len())?;
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
        u32::try_from(place).ok()
    }
}

/// Greatest name first; of one name and loader, optimised libraries first.
fn order(one: &CacheEntry, other: &CacheEntry) -> Ordering {
    compare_names(&other.name, &one.name)
        .then_with(|| other.flags.cmp(&one.flags))
        .then_with(|| match (&one.hwcaps, &other.hwcaps) {
            (Some(one), Some(other)) => one.cmp(other),
            (one, other) => other.is_some().cmp(&one.is_some()),
        })
}

/// Compares as the loader does: numbers by their value, and a number is greater than any other character.
pub fn compare_names(one: &str, other: &str) -> Ordering {
    let (mut one, mut other) = (one.as_bytes(), other.as_bytes());
    loop {
        match (one.split_first(), other.split_first()) {
            (None, None) => return Ordering::Equal,
            (Some((a, _)), Some((b, _))) if a.is_ascii_digit() && b.is_ascii_digit() => {
                let ((a, one_rest), (b, other_rest)) = (number(one), number(other));
                if a != b {
                    return a.cmp(&b);
                }
                (one, other) = (one_rest, other_rest);
            }
            (Some((a, _)), _) if a.is_ascii_digit() => return Ordering::Greater,
            (_, Some((b, _))) if b.is_ascii_digit() => return Ordering::Less,
            (Some((a, one_rest)), Some((b, other_rest))) if a == b => (one, other) = (one_rest, other_rest),
            (a, b) => return a.map(|(byte, _)| byte).cmp(&b.map(|(byte, _)| byte)),
        }
    }
}

/// Returns the number at the start of `text`, as the loader's `int` counts it, and the rest.
fn number(text: &[u8]) -> (i32, &[u8]) {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at(digits);
    let value = digits.iter().fold(0_i32, |value, digit| {
        value.wrapping_mul(10).wrapping_add(i32::from(digit.wrapping_sub(b'0')))
    });
    (value, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, process::Command};

    fn entry(name: &str, path: &str, flags: u32, hwcaps: Option<&str>) -> CacheEntry {
        CacheEntry {
            name: name.into(),
            path: path.into(),
            flags,
            hwcaps: hwcaps.map(str::to_owned),
        }
    }

    fn printed(entries: Vec<CacheEntry>) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), encode(entries).unwrap()).unwrap();
        let output = Command::new("/sbin/ldconfig")
            .arg("-p")
            .arg("-C")
            .arg(file.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn ldconfig_reads_the_cache() {
        let text = printed(vec![
            entry("liba.so.2", "/opt/a/liba.so.2", 0x0303, None),
            entry("liba.so.10", "/opt/a/liba.so.10", 0x0303, None),
            entry("liba.so.10", "/opt/b/liba.so.10", 0x0303, None),
            entry(
                "liba.so.10",
                "/opt/b/glibc-hwcaps/x86-64-v3/liba.so.10.1",
                0x0303,
                Some("x86-64-v3"),
            ),
            entry("liba.so.10", "/opt/c/liba.so.10", 0x0003, None),
            entry("libb.so.1", "/opt/b/libb.so.1", 0x0a03, None),
        ]);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert!(lines[0].starts_with("6 libs found in cache"), "{text}");
        assert_eq!(
            lines[1..7],
            [
                "libb.so.1 (libc6,AArch64) => /opt/b/libb.so.1",
                r#"liba.so.10 (libc6,x86-64, hwcap: "x86-64-v3") => /opt/b/glibc-hwcaps/x86-64-v3/liba.so.10.1"#,
                "liba.so.10 (libc6,x86-64) => /opt/a/liba.so.10",
                "liba.so.10 (libc6,x86-64) => /opt/b/liba.so.10",
                "liba.so.10 (libc6) => /opt/c/liba.so.10",
                "liba.so.2 (libc6,x86-64) => /opt/a/liba.so.2",
            ]
        );
        assert_eq!(lines[7], format!("Cache generated by: {PROGRAM}"));
        assert!(printed(Vec::new()).starts_with("0 libs found in cache"));
    }

    #[test]
    fn names_have_the_order_of_the_loader() {
        let ascending = [
            "lib",
            "liba.so",
            "liba.so.2",
            "liba.so.10",
            "liba.so.10.1",
            "liba1.so",
            "libb.so",
        ];
        for (place, one) in ascending.iter().enumerate() {
            for (other_place, other) in ascending.iter().enumerate() {
                assert_eq!(compare_names(one, other), place.cmp(&other_place), "{one} {other}");
            }
        }
        assert_eq!(compare_names("liba.so.01", "liba.so.1"), Ordering::Equal);
        // Longer than the loader's numbers: any order will do that is one.
        let long = "lib20240115123456789.so";
        assert_eq!(compare_names(long, long), Ordering::Equal);
    }
}
