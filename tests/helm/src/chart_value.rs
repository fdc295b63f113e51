//! Values of the chart, with their comments. Pure.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

/// A value of the chart, or a group of them.
#[derive(Clone, Debug, PartialEq)]
pub struct ChartValue {
    pub key: String,
    /// Comment above it, as one line.
    pub description: String,
    /// Additions to the schema that follows from the default.
    pub schema: Map<String, Value>,
    pub content: ValueContent,
}

/// Content of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueContent {
    /// Default, and its text in the file.
    Default(Value, String),
    /// Values of a group.
    Group(Vec<ChartValue>),
}

const SCHEMA: &str = "@schema ";

/// A line of the file that is not empty.
struct Line<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

impl ChartValue {
    /// Reads values. Groups are written in blocks, everything else in one line.
    ///
    /// # Errors
    /// When a value has no comment, or a line has another form.
    pub fn parse(text: &str) -> Result<Vec<Self>> {
        // A comment that an empty line follows belongs to no value.
        let mut lines: Vec<Line> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                while lines.last().is_some_and(|line| line.text.starts_with('#')) {
                    lines.pop();
                }
                continue;
            }
            let text = line.trim_start();
            lines.push(Line {
                number: number + 1,
                indent: line.len() - text.len(),
                text,
            });
        }
        let mut rest = lines.as_slice();
        let values = Self::block(&mut rest, 0)?;
        ensure!(rest.is_empty(), "line {}: its indent fits nothing", rest[0].number);
        Ok(values)
    }

    /// Reads the values with this indent from the front of `lines`.
    fn block(lines: &mut &[Line<'_>], indent: usize) -> Result<Vec<Self>> {
        let mut values = Vec::new();
        let (mut description, mut schema) = (Vec::new(), Map::new());
        while let Some((line, rest)) = lines.split_first().filter(|(line, _)| line.indent == indent) {
            *lines = rest;
            let at = || format!("line {}", line.number);
            if let Some(comment) = line.text.strip_prefix('#').map(str::trim) {
                match comment.strip_prefix(SCHEMA) {
                    Some(text) => schema.extend(serde_yaml::from_str::<Map<String, Value>>(text).with_context(at)?),
                    None => description.push(comment),
                }
                continue;
            }
            let (key, default) = line.text.split_once(':').with_context(at)?;
            let default = default.trim();
            if description.is_empty() {
                bail!("line {}: {key} has no comment", line.number);
            }
            let content = if default.is_empty() {
                ValueContent::Group(Self::block(lines, indent + 2)?)
            } else {
                ValueContent::Default(serde_yaml::from_str(default).with_context(at)?, default.to_owned())
            };
            values.push(Self {
                key: key.to_owned(),
                description: std::mem::take(&mut description).join(" "),
                schema: std::mem::take(&mut schema),
                content,
            });
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_has_its_comment_its_default_and_its_schema() {
        let values = ChartValue::parse(
            "# Of the file.\n\n# A group.\na:\n  # Some\n  # text.\n  # @schema {minimum: 0}\n  b: 2\n",
        )
        .unwrap();
        let [group] = &values[..] else { panic!("{values:?}") };
        let expected = ChartValue {
            key: "b".to_owned(),
            description: "Some text.".to_owned(),
            schema: json!({"minimum": 0}).as_object().unwrap().clone(),
            content: ValueContent::Default(json!(2), "2".to_owned()),
        };
        assert_eq!((group.key.as_str(), group.description.as_str()), ("a", "A group."));
        assert_eq!(group.content, ValueContent::Group(vec![expected]));
    }

    #[test]
    fn a_value_without_a_comment_or_with_a_strange_indent_is_refused() {
        for (text, message) in [
            ("a: 1\n", "line 1: a has no comment"),
            ("# A.\na: 1\n    # B.\n    b: 1\n", "line 3"),
        ] {
            let error = ChartValue::parse(text).unwrap_err();
            assert!(format!("{error:#}").contains(message), "{error:#}");
        }
    }
}
