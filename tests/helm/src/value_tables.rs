//! The tables of the README. Pure.

use crate::chart_value::{ChartValue, ValueContent};
use std::fmt::Write;

/// Returns a table of the values without a group, then a section for each group.
pub fn tables(values: &[ChartValue]) -> String {
    let mut text = String::new();
    let is_group = |value: &&ChartValue| matches!(value.content, ValueContent::Group(_));
    let plain: Vec<ChartValue> = values.iter().filter(|value| !is_group(value)).cloned().collect();
    table(&mut text, &plain, "");
    for group in values.iter().filter(is_group) {
        if let ValueContent::Group(values) = &group.content {
            let _ = write!(text, "\n### {}\n\n{}\n\n", group.key, group.description);
            table(&mut text, values, &format!("{}.", group.key));
        }
    }
    text
}

fn table(text: &mut String, values: &[ChartValue], prefix: &str) {
    text.push_str("| value | default | |\n|---|---|---|\n");
    rows(text, values, prefix);
}

fn rows(text: &mut String, values: &[ChartValue], prefix: &str) {
    for value in values {
        let (key, description) = (&value.key, value.description.replace('|', "\\|"));
        match &value.content {
            ValueContent::Default(_, default) => {
                let default = default.replace('|', "\\|");
                let _ = writeln!(text, "| `{prefix}{key}` | `{default}` | {description} |");
            }
            ValueContent::Group(values) => rows(text, values, &format!("{prefix}{key}.")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_sections_and_groups_in_them_are_paths() {
        let values =
            ChartValue::parse("# One.\na: \"\"\n# Group.\nb:\n  # Inner.\n  c:\n    # Two | 2.\n    d: 2\n").unwrap();
        assert_eq!(
            tables(&values),
            "| value | default | |\n|---|---|---|\n| `a` | `\"\"` | One. |\n\n### b\n\nGroup.\n\n| value | default | |\n\
             |---|---|---|\n| `b.c.d` | `2` | Two \\| 2. |\n"
        );
    }
}
