//! Memory that the kernel made huge pages of, as khugepaged does behind everybody's back.

#[allow(dead_code, reason = "each test uses its part")]
mod harness;

use harness::{check, ctx, fill, force, leave, map, space, unmap};
use std::sync::atomic::Ordering::Relaxed;

const RAM: u64 = 16 << 20;
const PAGES: usize = 12 << 10;
const UNIT: usize = 512;

/// Kibibytes of huge pages in the process.
fn huge_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("procfs");
    let line = text.lines().find(|line| line.starts_with("AnonHugePages:")).expect("a line on huge pages");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

/// Resident anonymous memory in bytes.
fn anonymous() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = text.lines().find(|line| line.starts_with("RssAnon:")).expect("a line on anonymous memory");
    1024 * line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number")
}

#[test]
fn huge_pages_are_evicted_and_come_back_like_others() {
    let space = space(RAM, force());
    let at = map(space, (PAGES + UNIT) * 4096);
    // SAFETY: the end is inside the mapping.
    let at_aligned = unsafe { at.add(at.align_offset(UNIT * 4096)) };
    for page in 0..4 * UNIT {
        fill(at_aligned, page, 1, 2 + page as u64 % 2);
    }
    // Not through the engine, which takes this for a hint that it need not follow.
    // SAFETY: changes no content.
    unsafe { libc::madvise(at_aligned.cast(), 4 * UNIT * 4096, 25) };
    let made = huge_kib();
    println!("{made} KiB of huge pages");
    assert!(made == 0 || !force().no_huge, "huge pages were forbidden");
    for page in 4 * UNIT..PAGES {
        fill(at_aligned, page, 1, 2 + page as u64 % 2);
    }
    for round in 0..2 {
        for page in 0..PAGES {
            check(at_aligned, page, 1, 2 + page as u64 % 2);
        }
        assert!(anonymous() < RAM + (16 << 20), "round {round}: {} bytes held", anonymous());
    }
    assert!(made == 0 || huge_kib() < made, "a huge page was never evicted");
    space.validate().expect("consistent");
    assert!(space.stats().peak_held_bytes.load(Relaxed) <= RAM + (2 << 20));
    assert_eq!(space.stats().error_bytes()[0], 0);
    unmap(space, at, (PAGES + UNIT) * 4096);
    let _ = ctx(space);
    leave(space);
}
