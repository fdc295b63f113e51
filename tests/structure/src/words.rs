//! Comments: how they begin, what they must not mention.

/// Words that a doc comment must not begin with: it would be no sentence.
const HEADLESS: [&str; 8] = ["what", "whether", "how", "why", "who", "when", "where", "which"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// `///`
    Outer,
    /// `//!`
    Inner,
}

#[derive(Debug, PartialEq, Eq)]
struct Comment<'a> {
    line: usize,
    kind: Kind,
    text: &'a str,
}

/// Returns the lines of doc comments that begin with What, Whether, How, Why, Who, When, Where or Which.
pub fn headless_docs(text: &str) -> Vec<usize> {
    let comments = comments(text);
    let begins = |index: usize| {
        let comment = &comments[index];
        comment.kind != Kind::Plain
            && !index
                .checked_sub(1)
                .map(|before| &comments[before])
                .is_some_and(|before| before.kind == comment.kind && before.line + 1 == comment.line)
    };
    comments
        .iter()
        .enumerate()
        .filter(|(index, comment)| {
            let word: String = comment.text.trim().chars().take_while(|c| c.is_alphabetic()).collect();
            begins(*index) && HEADLESS.contains(&word.to_lowercase().as_str())
        })
        .map(|(_, comment)| comment.line)
        .collect()
}

/// Comments that refer to what the repository does not hold, with their lines.
pub fn foreign_references(text: &str) -> Vec<(usize, &str)> {
    let is_foreign = |text: &str| {
        let followed_by_number = |word: &str| {
            text.match_indices(word)
                .any(|(at, _)| text[at + word.len()..].starts_with(|c: char| c.is_ascii_digit()))
        };
        let has_word = |word: &str| text.split(|c: char| !c.is_alphanumeric()).any(|other| other == word);
        has_word("DESIGN")
            || has_word("HOUSE")
            || text.contains("facts/")
            || followed_by_number("Shown ")
            || followed_by_number("issue ")
    };
    comments(text)
        .into_iter()
        .filter(|comment| is_foreign(comment.text))
        .map(|comment| (comment.line, comment.text.trim()))
        .collect()
}

/// Comments from `//` to the end of a line; text in strings is none.
fn comments(text: &str) -> Vec<Comment<'_>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut line = 1;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let length = if rest.starts_with("//") {
            let comment = rest.split('\n').next().unwrap_or(rest);
            let (kind, text) = if let Some(text) = comment.strip_prefix("//!") {
                (Kind::Inner, text)
            } else if let Some(text) = comment.strip_prefix("///").filter(|text| !text.starts_with('/')) {
                (Kind::Outer, text)
            } else {
                (Kind::Plain, &comment[2..])
            };
            found.push(Comment { line, kind, text });
            comment.len()
        } else {
            string(rest).unwrap_or_else(|| rest.chars().next().map_or(1, char::len_utf8))
        };
        line += text[at..at + length].matches('\n').count();
        at += length;
    }
    found
}

/// Length of the word, string or character that `text` begins with.
fn string(text: &str) -> Option<usize> {
    let word = &text[..text.len() - text.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_').len()];
    if matches!(word, "r" | "br" | "cr") {
        let after = &text[word.len()..];
        let hashes = after.len() - after.trim_start_matches('#').len();
        if let Some(content) = after[hashes..].strip_prefix('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            return Some(word.len() + hashes + 1 + content.find(&end)? + end.len());
        }
    }
    if !word.is_empty() {
        return Some(word.len());
    }
    if text.starts_with('\'') {
        let mut letters = text.char_indices().skip(1);
        return match letters.next() {
            Some((_, '\\')) => text[3..].find('\'').map(|end| end + 4),
            // Without an end it is a lifetime.
            Some(_) => letters
                .next()
                .filter(|(_, letter)| *letter == '\'')
                .map(|(end, _)| end + 1),
            None => None,
        };
    }
    let mut escaped = false;
    text.strip_prefix('"')?
        .find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })
        .map(|end| end + 2)
}
