//! Random numbers, cheap beside a page fault.

/// A generator (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(mix(seed) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        ((self.next() as u128 * bound as u128) >> 64) as usize
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A number as unlike its neighbours' as can be (splitmix64).
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Numbers below `n` of which low ones are likelier, by Zipf's law (Gray et al., "Quickly generating billion-record
/// synthetic databases", 1994; as YCSB has it).
pub struct Zipf {
    n: f64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    pub fn new(n: usize, theta: f64) -> Self {
        let zeta_of = |n: usize| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let zeta = zeta_of(n);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - zeta_of(2) / zeta);
        Self { n: n as f64, theta, alpha: 1.0 / (1.0 - theta), zeta, eta }
    }

    pub fn pick(&self, random: &mut Random) -> usize {
        let u = random.unit();
        let scaled = u * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        (self.n * (self.eta * u - self.eta + 1.0).powf(self.alpha)).min(self.n - 1.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_a_zipf_range_gets_most_of_the_picks() {
        let (zipf, mut random) = (Zipf::new(10_000, 0.99), Random::new(3));
        let low = (0..100_000).filter(|_| zipf.pick(&mut random) < 2_000).count();
        assert!((75_000..90_000).contains(&low), "{low}");
    }

    #[test]
    fn every_number_below_the_bound_comes_up() {
        let mut random = Random::new(1);
        let mut seen = [false; 16];
        (0..1_000).for_each(|_| seen[random.below(16)] = true);
        assert_eq!(seen, [true; 16]);
    }
}
