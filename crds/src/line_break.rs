//! Lines of a limited width.

/// Breaks a line of more than `limit` characters at its spaces, and indents each line but the first. A command in backticks
/// stays in one piece, so that it can be copied; other words longer than a line are cut.
pub fn wrapped(line: &str, limit: usize, indent: usize) -> String {
    let next_line = format!("\n{}", " ".repeat(indent));
    let words_begin = line.trim_start_matches(' ');
    let mut text = " ".repeat(line.len() - words_begin.len());
    let mut used = text.len();
    let mut is_empty = true;
    for word in words(words_begin) {
        let length = word.chars().count();
        if !is_empty && used + 1 + length > limit {
            text.push_str(&next_line);
            (used, is_empty) = (indent, true);
        }
        if !is_empty {
            text.push(' ');
            used += 1;
        }
        if word.contains('`') {
            text.push_str(&word);
            used += length;
        } else {
            for c in word.chars() {
                if used == limit {
                    text.push_str(&next_line);
                    used = indent;
                }
                text.push(c);
                used += 1;
            }
        }
        is_empty = false;
    }
    text
}

/// Splits a line at the spaces outside backticks.
fn words(line: &str) -> Vec<String> {
    let has_pairs = line.matches('`').count().is_multiple_of(2);
    let mut words = Vec::new();
    let mut word = String::new();
    let mut is_quoted = false;
    for c in line.chars() {
        is_quoted ^= c == '`' && has_pairs;
        if c == ' ' && !is_quoted {
            words.push(std::mem::take(&mut word));
        } else {
            word.push(c);
        }
    }
    words.push(word);
    words
}
