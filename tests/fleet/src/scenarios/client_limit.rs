//! One policy changes all nodes while the operators have a limit of requests.

use crate::{
    Fleet,
    scenarios::{label_policy, measured_change, most_writes},
};
use anyhow::Result;

/// A change under a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientLimit {
    /// From the edit to the answer to the last write of a node, in seconds.
    pub seconds: f64,
    /// Most writes of one node.
    pub most_writes: usize,
}

/// Measures a change of a label and a taint of all nodes with `--client-qps`.
pub async fn client_limit(fleet: &Fleet, client_qps: u32) -> Result<ClientLimit> {
    let pair = fleet.start_limited_pair(client_qps).await?;
    let change = measured_change(fleet, &pair, &[label_policy(0)], fleet.size()).await?;
    Ok(ClientLimit {
        seconds: change.seconds,
        most_writes: most_writes(&change.writes),
    })
}
