//! madvise(2) on managed memory.

use crate::base::PAGE;
use crate::base::uapi::Errno;
use crate::calls::mapping::MADV_DONTNEED_LOCKED;
use crate::calls::{beside, discard, mapping};
use crate::memory::region::Attr;
use crate::memory::table::{ADDR_END, UNIT_BYTES};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::{collapse, willneed};
use crate::way_out::{cold, pageout};
use linux_raw_sys::general as g;

const MADV_GUARD_INSTALL: u32 = 102;
const MADV_GUARD_REMOVE: u32 = 103;

impl Space {
    /// madvise(2).
    pub fn madvise(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        let (start, advice) = (a[0] as usize, a[2] as u32);
        let end = start.saturating_add(mapping::page_up(a[1] as usize));
        if !start.is_multiple_of(PAGE) || !mapping::touches(self, ctx, start, end) {
            // SAFETY: the program's call on memory that is not managed.
            return mapping::raw(unsafe { mapping::kernel(g::__NR_madvise, a) });
        }
        // The length may be too large for any range. The kernel then returns the error.
        let is_range = start.checked_add(a[1] as usize).is_some_and(|end| end <= ADDR_END);
        match advice {
            g::MADV_DONTNEED | g::MADV_FREE | MADV_DONTNEED_LOCKED => {
                discard::discard(self, ctx, start..end, is_range, a)
            }
            g::MADV_DONTFORK
            | g::MADV_DOFORK
            | g::MADV_DONTDUMP
            | g::MADV_DODUMP
            | g::MADV_WIPEONFORK
            | g::MADV_KEEPONFORK => change_attributes(self, ctx, start, end, is_range, a),
            g::MADV_POPULATE_READ | g::MADV_POPULATE_WRITE if is_range => populate(self, ctx, start, end, advice),
            g::MADV_PAGEOUT => {
                if is_range {
                    pageout::page_out(self, ctx, start, end);
                }
                // The kernel reports bad ranges, holes and locked memory. It gets MADV_COLD, because it must not swap
                // by itself.
                // SAFETY: changes no content.
                mapping::raw(unsafe { mapping::kernel(g::__NR_madvise, [a[0], a[1], g::MADV_COLD as u64, 0, 0, 0]) })
            }
            g::MADV_WILLNEED => {
                if is_range {
                    willneed::will_need(self, ctx, start, end);
                }
                // SAFETY: changes no content.
                mapping::raw(unsafe { mapping::kernel(g::__NR_madvise, a) })
            }
            g::MADV_COLD => {
                if is_range {
                    cold::note_cold(self, ctx, start, end);
                }
                // The kernel would age pages that it does not see used.
                0
            }
            // These are hints, and not passed on. The kernel would merge pages that Ebb moves.
            g::MADV_MERGEABLE | g::MADV_UNMERGEABLE => 0,
            g::MADV_COLLAPSE if is_range => collapse(self, ctx, start, end),
            // Ebb makes the folios, so the kernel is not told.
            g::MADV_HUGEPAGE | g::MADV_NOHUGEPAGE => change_attributes(self, ctx, start, end, is_range, a),
            // Kernels before 6.13 answer the same. Programs then fall back to mprotect.
            MADV_GUARD_INSTALL | MADV_GUARD_REMOVE => -(linux_raw_sys::errno::EINVAL as i64),
            // SAFETY: changes no content.
            _ => mapping::raw(unsafe { mapping::kernel(g::__NR_madvise, a) }),
        }
    }
}

/// MADV_COLLAPSE. The kernel gets the call for each unit of which Ebb manages nothing.
fn collapse(space: &Space, ctx: &ThreadCtx, start: usize, end: usize) -> i64 {
    let result = collapse::collapse_range(start..end, |unit| {
        if mapping::touches(space, ctx, unit, unit + UNIT_BYTES) {
            return collapse::collapse(space, ctx, unit);
        }
        let a = [unit as u64, UNIT_BYTES as u64, g::MADV_COLLAPSE as u64, 0, 0, 0];
        // SAFETY: changes no content.
        unsafe { mapping::kernel(g::__NR_madvise, a) }.map(|_| ())
    });
    mapping::raw(result.map(|()| 0))
}

/// Performs a call that says what fork's child or a core dump has of the range, or whether it gets large folios.
fn change_attributes(space: &Space, ctx: &ThreadCtx, start: usize, end: usize, is_range: bool, a: [u64; 6]) -> i64 {
    let call = || match a[2] as u32 {
        g::MADV_HUGEPAGE | g::MADV_NOHUGEPAGE => Ok(0),
        // SAFETY: changes no content.
        _ => unsafe { mapping::kernel(g::__NR_madvise, a) },
    };
    let after = |result, attr| match result {
        // ENOMEM: parts of the range are not mapped. The rest took the advice all the same.
        Ok(_) | Err(Errno::NOMEM) => advised(attr, a[2] as u32),
        Err(_) => attr,
    };
    let range = (start, end);
    // No call beside others gives a mapping all the marks of one that moves: see `mremap`. This advice is the rarest of them.
    let may = |attr: Attr| !attr.is_wipeonfork() && a[2] != g::MADV_WIPEONFORK as u64;
    if is_range
        && start < end
        // SAFETY: the program's call, for this range.
        && let Some(result) = unsafe { beside::protect(space, ctx, range, may, call, after) }
    {
        return mapping::raw(result);
    }
    space.exclusive(|exclusive| {
        let result = call();
        mapping::change_attributes(space, exclusive, start, end, |attr| after(result, attr));
        mapping::raw(result)
    })
}

/// The attributes after advice that changes one of them.
fn advised(attr: Attr, advice: u32) -> Attr {
    match advice {
        g::MADV_DONTFORK | g::MADV_DOFORK => attr.with_dontfork(advice == g::MADV_DONTFORK),
        g::MADV_DONTDUMP | g::MADV_DODUMP => attr.with_dontdump(advice == g::MADV_DONTDUMP),
        g::MADV_HUGEPAGE | g::MADV_NOHUGEPAGE => attr.with_huge(advice == g::MADV_HUGEPAGE),
        _ => attr.with_wipeonfork(advice == g::MADV_WIPEONFORK),
    }
}

/// MADV_POPULATE_READ and MADV_POPULATE_WRITE, piece by piece. The kernel gets the call for each piece, because it
/// knows of holes and of access rights. Meanwhile the piece is pinned: for a page that was evicted again, the kernel
/// would answer EFAULT. If the range exceeds the budget, its beginning is out again by the time its end is in.
fn populate(space: &Space, ctx: &ThreadCtx, start: usize, end: usize, advice: u32) -> i64 {
    let piece_max = space.pin_piece_max();
    let mut at = start;
    while at < end {
        let piece = (end - at).min(piece_max);
        ctx.pins.begin(0, |_| false);
        let result = if ctx.pins.add(at as u64, (at + piece) as u64, u64::MAX) && space.bring_in(ctx, at, piece) {
            // SAFETY: every managed page is present and stays so during the call; the kernel populates the others.
            mapping::raw(unsafe { mapping::kernel(g::__NR_madvise, [at as u64, piece as u64, advice as u64, 0, 0, 0]) })
        } else {
            -(linux_raw_sys::errno::EFAULT as i64)
        };
        ctx.pins.end();
        if result != 0 {
            return result;
        }
        at += piece;
    }
    0
}
