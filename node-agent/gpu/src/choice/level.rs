//! Shares dealt so that no device gives more than it has to.

/// Result of a deal.
#[derive(Debug, PartialEq, Eq)]
pub struct Level {
    /// Number that each column got.
    pub added: Vec<u32>,
    /// True for each column that can take one more without exceeding the others.
    pub open: Vec<bool>,
    /// Rest for the open columns, smaller than their number.
    pub left: u32,
}

/// Adds `amount` to columns given as height and room, the lowest first, each by at most its room. The rest, when all open
/// columns are equal, stays with the caller. `amount` is at most the sum of the room.
pub fn level(columns: &[(u32, u32)], amount: u32) -> Level {
    let up_to = |top: u32, (height, room): &(u32, u32)| top.saturating_sub(*height).min(*room);
    let fits = |top: u32| columns.iter().map(|of| u64::from(up_to(top, of))).sum::<u64>() <= amount.into();
    let highest = columns
        .iter()
        .map(|(height, room)| height.saturating_add(*room))
        .max()
        .unwrap_or_default();
    // Everything below `low` fits, nothing from `high` on.
    let (mut low, mut high) = (0, highest.saturating_add(1));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    let added: Vec<u32> = columns.iter().map(|of| up_to(low, of)).collect();
    let open = columns
        .iter()
        .zip(&added)
        .map(|(of, added)| up_to(low.saturating_add(1), of) > *added)
        .collect();
    let left = amount.saturating_sub(added.iter().sum());
    Level { added, open, left }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_get_first_and_what_is_over_is_left_to_equals() {
        let dealt = level(&[(0, 3), (0, 3), (2, 3), (0, 1)], 6);
        assert_eq!(
            dealt,
            Level {
                added: vec![2, 2, 0, 1],
                open: vec![true, true, true, false],
                left: 1
            }
        );
        let dealt = level(&[(0, 1), (0, 1), (0, 1)], 2);
        assert_eq!(
            dealt,
            Level {
                added: vec![0; 3],
                open: vec![true; 3],
                left: 2
            }
        );
        let dealt = level(&[(0, 1), (1, 0), (0, 2)], 3);
        assert_eq!(
            dealt,
            Level {
                added: vec![1, 0, 2],
                open: vec![false; 3],
                left: 0
            }
        );
        assert_eq!(
            level(&[], 0),
            Level {
                added: Vec::new(),
                open: Vec::new(),
                left: 0
            }
        );
    }
}
