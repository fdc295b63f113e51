//! Places in the audit log.

use anyhow::{Context, Result, ensure};
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
};

/// Longer than any line, with the largest object that etcd takes in the request and in the response.
const LONGEST_LINE: u64 = 4 * 1024 * 1024;

/// Returns the position just after the last whole line, in bytes: what follows from now on begins there. The API server
/// may be in the middle of a line.
pub fn end_of_whole_lines(log: &Path) -> Result<u64> {
    let mut file = File::open(log).with_context(|| format!("open {}", log.display()))?;
    let length = file.seek(SeekFrom::End(0)).context("find the end of the audit log")?;
    let begin = length.saturating_sub(LONGEST_LINE);
    file.seek(SeekFrom::Start(begin)).context("go back in the audit log")?;
    let mut end = Vec::new();
    file.read_to_end(&mut end).context("read the end of the audit log")?;
    let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    ensure!(
        whole > 0 || begin == 0,
        "no line ends in the last {LONGEST_LINE} bytes of {}",
        log.display()
    );
    Ok(begin + u64::try_from(whole)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn half_a_line_belongs_to_what_follows() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("audit.log");
        for (text, expected) in [("", 0), ("half", 0), ("one\n", 4), ("one\nhalf", 4), ("one\ntwo\n", 8)] {
            fs::write(&log, text).unwrap();
            assert_eq!(end_of_whole_lines(&log).unwrap(), expected, "{text:?}");
        }
        fs::write(&log, vec![b'x'; 5 * 1024 * 1024]).unwrap();
        assert!(end_of_whole_lines(&log).is_err());
    }
}
