//! The XML that `nvidia-smi -q -x` prints: elements and text, no CDATA and no entities of its own. Anything else is an error,
//! so that nothing is compared that was not understood.

/// An element with what is in it. Attributes are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its name.
    pub name: String,
    /// Its text, without that of its children and without white space around it.
    pub text: String,
    /// Its children, in order.
    pub children: Vec<Element>,
}

/// Reason why a text is not such XML.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct XmlError {
    line: usize,
    problem: Problem,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("a tag has no end")]
    OpenTag,
    #[error("text or an element outside of the root element")]
    OutsideOfRoot,
    #[error("</{0}> ends no element that is open")]
    WrongEnd(String),
    #[error("markup that is neither a comment nor a document type")]
    Markup,
    #[error("the end is missing")]
    Incomplete,
}

impl Element {
    /// Returns the children with a name.
    pub fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// Returns the text at a path of names; none if there is no such element. A group that has a text in place of elements, as
    /// `<remapped_rows>N/A</remapped_rows>` has, answers for all of them.
    pub fn value(&self, path: &[&str]) -> Option<&str> {
        match path.split_first() {
            None => Some(&self.text),
            Some(_) if self.children.is_empty() && !self.text.is_empty() => Some(&self.text),
            Some((name, rest)) => self.all(name).next()?.value(rest),
        }
    }
}

/// Parses a document and returns its root.
pub fn parse(text: &str) -> Result<Element, XmlError> {
    let (mut rest, mut open, mut root) = (text, Vec::<Element>::new(), None);
    let fail = |rest: &str, problem| {
        let read = text.get(..text.len().saturating_sub(rest.len())).unwrap_or(text);
        XmlError {
            line: read.matches('\n').count() + 1,
            problem,
        }
    };
    while let Some((content, markup)) = rest.split_once('<') {
        match open.last_mut() {
            Some(element) => element.text.push_str(&unescaped(content)),
            None if content.trim().is_empty() => {}
            None => return Err(fail(rest, Problem::OutsideOfRoot)),
        }
        let end = if markup.starts_with("!--") { "-->" } else { ">" };
        let (tag, after) = markup.split_once(end).ok_or_else(|| fail(markup, Problem::OpenTag))?;
        let mut complete = None;
        if let Some(name) = tag.strip_prefix('/') {
            let name = name.trim();
            complete = open.pop().filter(|element| element.name == name);
            if complete.is_none() {
                return Err(fail(markup, Problem::WrongEnd(name.to_owned())));
            }
        } else if tag.starts_with('!') {
            let is_known = end == "-->" || tag.starts_with("!DOCTYPE ") && !tag.contains('[');
            if !is_known {
                return Err(fail(markup, Problem::Markup));
            }
        } else if !tag.starts_with('?') {
            if open.is_empty() && root.is_some() {
                return Err(fail(markup, Problem::OutsideOfRoot));
            }
            let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
            let element = Element {
                name: tag.split_whitespace().next().unwrap_or_default().to_owned(),
                ..Element::default()
            };
            if is_empty {
                complete = Some(element);
            } else {
                open.push(element);
            }
        }
        if let Some(mut element) = complete {
            element.text = String::from(element.text.trim());
            match open.last_mut() {
                Some(parent) => parent.children.push(element),
                None => root = Some(element),
            }
        }
        rest = after;
    }
    match root {
        Some(root) if rest.trim().is_empty() => Ok(root),
        Some(_) => Err(fail(rest, Problem::OutsideOfRoot)),
        None => Err(fail("", Problem::Incomplete)),
    }
}

/// Replaces the five entities that XML has. Another `&` is text: nvidia-smi prints names of processes as they are.
fn unescaped(text: &str) -> String {
    [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&amp;", "&"),
    ]
    .into_iter()
    .fold(text.to_owned(), |text, (entity, character)| {
        text.replace(entity, character)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn elements_are_read_with_text_and_children() {
        let text = "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<!-- a < b -->\n\
                    <log>\n\t<gpu id=\"00000000:01:00.0\"><uuid> GPU-1 </uuid><mig_devices>\n None\n </mig_devices></gpu>\n\
                    <gpu/><name>a &amp;lt; b &lt;c&gt; d & e</name></log>\n";
        let root = parse(text).unwrap();
        assert_eq!(root.name, "log");
        assert_eq!(root.all("gpu").count(), 2);
        assert_eq!(root.value(&["gpu", "uuid"]), Some("GPU-1"));
        assert_eq!(root.value(&["gpu", "mig_devices"]), Some("None"));
        assert_eq!(root.value(&["name"]), Some("a &lt; b <c> d & e"));
        assert_eq!(root.value(&["gpu", "serial"]), None);
        assert_eq!(root.value(&["fabric", "state"]), None);
    }

    #[test]
    fn a_group_without_elements_answers_for_all_of_them() {
        let root = parse("<gpu><remapped_rows>N/A</remapped_rows><fabric></fabric></gpu>").unwrap();
        assert_eq!(root.value(&["remapped_rows", "remapped_row_pending"]), Some("N/A"));
        assert_eq!(root.value(&["fabric", "state"]), None);
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(problem("<a>\n<b>\n</a>"), "line 3: </a> ends no element that is open");
        assert_eq!(problem("<a>\n<b></b>\n"), "line 3: the end is missing");
        assert_eq!(
            problem("<a></a>\n<b></b>"),
            "line 2: text or an element outside of the root element"
        );
        assert_eq!(
            problem("<a></a>\nNo devices"),
            "line 1: text or an element outside of the root element"
        );
        assert_eq!(
            problem("Unable to determine the device handle"),
            "line 1: the end is missing"
        );
        assert_eq!(problem("<a>\n<b"), "line 2: a tag has no end");
        assert_eq!(
            problem("<a>\n<![CDATA[x]]></a>"),
            "line 2: markup that is neither a comment nor a document type"
        );
        assert_eq!(
            problem("<!DOCTYPE a [<!ENTITY b \"c\">]><a/>"),
            "line 1: markup that is neither a comment nor a document type"
        );
    }
}
