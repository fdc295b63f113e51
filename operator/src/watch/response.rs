//! Requests of lists and watches, and their responses piece by piece: a page is parsed object by object, a stream line
//! by line.

use crate::lenient::WatchedObject;
use http::{Request, header::RETRY_AFTER};
use http_body::Body as _;
use kube::{
    Client,
    client::Body,
    core::{Status, WatchEvent},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{fmt, future::poll_fn, io::BufRead, marker::PhantomData, pin::Pin, time::Duration};
use tokio::time::timeout;

/// Longest time until a response begins, and between its parts but for those of a stream. The API server may let a
/// request wait for a quarter of its minute (`RequestTimeout` in `pkg/server/config.go` of k8s.io/apiserver).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest line of a stream, and longest answer that is an error, in bytes. etcd takes objects of 1.5 MiB
/// (`--max-request-bytes`); as JSON one may be some times larger.
const LONGEST_LINE: usize = 16 * MIB;
/// Longest page of a list, in bytes: half of the memory of the operator's container. A page of 2,500 objects may have
/// 50 kB for each.
const LONGEST_PAGE: usize = 128 * MIB;
const MIB: usize = 1 << 20;
/// Longest part of a text that no program wrote, such as the page of a proxy, in an error.
const TEXT_LIMIT: usize = 200;

/// An error of a list or a watch.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The API server refused the request, or ended the watch with an error.
    #[error("the API server answered {code}: {message}")]
    Refused {
        /// HTTP status.
        code: u16,
        message: String,
        /// Pause that the API server asks for.
        retry_after: Option<Duration>,
    },
    #[error("make the request: {0}")]
    Request(#[source] kube::core::request::Error),
    #[error("send the request: {0}")]
    Send(#[source] kube::Error),
    #[error("no answer of the API server within {} s", .0.as_secs())]
    NoAnswer(Duration),
    #[error("read the response: {0}")]
    Read(#[source] kube::Error),
    #[error("parse a page of the list: {0}")]
    Page(#[source] serde_json::Error),
    #[error("the list has no resourceVersion")]
    NoVersion,
    #[error("the continue token of a page of the list leads to the same page")]
    RepeatedToken,
    /// The limit is in bytes.
    #[error("read the response: {part} is longer than {} MiB, which the API server should not send", .limit / MIB)]
    TooLong { part: &'static str, limit: usize },
    /// Nobody takes updates any more.
    #[error("nobody takes updates any more")]
    Closed,
}

impl WatchError {
    /// The error of a `Status` object.
    pub fn of_status(status: Status) -> Self {
        let seconds = status.details.map_or(0, |details| details.retry_after_seconds);
        Self::Refused {
            code: status.code,
            message: status.message,
            retry_after: (seconds > 0).then(|| Duration::from_secs(seconds.into())),
        }
    }
}

/// Sends a request. Returns the response once the API server accepts it.
pub async fn open(client: &Client, request: Request<Vec<u8>>) -> Result<ResponseBody, WatchError> {
    let response = timeout(ANSWER_TIMEOUT, client.send(request.map(Body::from))).await;
    let response = response.map_err(|_| WatchError::NoAnswer(ANSWER_TIMEOUT))?;
    let (parts, body) = response.map_err(WatchError::Send)?.into_parts();
    let body = ResponseBody::new(body);
    if parts.status.is_success() {
        return Ok(body);
    }
    // Priority and fairness asks for a pause by this header alone, with a text for a body.
    let asked = parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let asked = asked
        .and_then(|seconds| seconds.trim().parse().ok())
        .map(Duration::from_secs);
    let text = body.whole("the error", LONGEST_LINE).await?;
    let mut status = serde_json::from_slice::<Status>(&text).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&text);
        Status::failure(&text.trim().chars().take(TEXT_LIMIT).collect::<String>(), "")
    });
    status.code = parts.status.as_u16();
    let mut error = WatchError::of_status(status);
    if let WatchError::Refused { retry_after, .. } = &mut error {
        *retry_after = asked.or(*retry_after);
    }
    Err(error)
}

/// The body of a response.
#[derive(Debug)]
pub struct ResponseBody {
    body: Body,
    /// Bytes that came and were not handed out.
    buffer: Vec<u8>,
    /// Bytes at the front of the buffer that were handed out.
    read: usize,
}

impl ResponseBody {
    fn new(body: Body) -> Self {
        Self {
            body,
            buffer: Vec::new(),
            read: 0,
        }
    }

    /// Waits for the next line of a stream, and returns it without its end; `None` at the end of the stream. A last
    /// line without an end is cut off and of no use. Cancel safe.
    pub async fn next_line(&mut self) -> Result<Option<&[u8]>, WatchError> {
        let mut searched = self.read;
        let end = loop {
            if let Some(length) = line_length(&self.buffer[searched..]) {
                break searched + length;
            }
            self.buffer.drain(..self.read);
            self.read = 0;
            searched = self.buffer.len();
            if searched > LONGEST_LINE {
                let (part, limit) = ("a line of the watch", LONGEST_LINE);
                return Err(WatchError::TooLong { part, limit });
            }
            if !self.fill().await? {
                return Ok(None);
            }
        };
        let line = self.read..end;
        self.read = end + 1;
        Ok(Some(&self.buffer[line]))
    }

    /// Reads the whole page of a list, in one piece of memory.
    pub async fn page(self) -> Result<Vec<u8>, WatchError> {
        self.whole("a page of the list", LONGEST_PAGE).await
    }

    /// Reads the whole body, which is this part of the answer, up to a limit in bytes.
    async fn whole(mut self, part: &'static str, limit: usize) -> Result<Vec<u8>, WatchError> {
        loop {
            if self.buffer.len() > limit {
                return Err(WatchError::TooLong { part, limit });
            }
            let filled = timeout(ANSWER_TIMEOUT, self.fill()).await;
            if !filled.map_err(|_| WatchError::NoAnswer(ANSWER_TIMEOUT))?? {
                return Ok(self.buffer);
            }
        }
    }

    /// Adds what comes next to the buffer. Returns false at the end of the body.
    async fn fill(&mut self) -> Result<bool, WatchError> {
        let body = &mut self.body;
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        let Some(frame) = frame else {
            return Ok(false);
        };
        if let Ok(data) = frame.map_err(WatchError::Read)?.into_data() {
            self.buffer.extend_from_slice(&data);
        }
        Ok(true)
    }
}

/// Returns the length of the first line without its end; `None` if it has no end yet.
fn line_length(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    let length = rest.skip_until(b'\n').ok()?.checked_sub(1)?;
    (bytes[length] == b'\n').then_some(length)
}

/// An event whose object is text still: most are parsed once, and those of own writes not at all.
pub struct EventText<'a> {
    line: &'a str,
    kind: &'a str,
    /// May be more than the object where `is_split`.
    object: &'a str,
    /// True if nobody has looked at the object yet.
    is_split: bool,
}

/// The same for a line in whatever form.
#[derive(Deserialize)]
struct AnyEventText<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl<'a> EventText<'a> {
    /// Reads a line of a stream; `None` if it is no event.
    pub fn of(line: &'a [u8]) -> Result<Option<Self>, WatchError> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        match std::str::from_utf8(line) {
            // Only a line in another form is read here, or each would be read twice.
            Ok(line) => match Self::split(line) {
                Some(event) => Ok(Some(event)),
                None => Self::scan(line),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot parse an event of a watch; skipping it");
                Ok(None)
            }
        }
    }

    /// Splits a line as the API server writes it, without a look at the object (`metav1.WatchEvent` of
    /// k8s.io/apimachinery: the type, then the object).
    fn split(line: &'a str) -> Option<Self> {
        let (kind, rest) = line.strip_prefix("{\"type\":\"")?.split_once('"')?;
        let object = rest.strip_prefix(",\"object\":")?.trim_end().strip_suffix('}')?;
        Some(Self {
            line,
            kind,
            object,
            is_split: true,
        })
    }

    /// Reads a line in whatever form.
    fn scan(line: &'a str) -> Result<Option<Self>, WatchError> {
        match serde_json::from_str::<AnyEventText>(line) {
            Ok(event) => Ok(Some(Self {
                line,
                kind: event.kind,
                object: event.object.get(),
                is_split: false,
            })),
            Err(error) => match serde_json::from_str::<Status>(line) {
                Ok(status) if status.is_failure() => Err(WatchError::of_status(status)),
                _ => {
                    tracing::warn!(%error, "cannot parse an event of a watch; skipping it");
                    Ok(None)
                }
            },
        }
    }

    /// Parses the event; `None` if that is not possible.
    pub fn parse<K: WatchedObject>(&self) -> Result<Option<WatchEvent<K>>, WatchError> {
        match self.parse_object() {
            Ok(event) => Ok(Some(event)),
            Err(_) if self.is_split => match Self::scan(self.line)? {
                Some(event) => event.parse(),
                None => Ok(None),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot parse an event of a watch; skipping it");
                Ok(None)
            }
        }
    }

    fn parse_object<K: WatchedObject>(&self) -> Result<WatchEvent<K>, serde_json::Error> {
        match self.kind {
            "ADDED" => K::from_text(self.object).map(WatchEvent::Added),
            "MODIFIED" => K::from_text(self.object).map(WatchEvent::Modified),
            "DELETED" => K::from_text(self.object).map(WatchEvent::Deleted),
            "BOOKMARK" => serde_json::from_str(self.object).map(WatchEvent::Bookmark),
            "ERROR" => serde_json::from_str(self.object).map(WatchEvent::Error),
            other => Err(serde_json::Error::custom(format!("unknown type of event {other:?}"))),
        }
    }

    /// Returns name and version of the object of an event `MODIFIED`, without the rest of it.
    pub fn modified_version(&self) -> Option<(String, String)> {
        if self.kind != "MODIFIED" {
            return None;
        }
        let mut head = None;
        // Ends with an error as soon as the head is there.
        let _ = serde_json::Deserializer::from_str(self.object).deserialize_map(HeadVisitor { head: &mut head });
        head.map(|head| (head.name, head.resource_version))
    }
}

/// Reads `metadata` of an object and nothing behind it.
struct HeadVisitor<'a> {
    head: &'a mut Option<MetadataHead>,
}

impl<'de> Visitor<'de> for HeadVisitor<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "metadata" {
                *self.head = Some(map.next_value()?);
                return Err(A::Error::custom("the rest is not needed"));
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// The fields of `metadata` that tell a version of an object.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetadataHead {
    name: String,
    resource_version: String,
}

/// Metadata of a page.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PageEnd {
    #[serde(rename = "resourceVersion")]
    pub version: Option<String>,
    /// Token of the next page.
    #[serde(rename = "continue")]
    pub next: Option<String>,
}

/// Parses a page of a list and hands out its objects one by one, so that only one is held as it came.
pub fn parse_page<K: DeserializeOwned>(json: &[u8], each: impl FnMut(K)) -> Result<PageEnd, WatchError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let page = PageSeed {
        each,
        kind: PhantomData::<fn(K)>,
    };
    page.deserialize(&mut deserializer).map_err(WatchError::Page)
}

/// Deserializes a list.
struct PageSeed<K, F> {
    each: F,
    kind: PhantomData<fn(K)>,
}

impl<'de, K: DeserializeOwned, F: FnMut(K)> DeserializeSeed<'de> for PageSeed<K, F> {
    type Value = PageEnd;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<PageEnd, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, K: DeserializeOwned, F: FnMut(K)> Visitor<'de> for PageSeed<K, F> {
    type Value = PageEnd;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<PageEnd, A::Error> {
        let (mut end, mut has_items) = (PageEnd::default(), false);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "metadata" => end = map.next_value::<Option<PageEnd>>()?.unwrap_or_default(),
                "items" => {
                    has_items = true;
                    map.next_value_seed(ItemsSeed {
                        each: &mut self.each,
                        kind: PhantomData::<fn(K)>,
                    })?;
                }
                "kind" => {
                    let kind = map.next_value::<String>()?;
                    if !kind.ends_with("List") {
                        return Err(A::Error::custom(format!("the answer is a {kind:?}, and no list")));
                    }
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        // Without this, an answer of something else than the API server would be an empty list, and delete everything.
        if has_items {
            Ok(end)
        } else {
            Err(A::Error::custom("the answer has no `items`, and is no list"))
        }
    }
}

/// Deserializes the items of a list; an empty list may have `null` there.
struct ItemsSeed<'a, K, F> {
    each: &'a mut F,
    kind: PhantomData<fn(K)>,
}

impl<'de, K: DeserializeOwned, F: FnMut(K)> DeserializeSeed<'de> for ItemsSeed<'_, K, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, K: DeserializeOwned, F: FnMut(K)> Visitor<'de> for ItemsSeed<'_, K, F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the items of a list")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element()? {
            (self.each)(item);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    impl WatchedObject for Value {
        fn from_text(text: &str) -> Result<Self, serde_json::Error> {
            serde_json::from_str(text)
        }
    }

    fn parsed(line: &str) -> Result<Option<WatchEvent<Value>>, WatchError> {
        EventText::of(line.as_bytes())?.map_or(Ok(None), |event| event.parse())
    }

    #[test]
    fn page_is_read_object_by_object_in_any_order_of_its_fields() {
        for (json, items, version, next) in [
            (
                r#"{"kind": "NodeList", "metadata": {"resourceVersion": "7", "continue": "c", "remainingItemCount": 2}, "items": [1, 2]}"#,
                2,
                Some("7"),
                Some("c"),
            ),
            (
                r#"{"items": [3], "x": [{}], "metadata": {"resourceVersion": "8"}}"#,
                1,
                Some("8"),
                None,
            ),
            (
                r#"{"metadata": {"resourceVersion": "9"}, "items": null}"#,
                0,
                Some("9"),
                None,
            ),
            (r#"{"metadata": null, "items": []}"#, 0, None, None),
        ] {
            let mut count = 0;
            let end = parse_page(json.as_bytes(), |_: Value| count += 1).unwrap();
            assert_eq!(
                (count, end.version.as_deref(), end.next.as_deref()),
                (items, version, next),
                "{json}"
            );
        }
        for (json, expected) in [
            (r"{}", "no `items`"),
            (r#"{"metadata": {"resourceVersion": "7"}}"#, "no `items`"),
            (
                r#"{"kind": "NodeList", "metadata": {"resourceVersion": "7"}}"#,
                "no `items`",
            ),
            (
                r#"{"kind": "Status", "metadata": {"resourceVersion": "7"}, "items": []}"#,
                "a \"Status\"",
            ),
        ] {
            let error = parse_page(json.as_bytes(), |_: Value| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{json}: {error}");
        }
        let cut = r#"{"metadata": {"resourceVersion": "7"}, "items": [1, "#;
        assert!(parse_page(cut.as_bytes(), |_: Value| ()).is_err());
    }

    #[test]
    fn line_that_is_no_event_is_skipped_and_a_bare_status_is_an_error() {
        for line in [
            "",
            "  ",
            "{",
            "[]",
            "\u{e4}",
            r#"{"type": "LATER", "object": {}}"#,
            r#"{"type":"LATER","object":{}}"#,
            r#"{"type":"ADDED","object":{}"#,
        ] {
            assert!(matches!(parsed(line), Ok(None)), "{line}");
        }
        assert!(matches!(EventText::of(b"{\"type\":\"\xff\"}"), Ok(None)));
        let status = r#"{"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "x"}"#;
        let error = parsed(status).unwrap_err();
        assert!(matches!(error, WatchError::Refused { code: 410, .. }), "{error}");
    }

    #[test]
    fn event_is_the_same_in_the_form_of_the_api_server_and_in_any_other() {
        let expected = json!({"metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"type": "x"}});
        for line in [
            r#"{"type":"MODIFIED","object":{"metadata":{"name":"n","resourceVersion":"7"},"spec":{"type":"x"}}}"#,
            r#"{"type":"MODIFIED","object":{"metadata":{"name":"n","resourceVersion":"7"},"spec":{"type":"x"}}} "#,
            r#"{"type":"MODIFIED","object":{"metadata":{"name":"n","resourceVersion":"7"},"spec":{"type":"x"}},"x":{}}"#,
            r#"{"object":{"spec":{"type":"x"},"metadata":{"name":"n","resourceVersion":"7"}},"type":"MODIFIED"}"#,
            r#"{"type": "MODIFIED", "object": {"metadata":{"name":"n","resourceVersion":"7"},"spec":{"type":"x"}}}"#,
        ] {
            let event = EventText::of(line.as_bytes()).unwrap().unwrap();
            let version = event.modified_version();
            assert_eq!(version, Some(("n".to_owned(), "7".to_owned())), "{line}");
            let Ok(Some(WatchEvent::Modified(object))) = event.parse::<Value>() else {
                panic!("{line}")
            };
            assert_eq!(object, expected, "{line}");
        }
        let added = br#"{"type":"ADDED","object":{"metadata":{"name":"n","resourceVersion":"7"}}}"#;
        assert_eq!(EventText::of(added).unwrap().unwrap().modified_version(), None);
    }

    #[tokio::test]
    async fn lines_are_handed_out_without_their_ends_and_a_cut_one_is_not() {
        let mut body = ResponseBody::new(Body::from(b"one\n\ntwo\nthr".to_vec()));
        let mut lines = Vec::new();
        while let Some(line) = body.next_line().await.unwrap() {
            lines.push(String::from_utf8(line.to_vec()).unwrap());
        }
        assert_eq!(lines, ["one", "", "two"]);
    }

    #[tokio::test]
    async fn line_or_body_without_an_end_is_not_kept_for_ever() {
        let long = vec![b'x'; LONGEST_LINE];
        let mut body = ResponseBody::new(Body::from([&long[..], b"\n"].concat()));
        let line = body.next_line().await.unwrap();
        assert_eq!(line.map(<[u8]>::len), Some(LONGEST_LINE));
        let mut body = ResponseBody::new(Body::from([&long[..], b"x"].concat()));
        let error = body.next_line().await.unwrap_err();
        assert!(
            error.to_string().contains("a line of the watch is longer than 16 MiB"),
            "{error}"
        );

        let body = || ResponseBody::new(Body::from(vec![b'x'; 2 * MIB]));
        assert_eq!(body().whole("a part", 2 * MIB).await.unwrap().len(), 2 * MIB);
        let error = body().whole("a part", MIB).await.unwrap_err();
        assert!(error.to_string().contains("a part is longer than 1 MiB"), "{error}");
    }
}
