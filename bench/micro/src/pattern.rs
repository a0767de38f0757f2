//! Which page comes next.

use crate::random::{Random, Zipf, mix};
use std::sync::Arc;

/// What a process does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    RandomRead,
    RandomWrite,
    ZipfRead,
    SeqRead,
    SeqWrite,
    SwapOut,
    SwapOutRandom,
    SwapIn,
    PageOut,
    Free,
    Cow,
    RandomRw,
}

impl Workload {
    const ALL: [(&'static str, Self); 12] = [
        ("random-read", Self::RandomRead),
        ("random-write", Self::RandomWrite),
        ("zipf-read", Self::ZipfRead),
        ("seq-read", Self::SeqRead),
        ("seq-write", Self::SeqWrite),
        ("swap-out", Self::SwapOut),
        ("swap-out-random", Self::SwapOutRandom),
        ("swap-in", Self::SwapIn),
        ("page-out", Self::PageOut),
        ("free", Self::Free),
        ("cow", Self::Cow),
        ("random-rw", Self::RandomRw),
    ];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(n, _)| *n == name).map(|(_, workload)| workload)
    }

    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, workload)| *workload == self).map_or("", |(name, _)| name)
    }

    pub fn writes(self) -> bool {
        matches!(self, Self::RandomWrite | Self::SeqWrite)
    }
}

/// The pages of thread `index` of `threads` that walks `pages` in order.
pub fn share(pages: usize, index: usize, threads: usize) -> std::ops::Range<usize> {
    pages * index / threads..pages * (index + 1) / threads
}

/// Zipf's law over pages, for all threads of a run.
pub fn zipf(pages: usize, exponent: f64) -> Arc<Zipf> {
    Arc::new(Zipf::new(pages, exponent))
}

/// Numbers below `pages` in an order without a pattern, each once: a walk by steps that have no divisor in common with it.
pub fn scattered(pages: usize, seed: u64) -> impl Iterator<Item = usize> {
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    // From the golden section on, so that neighbours in time are far apart in space.
    let from = (pages as f64 * 0.618_033_988) as usize | 1;
    let step = (from..).find(|step| gcd(*step, pages) == 1).unwrap_or(1);
    let start = mix(seed) as usize % pages.max(1);
    (0..pages).map(move |i| (start + i * step) % pages)
}

/// One thread's order of pages.
pub enum Pattern {
    /// Any page.
    Uniform { pages: usize, random: Random },
    /// Any page of this thread's: they lie between the other threads' pages, so that all use the same units of memory.
    Own { pages: usize, index: usize, threads: usize, random: Random },
    /// A few pages often. They are scattered over memory.
    Zipf { pages: usize, zipf: Arc<Zipf>, random: Random },
    /// A few pages of this thread's often.
    OwnZipf { pages: usize, index: usize, threads: usize, zipf: Arc<Zipf>, random: Random },
    /// A range in order, for ever.
    Sequence { first: usize, end: usize, next: usize },
}

impl Pattern {
    #[inline]
    pub fn next(&mut self) -> usize {
        match self {
            Self::Uniform { pages, random } => random.below(*pages),
            Self::Own { pages, index, threads, random } => {
                let nr_own = (*pages - *index).div_ceil(*threads);
                random.below(nr_own) * *threads + *index
            }
            Self::Zipf { pages, zipf, random } => (mix(zipf.pick(random) as u64) % *pages as u64) as usize,
            Self::OwnZipf { pages, index, threads, zipf, random } => {
                let nr_own = (*pages - *index).div_ceil(*threads);
                (mix(zipf.pick(random) as u64) % nr_own as u64) as usize * *threads + *index
            }
            Self::Sequence { first, end, next } => {
                let page = *next;
                *next = if page + 1 == *end { *first } else { page + 1 };
                page
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_page_once() {
        let all: Vec<_> = (0..3).flat_map(|index| share(100, index, 3)).collect();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_scattered_walk_meets_every_page_once_and_is_no_scan() {
        for pages in [1, 2, 7, 256, 1000] {
            let mut all: Vec<_> = scattered(pages, 3).collect();
            let in_order = all.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
            assert!(in_order * 10 <= pages, "{in_order} of {pages}");
            all.sort_unstable();
            assert_eq!(all, (0..pages).collect::<Vec<_>>());
        }
    }

    #[test]
    fn own_pages_are_nobody_elses() {
        let mut pattern = Pattern::Own { pages: 101, index: 1, threads: 2, random: Random::new(1) };
        assert!((0..1000).map(|_| pattern.next()).all(|page| page % 2 == 1 && page < 101));
    }
}
