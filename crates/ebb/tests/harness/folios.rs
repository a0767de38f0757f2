//! What tests of large folios have in common.

use super::alone::PAGE;
use super::{ctx, force, map, space};
use ebb::Space;
use ebb::stats::Thp;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of the budget.
pub const RAM: u64 = 160 << 20;
/// Pages of a folio.
pub const UNIT: usize = 512;
/// Bytes of a folio.
pub const UNIT_BYTES: usize = UNIT * PAGE;
/// Compresses well.
pub const HEAP: u64 = 2;

/// A space that makes folios wherever it can. False where it cannot.
pub fn with_folios(thp: Thp) -> (&'static Space, bool) {
    let space = space(RAM, force());
    let can_move = ebb::uapi::uffd::Uffd::open().is_ok_and(|uffd| uffd.has_move());
    space.set_thp(thp);
    let is_on = space.thp() == thp && can_move && !force().no_move && !force().shared && thp != Thp::Never;
    (space, is_on)
}

/// Folios that the kernel has mapped in the range.
pub fn mapped_folios(at: *mut u8, bytes: usize) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
    let (mut inside, mut kib) = (false, 0);
    for line in text.lines() {
        let hex = |text: &str| usize::from_str_radix(text, 16).ok();
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        if let Some((Some(start), Some(end))) = range.map(|(start, end)| (hex(start), hex(end))) {
            inside = start < at as usize + bytes && end > at as usize;
        } else if let (true, Some(rest)) = (inside, line.strip_prefix("AnonHugePages:")) {
            kib += rest.trim_end_matches("kB").trim().parse::<usize>().expect("a number");
        }
    }
    kib * 1024 / UNIT_BYTES
}

/// Those of the units that begin at these pages of the memory which the kernel maps as folios. None before Linux 6.7, which cannot say.
pub fn folios_of(at: *mut u8, firsts: &[usize]) -> Vec<usize> {
    /// `PAGEMAP_SCAN`, and its category of pages that are a part of a huge one.
    const SCAN: u64 = 0xC060_6610;
    const HUGE: u64 = 1 << 6;
    let map = std::fs::File::open("/proc/self/pagemap").expect("procfs");
    let is_folio = |first: &usize| {
        let start = at as u64 + (first * PAGE) as u64;
        let end = start + UNIT_BYTES as u64;
        let mut run = [0u64; 3];
        // `struct pm_scan_arg`: size, flags, start, end, end of the walk, runs, their number, most pages, categories.
        let mut arguments = [96, 0, start, end, 0, run.as_mut_ptr() as u64, 1, 0, 0, HUGE, 0, HUGE];
        // SAFETY: the kernel reads and writes the arguments, and writes at most one run.
        let found = unsafe { libc::ioctl(map.as_raw_fd(), SCAN, arguments.as_mut_ptr()) };
        found == 1 && run[0] == start && run[1] == end
    };
    firsts.iter().copied().filter(is_folio).collect()
}

/// How much a counter grows while `f` runs.
pub fn grown(counter: &AtomicU64, f: impl FnOnce()) -> u64 {
    let before = counter.load(Relaxed);
    f();
    counter.load(Relaxed) - before
}

/// Memory that begins with a unit.
pub fn aligned(space: &'static Space, units: usize) -> (*mut u8, *mut u8, usize) {
    let bytes = (units + 1) * UNIT_BYTES;
    let at = map(space, bytes);
    // SAFETY: inside the mapping.
    (at, unsafe { at.add(at.align_offset(UNIT_BYTES)) }, bytes)
}

pub fn advise(space: &'static Space, at: *mut u8, pages: usize, advice: i32) {
    assert_eq!(space.madvise(ctx(space), [at as u64, (pages * PAGE) as u64, advice as u64, 0, 0, 0]), 0);
}
