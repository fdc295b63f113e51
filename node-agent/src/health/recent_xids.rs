//! Recent XIDs, whose consequences a probe may not show yet. Pure.

use super::probe_loop::SETTLE;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// XIDs within this window count as one, so that a storm of them costs no memory.
const STORM: Duration = Duration::from_secs(1);
/// Time after an XID during which a probe may not show its consequences yet.
pub const UNSETTLED: Duration = SETTLE.saturating_add(STORM);

/// Recent XIDs by GPU: arrival time and the ticket from before, oldest first.
#[derive(Debug, Default)]
pub struct RecentXids(BTreeMap<String, VecDeque<(Instant, u64)>>);

impl RecentXids {
    /// Adds an XID of `gpu` that arrives `now`. `ticket` is the one from before it.
    pub fn add(&mut self, gpu: String, now: Instant, ticket: u64) {
        let recent = self.0.entry(gpu).or_default();
        recent.retain(|event| is_unsettled(event, now));
        if recent.back().is_none_or(|(at, _)| now.duration_since(*at) >= STORM) {
            recent.push_back((now, ticket));
        }
    }

    /// Returns the ticket from before the oldest recent XID of `gpu`.
    pub fn ticket(&self, gpu: &str, now: Instant) -> Option<u64> {
        let mut recent = self.0.get(gpu).into_iter().flatten();
        recent.find(|event| is_unsettled(event, now)).map(|(_, ticket)| *ticket)
    }

    /// Returns the times at which the consequences of recent XIDs show.
    pub fn settle_times(&self, now: Instant) -> impl Iterator<Item = Instant> {
        let recent = self.0.values().flatten().filter(move |event| is_unsettled(event, now));
        recent.map(|(at, _)| *at + UNSETTLED)
    }
}

fn is_unsettled((at, _): &(Instant, u64), now: Instant) -> bool {
    now.duration_since(*at) < UNSETTLED
}
