//! Which descriptors may be files of /proc whose content the agent changes.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};

/// Descriptor numbers that have a bit. For higher numbers, the kernel alone answers.
const NUMBERS: usize = 4096;
/// Descriptor numbers that a process may have had open before it was managed.
const EARLIER: usize = 256;

/// Some bit is set.
static ANY: AtomicBool = AtomicBool::new(false);
static MARKS: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// True if a call on this descriptor must come to the agent.
#[inline(always)]
pub fn is_marked(fd: u64) -> bool {
    ANY.load(Relaxed) && is_marked_for_sure(fd)
}

#[inline]
fn is_marked_for_sure(fd: u64) -> bool {
    let fd = fd as u32 as usize;
    fd < NUMBERS && MARKS[fd / 64].load(Relaxed) & 1 << (fd % 64) != 0
}

/// Marks a descriptor whose file may be one of these. Ignores negative numbers.
pub fn mark(fd: i64) {
    if let Some(word) = usize::try_from(fd).ok().and_then(|fd| MARKS.get(fd / 64)) {
        word.fetch_or(1 << (fd % 64), Relaxed);
        ANY.store(true, Relaxed);
    }
}

/// Marks `new`, a duplicate of `old`, if `old` is marked.
pub fn mark_like(old: u64, new: i64) {
    if is_marked(old) {
        mark(new);
    }
}

pub(crate) fn unmark(fd: u64) {
    let fd = fd as u32 as usize;
    if fd < NUMBERS {
        MARKS[fd / 64].fetch_and(!(1 << (fd % 64)), Relaxed);
    }
}

/// Marks the numbers that the process may have opened before it was managed.
pub fn mark_earlier() {
    for word in &MARKS[..EARLIER / 64] {
        word.store(u64::MAX, Relaxed);
    }
    ANY.store(true, Relaxed);
}
