//! What a successor and the holder of the node's lock say to each other, one JSON object per line. Pure.
//!
//! A word that one side does not know is refused by the other, so that agents of two versions get along: fields may be
//! added, and are ignored by those that do not know them.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Longest line, in bytes.
pub const MAX_LINE: usize = 1024;
/// Most bytes of a text in a line.
const MAX_TEXT: usize = 300;

/// What is said to the holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HandoverRequest {
    /// A successor that has looked at the hardware and has its configuration wants to take over.
    LetGo(Successor),
    /// It has taken over, and the kubelet has taken its lists.
    Serving {},
    /// Whether somebody answers.
    Ping {},
}

/// What the holder answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HolderResponse {
    /// It is there.
    Holding {},
    /// It goes on holding the lock.
    Refused {
        /// Why.
        reason: String,
    },
    /// It serves nothing any more, and the lock is free.
    Released {
        /// UID of its pod; empty where there is no pod.
        pod: String,
    },
}

/// Who wants to take over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Successor {
    /// Version of the agent.
    pub version: String,
    /// UID of its pod; empty where there is no pod.
    pub pod: String,
    /// Why it could not offer what there is on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What the holder does about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HolderDecision {
    /// Shows that it is alive.
    Alive,
    /// Says no.
    No(String),
    /// Lets go.
    LetGo(Successor),
}

/// What a holder with this problem of its own does about a request that opens a conversation.
pub fn reply(request: HandoverRequest, own_problem: Option<&str>) -> HolderDecision {
    match request {
        HandoverRequest::Ping {} => HolderDecision::Alive,
        HandoverRequest::Serving {} => HolderDecision::No("nobody was asked to let go on this connection".to_owned()),
        HandoverRequest::LetGo(successor) => match (&successor.problem, own_problem) {
            // A new image that cannot read what this one can would take the GPUs from the node.
            (Some(problem), None) => {
                HolderDecision::No(format!("the successor could offer less than is offered now: {problem}"))
            }
            _ => HolderDecision::LetGo(successor),
        },
    }
}

/// One line with its end. Texts that are too long are cut off.
pub fn line<T: Serialize>(said: &T) -> Vec<u8> {
    // Cannot fail: these types have string keys alone.
    let mut line = serde_json::to_vec(said).unwrap_or_default();
    line.push(b'\n');
    line
}

/// What a line says.
pub fn parse<T: DeserializeOwned>(line: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(line)
}

/// A text that fits a line.
pub fn short(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_TEXT))
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn successor(problem: Option<&str>) -> HandoverRequest {
        HandoverRequest::LetGo(Successor {
            version: "2".to_owned(),
            pod: "b".to_owned(),
            problem: problem.map(str::to_owned),
        })
    }

    #[test]
    fn what_is_said_is_understood() {
        for request in [
            successor(None),
            successor(Some("no driver")),
            HandoverRequest::Serving {},
            HandoverRequest::Ping {},
        ] {
            assert_eq!(parse::<HandoverRequest>(&line(&request)).unwrap(), request);
        }
        let reason = short(&"é".repeat(MAX_LINE));
        for answer in [
            HolderResponse::Holding {},
            HolderResponse::Refused { reason },
            HolderResponse::Released { pod: "a".to_owned() },
        ] {
            let line = line(&answer);
            assert!(line.len() <= MAX_LINE);
            assert_eq!(parse::<HolderResponse>(&line).unwrap(), answer);
        }
    }

    #[test]
    fn another_version_may_say_more() {
        let more = br#"{"letGo":{"version":"9","pod":"b","mood":"good"}}"#;
        assert!(matches!(
            parse(more),
            Ok(HandoverRequest::LetGo(Successor { problem: None, .. }))
        ));
        assert!(parse::<HandoverRequest>(br#"{"sing":{}}"#).is_err());
    }

    #[test]
    fn a_successor_that_could_offer_less_is_refused_unless_the_holder_is_no_better_off() {
        let refused = reply(successor(Some("no driver")), None);
        assert!(matches!(refused, HolderDecision::No(reason) if reason.ends_with("no driver")));
        for (theirs, own) in [(None, None), (None, Some("x")), (Some("x"), Some("y"))] {
            assert!(
                matches!(reply(successor(theirs), own), HolderDecision::LetGo(_)),
                "{theirs:?} {own:?}"
            );
        }
    }

    #[test]
    fn who_asked_for_nothing_takes_nothing_over() {
        assert!(matches!(
            reply(HandoverRequest::Serving {}, None),
            HolderDecision::No(_)
        ));
        assert_eq!(reply(HandoverRequest::Ping {}, None), HolderDecision::Alive);
    }
}
