//! A part of a whole, such as 3 of 10 shares.

use serde::Serialize;

/// A part of a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeldAmount {
    pub held: i64,
    pub total: i64,
}

impl HeldAmount {
    /// Adds another amount.
    pub fn add(&mut self, other: Self) {
        self.held = self.held.saturating_add(other.held);
        self.total = self.total.saturating_add(other.total);
    }

    /// Returns the same part of another whole.
    pub fn of(self, total: i64) -> Self {
        let held = self
            .held
            .saturating_mul(total)
            .checked_div(self.total)
            .unwrap_or_default();
        Self { held, total }
    }
}
