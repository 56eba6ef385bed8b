//! A seeded random generator: the same corpus on every machine, so that figures are comparable.

/// SplitMix64: small, fast, and good enough to pick words.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random number below `bound`, which must be at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Pick with Zipf-like frequencies: the n-th item is about n times rarer than the first.
    pub fn pick_skewed<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        // 2^(u·log2 n) without a logarithm: choose an octave, then a position in it.
        let octaves = usize::BITS - items.len().leading_zeros();
        let top = 1usize << self.below(octaves as usize);
        let index = top - 1 + self.below(top);
        items.get(index).unwrap_or_else(|| self.pick(items))
    }

    /// A realistic length: mostly near the median, sometimes several times as long.
    pub fn log_normal(&mut self, median: f64, sigma: f64, low: usize, high: usize) -> usize {
        let sum: f64 = (0..12).map(|_| self.next() as f64 / u64::MAX as f64).sum();
        let length = median * (sigma * (sum - 6.0)).exp();
        (length as usize).clamp(low, high)
    }
}
