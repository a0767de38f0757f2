//! Snapshots: a second view of a managed range, copy-on-write, at its own address.
//!
//! Swapped pages are shared: both views refer to the same slot, whose count goes up, and nothing is read, copied or
//! compressed. Pages in memory are stored first, and stay there as clean pages. The first write to one opens it and
//! leaves the slot to the snapshot. So a snapshot costs one compressed copy of what the range had in memory, and each
//! view pays later only for what it changes. The kernel offers such a copy only between processes, by fork.
//!
//! Most pages are stored while the program runs. Then the gate closes, and what was written meanwhile is
//! write-protected, stored and counted. The snapshot is the range as it was at one moment after that. Pages that a
//! system call or a device uses at that moment are an exception. They cannot be protected, because the kernel would
//! answer EFAULT. They are copied one after the other, while they may be written.

use crate::api::swapon::{self, SwapOffError};
use crate::base::PAGE;
use crate::base::runs::Runs;
use crate::base::uapi::{self, Errno};
use crate::calls::mapping;
use crate::device::file::BATCH;
use crate::device::list::Writer;
use crate::memory::region::Attr;
use crate::memory::table::ADDR_END;
use crate::pages::tally::{self, thread_group};
use crate::pages::{account, clean, drivers, in_use, sharing};
use crate::places::swapspace::{folio_at, slot_of};
use crate::places::work::Work;
use crate::protocols::gate::{Exclusive, Held};
use crate::protocols::page::{State, Tag};
use crate::protocols::primitive::{Ordering as ModelOrdering, fence};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::store::{self, Taken};
use crate::way_out::{faulty, swapout};
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::{Entry, Slot};
use linux_raw_sys::general as g;

/// Pages that one step looks at.
const LOOKS: usize = 4096;
/// Most passes that store what was written meanwhile, before the gate closes; and most attempts at a snapshot.
const ROUNDS: usize = 4;
/// A pass that stores no more pages than this is the last: about as many are left for the closed gate.
const REST_PAGES: usize = 256;

/// Why there is no snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotError {
    /// The range is not whole pages of managed memory that can be read and written.
    Range,
    /// Write protection does not last here (a kernel before 5.19, or KSM), the kernel refused it, or a driver may write
    /// past it.
    Unsupported,
    /// Neither the pool nor a device takes what the range has in memory, or a group would exceed its swap limit.
    NoRoom,
    /// Likewise, and the write budget of a device is spent.
    Held,
    /// A page has as many views as it can have.
    TooMany,
    /// The kernel gives no address space for the view.
    AddressSpace(Errno),
}

impl core::fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Range => write!(f, "the range is not whole pages of managed memory that can be read and written"),
            Self::Unsupported => write!(f, "write protection does not last here: use Linux 5.19 or newer, without KSM"),
            Self::NoRoom => {
                write!(f, "neither the pool nor a device has room for the content of the range: give more swap")
            }
            Self::Held => write!(f, "the write budget of a device is spent: wait, raise that budget, or add a device"),
            Self::TooMany => write!(f, "a page of the range has the maximum number of views: drop one"),
            Self::AddressSpace(e) => write!(f, "no address space for the view ({e}): raise the limit (ulimit -v)"),
        }
    }
}

impl core::error::Error for SnapshotError {}

/// A claimed page that no slot backs yet.
#[derive(Clone, Copy)]
struct Open {
    addr: usize,
    state: State,
    /// A system call or a device uses the page: it is copied and stays as it is.
    is_pinned: bool,
}

/// The value to start from: a present page that nobody uses.
const OPEN: Open = Open { addr: 0, state: State::PRESENT, is_pinned: false };

impl Space {
    /// Makes a copy-on-write view of `[start, start + len)`, and returns its address, which the kernel chooses. The
    /// range must be whole pages. The view is managed memory, to be unmapped like any other. The caller must not be
    /// inside.
    pub fn snapshot(&self, ctx: &ThreadCtx, start: usize, len: usize) -> Result<usize, SnapshotError> {
        let end = start.checked_add(len).filter(|end| *end <= ADDR_END).ok_or(SnapshotError::Range)?;
        if len == 0 || !start.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return Err(SnapshotError::Range);
        }
        // Write protection does not catch a device's writes.
        if !self.kernel.can_protect() || drivers::has_driver(self) {
            return Err(SnapshotError::Unsupported);
        }
        for _ in 0..ROUNDS {
            match back_range(self, ctx, start, end) {
                Err(SnapshotError::NoRoom) => continue,
                other => other?,
            }
            let mut work = self.places.work.lease(&self.budget, ctx);
            let made = self.exclusive(|exclusive| {
                if !account::is_plain_range(self, exclusive, start, end) {
                    return Err(SnapshotError::Range);
                }
                make_view(self, exclusive, ctx, start, end, &mut work)
            });
            match made {
                // The pool may have been full for a moment: reclaim makes room in the next round.
                Err(SnapshotError::NoRoom) => {}
                other => return other,
            }
        }
        Err(if faulty::is_held(self, ctx) { SnapshotError::Held } else { SnapshotError::NoRoom })
    }
}

/// Stores the range's pages in slots, while other threads run, until few are left that no slot backs.
fn back_range(space: &Space, ctx: &ThreadCtx, start: usize, end: usize) -> Result<(), SnapshotError> {
    for _ in 0..ROUNDS {
        let mut stored = 0;
        let mut at = start;
        while at < end {
            swapon::make_room(space, ctx, &mut || true).map_err(|_: SwapOffError| SnapshotError::NoRoom)?;
            let mut work = space.places.work.lease(&space.budget, ctx);
            let inside = space.threads.enter(ctx);
            let step = if account::is_plain_range(space, &inside, start, end) {
                back_pages(space, &inside, ctx, at, end, &mut work)
            } else {
                Err(SnapshotError::Range)
            };
            drop(inside);
            let (next, n) = step?;
            at = next;
            stored += n;
        }
        if stored <= REST_PAGES {
            break;
        }
    }
    Ok(())
}

/// Stores up to a batch of the range's pages that no slot backs and nobody uses. Returns where the next step begins,
/// and how many pages were stored.
fn back_pages(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    start: usize,
    end: usize,
    work: &mut Work,
) -> Result<(usize, usize), SnapshotError> {
    let mut open = [OPEN; BATCH];
    let mut n = 0;
    let mut at = start;
    for _ in 0..LOOKS {
        if at >= end || n == work.batch() {
            break;
        }
        let (unit, next) = space.table.used_unit(at);
        if unit.is_none_or(|unit| unit.content.load(Relaxed) == 0) {
            at = next;
            continue;
        }
        if let Some(word) = space.table.word(at) {
            let state = word.load();
            let is_open = state.is_open() && !state.is_pinned() || state.tag() == Tag::Staged;
            if is_open && word.try_claim(state) {
                open[n] = Open { addr: at, state, is_pinned: false };
                n += 1;
            }
        }
        at += PAGE;
    }
    let at = at.min(end);
    if n == 0 {
        return Ok((at, 0));
    }
    // Claims come first, then the look at the pins: see `pin`.
    fence(ModelOrdering::SeqCst);
    for_each_pinned(space, open[0].addr, open[n - 1].addr + PAGE, |addr| {
        open[..n].iter_mut().filter(|page| page.addr == addr).for_each(|page| page.is_pinned = true);
    });
    let mut kept = 0;
    for i in 0..n {
        let page = open[i];
        let is_present = page.state.tag() == Tag::Present;
        if page.is_pinned || (is_present && space.uffd().write_protect(page.addr, PAGE, true).is_err()) {
            finish_page(space, page.addr, page.state);
        } else {
            open[kept] = page;
            kept += 1;
        }
    }
    let reclaim = |slot, at| clean::reclaim_cache_only(space, held, slot, at);
    let writer = Writer { held, shard: ctx.shard(), reclaim: &reclaim, stats: space.stats };
    let failed = store_open(space, writer, ctx, &open[..kept], None, work);
    if failed > 0 { Err(SnapshotError::NoRoom) } else { Ok((at, kept)) }
}

/// Calls `f` with each page of the range that a system call or request in flight uses.
fn for_each_pinned(space: &Space, start: usize, end: usize, mut f: impl FnMut(usize)) {
    let _exact = space.threads.requests.hold();
    in_use::for_each_used(space, start, end, |first, last| (first & !(PAGE - 1)..last).step_by(PAGE).for_each(&mut f));
}

/// Freezes the range: claims its open pages and write-protects them. From here on, nobody writes to the range's pages,
/// except to pinned ones. False when the kernel refused the protection.
fn freeze(space: &Space, exclusive: &Exclusive<'_>, start: usize, end: usize) -> bool {
    sharing::unshare(space, exclusive, start, end);
    space.table.for_each_content(start, end, |_, word| {
        let _ = word.claim_while(|state| state.is_open() && !state.is_pinned());
    });
    fence(ModelOrdering::SeqCst);
    for_each_pinned(space, start, end, |addr| {
        if let Some(word) = space.table.word(addr)
            && word.load().tag() == Tag::Busy
        {
            word.finish(State::PRESENT);
        }
    });
    let mut ok = true;
    let mut runs = Runs::new(|run| {
        ok &= space.uffd().write_protect(run.start, run.len(), true).is_ok();
    });
    space.table.for_each_content(start, end, |addr, word| {
        if word.load().tag() == Tag::Busy {
            runs.add(addr);
        }
    });
    drop(runs);
    ok
}

/// Ends the freeze of pages that are still claimed: they go on as they were.
fn thaw(space: &Space, start: usize, end: usize) {
    space.table.for_each_content(start, end, |addr, word| {
        if word.load().tag() == Tag::Busy {
            unback(space, &Open { addr, ..OPEN });
        }
    });
}

/// Stores all of the frozen range in slots. Pinned pages are copied for the view.
fn back_frozen(
    space: &Space,
    exclusive: &Exclusive<'_>,
    ctx: &ThreadCtx,
    start: usize,
    end: usize,
    distance: usize,
    work: &mut Work,
) -> Result<(), SnapshotError> {
    let mut open = [OPEN; BATCH];
    let (mut n, mut ok, batch) = (0, true, work.batch());
    // Nothing is reclaimed meanwhile: a slot that was stored for the view a moment ago has no reference yet, and must
    // not be taken for cache-only.
    let view = Some(View { distance, exclusive });
    let writer = Writer { held: exclusive, shard: ctx.shard(), reclaim: &|_, _| false, stats: space.stats };
    let mut store = |open: &[Open]| store_open(space, writer, ctx, open, view, work) == 0;
    space.table.for_each_content(start, end, |addr, word| {
        if !ok {
            return;
        }
        if word.load().tag() == Tag::Busy {
            open[n] = Open { addr, ..OPEN };
        } else if let Some(state) = word.claim_while(|state| state.is_open() || state.tag() == Tag::Staged) {
            open[n] = Open { addr, state, is_pinned: state.is_open() };
        } else {
            return;
        }
        n += 1;
        if n == batch {
            ok = store(&open[..n]);
            n = 0;
        }
    });
    ok = ok && store(&open[..n]);
    if !ok {
        thaw(space, start, end);
    }
    if ok { Ok(()) } else { Err(SnapshotError::NoRoom) }
}

fn finish_page(space: &Space, addr: usize, state: State) {
    if let Some(word) = space.table.word(addr) {
        word.finish(state);
    }
}

/// A view that is being filled, with the gate closed.
#[derive(Clone, Copy)]
struct View<'a> {
    /// Bytes from the range to the view.
    distance: usize,
    exclusive: &'a Exclusive<'a>,
}

/// Address of the page whose group pays for what is stored of `page`. For a pinned page that is the view's page, which
/// alone gets the slot.
fn payer(page: &Open, view: Option<View<'_>>) -> usize {
    page.addr.wrapping_add(if page.is_pinned { view.map_or(0, |view| view.distance) } else { 0 })
}

/// Stores claimed pages and ends their claims. Returns how many were not stored, because that failed or their group may
/// have no more swap. Those pages are as they were.
fn store_open(
    space: &Space,
    writer: Writer<'_>,
    ctx: &ThreadCtx,
    pages: &[Open],
    view: Option<View<'_>>,
    work: &mut Work,
) -> usize {
    let held = writer.held;
    let mut failed = 0;
    let mut paid = [OPEN; BATCH];
    let mut nr_paid = 0;
    for page in pages {
        if tally::charge_swap_at(space, held, payer(page, view)) {
            paid[nr_paid] = *page;
            nr_paid += 1;
        } else {
            failed += 1;
            unback(space, page);
        }
    }
    let pages = &paid[..nr_paid];
    let mut slots = [Slot(0); BATCH];
    let nr_slots = space.swap.alloc(ctx.shard(), &space.budget, space.stats, &mut slots[..pages.len()]);
    for page in &pages[nr_slots..] {
        failed += 1;
        tally::uncharge_swap_at(space, held, payer(page, view));
        unback(space, page);
    }
    let (pages, slots) = (&pages[..nr_slots], &slots[..nr_slots]);
    let take = |i: usize, to: &mut [u8; PAGE]| match pages[i].state.tag() {
        Tag::Staged => Taken::At(space.places.staging.addr(pages[i].state.payload() as u32)),
        // Its user may write to the page at this moment, and it must not change while it is compressed.
        _ if pages[i].is_pinned => {
            // SAFETY: the page is claimed and mapped, the copy is the thread's own; words that change meanwhile are copied in part
            // at worst.
            unsafe { core::ptr::copy_nonoverlapping(pages[i].addr as *const u8, to.as_mut_ptr(), PAGE) };
            Taken::Copied
        }
        _ => Taken::At(pages[i].addr),
    };
    let _ = store::store_pages(space, writer, slots, take, work, |i, is_stored| {
        failed += !is_stored as usize;
        back(space, held, &pages[i], slots[i], is_stored, view);
    });
    failed
}

/// Ends the claim of a page whose content is in `slot`, or could not be stored.
fn back(space: &Space, held: &Held, page: &Open, slot: Slot, is_stored: bool, view: Option<View<'_>>) {
    if !is_stored {
        space.swap.unalloc(slot);
        tally::uncharge_swap_at(space, held, payer(page, view));
        return unback(space, page);
    }
    let entry = Entry { device: 0, slot }.to_bits();
    match (page.state.tag(), view) {
        (Tag::Staged, _) => swapout::end_staged(space, held, page.addr, page.state.payload() as u32, slot),
        (_, Some(view)) if page.is_pinned => {
            space.swap.commit(slot);
            refer(space, view.exclusive, page.addr.wrapping_add(view.distance), entry);
            finish_page(space, page.addr, page.state);
        }
        _ => {
            space.swap.adopt(held, slot, folio_at(page.addr));
            account::count_clean(space, page.addr, 1);
            finish_page(space, page.addr, State::clean(entry));
        }
    }
}

/// Ends the claim of a page that goes on without a slot.
fn unback(space: &Space, page: &Open) {
    if page.state.tag() == Tag::Present && !page.is_pinned {
        // On failure the page stays protected, although it is open in the books. A write finds that out: see
        // `spurious`.
        let _ = space.uffd().write_protect(page.addr, PAGE, false);
    }
    finish_page(space, page.addr, page.state);
}

/// Makes an empty page of the view refer to a slot. The slot's count has the reference already, and the page's group is
/// charged for it already.
fn refer(space: &Space, exclusive: &Exclusive<'_>, addr: usize, entry: u64) {
    if let Some(word) = space.table.word(addr) {
        word.set_exclusive(exclusive, State::swapped(entry));
        account::count_content(space, addr, 1);
    }
}

/// Maps the view and fills it.
fn make_view(
    space: &Space,
    exclusive: &Exclusive<'_>,
    ctx: &ThreadCtx,
    start: usize,
    end: usize,
    work: &mut Work,
) -> Result<usize, SnapshotError> {
    let len = end - start;
    let flags = (g::MAP_PRIVATE | g::MAP_ANONYMOUS | g::MAP_NORESERVE) as u64;
    let prot = g::PROT_READ | g::PROT_WRITE;
    let call = [0, len as u64, prot as u64, flags, u64::MAX, 0];
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nobody.
    let new = unsafe { uapi::forward(g::__NR_mmap, call) }.map_err(SnapshotError::AddressSpace)? as usize;
    // Whatever Ebb knew of this place belongs to a mapping that is gone.
    mapping::forget(space, exclusive, new, new + len);
    let filled =
        if mapping::manage(space, exclusive, new, new + len, Attr::from_prot(prot), thread_group(exclusive, ctx)) {
            fill_view(space, exclusive, ctx, start, end, new, work)
        } else {
            Err(SnapshotError::AddressSpace(Errno::NOMEM))
        };
    if filled.is_err() {
        // SAFETY: mapped above; nobody else knows it.
        let _ = unsafe { uapi::munmap(new, len) };
        mapping::forget(space, exclusive, new, new + len);
    }
    filled.map(|()| new)
}

fn fill_view(
    space: &Space,
    exclusive: &Exclusive<'_>,
    ctx: &ThreadCtx,
    start: usize,
    end: usize,
    new: usize,
    work: &mut Work,
) -> Result<(), SnapshotError> {
    let distance = new.wrapping_sub(start);
    if !freeze(space, exclusive, start, end) {
        thaw(space, start, end);
        return Err(SnapshotError::Unsupported);
    }
    back_frozen(space, exclusive, ctx, start, end, distance, work)?;
    let mut result = Ok(());
    space.table.for_each_content(start, end, |addr, word| {
        let state = word.load();
        let has_slot = state.is_clean() || state.tag() == Tag::Swapped;
        if state.tag() == Tag::None || result.is_err() {
            return;
        }
        if !has_slot {
            // Pinned: its copy is in the view already.
            let at = addr.wrapping_add(distance);
            if space.table.word(at).is_none_or(|word| word.load().tag() != Tag::Swapped) {
                result = Err(SnapshotError::NoRoom);
            }
            return;
        }
        let at = addr.wrapping_add(distance);
        if !tally::charge_swap_at(space, exclusive, at) {
            result = Err(SnapshotError::NoRoom);
        } else if space.swap.duplicate(exclusive, slot_of(state)) {
            refer(space, exclusive, at, state.payload());
        } else {
            tally::uncharge_swap_at(space, exclusive, at);
            result = Err(SnapshotError::TooMany);
        }
    });
    result
}
