//! How long accesses took: counts by logarithm, sixteen steps to a doubling, so that a quantile is right to 6 %.

const STEPS: u64 = 16;
const BUCKETS: usize = 64 * STEPS as usize;

/// Counts of durations in cycles.
pub struct Histogram {
    counts: Box<[u64]>,
    max: u64,
}

impl Histogram {
    pub fn new() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice(), max: 0 }
    }

    #[inline]
    pub fn add(&mut self, cycles: u64) {
        self.counts[bucket(cycles)] += 1;
        self.max = self.max.max(cycles);
    }

    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.max = self.max.max(other.max);
    }

    /// How many words it is made of.
    pub const WORDS: usize = BUCKETS + 1;

    /// The counts and the maximum, for another process.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.counts.iter().copied().chain([self.max])
    }

    /// A histogram from its words.
    pub fn from_words(words: &[u64]) -> Self {
        let (max, counts) = words.split_last().expect("a maximum behind the counts");
        Self { counts: counts.into(), max: *max }
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    /// The duration that this share of all does not pass.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.counts.iter().sum::<u64>() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (i, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return upper(i).min(self.max);
            }
        }
        0
    }

    /// How many took longer than `cycles`, to the precision of a step.
    pub fn above(&self, cycles: u64) -> u64 {
        self.counts[bucket(cycles) + 1..].iter().sum()
    }
}

fn bucket(cycles: u64) -> usize {
    if cycles < STEPS {
        return cycles as usize;
    }
    let log = cycles.ilog2() as u64;
    ((log - 3) * STEPS + (cycles >> (log - 4)) - STEPS) as usize
}

/// Largest duration of a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < STEPS {
        return bucket;
    }
    let log = bucket / STEPS + 3;
    (bucket % STEPS + STEPS + 1).checked_shl(log as u32 - 4).map_or(u64::MAX, |end| end.wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_lies_in_its_bucket() {
        for cycles in (0..60).flat_map(|log| [1u64 << log, (1 << log) + 1, (1 << log) * 3 / 2]) {
            let i = bucket(cycles);
            assert!(cycles <= upper(i), "{cycles}");
            assert!(i == 0 || upper(i - 1) < cycles, "{cycles}");
        }
    }

    #[test]
    fn the_median_of_one_to_a_thousand_is_five_hundred() {
        let mut histogram = Histogram::new();
        (1..=1000).for_each(|cycles| histogram.add(cycles));
        assert!((500..=532).contains(&histogram.quantile(0.5)));
        assert_eq!(histogram.quantile(1.0), 1000);
        assert_eq!(histogram.max(), 1000);
    }
}
