use crate::{
    Files, Tree, Uses, circles, foreign_references, headless_docs, shared_names, string_errors, table_problems,
    type_names, unused_exports, upward_dependencies,
};

fn tree(files: &[(&str, &str)]) -> Tree {
    let files: Files = files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect();
    Tree::parse("src/lib.rs", &files).unwrap()
}

fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    circles(&Uses::of(&tree(files)))
}

#[test]
fn files_that_use_each_other_are_a_circle_with_the_names_that_tie_it() {
    let found = circles_of(&[
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "use crate::b::B; pub struct A(B);"),
        ("src/b.rs", "pub struct B; fn f() -> crate::a::A { todo!() }"),
    ]);
    assert_eq!(
        found[0],
        "files that use each other: src/a.rs, src/b.rs\n  src/a.rs -> src/b.rs: B\n  src/b.rs -> src/a.rs: A"
    );
}

#[test]
fn one_direction_is_no_circle() {
    assert_eq!(
        circles_of(&[
            ("src/lib.rs", "mod a; mod b; pub use a::A; fn f() -> b::B { b::B }"),
            ("src/a.rs", "use super::b::B; pub struct A(B);"),
            ("src/b.rs", "pub struct B;"),
        ]),
        [""; 0]
    );
}

#[test]
fn a_circle_of_three_is_found() {
    let found = circles_of(&[
        ("src/lib.rs", "mod a; mod b; mod c;"),
        ("src/a.rs", "use crate::b::b; pub fn a() { b() }"),
        ("src/b.rs", "use crate::c::c; pub fn b() { c() }"),
        ("src/c.rs", "pub fn c() { super::a::a() }"),
    ]);
    assert_eq!(found.len(), 2, "as files and as modules: {found:?}");
}

#[test]
fn a_re_export_leads_to_the_file_that_defines_the_name() {
    // `x` uses `Y` through its parent, which only hands it on.
    let fine = [
        ("src/lib.rs", "mod room; pub use room::Y;"),
        ("src/room.rs", "mod x; mod y; pub use y::Y; pub fn f() { x::x() }"),
        ("src/room/x.rs", "use super::Y; use crate::Y as Same; pub fn x() {}"),
        ("src/room/y.rs", "pub struct Y;"),
    ];
    assert_eq!(circles_of(&fine), [""; 0]);
    let mut circle = fine;
    circle[3].1 = "use super::x::x; pub struct Y; fn y() { x() }";
    assert!(
        circles_of(&circle)[0].contains("src/room/x.rs -> src/room/y.rs: Y"),
        "{:?}",
        circles_of(&circle)
    );
}

#[test]
fn a_parent_and_its_child_are_a_circle_when_each_uses_the_other() {
    let found = circles_of(&[
        ("src/lib.rs", "mod room;"),
        ("src/room.rs", "mod x; pub struct Parent; fn f() { x::x() }"),
        ("src/room/x.rs", "use super::Parent; pub fn x() -> Parent { Parent }"),
    ]);
    assert!(found[0].contains("src/room.rs -> src/room/x.rs: x"), "{found:?}");
}

#[test]
fn siblings_are_a_circle_through_different_files_below_them() {
    let found = circles_of(&[
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "pub mod one; pub mod two;"),
        ("src/a/one.rs", "use crate::b::One; pub struct A(One);"),
        ("src/a/two.rs", "pub struct Two;"),
        ("src/b.rs", "mod one; mod two; pub use one::One;"),
        ("src/b/one.rs", "pub struct One;"),
        ("src/b/two.rs", "use crate::a::two::Two; pub struct B(Two);"),
    ]);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("modules of src/lib.rs that use each other: a, b"),
        "{found:?}"
    );
    assert!(
        found[0].contains("a -> b: src/a/one.rs -> src/b/one.rs: One"),
        "{found:?}"
    );
}

#[test]
fn what_only_tests_use_is_no_circle() {
    assert_eq!(
        circles_of(&[
            ("src/lib.rs", "mod a; mod b; #[cfg(test)] mod tests;"),
            ("src/a.rs", "use crate::b::B; pub struct A(B);"),
            (
                "src/b.rs",
                "#[cfg(test)] use crate::a::A; pub struct B; #[cfg(test)] mod tests { use crate::a::A; }
                 impl B { #[cfg(test)] fn a() -> crate::a::A { todo!() } }"
            ),
            ("src/tests.rs", "use crate::a::A;"),
        ]),
        [""; 0]
    );
}

#[test]
fn paths_in_types_expressions_macros_and_attributes_are_uses() {
    for code in [
        "fn f(_: &[crate::a::A]) {}",
        "fn f() { let x = super::a::A; }",
        "fn f() { println!(\"{}\", crate::a::A::new()); }",
        "fn f() { vec![Some(crate::a::A)]; }",
        "use crate::a; fn f() { a::A::new(); }",
        "use crate::a as other; fn f() -> other::A { todo!() }",
        "fn f() { use crate::a::A; }",
        "impl crate::a::A {}",
        "#[derive(Deserialize)] struct S { #[serde(default = \"crate::a::A::new\")] x: u8 }",
        "pub fn b<T: Into<crate::a::A>>() {}",
        "use crate::a::*; fn f() -> A { todo!() }",
    ] {
        let code = format!("pub struct B; {code}");
        let found = circles_of(&[
            ("src/lib.rs", "mod a; mod b;"),
            ("src/a.rs", "use crate::b::B; pub struct A; fn f() -> B { B }"),
            ("src/b.rs", &code),
        ]);
        assert!(
            found.iter().any(|circle| circle.contains("src/b.rs -> src/a.rs: A")),
            "{code}: {found:?}"
        );
    }
}

#[test]
fn a_name_that_a_macro_makes_belongs_to_the_module_it_stands_in() {
    let found = circles_of(&[
        ("src/lib.rs", "mod api; mod b;"),
        ("src/api.rs", "include_proto!(\"v1\"); use crate::b::B; fn f(_: B) {}"),
        ("src/b.rs", "use crate::api::Made; pub struct B(Made);"),
    ]);
    assert!(found[0].contains("src/b.rs -> src/api.rs: Made"), "{found:?}");
}

#[test]
fn other_crates_are_no_modules() {
    assert_eq!(
        circles_of(&[
            (
                "src/lib.rs",
                "mod http; pub use gpunode_config::Mode; fn f() { http::serve() }"
            ),
            (
                "src/http.rs",
                "use http_body::Body; use crate::Mode; pub fn serve() { hyper::serve(::http::x()) }"
            ),
        ]),
        [""; 0]
    );
}

fn tables_of(doc: &str) -> Vec<String> {
    let root = format!("{doc}\nmod a;\nmod b;\n#[cfg(test)]\nmod tests;\n");
    table_problems(&tree(&[
        ("src/lib.rs", &root),
        ("src/a.rs", ""),
        ("src/b.rs", ""),
        ("src/tests.rs", ""),
    ]))
}

#[test]
fn a_table_lists_every_child_module_and_no_other() {
    let head = "//! Two modules.\n//!\n//! | module | what it does |\n//! |---|---|\n";
    assert_eq!(
        tables_of(&format!("{head}//! | `b` | the second |\n//! | `a` | the first |\n")),
        [""; 0]
    );
    for (table, problem) in [
        (format!("{head}//! | `a` | the first |\n"), "does not list `b`"),
        (
            format!("{head}//! | `a` | one |\n//! | `b` | two |\n//! | `c` | three |\n"),
            "`c`, which is no child module",
        ),
        (
            format!("{head}//! | `a` | one |\n//! | `a`, `b` | two |\n"),
            "is not \"| `name` | text |\"",
        ),
        (
            format!("{head}//! | `a` |  |\n//! | `b` | two |\n"),
            "says nothing about `a`",
        ),
        ("//! Two modules.\n".to_owned(), "no table of modules"),
        (
            "//! | module | what it does |\n//! |---|---|\n//! | `a` | one |\n//! | `b` | two |\n".to_owned(),
            "no sentence",
        ),
    ] {
        let found = tables_of(&table);
        assert!(found.iter().any(|found| found.contains(problem)), "{table}: {found:?}");
    }
}

#[test]
fn a_doc_comment_that_begins_with_a_question_word_is_found() {
    let text = "//! How it works.\n\n/// Returns it.\n/// What follows may.\nfn f() {\n    // Why: a comment inside\n}\n\
                struct S {\n    /// whether it is so\n    a: bool,\n    /// Whatever else.\n    b: &'static str,\n}\n\
                const T: &str = \"\n/// Where in a string\n\"; /// Who\nconst U: char = '\"';\n/// When\n";
    assert_eq!(headless_docs(text), [1, 9, 16, 18]);
}

#[test]
fn a_comment_that_refers_to_what_is_not_there_is_found() {
    let found = |comment: &str| !foreign_references(&format!("let a = 1; // {comment}\n")).is_empty();
    for comment in [
        "DESIGN 3.7 says so",
        "as HOUSE has it",
        "Shown 2",
        "facts/nvml.md",
        "see issue 14",
    ] {
        assert!(found(comment), "{comment}");
    }
    for comment in [
        "the DESIGNATED one",
        "Shown below",
        "artifacts",
        "an issue of the kubelet",
    ] {
        assert!(!found(comment), "{comment}");
    }
    assert_eq!(
        foreign_references("let a = \"// DESIGN\"; let b = r#\"// HOUSE \" // DESIGN\"#;"),
        []
    );
}

#[test]
fn a_name_of_two_types_is_found_and_one_in_a_test_is_not() {
    let tree = tree(&[
        ("src/lib.rs", "mod a; mod b;"),
        (
            "src/a.rs",
            "pub struct Same; pub enum Own {} #[cfg(test)] mod tests { struct Own; }",
        ),
        ("src/b.rs", "type Same = u8; fn f() { struct Inner; } trait Allowed {} "),
    ]);
    let types = type_names(&tree);
    assert_eq!(shared_names(&types), ["Same: src/a.rs:1, src/b.rs:1"]);
}

#[test]
fn an_error_that_is_only_text_is_found() {
    let tree = tree(&[(
        "src/lib.rs",
        "fn f() -> Result<u8, String> { todo!() }\nfn g() -> Result<String, Error> { todo!() }\n\
         #[cfg(test)]\nfn h() -> Result<u8, String> { todo!() }\nstruct S { a: Option<Result<u8, String>> }\n",
    )]);
    assert_eq!(string_errors(&tree).len(), 2);
    assert!(string_errors(&tree)[1].starts_with("src/lib.rs:5:"));
}

#[test]
fn a_public_item_that_no_other_crate_names_is_found() {
    let tree = tree(&[
        ("src/lib.rs", "mod a; pub mod b; pub use a::{Used, Unused, make};"),
        (
            "src/a.rs",
            "pub struct Used; pub struct Unused; pub struct Inner; pub struct Returned; pub fn make() -> Returned { todo!() }
             impl Used { pub fn called(&self) {} pub fn not_called(&self) {} fn private(&self) {} }",
        ),
        ("src/b.rs", "pub const LEFT: u8 = 1; const OWN: u8 = 2;"),
    ]);
    let others = Files::from([(
        "other/src/lib.rs".to_owned(),
        "fn f(used: Used) { used.called(); matches!(make(), _); }".to_owned(),
    )]);
    assert_eq!(
        unused_exports(&tree, &others),
        ["src/a.rs:1: Unused", "src/a.rs:2: not_called", "src/b.rs:1: LEFT"]
    );
}

#[test]
fn a_dependency_on_a_crate_above_is_found() {
    let manifest = "[dependencies]\ngpunode-config.workspace = true\ngpunode-plan = { path = \"../plan\" }\n\
                    [dev-dependencies]\ngpunode-scenario.workspace = true\n";
    assert_eq!(
        upward_dependencies("gpunode-crds", manifest),
        ["gpunode-crds depends on gpunode-plan"]
    );
}

#[test]
fn document_that_names_a_missing_file_or_test_is_found() {
    let document = "See `src/map.rs` and `src/gone.rs`.\n```\n`src/in_a_block.rs`\n```\n| `a_test_that_is_there` | `a_test_that_is_gone`, `pod_name` |";
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(crate::missing_files(document, here), ["src/gone.rs"]);
    let sources = ["fn a_test_that_is_there() {}"];
    assert_eq!(crate::missing_tests(document, &sources), ["a_test_that_is_gone"]);
}
