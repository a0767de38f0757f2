//! Replacement policies, and how a trace is replayed against one.
//!
//! A policy holds at most as many pages as its capacity, which may change at any time. A first touch brings a page in like any
//! other, but is no miss: no policy can avoid it.

mod arc;
mod belady;
mod clock;
mod lirs;
mod list;
mod lru;
mod s3_fifo;

use crate::trace::{Op, Trace};

/// A policy that knows nothing of the future, except for Belady's.
pub trait Policy {
    /// Touches `page` at position `at` of the trace. True if the policy held it. Afterwards it does.
    fn touch(&mut self, page: u32, at: usize) -> bool;
    /// The program gave the page up.
    fn forget(&mut self, page: u32);
    /// Changes how many pages the policy holds at most, and evicts what is beyond that.
    fn resize(&mut self, capacity: usize);
}

/// The policies that can be used while a program runs, by name.
pub const ONLINE: [&str; 5] = ["LRU", "CLOCK", "S3-FIFO", "LIRS", "ARC"];
/// The best that is possible.
pub const OPTIMUM: &str = "optimum";

/// Makes a policy for a trace.
pub fn named<'a>(name: &str, trace: &'a Trace, capacity: usize) -> Box<dyn Policy + 'a> {
    let pages = trace.pages;
    match name {
        "LRU" => Box::new(lru::Lru::new(pages, capacity)),
        "CLOCK" => Box::new(clock::Clock::new(pages, capacity)),
        "S3-FIFO" => Box::new(s3_fifo::S3Fifo::new(pages, capacity)),
        "LIRS" => Box::new(lirs::Lirs::new(pages, capacity)),
        "ARC" => Box::new(arc::Arc::new(pages, capacity)),
        OPTIMUM => Box::new(belady::Belady::new(trace, capacity)),
        _ => panic!("{name}: there is no such policy"),
    }
}

/// How many pages fit, by position in the trace.
pub struct Capacity {
    /// One number for each part of the trace; all parts are of the same length.
    pub parts: Vec<usize>,
}

impl Capacity {
    #[cfg(test)]
    pub fn constant(pages: usize) -> Self {
        Self { parts: vec![pages] }
    }

    /// The capacity times `factor`.
    pub fn times(&self, factor: f64) -> Self {
        Self { parts: self.parts.iter().map(|pages| (*pages as f64 * factor) as usize).collect() }
    }
}

/// Replays the trace. Returns the number of misses, without first touches.
pub fn misses(name: &str, trace: &Trace, capacity: &Capacity) -> u64 {
    let (mut misses, mut alive) = (0, vec![false; trace.pages]);
    replay(name, trace, capacity, |at, is_hit| match trace.ops[at].get() {
        Op::Touch(page) => {
            let is_again = std::mem::replace(&mut alive[page as usize], true);
            misses += (!is_hit && is_again) as u64;
        }
        Op::Gone(page) => alive[page as usize] = false,
    });
    misses
}

/// Replays the trace. Calls `seen` with each position, and whether the policy had the page that is touched there.
pub fn replay(name: &str, trace: &Trace, capacity: &Capacity, mut seen: impl FnMut(usize, bool)) {
    let part_len = trace.ops.len().div_ceil(capacity.parts.len()).max(1);
    let mut now = capacity.parts[0].max(1);
    let mut policy = named(name, trace, now);
    for (at, op) in trace.ops.iter().enumerate() {
        let fits = capacity.parts[at / part_len].max(1);
        if at.is_multiple_of(part_len) && fits != now {
            policy.resize(fits);
            now = fits;
        }
        let is_hit = match op.get() {
            Op::Touch(page) => policy.touch(page, at),
            Op::Gone(page) => {
                policy.forget(page);
                false
            }
        };
        seen(at, is_hit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trace(pages: &[u32]) -> Trace {
        Trace::from_ops(pages.iter().map(|page| Op::Touch(*page)))
    }

    fn count(name: &str, pages: &[u32], capacity: usize) -> u64 {
        misses(name, &trace(pages), &Capacity::constant(capacity))
    }

    #[test]
    fn the_string_of_the_textbooks_has_the_misses_of_the_textbooks() {
        // Silberschatz, "Operating System Concepts": 12 faults of LRU with three frames, and 9 of the optimum, six of each
        // are first touches.
        let pages = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        assert_eq!(count("LRU", &pages, 3), 12 - 6);
        assert_eq!(count(OPTIMUM, &pages, 3), 9 - 6);
    }

    #[test]
    fn a_loop_that_is_one_page_too_long_defeats_lru_but_not_lirs() {
        let pages: Vec<u32> = (0..100).flat_map(|_| 0..101).collect();
        assert_eq!(count("LRU", &pages, 100), 99 * 101);
        assert_eq!(count("CLOCK", &pages, 100), 99 * 101);
        assert!(count("LIRS", &pages, 100) < 99 * 5);
        assert!(count(OPTIMUM, &pages, 100) <= 99 * 2);
    }

    #[test]
    fn lirs_keeps_a_part_of_a_loop_when_its_room_shrinks() {
        let trace = trace(&(0..20).flat_map(|_| 0..1000).collect::<Vec<_>>());
        let mut parts = vec![1000; 1];
        parts.extend([500, 300, 250]);
        parts.extend([230; 36]);
        let least = misses(OPTIMUM, &trace, &Capacity { parts: parts.clone() });
        assert!(misses("LIRS", &trace, &Capacity { parts }) * 10 < least * 12);
    }

    #[test]
    fn a_scan_does_not_drive_pages_in_use_out_of_what_resists_scans() {
        // Thirty pages in use, and now and then a scan of a hundred pages that are not.
        let mut pages = Vec::new();
        for i in 0..100u32 {
            pages.extend((0..300).map(|k| k * 7 % 30));
            pages.extend((0..100).map(|k| 100 + (i * 100 + k) % 5000));
        }
        let lru = count("LRU", &pages, 40);
        for name in ["S3-FIFO", "LIRS", "ARC"] {
            assert!(count(name, &pages, 40) < lru, "{name}");
        }
    }

    #[test]
    fn what_the_program_gave_up_is_no_miss_when_it_comes_again() {
        let ops = [Op::Touch(1), Op::Gone(1), Op::Touch(1), Op::Touch(2), Op::Touch(3), Op::Gone(3), Op::Touch(1)];
        for name in ONLINE.iter().chain([&OPTIMUM]) {
            assert_eq!(misses(name, &Trace::from_ops(ops), &Capacity::constant(3)), 0, "{name}");
        }
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = (0u32..40, 0u32..20).prop_map(|(page, dice)| match dice {
            0 => Op::Gone(page),
            1..8 => Op::Touch(page % 8),
            _ => Op::Touch(page),
        });
        proptest::collection::vec(op, 1..600)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn nothing_is_better_than_the_optimum(ops in ops(), capacity in 1usize..40) {
            let trace = Trace::from_ops(ops);
            let capacity = Capacity::constant(capacity);
            let least = misses(OPTIMUM, &trace, &capacity);
            for name in ONLINE {
                prop_assert!(misses(name, &trace, &capacity) >= least, "{}", name);
            }
        }

        #[test]
        fn more_room_is_never_worse_for_a_stack_algorithm(ops in ops()) {
            let trace = Trace::from_ops(ops);
            for name in ["LRU", OPTIMUM] {
                let by_room: Vec<u64> = (1..41).map(|pages| misses(name, &trace, &Capacity::constant(pages))).collect();
                prop_assert!(by_room.is_sorted_by(|less, more| less >= more), "{}: {:?}", name, by_room);
            }
        }

        #[test]
        fn with_room_for_all_pages_nothing_is_missed(ops in ops()) {
            let trace = Trace::from_ops(ops);
            // S3-FIFO and LIRS hold a part of the capacity back for new pages.
            for name in ONLINE.iter().chain([&OPTIMUM]) {
                prop_assert_eq!(misses(name, &trace, &Capacity::constant(64)), 0, "{}", name);
            }
        }

        #[test]
        fn no_policy_breaks_when_its_room_changes(ops in ops(), parts in proptest::collection::vec(1usize..40, 1..9)) {
            let trace = Trace::from_ops(ops);
            let (least, most) = (parts.iter().min().copied(), parts.iter().max().copied());
            let capacity = Capacity { parts };
            let of = |name, pages: Option<usize>| misses(name, &trace, &Capacity::constant(pages.unwrap_or(1)));
            for name in ["LRU", OPTIMUM] {
                let now = misses(name, &trace, &capacity);
                prop_assert!(of(name, most) <= now && now <= of(name, least), "{}", name);
            }
            for name in ONLINE {
                prop_assert!(misses(name, &trace, &capacity) >= of(OPTIMUM, most), "{}", name);
            }
        }
    }
}
