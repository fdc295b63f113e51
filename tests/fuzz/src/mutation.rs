//! Damaged documents, made of good ones. A fuzzer that starts from nothing seldom gets past the parser; one that damages a good
//! document reaches what lies behind it.

use arbitrary::{Arbitrary, Unstructured};
use std::ops::Range;

/// Maximum number of changes of one document.
const MAX_EDITS: usize = 8;

/// Maximum length in bytes of a damaged document, twice what a configuration may have. As text it may be three times as long.
const MAX_BYTES: usize = 512 * 1024;

/// Words that parsers and checks treat in their own way: limits of numbers, empty values, the syntax of YAML and JSON, ids of GPUs.
const WORDS: [&str; 42] = [
    "0",
    "-1",
    "1",
    "4294967295",
    "2147483648",
    "-9223372036854775809",
    "18446744073709551616",
    "1e309",
    ".nan",
    "0x10",
    "01",
    "1.5",
    "null",
    "~",
    "true",
    "no",
    "\"\"",
    "''",
    "[]",
    "{}",
    "[",
    "}",
    ": ",
    "- ",
    ", ",
    "\n",
    "\n  ",
    "\t",
    "#",
    "&a ",
    "*a",
    "<<: *a\n",
    "!!binary ",
    "!!int ",
    "!a ",
    "| \n",
    "\u{0}",
    "\u{feff}",
    "é",
    "::",
    "-_-",
    "GPU-00000000-0000-0000-0000-000000000000",
];

/// Damage to one of some good documents.
#[derive(Clone, Debug)]
pub struct Mutation {
    document: u8,
    edits: Vec<Edit>,
}

/// One change of a document. Positions are fractions of its length.
#[derive(Clone, Debug, Arbitrary)]
enum Edit {
    /// Overwrites one byte.
    Overwrite { at: u16, byte: u8 },
    /// Removes bytes.
    Remove { at: u16, length: u8 },
    /// Inserts a word.
    Insert { at: u16, word: u8 },
    /// Puts a word in the place of a value or a name.
    Replace { at: u16, word: u8 },
    /// Copies bytes of any of the documents.
    Copy {
        document: u8,
        from: u16,
        length: u16,
        to: u16,
    },
    /// Repeats bytes.
    Repeat { at: u16, length: u8, times: u16 },
    /// Cuts off the rest.
    Cut { at: u16 },
}

impl<'a> Arbitrary<'a> for Mutation {
    fn arbitrary(input: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let document = input.arbitrary()?;
        let count = input.int_in_range(0..=MAX_EDITS)?;
        let edits = (0..count)
            .map(|_| input.arbitrary())
            .collect::<arbitrary::Result<_>>()?;
        Ok(Self { document, edits })
    }
}

impl Mutation {
    /// Returns a damaged document: one of `documents`, which are good ones.
    pub fn bytes<D: AsRef<[u8]>>(&self, documents: &[D]) -> Vec<u8> {
        let good = |number: u8| {
            let document = documents.get(usize::from(number) % documents.len().max(1));
            document.map_or(&[][..], AsRef::as_ref)
        };
        let mut bytes = good(self.document).to_vec();
        for edit in &self.edits {
            edit.apply(&mut bytes, good);
            bytes.truncate(MAX_BYTES);
        }
        bytes
    }

    /// Returns a damaged document as text; what is no UTF-8 becomes the replacement character.
    pub fn text(&self, documents: &[&str]) -> String {
        String::from_utf8_lossy(&self.bytes(documents)).into_owned()
    }
}

impl Edit {
    fn apply<'a>(&self, bytes: &mut Vec<u8>, good: impl Fn(u8) -> &'a [u8]) {
        let length_before = bytes.len();
        let position = |at| position(at, length_before);
        match *self {
            Self::Overwrite { at, byte } => {
                if let Some(old) = bytes.get_mut(position(at)) {
                    *old = byte;
                }
            }
            Self::Remove { at, length } => _ = bytes.drain(range(at, length.into(), length_before)),
            Self::Insert { at, word } => {
                let at = position(at);
                _ = bytes.splice(at..at, word_of(word).bytes());
            }
            Self::Replace { at, word } => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./".contains(byte);
                let is_gap = |byte: &u8| !is_part(byte);
                let rest = bytes.iter().skip(position(at));
                let start = position(at) + rest.take_while(|byte| is_gap(byte)).count();
                let end = start + bytes.iter().skip(start).take_while(|byte| is_part(byte)).count();
                _ = bytes.splice(start..end, word_of(word).bytes());
            }
            Self::Copy {
                document,
                from,
                length,
                to,
            } => {
                let source = good(document);
                let piece = source.get(range(from, length.into(), source.len())).unwrap_or_default();
                let to = position(to);
                _ = bytes.splice(to..to, piece.iter().copied());
            }
            Self::Repeat { at, length, times } => {
                let piece = range(at, length.into(), length_before);
                let (end, times) = (piece.end, usize::from(times).min(MAX_BYTES / piece.len().max(1)));
                let repeated = bytes.get(piece).unwrap_or_default().repeat(times);
                _ = bytes.splice(end..end, repeated);
            }
            Self::Cut { at } => bytes.truncate(position(at)),
        }
    }
}

fn word_of(number: u8) -> &'static str {
    WORDS
        .get(usize::from(number) % WORDS.len())
        .copied()
        .unwrap_or_default()
}

/// Returns the position at a fraction of `length`, from 0 to `length`.
fn position(at: u16, length: usize) -> usize {
    length * usize::from(at) / usize::from(u16::MAX)
}

fn range(at: u16, length: usize, of: usize) -> Range<usize> {
    let start = position(at, of);
    start..(start + length).min(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_bounded_and_leaves_much_as_it_was() {
        let documents = ["name: nvidia.com/gpu\nreplicas: 4\n"];
        let (mut whole, mut changed, mut lost) = (0, 0, 0);
        for seed in 0..2_000 {
            let input: Vec<u8> = (0..200_u64)
                .map(|at| {
                    (at + 1)
                        .wrapping_mul(seed * 2 + 1)
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                        .to_be_bytes()[0]
                })
                .collect();
            let mutation: Mutation = Unstructured::new(&input).arbitrary().unwrap();
            let text = mutation.text(&documents);
            assert!(text.len() <= 3 * MAX_BYTES, "{}", text.len());
            if documents.contains(&text.as_str()) {
                whole += 1;
            } else if text.contains("replicas: ") {
                changed += 1;
            } else {
                lost += 1;
            }
        }
        assert!(
            whole > 20 && changed > 200 && lost > 200,
            "{whole} whole, {changed} changed, {lost} lost"
        );
    }
}
