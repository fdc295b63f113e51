//! The same change by number of nodes and policies.

use crate::{
    Fleet, number,
    scale_document::ScaleRow,
    scenarios::{label_policy, measured_change, policies_in_parts, steady_memory},
};
use anyhow::Result;

/// Measures a change of every policy at once; of ten policies six label a sixth of the nodes each and four are previews, of
/// fifty thirty label a thirtieth and twenty are previews.
pub async fn scale_row(fleet: &Fleet, policies: usize) -> Result<ScaleRow> {
    let pair = fleet.start_pair().await?;
    let size = fleet.size();
    let of_round = |round| match policies {
        1 => vec![label_policy(round)],
        10 => policies_in_parts(6, 4, round),
        _ => policies_in_parts(30, 20, round),
    };
    measured_change(fleet, &pair, &of_round(0), size).await?;
    let resident = steady_memory(&pair).await?;
    let change = measured_change(fleet, &pair, &of_round(1), size).await?;
    drop(pair);
    fleet.clean().await?;
    Ok(ScaleRow {
        nodes: size,
        policies,
        seconds: change.seconds,
        writes_per_node: number(change.writes.values().sum()) / number(size),
        resident,
        leader: change.leader,
        standby: change.standby,
        api_server: change.api_server,
    })
}
