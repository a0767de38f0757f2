//! The kernel makes no huge pages of managed memory: those that a program has are Ebb's.

use crate::harness::alone::alone;
use crate::harness::{ctx, fill, force, leave, map, space, unmap};

const PAGES: usize = 2 * 512;

/// `MADV_COLLAPSE`
const COLLAPSE: i32 = 25;

/// Kibibytes of huge pages in the process.
fn huge_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("procfs");
    let line = text.lines().find(|line| line.starts_with("AnonHugePages:")).expect("a line on huge pages");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn the_kernel_makes_no_huge_pages_of_managed_memory() {
    alone(|| {
        let space = space(64 << 20, force());
        let at = map(space, 2 * PAGES * 4096);
        // SAFETY: inside the mapping.
        let aligned = unsafe { at.add(at.align_offset(2 << 20)) };
        for page in 0..PAGES {
            fill(aligned, page, 1, 3);
        }
        let range = |advice: i32| [aligned as u64, (PAGES * 4096) as u64, advice as u64, 0, 0, 0];
        assert_eq!(space.madvise(ctx(space), range(libc::MADV_HUGEPAGE)), 0);
        // Behind the engine's back, as the kernel's own thread does it.
        // SAFETY: changes no content.
        let collapsed = unsafe { libc::madvise(aligned.cast(), PAGES * 4096, COLLAPSE) };
        assert_eq!((collapsed, huge_kib()), (-1, 0));
        unmap(space, at, 2 * PAGES * 4096);
        leave(space);
    });
}
