//! Memory that several workers use at once.

use crate::content::WORDS;
use crate::model::{Page, State, check_in_place, write_page};
use crate::report::{detail, fail};
use crate::shared::GROUP;
use crate::sys;
use crate::worker::Worker;
use core::sync::atomic::{AtomicU64, Ordering};

/// Checks a group under its lock and changes a part of it.
pub fn groups(worker: &mut Worker) {
    let shared = worker.shared;
    let group = worker.rng.below(shared.groups.len());
    let mut pages = match shared.groups[group].lock() {
        Ok(pages) => pages,
        Err(poisoned) => poisoned.into_inner(),
    };
    for (i, page) in pages.iter().enumerate() {
        check_in_place("a shared page", shared.group_page(group, i), page.expect());
    }
    let first = worker.rng.below(GROUP);
    let len = worker.rng.between(1, GROUP - first);
    let drop = worker.rng.one_in(6);
    if drop && sys::advise(shared.group_page(group, first), len, libc::MADV_DONTNEED) != 0 {
        fail(format_args!("MADV_DONTNEED of shared pages: {}", std::io::Error::last_os_error()));
    }
    for (i, page) in pages.iter_mut().enumerate().skip(first).take(len) {
        if drop {
            *page = page.wiped();
        } else {
            let stamp = worker.stamp(0, group * GROUP + i);
            write_page(shared.group_page(group, i), stamp);
            *page = page.holding(stamp);
        }
    }
}

/// Writes and checks words whose pages others write at the same time; adds to the counters.
pub fn words(worker: &mut Worker) {
    let shared = worker.shared;
    let lanes = shared.lanes();
    for _ in 0..32 {
        let (page, lane) = (worker.rng.below(shared.words_pages), worker.rng.below(lanes));
        let word = shared.word(page, lane, worker.index);
        let expected = worker.words[page * lanes + lane];
        let found = word.load(Ordering::Relaxed);
        if found != expected {
            wrong_word(worker.index, word, found, expected);
        }
        let next = (worker.index as u64) << 56 | ((expected + 1) & ((1 << 56) - 1));
        word.store(next, Ordering::Relaxed);
        worker.words[page * lanes + lane] = next;

        let page = worker.rng.below(shared.counters_pages);
        let amount = worker.rng.next() >> 40;
        shared.counter(page, worker.rng.below(WORDS)).fetch_add(amount, Ordering::Relaxed);
        worker.counted[page] = worker.counted[page].wrapping_add(amount);
    }
}

/// Reports a word that its only writer finds changed.
pub fn wrong_word(worker: usize, word: &AtomicU64, found: u64, expected: u64) -> ! {
    let again = word.load(Ordering::Acquire);
    detail(format_args!("word at {:p}, written by worker {worker} alone; a second read: {again:#x}", word));
    let kind = match found {
        0 => "LOST",
        _ if found >> 56 != worker as u64 => "SWAPPED",
        _ if found < expected => "STALE",
        _ => "TORN",
    };
    fail(format_args!("{kind}: word at {word:p} holds {found:#x}, not {expected:#x}"));
}

/// In a forked child: every group that nobody was changing at the fork.
pub fn check_groups_in_child(worker: &Worker) {
    let shared = worker.shared;
    for (group, lock) in shared.groups.iter().enumerate() {
        if let Ok(pages) = lock.try_lock() {
            for (i, page) in pages.iter().enumerate() {
                check_in_place("an inherited shared page", shared.group_page(group, i), page.expect());
            }
        }
    }
}

/// At the end, when no worker is left: all groups and all counters.
pub fn check_finally(shared: &crate::shared::Shared, counted: &[Vec<u64>]) {
    for (group, lock) in shared.groups.iter().enumerate() {
        let pages = match lock.lock() {
            Ok(pages) => *pages,
            Err(poisoned) => *poisoned.into_inner(),
        };
        for (i, page) in pages.iter().enumerate() {
            debug_assert!(Page::is_mapped(*page) && page.state() != State::Freed);
            check_in_place("a shared page", shared.group_page(group, i), page.expect());
        }
    }
    for page in 0..shared.counters_pages {
        let expected = counted.iter().fold(0, |sum: u64, worker| sum.wrapping_add(worker[page]));
        let found = shared.counter_sum(page);
        if found != expected {
            fail(format_args!(
                "LOST additions: the counters of page {page} at {:p} sum up to {found}, not {expected}",
                shared.counter(page, 0)
            ));
        }
    }
}
