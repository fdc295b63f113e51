//! Answers by which the API server asks to be left alone for a while. Pure.

use http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use std::time::Duration;

/// Tries of one request. Who sent it decides about further ones.
pub const MAX_TRIES: u32 = 5;
/// Longest pause that is honoured.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Returns the pause that an answer asks for, at most 30 s; none if the answer is final.
///
/// As in client-go, only an answer with `Retry-After` in seconds asks: the API server sends it when priority and
/// fairness reject a request (429), and while it starts or stops (503).
pub fn requested_pause(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let is_busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    is_busy.then(|| Duration::from_secs(seconds.max(1)).min(MAX_PAUSE))
}

/// Returns true for requests that may be sent again after such an answer. An eviction is none: there 429 is the answer
/// of a PodDisruptionBudget.
pub fn may_be_repeated(path: &str) -> bool {
    !path.ends_with("/eviction")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(status: u16, header: Option<&'static str>) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.extend(header.map(|text| (RETRY_AFTER, http::HeaderValue::from_static(text))));
        requested_pause(StatusCode::from_u16(status).unwrap(), &headers).map(|pause| pause.as_secs())
    }

    #[test]
    fn busy_servers_say_for_how_long() {
        assert_eq!(pause(429, Some("1")), Some(1));
        assert_eq!(pause(503, Some(" 7 ")), Some(7));
        assert_eq!(pause(429, Some("0")), Some(1));
        assert_eq!(pause(429, Some("86400")), Some(30), "nobody waits for a day");
    }

    #[test]
    fn other_answers_are_final() {
        assert_eq!(pause(429, None), None);
        assert_eq!(pause(503, Some("Fri, 31 Dec 1999 23:59:59 GMT")), None);
        assert_eq!(pause(500, Some("1")), None);
        assert_eq!(pause(200, Some("1")), None);
    }

    #[test]
    fn answer_of_a_budget_is_final() {
        assert!(!may_be_repeated("/api/v1/namespaces/ml/pods/train-0/eviction"));
        assert!(may_be_repeated("/api/v1/namespaces/ml/pods/train-0"));
    }
}
