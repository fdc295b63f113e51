//! Bounds of the number of entries in a list.

use super::problem::FieldProblem;
use std::ops::RangeInclusive;

/// Adds a problem if the list at `path` has too few or too many entries. A list that is not set has no length.
pub fn validate_length(
    path: impl Into<String>,
    length: impl Into<Option<usize>>,
    bounds: RangeInclusive<usize>,
    problems: &mut Vec<FieldProblem>,
) {
    let Some(length) = length.into().filter(|length| !bounds.contains(length)) else {
        return;
    };
    let (least, most) = bounds.into_inner();
    let entries = if most == 1 { "entry" } else { "entries" };
    let message = match least {
        0 => format!("must have at most {most} {entries}, has {length}"),
        _ => format!("must have {least} to {most} {entries}, has {length}"),
    };
    problems.push(FieldProblem::new(path, message));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_outside_its_bounds_is_told_with_both() {
        let told = |length: Option<usize>, bounds: RangeInclusive<usize>| {
            let mut problems = Vec::new();
            validate_length("list", length, bounds, &mut problems);
            problems.first().map(ToString::to_string).unwrap_or_default()
        };
        assert_eq!(told(Some(0), 1..=16), "list: must have 1 to 16 entries, has 0");
        assert_eq!(told(Some(17), 1..=16), "list: must have 1 to 16 entries, has 17");
        assert_eq!(told(Some(5), 0..=4), "list: must have at most 4 entries, has 5");
        assert_eq!(told(Some(2), 0..=1), "list: must have at most 1 entry, has 2");
        for (length, bounds) in [(Some(1), 1..=16), (Some(16), 1..=16), (Some(0), 0..=4), (None, 1..=16)] {
            assert_eq!(told(length, bounds), "");
        }
    }
}
