//! Messages between a successor and the holder of the node's lock, one JSON object per line, and the holder's decision. Pure.
//!
//! Agents of two versions work together: the receiver ignores unknown fields and refuses unknown messages.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Name of the socket in the state folder.
pub const SOCKET: &str = "agent.sock";
/// Longest line, in bytes.
pub const MAX_LINE: usize = 1024;
/// Most bytes of a text in a line.
const MAX_TEXT: usize = 300;

/// Message to the holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HandoverRequest {
    /// A successor that knows its hardware and configuration requests the lock.
    LetGo(Successor),
    /// The successor has taken over, and the kubelet has accepted its registration.
    Serving {},
    /// Liveness probe.
    Ping {},
}

/// Answer of the holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HolderResponse {
    /// The holder is alive.
    Holding {},
    /// The holder keeps the lock.
    Refused {
        /// Reason, for the successor's log.
        reason: String,
    },
    /// The holder has withdrawn from the kubelet, and the lock is free.
    Released {
        /// UID of the holder's pod; empty without a pod.
        pod: String,
    },
}

/// Agent that requests the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Successor {
    /// Version of the agent.
    pub version: String,
    /// UID of its pod; empty without a pod.
    pub pod: String,
    /// Reason why it could not serve this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Decision of the holder on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HolderDecision {
    /// Answer that it is alive.
    Alive,
    /// Refuse, for this reason.
    Refuse(String),
    /// Hand over to this successor.
    HandOver(Successor),
}

/// Decides on the first request of a connection, for a holder with this problem of its own.
pub fn decide(request: HandoverRequest, own_problem: Option<&str>) -> HolderDecision {
    match request {
        HandoverRequest::Ping {} => HolderDecision::Alive,
        HandoverRequest::Serving {} => {
            HolderDecision::Refuse("no hand-over is in progress on this connection".to_owned())
        }
        HandoverRequest::LetGo(successor) => match (&successor.problem, own_problem) {
            // A new version that cannot read the GPUs would take them from the node.
            (Some(problem), None) => HolderDecision::Refuse(format!(
                "the successor could not serve the devices that this agent serves: {problem}"
            )),
            _ => HolderDecision::HandOver(successor),
        },
    }
}

/// Encodes a message as a line, with the line feed.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Cannot fail: these types have string keys only.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Decodes a line.
pub fn decode<T: DeserializeOwned>(line: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(line)
}

/// Cuts a text to the length that fits a line.
pub fn truncate(text: &str) -> String {
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
    fn every_message_is_decoded_as_it_was_encoded() {
        for request in [
            successor(None),
            successor(Some("no driver")),
            HandoverRequest::Serving {},
            HandoverRequest::Ping {},
        ] {
            assert_eq!(decode::<HandoverRequest>(&encode(&request)).unwrap(), request);
        }
        let reason = truncate(&"é".repeat(MAX_LINE));
        for answer in [
            HolderResponse::Holding {},
            HolderResponse::Refused { reason },
            HolderResponse::Released { pod: "a".to_owned() },
        ] {
            let line = encode(&answer);
            assert!(line.len() <= MAX_LINE);
            assert_eq!(decode::<HolderResponse>(&line).unwrap(), answer);
        }
    }

    #[test]
    fn unknown_fields_of_another_version_are_ignored() {
        let more = br#"{"letGo":{"version":"9","pod":"b","mood":"good"}}"#;
        assert!(matches!(
            decode(more),
            Ok(HandoverRequest::LetGo(Successor { problem: None, .. }))
        ));
        assert!(decode::<HandoverRequest>(br#"{"sing":{}}"#).is_err());
    }

    #[test]
    fn a_successor_that_could_advertise_less_is_refused_unless_the_holder_is_no_better_off() {
        let refused = decide(successor(Some("no driver")), None);
        assert!(matches!(refused, HolderDecision::Refuse(reason) if reason.ends_with("no driver")));
        for (theirs, own) in [(None, None), (None, Some("x")), (Some("x"), Some("y"))] {
            assert!(
                matches!(decide(successor(theirs), own), HolderDecision::HandOver(_)),
                "{theirs:?} {own:?}"
            );
        }
    }

    #[test]
    fn only_a_request_for_the_lock_starts_a_hand_over() {
        assert!(matches!(
            decide(HandoverRequest::Serving {}, None),
            HolderDecision::Refuse(_)
        ));
        assert_eq!(decide(HandoverRequest::Ping {}, None), HolderDecision::Alive);
    }
}
