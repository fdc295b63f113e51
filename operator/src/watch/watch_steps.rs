//! Decides which request a watch makes next, and after which pause. No IO.

use gpunode_process::{SilentStreams, random_up_to};
use std::time::Duration;
use tokio::time::Instant;

/// Pauses after failures: the first one; each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A watch that works for this long ends the count of failures: with the longest pause there would be as many lists.
const WORKS_AFTER: Duration = LONGEST_PAUSE;
/// A watch that ends sooner has failed: started again at once, it would end at once.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);
/// Longest pause that the API server can ask for. With up to a fifth more, and a request after it, it has to end before
/// the kind counts as failing (`watch_health`): a busy API server must not cost a leader its Lease.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(30);
/// Most objects in a page: at first, and after each list whose continue token expired before its last page, which is
/// five minutes after its first (`--etcd-compaction-interval`). A page of 2,500 Nodes has some 34 MB (13.5 kB each),
/// and 20,000 Nodes are eight pages.
const PAGE_LIMITS: [u32; 3] = [100, 500, 2_500];
/// Time after which the API server ends a watch: the shortest, and what is added at random, so that watches that began
/// together end apart.
const SHORTEST_TIMEOUT: Duration = Duration::from_mins(4);
const TIMEOUT_SPREAD: Duration = Duration::from_secs(51);

/// A request of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchStep {
    /// A streaming list, which goes on as a watch.
    StreamList,
    /// A page of a list.
    ListPage {
        /// The continue token; without one, it is the first page.
        token: Option<String>,
        /// Most objects in it.
        limit: u32,
    },
    /// A watch from this resourceVersion.
    Watch(String),
}

impl WatchStep {
    /// True until the list is whole.
    pub fn is_list(&self) -> bool {
        !matches!(self, Self::Watch(_))
    }
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepEnd {
    /// A page is in, and another one is at this continue token.
    NextPage(String),
    /// The continue token of a page leads to that page again.
    RepeatedToken,
    /// The last page is in; the list has this resourceVersion.
    Listed(String),
    /// The API server ended the stream this long after it was accepted.
    Ended(Duration),
    /// The stream brought nothing for too long.
    Silent,
    /// The API server no longer knows the resourceVersion or the continue token.
    Expired,
    /// The API server refused the request with this HTTP status; the same request is refused again.
    Rejected(u16),
    /// No answer, an error of the server, or a connection that broke.
    Failed {
        /// Pause that the API server asks for.
        retry_after: Option<Duration>,
    },
}

/// True for the HTTP status of a request that can never succeed as it is.
fn is_malformed(code: u16) -> bool {
    matches!(code, 400 | 405 | 422)
}

/// Progress of a watch, from its first list on.
#[derive(Debug)]
pub struct WatchSteps {
    step: WatchStep,
    /// True if the API server did not complete the last streaming list.
    lists_by_pages: bool,
    /// Most objects in a page. Grows only: where a list expired once, it would again.
    page_limit: u32,
    /// Failures since the watch last worked for a while.
    failures: u32,
    /// True once an expired version led to a list at once: that happens once for each time that the watch works for a while.
    has_relisted: bool,
    /// Moment since which the watch works; `None` after a failure.
    works_since: Option<Instant>,
    silent_streams: SilentStreams,
}

impl WatchSteps {
    /// A watch that begins with a list.
    pub fn new() -> Self {
        Self {
            step: WatchStep::StreamList,
            lists_by_pages: false,
            page_limit: PAGE_LIMITS[0],
            failures: 0,
            has_relisted: false,
            works_since: None,
            silent_streams: SilentStreams::default(),
        }
    }

    /// The request to make.
    pub fn step(&self) -> &WatchStep {
        &self.step
    }

    /// Records that the API server accepted a watch, or that a streaming list goes on as one.
    pub fn started(&mut self, now: Instant) {
        self.works_since.get_or_insert(now);
    }

    /// Records a line of a stream.
    pub fn received(&mut self) {
        self.silent_streams.received();
    }

    /// Records a bookmark that ends no list.
    pub fn bookmarked(&mut self) {
        self.silent_streams.bookmarked();
    }

    /// Records that a list is whole.
    pub fn listed(&mut self, version: String) {
        self.step = WatchStep::Watch(version);
        self.lists_by_pages = false;
        self.silent_streams.received();
    }

    /// Records up to which resourceVersion the watch has brought everything.
    pub fn advanced(&mut self, to: String) {
        if let WatchStep::Watch(version) = &mut self.step {
            *version = to;
        }
    }

    /// Decides about the next request. Returns the pause before it.
    pub fn after(&mut self, end: StepEnd, now: Instant) -> Duration {
        let is_watch = !self.step.is_list();
        match end {
            StepEnd::NextPage(token) => {
                self.step = self.page(Some(token));
                Duration::ZERO
            }
            StepEnd::Listed(version) => {
                self.listed(version);
                Duration::ZERO
            }
            // A dead connection shows when the next request gets no answer.
            StepEnd::Silent if is_watch => {
                if self.silent_streams.fell_silent() {
                    self.list_again();
                }
                Duration::ZERO
            }
            StepEnd::Ended(after) if is_watch && after >= SHORTEST_WATCH => Duration::ZERO,
            StepEnd::Ended(_) if is_watch => self.pause(now),
            StepEnd::Silent | StepEnd::Ended(_) => {
                self.list_by_pages();
                self.pause(now)
            }
            StepEnd::Expired => {
                if matches!(self.step, WatchStep::ListPage { token: Some(_), .. }) {
                    self.grow_pages();
                }
                self.list_again();
                let pause = self.pause(now);
                // After a compaction or a restart of the API server all watches expire, and it answers again.
                if std::mem::replace(&mut self.has_relisted, true) {
                    pause
                } else {
                    Duration::ZERO
                }
            }
            StepEnd::RepeatedToken => {
                self.list_again();
                self.pause(now)
            }
            StepEnd::Rejected(code) => self.rejected(code, now),
            StepEnd::Failed { retry_after } => {
                let asked = retry_after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
                self.pause(now).max(spread(asked))
            }
        }
    }

    fn rejected(&mut self, code: u16, now: Instant) -> Duration {
        let is_malformed = is_malformed(code);
        match self.step {
            // The API server has no streaming lists (422 Invalid) or does not know the parameters.
            WatchStep::StreamList if is_malformed => {
                self.list_by_pages();
                return Duration::ZERO;
            }
            // It may be the token, or the version.
            WatchStep::ListPage { token: Some(_), .. } => self.list_again(),
            WatchStep::Watch(_) if is_malformed => self.list_again(),
            WatchStep::StreamList | WatchStep::ListPage { token: None, .. } | WatchStep::Watch(_) => {}
        }
        self.pause(now)
    }

    /// True if such an end of the present request is in the course of things.
    pub fn expects(&self, end: &StepEnd) -> bool {
        match end {
            StepEnd::Expired => true,
            StepEnd::Rejected(code) => self.step == WatchStep::StreamList && is_malformed(*code),
            _ => false,
        }
    }

    /// Until a list is whole.
    fn list_by_pages(&mut self) {
        self.lists_by_pages = true;
        self.list_again();
    }

    fn list_again(&mut self) {
        self.step = if self.lists_by_pages {
            self.page(None)
        } else {
            WatchStep::StreamList
        };
    }

    fn page(&self, token: Option<String>) -> WatchStep {
        let limit = self.page_limit;
        WatchStep::ListPage { token, limit }
    }

    /// Fewer requests for a list, so that the next one is whole sooner.
    fn grow_pages(&mut self) {
        let larger = PAGE_LIMITS.into_iter().find(|limit| *limit > self.page_limit);
        self.page_limit = larger.unwrap_or(self.page_limit);
    }

    /// Counts a failure and returns the pause after it.
    fn pause(&mut self, now: Instant) -> Duration {
        if self.works_since.take().is_some_and(|since| now - since >= WORKS_AFTER) {
            (self.failures, self.has_relisted) = (0, false);
        }
        let pause = FIRST_PAUSE
            .saturating_mul(2_u32.saturating_pow(self.failures))
            .min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        spread(pause)
    }

    /// Returns the time after which the API server shall end the next watch, in seconds.
    pub fn watch_timeout() -> u32 {
        let timeout = SHORTEST_TIMEOUT + random_up_to(TIMEOUT_SPREAD);
        u32::try_from(timeout.as_secs()).unwrap_or_default()
    }
}

/// Makes a pause up to a fifth longer, so that watches that failed together do not ask again together.
fn spread(pause: Duration) -> Duration {
    pause + random_up_to(pause / 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: StepEnd = StepEnd::Failed { retry_after: None };

    fn listed() -> WatchSteps {
        let mut steps = WatchSteps::new();
        steps.listed("7".to_owned());
        steps.started(Instant::now());
        steps
    }

    fn page(token: Option<&str>, limit: u32) -> WatchStep {
        let token = token.map(str::to_owned);
        WatchStep::ListPage { token, limit }
    }

    fn after(steps: &mut WatchSteps, end: StepEnd, seconds: u64) -> Duration {
        steps.after(end, Instant::now() + Duration::from_secs(seconds))
    }

    /// True if a pause is `seconds` and at most a fifth more.
    fn is_about(pause: Duration, seconds: u64) -> bool {
        let least = Duration::from_secs(seconds);
        pause >= least && pause <= least * 6 / 5
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_30_seconds_and_lists_between_do_not_reset_them() {
        let mut steps = WatchSteps::new();
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let pause = after(&mut steps, FAILED, 0);
            assert!(is_about(pause, seconds), "{pause:?}");
            // A list that is whole and a watch that starts: both fail again soon.
            steps.listed("7".to_owned());
            steps.started(Instant::now());
        }
        let pause = after(&mut steps, FAILED, 30);
        assert!(
            is_about(pause, 1),
            "it worked for as long as the longest pause: {pause:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn jitter_differs_from_pause_to_pause() {
        let mut steps = WatchSteps::new();
        let pauses: Vec<_> = (0..20).map(|_| after(&mut steps, FAILED, 0)).skip(5).collect();
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn pause_that_the_server_asks_for_holds_up_to_30_seconds() {
        for (asked, expected) in [(1, 1), (20, 20), (120, 30), (3600, 30)] {
            let retry_after = Some(Duration::from_secs(asked));
            let pauses: Vec<_> = (0..20)
                .map(|_| after(&mut listed(), StepEnd::Failed { retry_after }, 0))
                .collect();
            assert!(
                pauses.iter().all(|pause| is_about(*pause, expected)),
                "{asked}: {pauses:?}"
            );
            assert!(
                pauses.iter().any(|pause| *pause != pauses[0]),
                "all watches ask at once: {pauses:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watch_that_ends_is_resumed_at_once_unless_it_ends_at_once() {
        let mut steps = listed();
        steps.advanced("9".to_owned());
        for end in [StepEnd::Ended(Duration::from_mins(4)), StepEnd::Silent] {
            assert_eq!(after(&mut steps, end, 0), Duration::ZERO);
        }
        for seconds in [1, 2, 4] {
            let pause = after(&mut steps, StepEnd::Ended(Duration::from_millis(900)), 0);
            assert!(is_about(pause, seconds), "{pause:?}");
        }
        assert_eq!(*steps.step(), WatchStep::Watch("9".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn streams_that_are_silent_in_a_row_lead_to_a_list() {
        for (has_bookmarks, bearable) in [(true, 1), (false, 7)] {
            let mut steps = listed();
            if has_bookmarks {
                steps.bookmarked();
            }
            for _ in 0..3 {
                for _ in 0..bearable {
                    assert_eq!(after(&mut steps, StepEnd::Silent, 0), Duration::ZERO);
                    assert_eq!(*steps.step(), WatchStep::Watch("7".to_owned()));
                }
                // A line between them.
                steps.received();
            }
            for _ in 0..=bearable {
                assert_eq!(*steps.step(), WatchStep::Watch("7".to_owned()));
                assert_eq!(after(&mut steps, StepEnd::Silent, 0), Duration::ZERO);
            }
            assert_eq!(*steps.step(), WatchStep::StreamList);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn expired_version_is_listed_at_once_and_again_only_after_a_pause() {
        let mut steps = listed();
        assert_eq!(after(&mut steps, StepEnd::Expired, 0), Duration::ZERO);
        assert_eq!(*steps.step(), WatchStep::StreamList);
        steps.listed("8".to_owned());
        let pause = after(&mut steps, StepEnd::Expired, 0);
        assert!(is_about(pause, 2), "{pause:?}");

        // An API server that was away for a while.
        let mut steps = listed();
        for _ in 0..4 {
            after(&mut steps, FAILED, 0);
        }
        assert_eq!(after(&mut steps, StepEnd::Expired, 0), Duration::ZERO);
        steps.listed("8".to_owned());
        let pause = after(&mut steps, StepEnd::Expired, 0);
        assert!(is_about(pause, 30), "{pause:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_streaming_list_becomes_pages_until_a_list_is_whole() {
        for code in [400, 422] {
            let mut steps = WatchSteps::new();
            assert_eq!(after(&mut steps, StepEnd::Rejected(code), 0), Duration::ZERO);
            assert_eq!(*steps.step(), page(None, 100));
            after(&mut steps, StepEnd::NextPage("more".to_owned()), 0);
            assert_eq!(*steps.step(), page(Some("more"), 100));
            after(&mut steps, FAILED, 0);
            assert_eq!(*steps.step(), page(Some("more"), 100), "the page is asked for again");
            after(&mut steps, StepEnd::Rejected(400), 0);
            assert_eq!(*steps.step(), page(None, 100));
            after(&mut steps, StepEnd::Listed("8".to_owned()), 0);
            assert_eq!(*steps.step(), WatchStep::Watch("8".to_owned()));
            after(&mut steps, StepEnd::Expired, 0);
            assert_eq!(*steps.step(), WatchStep::StreamList);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn list_whose_token_expires_begins_again_with_larger_pages() {
        let mut steps = WatchSteps::new();
        after(&mut steps, StepEnd::Rejected(422), 0);
        after(&mut steps, StepEnd::Expired, 0);
        assert_eq!(*steps.step(), page(None, 100), "the first page has no token");
        for (limit, next) in [(100, 500), (500, 2_500), (2_500, 2_500)] {
            after(&mut steps, StepEnd::NextPage("more".to_owned()), 0);
            assert_eq!(*steps.step(), page(Some("more"), limit));
            after(&mut steps, StepEnd::Expired, 0);
            assert_eq!(*steps.step(), page(None, next));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn token_that_leads_to_itself_is_a_failure_of_the_list() {
        let mut steps = WatchSteps::new();
        after(&mut steps, StepEnd::Rejected(422), 0);
        for seconds in [1, 2, 4] {
            after(&mut steps, StepEnd::NextPage("more".to_owned()), 0);
            let pause = after(&mut steps, StepEnd::RepeatedToken, 0);
            assert!(is_about(pause, seconds), "{pause:?}");
            assert_eq!(*steps.step(), page(None, 100));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn streaming_list_without_an_end_becomes_pages() {
        for end in [StepEnd::Silent, StepEnd::Ended(Duration::from_mins(1))] {
            let mut steps = WatchSteps::new();
            let pause = after(&mut steps, end, 0);
            assert!(is_about(pause, 1), "{pause:?}");
            assert_eq!(*steps.step(), page(None, 100));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn forbidden_request_is_repeated_as_it_is() {
        for mut steps in [WatchSteps::new(), listed()] {
            let step = steps.step().clone();
            let pause = after(&mut steps, StepEnd::Rejected(403), 0);
            assert!(is_about(pause, 1), "{pause:?}");
            assert_eq!(*steps.step(), step);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn watches_end_between_240_and_290_seconds() {
        let timeouts: Vec<_> = (0..200).map(|_| WatchSteps::watch_timeout()).collect();
        assert!(
            timeouts.iter().all(|timeout| (240..=290).contains(timeout)),
            "{timeouts:?}"
        );
        assert!(timeouts.iter().any(|timeout| *timeout != timeouts[0]));
    }
}
