//! Patterns for the names of recorded functions.

use crate::functions::Function;
use std::collections::BTreeSet;

/// Bytes of other functions that a pattern may match, at least: shorter functions than that are not worth a line.
const FEW: u64 = 128;
/// A pattern may match other functions of this part of the recorded ones' size: one in so many bytes.
const SHARE: u64 = 10;

/// Returns patterns for the names of recorded functions, those of the first record first.
///
/// A pattern is the shortest beginning of names that matches few other functions. So a changed function keeps its place, and so
/// do most of those whose hash is another with the next compiler. Names that are not Rust's are given in full: their beginnings
/// could be those of other sections, such as `.text.unlikely`.
pub fn patterns(functions: &[Function], records: &[BTreeSet<String>]) -> Vec<String> {
    let mut sized: Vec<(&str, u64)> = functions.iter().map(|it| (it.name.as_str(), it.size)).collect();
    sized.sort_unstable();
    sized.dedup_by_key(|(name, _)| *name);
    let (rust, others): (Vec<_>, Vec<_>) = sized.into_iter().partition(|(name, _)| is_of_rust(name));
    let (mut recorded, mut known, mut patterns) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for record in records {
        recorded.extend(record.iter().map(String::as_str));
        let others = others
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| recorded.contains(name));
        let further = others.map(str::to_owned).chain(patterns_for(&rust, &recorded));
        patterns.extend(further.filter(|pattern| known.insert(pattern.clone())));
    }
    patterns
}

/// Returns the patterns for the recorded ones of these functions, which are sorted by name.
fn patterns_for(functions: &[(&str, u64)], recorded: &BTreeSet<&str>) -> Vec<String> {
    let mut patterns = Vec::new();
    let mut open = vec![(functions, 0)];
    while let Some((group, length)) = open.pop() {
        let (mut wanted, mut others, mut is_wanted) = (0, 0, false);
        for (name, size) in group {
            if recorded.contains(name) {
                (wanted, is_wanted) = (wanted + size, true);
            } else {
                others += size;
            }
        }
        let Some((first, _)) = group.first().filter(|_| is_wanted) else {
            continue;
        };
        if others <= FEW.max(wanted / SHARE) || group.len() == 1 {
            patterns.push(format!("{}*", first.get(..length).unwrap_or(first)));
            continue;
        }
        let length = group.last().map_or(0, |(last, _)| common_length(first, last));
        if first.len() == length && recorded.contains(first) {
            patterns.push((*first).to_owned());
        }
        let rest = group
            .iter()
            .position(|(name, _)| name.len() > length)
            .unwrap_or(group.len());
        let next = |(name, _): &(&str, u64)| name.as_bytes().get(length).copied();
        let parts = group
            .get(rest..)
            .unwrap_or_default()
            .chunk_by(|one, other| next(one) == next(other));
        open.extend(parts.map(|part| (part, length + 1)));
    }
    patterns
}

/// Returns true if the name has one of Rust's two forms.
fn is_of_rust(name: &str) -> bool {
    name.starts_with("_ZN") || name.starts_with("_R")
}

/// Returns the bytes that two names begin with alike.
fn common_length(one: &str, other: &str) -> usize {
    one.bytes()
        .zip(other.bytes())
        .take_while(|(one, other)| one == other)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, size: u64) -> Function {
        Function {
            name: name.to_owned(),
            address: 0,
            size,
        }
    }

    fn record(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn functions_of_one_module_get_one_pattern_with_few_others() {
        let functions = [
            function("_ZNplugin_list", 1000),
            function("_ZNplugin_serve", 1000),
            function("_ZNplugin_unused", 100),
            function("_ZNinspect_all", 9000),
            function("_ZNmps_run", 9000),
        ];
        let used = record(&["_ZNplugin_list", "_ZNplugin_serve"]);
        assert_eq!(patterns(&functions, &[used]), ["_ZNp*"]);
    }

    #[test]
    fn a_function_among_unused_ones_is_named_up_to_where_it_differs() {
        let functions = [
            function("_ZNget", 200),
            function("_ZNget_all", 9000),
            function("_ZNget_one", 200),
            function("_ZNget_two", 9000),
        ];
        let used = record(&["_ZNget", "_ZNget_one"]);
        assert_eq!(patterns(&functions, &[used]), ["_ZNget", "_ZNget_o*"]);
    }

    #[test]
    fn functions_of_the_first_record_come_first_and_none_comes_twice() {
        let functions = [
            function("_ZNa", 200),
            function("_ZNb", 200),
            function("_ZNc", 200),
            function("_ZNd", 9000),
        ];
        let records = [record(&["_ZNc"]), record(&["_ZNa", "_ZNc"])];
        assert_eq!(patterns(&functions, &records), ["_ZNc*", "_ZNa*"]);
    }

    #[test]
    fn a_name_that_the_program_has_no_longer_is_left_out() {
        let functions = [function("_ZNa", 200), function("_ZNd", 9000)];
        assert_eq!(patterns(&functions, &[record(&["_ZNa", "_ZNgone"])]), ["_ZNa*"]);
    }

    #[test]
    fn a_function_of_c_is_named_in_full() {
        let functions = [function("u", 200), function("_ZNd", 9000)];
        assert_eq!(patterns(&functions, &[record(&["u"])]), ["u"]);
    }
}
