//! A set of GPUs under construction, and a GPU that can join it.

/// Share of one GPU in [`PartialSet::left_free`]: more than all pair scores of 64 GPUs.
pub const FREE_GPU: i64 = 1 << 32;

/// Sums of the pair scores of one GPU: to the GPUs of the set, and to those of them that were free.
pub type Pull = [u32; 2];

/// A GPU of which the container has no share yet.
#[derive(Debug)]
pub struct SearchItem {
    /// Place of its column.
    pub column: usize,
    /// Units that it can give.
    pub units: u32,
    /// Worth of one of its units.
    pub worth: i64,
    /// Its NUMA node as a bit.
    pub node: u64,
    /// True if the GPU counts as free until it joins the set.
    pub free: bool,
    /// Loss of [`PartialSet::left_free`] when it joins: [`FREE_GPU`] and its pair scores to all free GPUs.
    pub freedom: i64,
    /// Its pair scores to the other items.
    pub pulls: Vec<Pull>,
}

/// The sums of a set under construction.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartialSet {
    /// Sum of pair scores.
    pub pairs: i64,
    /// NUMA nodes as bits.
    pub nodes: u64,
    /// GPUs left free, as [`FREE_GPU`] each, plus the sum of their pair scores.
    pub left_free: i64,
    /// Worth of one unit of each new GPU.
    pub worth: i64,
    /// Units that the new GPUs can give.
    pub units: u64,
}

impl PartialSet {
    /// Returns the set with one more GPU that has these pulls.
    #[inline]
    pub fn with(self, item: &SearchItem, [near, of_free]: Pull) -> Self {
        Self {
            pairs: self.pairs + i64::from(near),
            nodes: self.nodes | item.node,
            left_free: if item.free {
                self.left_free - item.freedom + i64::from(of_free)
            } else {
                self.left_free
            },
            worth: self.worth + item.worth,
            units: self.units + u64::from(item.units),
        }
    }
}

/// Writes the pulls of a set, `row`, with one more GPU to `sum`.
pub fn add_pulls(sum: &mut [Pull], row: &[Pull], pulls: &[Pull]) {
    for ((sum, row), pull) in sum.iter_mut().zip(row).zip(pulls) {
        *sum = [row[0] + pull[0], row[1] + pull[1]];
    }
}
