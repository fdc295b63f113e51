//! Links and anchors of a Markdown file.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::{
    collections::BTreeSet,
    ops::Range,
    path::{Component, Path, PathBuf},
};

/// A link or picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub target: String,
    /// Place of the target in the text.
    pub place: Range<usize>,
}

/// Returns the links and pictures of a text, in order. Those by reference, which no page has, count at their definition.
pub fn links(text: &str) -> Vec<Link> {
    let parser = parser(text);
    let mut found: Vec<Link> = parser
        .reference_definitions()
        .iter()
        .filter_map(|(_, definition)| at(text, definition.span.clone(), &definition.dest))
        .collect();
    found.extend(parser.into_offset_iter().filter_map(|(event, span)| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => at(text, span, &dest_url),
        _ => None,
    }));
    found.sort_by_key(|link| link.place.start);
    found
}

fn at(text: &str, span: Range<usize>, target: &str) -> Option<Link> {
    let start = span.start + text.get(span)?.rfind(target)?;
    Some(Link {
        target: target.to_owned(),
        place: start..start + target.len(),
    })
}

/// Returns the ids of a page's headings, as GitHub and mdBook make them.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut heading: Option<String> = None;
    for event in parser(text) {
        match (event, &mut heading) {
            (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
            (Event::Text(part) | Event::Code(part), Some(heading)) => heading.push_str(&part),
            (Event::End(TagEnd::Heading(_)), Some(text)) => {
                let id = anchor(text);
                let repeated = (1..).map(|number| format!("{id}-{number}"));
                let free = std::iter::once(id.clone())
                    .chain(repeated)
                    .find(|id| !anchors.contains(id));
                anchors.extend(free);
                heading = None;
            }
            _ => {}
        }
    }
    anchors
}

/// Returns the id of the first heading with such a text.
pub fn anchor(heading: &str) -> String {
    let heading = heading.trim().to_lowercase();
    let kept = heading.chars().filter_map(|char| match char {
        '_' | '-' => Some(char),
        _ if char.is_alphanumeric() => Some(char),
        _ if char.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.collect()
}

/// Returns the HTML of a text, comments left out: browsers drop a `<NODE>` that stands outside of backticks.
pub fn html(text: &str) -> Vec<String> {
    // A block has an event for each line.
    let (mut found, mut block) = (Vec::new(), String::new());
    for event in parser(text) {
        match event {
            Event::Html(line) => block.push_str(&line),
            Event::InlineHtml(html) => found.push(html.to_string()),
            Event::End(TagEnd::HtmlBlock) => found.push(std::mem::take(&mut block)),
            _ => {}
        }
    }
    let seen = found
        .iter()
        .map(|html| html.trim())
        .filter(|html| !html.starts_with("<!--"));
    seen.map(str::to_owned).collect()
}

fn parser(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
}

/// Returns the path that a link of the file `from` leads to, both from the root of the repository; none if it leaves the
/// repository.
pub fn resolved(from: &Path, target: &str) -> Option<PathBuf> {
    let mut path: PathBuf = from.parent()?.to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir if path.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_their_place_and_code_has_none() {
        let text = "a [`b.md`](b.md#c), ![d](e.svg) `[no](f.md)`\n\n[g]\n\n[g]: h.md\n";
        let found: Vec<_> = links(text)
            .into_iter()
            .map(|link| (link.target, &text[link.place]))
            .collect();
        let expected = ["b.md#c", "e.svg", "h.md"];
        assert_eq!(
            found.iter().map(|(_, place)| *place).collect::<Vec<_>>(),
            ["b.md#c", "e.svg", "h.md", "h.md"][..found.len()]
        );
        assert!(
            expected
                .iter()
                .all(|target| found.iter().any(|(link, _)| link == target)),
            "{found:?}"
        );
        assert!(found.iter().all(|(link, place)| link == place), "{found:?}");
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# `kubectl gpunode`\n## Where is ...?\n## A: b_c, d-e (f)\n## Same\n## Same\n```\n# no\n```\n";
        let expected = ["kubectl-gpunode", "where-is-", "a-b_c-d-e-f", "same", "same-1"];
        assert_eq!(anchors(text), expected.map(str::to_owned).into());
    }

    #[test]
    fn link_is_relative_to_its_file_and_stays_in_the_repository() {
        let from = Path::new("docs/adr/1.md");
        assert_eq!(resolved(from, "../mig.md"), Some("docs/mig.md".into()));
        assert_eq!(resolved(from, "../../README.md"), Some("README.md".into()));
        assert_eq!(resolved(from, "../../../etc/passwd"), None);
        assert_eq!(resolved(from, "/etc/passwd"), None);
    }

    #[test]
    fn html_outside_of_code_is_found() {
        assert_eq!(html("a <NODE> `<b>` <!-- c -->\n\n    <d>\n"), ["<NODE>"]);
        assert_eq!(html("<!-- c\n`d` <e> -->\n\n<div>\nf\n</div>\n"), ["<div>\nf\n</div>"]);
    }
}
