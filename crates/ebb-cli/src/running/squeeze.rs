//! Asks the processes of a tree for memory from outside.
//!
//! First asks the process whose memory has been cold for longest, as a process does that runs short itself (`ebb`,
//! `asking.rs`).

use std::sync::atomic::Ordering::SeqCst;

use ebb::tree::ages::OfShared;
use ebb::tree::{Page, now_ms, said};

use crate::base::sys;

/// The limit of `PART` is at least so many pages: fewer are not worth waking a process.
const PAGES_MIN: i64 = 256;
/// A request is for at most this part (1 / 8) of what a process holds. After that, another process may be the coldest.
const PART: i64 = 8;
/// A process that holds fewer pages is not asked.
const HELD_MIN: u64 = 64;

/// How many pages to ask of a process that has `charged`, if `lacking` are needed.
fn portion(lacking: i64, charged: u64) -> i64 {
    lacking.clamp(1, (charged as i64 / PART).max(PAGES_MIN))
}

/// Asks the coldest process of the tree for a part of `lacking` pages, unless it is busy with an earlier request. If no
/// process has cold memory of its own, asks the largest process for memory that it shares, which it gives as
/// `of_shared` says. False if there is no process to ask.
pub fn ask(page: &Page, lacking: i64, of_shared: OfShared) -> bool {
    let now = now_ms();
    let coldest = page.coldest(None, HELD_MIN, now).map(|(index, _)| (index, OfShared::Keep));
    let largest = || page.largest_to_give(None, HELD_MIN, of_shared, now).map(|index| (index, of_shared));
    let Some((index, shared)) = coldest.or_else(largest) else { return false };
    let member = page.member(index);
    if member.ask_pages.load(SeqCst) <= 0 {
        member.ask(portion(lacking, said(&member.charged)), shared, now);
        sys::futex_wake_all(&member.asked);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::counters::Counters;
    use ebb::tree::Kind;

    #[test]
    fn a_part_is_asked_for_at_a_time() {
        assert_eq!(portion(10, 100_000), 10);
        assert_eq!(portion(90_000, 80_000), 10_000);
        assert_eq!(portion(90_000, 100), PAGES_MIN);
    }

    #[test]
    fn the_process_that_is_cold_for_longest_is_asked_once_at_a_time() {
        let counters = Counters::create().unwrap();
        let page = counters.tree();
        for (index, age_ms) in [(0, 5_000), (1, 50_000)] {
            let member = page.member(index);
            member.set_kind(Kind::Managed);
            member.charged.store(1000, SeqCst);
            member.since_ms.store(now_ms().saturating_sub(age_ms), SeqCst);
            page.raise_high_water(index);
        }
        assert!(ask(page, 300, OfShared::Give) && ask(page, 300, OfShared::Give));
        let asked = [0, 1].map(|index| page.member(index).asked.load(SeqCst));
        assert_eq!((asked, page.member(1).ask_pages.load(SeqCst)), ([0, 1], 256));
    }

    #[test]
    fn where_nobody_has_cold_memory_of_its_own_the_largest_is_asked_for_what_it_shares() {
        for of_shared in [OfShared::Keep, OfShared::IfIdle, OfShared::Give] {
            let counters = Counters::create().unwrap();
            let page = counters.tree();
            for (index, charged) in [(0, 900), (1, 1000)] {
                let member = page.member(index);
                member.set_kind(Kind::Managed);
                member.charged.store(charged, SeqCst);
                member.publish_ages(&[0; ebb::tree::AGES], now_ms());
                page.raise_high_water(index);
            }
            assert!(ask(page, 300, of_shared));
            let asked = [0, 1].map(|index| page.member(index).asked_of_shared(now_ms()));
            assert_eq!((asked, page.member(1).ask_pages.load(SeqCst)), ([OfShared::Keep, of_shared], 256));
        }
    }

    #[test]
    fn nobody_is_asked_where_there_is_nobody() {
        assert!(!ask(Counters::create().unwrap().tree(), 300, OfShared::Give));
    }
}
