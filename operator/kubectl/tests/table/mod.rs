//! The table of good and bad policies: files in `testdata/policies` that begin with `# expect: valid`, or with the fields
//! that are refused.

use std::{collections::BTreeSet, fs, path::Path};

/// One policy and what is to be thought of it.
pub struct Case {
    /// File name without `.yaml`.
    pub name: String,
    /// The file.
    pub yaml: String,
    /// The fields that are refused; none for a good policy. An empty path is the object itself.
    pub fields: BTreeSet<String>,
}

/// Every case, by name.
pub fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/policies");
    let mut cases: Vec<Case> = fs::read_dir(folder)
        .expect("the table is there")
        .map(|entry| case(&entry.expect("a file").path()))
        .collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(cases.len() >= 25, "only {} cases", cases.len());
    cases
}

fn case(path: &Path) -> Case {
    let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
    let yaml = fs::read_to_string(path).expect("a readable file");
    let first = yaml.lines().next().unwrap_or_default();
    let expected = first
        .strip_prefix("# expect: ")
        .unwrap_or_else(|| panic!("{name} does not say what to expect"));
    let fields = match expected {
        "valid" => BTreeSet::new(),
        fields => fields
            .split_whitespace()
            .map(|field| field.trim_matches('"').to_owned())
            .collect(),
    };
    Case { name, yaml, fields }
}

/// Fails with every case that differs.
pub fn compare(who: &str, cases: &[Case], mut said: impl FnMut(&Case) -> (BTreeSet<String>, String)) {
    let mut wrong = Vec::new();
    for case in cases {
        let (fields, words) = said(case);
        if fields != case.fields {
            wrong.push(format!(
                "{}: expected {:?}, {who} said {fields:?}\n    {words}",
                case.name, case.fields
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} cases differ:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}
