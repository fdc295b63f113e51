//! The count of a resource on a node, as it is and as it would be.

use serde::Serialize;

/// The count of a resource on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceForecast {
    /// Name that pods request.
    pub resource: String,
    /// Shares with the current configuration: whole devices, replicas or units.
    pub now: u64,
    /// Shares with the new configuration.
    pub then: u64,
    /// Shares that containers hold now.
    pub held: u64,
    /// True where the agent lists only some of the holders.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
    /// Held shares for which the new configuration has no room.
    pub would_not_fit: u64,
    /// The sum that gives `then`, such as `2 GPUs x 4 replicas = 8`.
    pub words: String,
}

impl ResourceForecast {
    /// Compares it with the current configuration and the held shares, such as `now 16; 14 held: 6 would not fit`.
    pub fn comparison(&self) -> String {
        let now = if self.now == self.then {
            "unchanged".to_owned()
        } else {
            format!("now {}", self.now)
        };
        let least = if self.at_least { "at least " } else { "" };
        match (self.held, self.would_not_fit) {
            (0, _) => now,
            (held, 0) => format!("{now}; {least}{held} held"),
            (held, excess) => format!("{now}; {least}{held} held: {excess} would not fit"),
        }
    }
}
