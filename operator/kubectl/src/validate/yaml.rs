//! Reads YAML as kubectl and the API server do, and remembers the line of each field.
//!
//! Duplicate keys are kept as problems, because strict field validation refuses them. Everything is bounded: the size of
//! the text, the depth (by the parser) and the expansion of aliases.

use super::{
    problem::{DocumentProblem, child, parent},
    scalar,
};
use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Most bytes of one file: the API server takes no larger request.
pub const MAX_BYTES: usize = 3 * 1024 * 1024;

/// Most values of one file, including those that aliases repeat.
const MAX_VALUES: usize = 200_000;

/// One document of a file.
#[derive(Debug, Default)]
pub struct YamlDocument {
    /// The document as JSON.
    pub value: Value,
    /// Line on which the document starts, counted from 1.
    pub line: usize,
    /// Duplicate keys.
    pub duplicates: Vec<DocumentProblem>,
    lines: HashMap<String, usize>,
}

impl YamlDocument {
    /// Returns the line of the field at `path`, or of the nearest field around it.
    pub fn line_of(&self, path: &str) -> usize {
        let mut path = path;
        loop {
            match self.lines.get(path) {
                Some(line) => return *line,
                None if path.is_empty() => return self.line,
                None => path = parent(path),
            }
        }
    }
}

/// Parses the documents of `text`. A syntax error ends the list and is returned beside it.
pub fn read(text: &str) -> (Vec<YamlDocument>, Option<DocumentProblem>) {
    let mut documents = Vec::new();
    if text.len() > MAX_BYTES {
        let message = format!("{} bytes exceed the API server's limit of {MAX_BYTES}", text.len());
        return (documents, Some(DocumentProblem::new("", message)));
    }
    // The parser skips them, and the API server's does not.
    if let Some(line) = text.lines().skip(1).position(|line| line.starts_with('\u{feff}')) {
        let problem = DocumentProblem::new(
            "",
            "a byte order mark may only begin the file; remove it from this line",
        );
        return (documents, Some(problem.on_line(line + 2)));
    }
    let mut reader = YamlReader {
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        left: MAX_VALUES,
        document: None,
    };
    let problem = reader.documents(&mut documents).err();
    (documents, problem.or_else(|| refused_by_libyaml(text)))
}

/// Returns what libyaml refuses: kubectl and the API server read with a port of it, which is stricter than the parser of YAML 1.2 here.
fn refused_by_libyaml(text: &str) -> Option<DocumentProblem> {
    let mut documents = serde_yaml::Deserializer::from_str(text);
    let error = documents.find_map(|document| IgnoredAny::deserialize(document).err())?;
    let problem = DocumentProblem::new("", format!("is not valid YAML: {error}"));
    Some(match error.location() {
        Some(place) => problem.on_line(place.line()),
        None => problem,
    })
}

struct YamlReader<'a> {
    events: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Value>,
    left: usize,
    document: Option<YamlDocument>,
}

type YamlResult<T> = Result<T, DocumentProblem>;

impl<'a> YamlReader<'a> {
    fn documents(&mut self, documents: &mut Vec<YamlDocument>) -> YamlResult<()> {
        while let Some((event, span)) = self.next()? {
            if !matches!(event, Event::DocumentStart(..)) {
                continue;
            }
            self.anchors.clear();
            self.document = Some(YamlDocument {
                line: span.end.line(),
                ..YamlDocument::default()
            });
            let Some((event, span)) = self.next()? else { break };
            let (value, line) = (self.value(event, span, "")?, span.start.line());
            if let Some(document) = self.document.take().filter(|_| !value.is_null()) {
                documents.push(YamlDocument {
                    value,
                    line,
                    ..document
                });
            }
        }
        Ok(())
    }

    fn next(&mut self) -> YamlResult<Option<(Event<'a>, Span)>> {
        for event in self.events.by_ref() {
            let (event, span) = event.map_err(|error| unreadable(&error))?;
            if !matches!(event, Event::Comment(..)) {
                return Ok(Some((event, span)));
            }
        }
        Ok(None)
    }

    fn value(&mut self, event: Event<'a>, span: Span, path: &str) -> YamlResult<Value> {
        let line = span.start.line();
        self.take(1, line)?;
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = match tag {
                    Some(tag) => scalar::resolve_tagged(&text, &format!("{}{}", tag.handle(), tag.suffix())),
                    None if style == ScalarStyle::Plain => scalar::resolve(&text),
                    None => Ok(Value::String(text.to_string())),
                };
                let value = value.map_err(|error| DocumentProblem::new(path, error.to_string()).on_line(line))?;
                (value, anchor)
            }
            Event::SequenceStart(_, anchor, _) => (self.sequence(path)?, anchor),
            Event::MappingStart(_, anchor, _) => (self.mapping(path)?, anchor),
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned().unwrap_or_default();
                self.take(count(&value), line)?;
                (value, 0)
            }
            _ => return Err(DocumentProblem::new(path, "a value is missing").on_line(line)),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(value)
    }

    fn sequence(&mut self, path: &str) -> YamlResult<Value> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::SequenceEnd) {
                break;
            }
            let path = format!("{path}[{}]", items.len());
            self.mark(&path, span);
            items.push(self.value(event, span, &path)?);
        }
        Ok(Value::Array(items))
    }

    fn mapping(&mut self, path: &str) -> YamlResult<Value> {
        let mut map = Map::new();
        let mut merged = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, tag) if text == "<<"
                && tag.as_ref().is_none_or(|tag| tag.suffix() == "merge"));
            let key = match self.value(event, span, path)? {
                Value::String(key) => key,
                key @ (Value::Bool(_) | Value::Number(_)) => key.to_string(),
                _ => {
                    return Err(
                        DocumentProblem::new(path, "a key must be a string or a number").on_line(span.start.line())
                    );
                }
            };
            let field = child(path, &key);
            let first = self
                .document
                .as_ref()
                .filter(|_| map.contains_key(&key))
                .map(|document| document.line_of(&field));
            self.mark(&field, span);
            let Some((event, value_span)) = self.next()? else { break };
            let value = self.value(event, value_span, &field)?;
            if let (Some(first), Some(document)) = (first, self.document.as_mut()) {
                let message = format!("is given twice, first on line {first}; remove one");
                document
                    .duplicates
                    .push(DocumentProblem::new(field, message).on_line(span.start.line()));
            }
            match value {
                Value::Array(maps) if merge => merged.extend(maps),
                value if merge => merged.push(value),
                value => {
                    map.insert(key, value);
                }
            }
        }
        for (key, value) in merged.into_iter().filter_map(into_object).flatten() {
            map.entry(key).or_insert(value);
        }
        Ok(Value::Object(map))
    }

    fn mark(&mut self, path: &str, span: Span) {
        if let Some(document) = &mut self.document {
            document.lines.insert(path.to_owned(), span.start.line());
        }
    }

    fn take(&mut self, values: usize, line: usize) -> YamlResult<()> {
        self.left = self.left.checked_sub(values).ok_or_else(|| {
            DocumentProblem::new("", format!("more than {MAX_VALUES} values; split the file")).on_line(line)
        })?;
        Ok(())
    }
}

fn unreadable(error: &ScanError) -> DocumentProblem {
    DocumentProblem::new("", format!("is not valid YAML: {}", error.info())).on_line(error.marker().line())
}

fn into_object(value: Value) -> Option<Map<String, Value>> {
    if let Value::Object(map) = value {
        Some(map)
    } else {
        None
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn values(text: &str) -> Vec<Value> {
        let (documents, problem) = read(text);
        assert_eq!(problem, None, "{text}");
        documents.into_iter().map(|document| document.value).collect()
    }

    #[test]
    fn documents_are_read_as_kubectl_reads_them() {
        assert_eq!(
            values("# first\na: yes\nb: 'yes'\nc: !!str 4\nd: !!int \"4\"\n---\n---\n- 4\n- |\n  text\n"),
            [json!({"a": true, "b": "yes", "c": "4", "d": 4}), json!([4, "text\n"])]
        );
        assert_eq!(values("{\"a\": [1, {\"b\": null}]}"), [json!({"a": [1, {"b": null}]})]);
        assert_eq!(
            values("base: &base {a: 1, b: 2}\nuse: {<<: *base, b: 3}\nlist: [*base]\n"),
            [json!({"base": {"a": 1, "b": 2}, "use": {"a": 1, "b": 3}, "list": [{"a": 1, "b": 2}]})]
        );
        assert_eq!(
            values("a: &a {b: 1}\nc: {!!merge <<: *a}\nd: {\"<<\": *a}\n"),
            [json!({"a": {"b": 1}, "c": {"b": 1}, "d": {"<<": {"b": 1}}})]
        );
        assert!(values("").is_empty());
    }

    #[test]
    fn fields_know_their_lines() {
        let (documents, _) = read("a: 1\n---\nspec:\n  taints:\n  - key: a\n    effect: b\n");
        let document = documents.last().expect("two documents");
        assert_eq!(document.line_of("spec.taints[0].effect"), 6);
        assert_eq!(document.line_of("spec.taints[0].value"), 5);
        assert_eq!(document.line_of("spec.taints"), 4);
        assert_eq!(document.line_of("metadata"), 3);
    }

    #[test]
    fn a_key_given_twice_is_a_problem_of_its_path() {
        let (documents, _) = read("spec:\n  mode: Enforce\n  mode: Preview\n");
        assert_eq!(
            documents[0].duplicates,
            [DocumentProblem::new("spec.mode", "is given twice, first on line 2; remove one").on_line(3)]
        );
    }

    #[test]
    fn broken_text_keeps_the_documents_before_it() {
        let (documents, problem) = read("a: 1\n---\nb: [\n");
        assert_eq!(documents.len(), 1);
        assert!(problem.expect("a problem").message.starts_with("is not valid YAML: "));
        assert!(read(&" ".repeat(MAX_BYTES + 1)).1.is_some());
        assert!(read("\u{feff}a: 1\n").1.is_none());
        let problem = read("a: 1\n\u{feff}# b\n").1.expect("a problem");
        assert_eq!((problem.line, &problem.message[..17]), (Some(2), "a byte order mark"));
    }

    #[test]
    fn what_libyaml_refuses_is_refused() {
        for text in ["a: {b\nc: 1}\n", "a: 1\n\t# b\nc: d\n\t e: 1\n"] {
            let problem = read(text).1.unwrap_or_else(|| panic!("{text} is refused"));
            assert!(problem.message.starts_with("is not valid YAML: "), "{problem:?}");
        }
    }

    #[test]
    fn aliases_cannot_grow_without_end() {
        let mut text = String::from("a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n");
        for level in 1..10 {
            let previous = format!("*a{}", level - 1);
            text = format!("{text}a{level}: &a{level} [{}]\n", [previous.as_str(); 10].join(","));
        }
        assert!(read(&text).1.expect("a problem").message.starts_with("more than"));
    }
}
