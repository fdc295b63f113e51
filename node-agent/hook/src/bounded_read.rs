//! Reads with a size limit.

use std::io::{self, Read};

/// Reads everything that `reader` has; fails if that is more than `max` bytes.
pub fn read(reader: impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= max) {
        return Ok(bytes);
    }
    Err(io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("more than {max} bytes"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_too_many_is_an_error() {
        assert_eq!(read(&b"abc"[..], 3).unwrap(), b"abc");
        assert_eq!(read(&b"abcd"[..], 3).unwrap_err().to_string(), "more than 3 bytes");
        assert!(read(io::repeat(0), 100).is_err());
    }
}
