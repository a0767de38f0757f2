//! Fork: one space becomes two.
//!
//! The thread that forks closes the gate, so no other thread is inside the engine and no page is busy. The child then
//! owns a private copy of all of Ebb's memory in a consistent state. It does not inherit the registration of its
//! regions. It opens its own userfaultfd and registers everything before it runs one instruction of the program. An
//! evicted page read before that would silently be zero.

use crate::base::events;
use crate::base::uapi::{self, Errno};
use crate::calls::{mapping, mlock};
use crate::counters::stats;
use crate::device::file::SpillFile;
use crate::device::kind::{Discard, Kind};
use crate::device::list::{FILES_MAX, bit, numbers};
use crate::device::{DEVICES_MAX, NAME_BYTES_MAX, SwapSpec};
use crate::fork::share;
use crate::memory::region::Region;
use crate::pages::books::{self, CHILD_PAGES};
use crate::pages::{folio, sharing, stock};
use crate::protocols::gate::Exclusive;
use crate::space::config::InitError;
use crate::space::{Space, newborn};
use crate::threads::ctx::ThreadCtx;
use crate::way_out::{publish, reclaim};
use core::ffi::CStr;
use core::sync::atomic::Ordering::Relaxed;

/// One part in this many of the budget is made free before a process that holds much of it forks.
const FORK_ROOM_PART: usize = 8;
/// How long a process that forks reclaims, at most, for the pages that the child will have for itself.
const FORK_WAIT_NS: u64 = 250_000_000;

impl Space {
    /// True when a child of fork would find a number for its userfaultfd. Otherwise fork must fail with EMFILE.
    pub fn may_fork(&self) -> bool {
        uapi::fd::is_replaceable(self.uffd().fd())
    }

    /// Prepares for fork, and leaves the gate closed: nobody else is inside the engine until [`Self::fork_parent`], or
    /// [`Self::fork_child`] in the child. The caller must not be inside.
    pub fn fork_prepare(&self, ctx: &ThreadCtx) {
        let exclusive = self.close_gate();
        self.threads.requests.freeze();
        self.background.set_forked();
        stock::empty_stock(self, &exclusive);
        let child = self.swap.devices.lives().begin_child(&exclusive);
        self.swap.devices.all(&exclusive).for_each(|(_, file)| file.adopt(&exclusive, child));
        complete_fork_room(self, &exclusive, ctx);
        split_folios(self, &exclusive);
        let reserved = self.tree().reserve_child();
        let shared = reserved.map_or(0, |child| share::share_pages(self, &exclusive, child));
        // Only now that the child's pages are granted: meanwhile the tree's sum is too high rather than too low.
        release_fork_room(self, &exclusive, ctx);
        if shared > 0 {
            self.family.note_fork(&exclusive);
            sharing::look_at_shared_pool(self);
        }
        self.family.set_reserved_child(&exclusive, reserved);
        exclusive.keep();
    }

    /// Charges the pages that the child will have for itself at once. Where this process holds much of the budget, it
    /// also frees a part of it: a shared page frees nothing when only one side evicts it, so both sides would have to
    /// work in what happens to be left. Takes as long as reclaim does, so call it before taking any lock.
    pub fn make_fork_room(&self, ctx: &ThreadCtx) {
        self.tree().reap_sometimes();
        newborn::reap_sometimes(self, ctx);
        split_folios_beside(self, ctx);
        books::open_books(self);
        let (limit, charged) = (self.budget.limit(), self.budget.charged());
        if !self.kernel.can_protect() || self.tree().is_alone() {
            return;
        }
        let most = limit / FORK_ROOM_PART;
        let holds_much = charged >= limit / 4;
        let room = if holds_much { most.min(charged / 2) } else { 0 };
        let mut steps = 4 * room / self.sweep_max() + 8;
        self.budget.give_back_unused();
        let _closed = stock::close_stock(self);
        while holds_much && stock::shrink_stock(self, ctx) {}
        while steps > 0 && self.tree().look().free() < room as i64 {
            steps -= 1;
            reclaim::reclaim_step(self, ctx);
            self.budget.give_back_unused();
        }
        let own = not_shared(self).min(most);
        // Without room, where all is shared and others are as short, the child takes the pages all the same.
        if !charge_fork_room(self, ctx, own) && reclaim::try_direct_reclaim(self, ctx, own, FORK_WAIT_NS) {
            charge_fork_room(self, ctx, own);
        }
    }
}

/// Splits the large folios that are mapped, because a page of one that both sides have cannot go alone: to drop it would give
/// nothing back. It takes long, so most of it is done before the gate is closed. Outside the gate.
fn split_folios_beside(space: &Space, ctx: &ThreadCtx) {
    let mut at = space.places.folios.have_been().then_some(0);
    while let Some(from) = at {
        let inside = space.threads.enter(ctx);
        at = folio::split_next(space, &inside, from);
        drop(inside);
    }
}

/// Splits the last of them.
fn split_folios(space: &Space, exclusive: &Exclusive<'_>) {
    let mut at = space.places.folios.have_been().then_some(0);
    // First: a unit that cannot be split, because it is locked, stays marked.
    space.places.folios.reset(exclusive);
    while let Some(from) = at {
        at = folio::split_next(space, exclusive, from);
    }
}

/// Charges `n` pages for the child; false when there is no room. Inside the gate, so that a fork by another thread
/// finds either none of it charged, or all of it counted in `fork_room`.
fn charge_fork_room(space: &Space, ctx: &ThreadCtx, n: usize) -> bool {
    let inside = space.threads.enter(ctx);
    let charged = space.budget.try_charge(n);
    if charged {
        ctx.fork_room.fetch_add(n as u32, Relaxed);
    }
    drop(inside);
    charged
}

/// Charges what the books have grown by since [`Space::make_fork_room`], if there is room.
fn complete_fork_room(space: &Space, _exclusive: &Exclusive<'_>, ctx: &ThreadCtx) {
    let charged = ctx.fork_room.load(Relaxed) as usize;
    let lacks = not_shared(space).saturating_sub(charged);
    if charged > 0 && lacks > 0 && space.budget.try_charge(lacks) {
        ctx.fork_room.fetch_add(lacks as u32, Relaxed);
    }
}

/// Pages that a child would have for itself.
fn not_shared(space: &Space) -> usize {
    if books::knows_books(space) { CHILD_PAGES } else { space.budget.meta_pages() }
}

/// Takes back what was charged for the child, so that the room is the child's.
pub(crate) fn release_fork_room(space: &Space, _exclusive: &Exclusive<'_>, ctx: &ThreadCtx) {
    let room = ctx.fork_room.swap(0, Relaxed) as usize;
    if room > 0 {
        space.budget.uncharge(room);
        space.budget.give_back_unused();
    }
}

impl Space {
    /// Ends a fork in the parent, also a fork that failed (`ok` is false).
    pub fn fork_parent(&self, ok: bool) {
        // SAFETY: this thread's `fork_prepare` left it closed.
        let exclusive = unsafe { self.threads.closed_before() };
        if let Some(child) = self.family.reserved_child(&exclusive).filter(|_| ok) {
            self.family.newborns.note(self, &exclusive, child, self.swap.devices.lives().child());
        }
        if !ok {
            if let Some(child) = self.family.reserved_child(&exclusive) {
                self.tree().drop_child(child);
            }
            self.swap.devices.all(&exclusive).for_each(|(_, file)| file.disown(&exclusive));
        }
        self.swap.devices.lives().end_child();
        self.threads.requests.thaw();
        drop(exclusive);
    }

    /// Makes the inherited space the child's own, as the child's first act after fork. After an error the child must
    /// end: nobody gets inside again.
    pub fn fork_child(&self, ctx: &ThreadCtx) -> Result<(), InitError> {
        // SAFETY: `fork_prepare` left it closed, in the thread of which this one is the copy.
        let exclusive = unsafe { self.threads.closed_before() };
        if let Err(error) = become_child(self, &exclusive, ctx) {
            exclusive.keep();
            return Err(error);
        }
        drop(exclusive);
        // The child may never fault, and others ask it for pages all the same.
        self.background.kick_if(self, false);
        Ok(())
    }
}

/// Turns the copy of a space that fork left into the child's own space.
fn become_child(space: &Space, exclusive: &Exclusive<'_>, ctx: &ThreadCtx) -> Result<(), InitError> {
    events::stop();
    // First of all: until then, a charge made here goes to the parent.
    let reserved = space.family.reserved_child(exclusive);
    space.family.newborns.reset(exclusive);
    let charged = space.budget.charged() as i64;
    space.tree().become_child(reserved, charged).map_err(|_| InitError::Processes)?;
    sharing::look_at_shared_pool(space);
    publish::publish_sizes(space, exclusive);
    // The parent's evictions and refaults say nothing about the child.
    space.family.set_forked_at(space.swap.clock());
    space.eviction.reset();
    let in_flight = space.threads.contexts.keep_only(ctx);
    space.threads.requests.thaw();
    space.threads.requests.forget_all();
    space.budget.uncharge(in_flight);
    space.places.work.reset();
    space.places.runs.reset();
    space.swap.codecs.reset();
    space.swap.fetches.reset();
    // What they worked in is the parent's memory, too. The child may never need it.
    space.swap.codecs.trim(true, &space.budget);
    space.background.reset(space.stats);
    space.background.read_ahead.reset();
    space.places.stock.reset();
    space.background.page_out.reset();
    space.kernel.drivers.reset();
    // The parent's thread that was changing descriptors does not exist here.
    uapi::fd::reset_in_child();
    if space.swap.devices.undo_change(exclusive) {
        space.swap.set_has_file(true);
    }
    space.swap.devices.close_transient();
    let uffd = space.uffd().open_in_child().map_err(InitError::Userfaultfd)?.raise();
    space.kernel.set_uffd(exclusive, uffd);
    let refused = |_| InitError::Userfaultfd(Errno::INVAL);
    space.places.staging.register(&uffd).map_err(refused)?;
    // Before anything is freed: from here on, the child frees content for itself, not for its parent.
    if !space.swap.devices.lives().become_child() {
        return Err(InitError::Life);
    }
    space.swap.devices.forget_transfers(exclusive);
    for file in space.swap.devices.all_mut(exclusive).iter_mut().flatten() {
        file.inherit(&space.budget);
    }
    // Regions that the child does not have, or has empty, leave the books first.
    while let Some(r) = space.regions.all(exclusive).find(|r| r.attr.is_dontfork()) {
        wipe(space, exclusive, r);
        space.regions.remove(exclusive, r.start, r.end);
    }
    for r in space.regions.all(exclusive) {
        if r.attr.is_wipeonfork() {
            wipe(space, exclusive, r);
        }
        uffd.register(r.start, r.end - r.start).map_err(refused)?;
    }
    books::reopen_books(space);
    mlock::unlock_all(space, exclusive);
    // The kernel gave the child its pages without write protection.
    share::protect_in_child(space, exclusive);
    space.places.staging.rebuild();
    open_own_files(space, exclusive);
    stats::add(&space.stats.processes, 1);
    if space.family.is_sharing() {
        books::look_at_books(space);
    }
    Ok(())
}

/// Drops the page states of a region whose memory this process does not have.
fn wipe(space: &Space, exclusive: &Exclusive<'_>, r: Region) {
    mapping::drop_content(space, exclusive, r.start, r.end);
}

/// Gives the child spill files of its own. It no longer writes to its parent's files, and forgets those that hold
/// nothing of it. If no file can be made, pages that do not compress stay in RAM.
fn open_own_files(space: &Space, exclusive: &Exclusive<'_>) {
    let devices = &space.swap.devices;
    let own = devices.own(exclusive).fold(0, |files, (i, _)| files | bit(i));
    let mut specs = [([0u8; NAME_BYTES_MAX], 0u64, 0i16, Kind::Ssd, Discard::Pages); DEVICES_MAX];
    let mut nr_specs = 0;
    // What failed the parent too often would fail the child, and each child would have to find that out again.
    for (i, file) in devices.own(exclusive).filter(|(_, file)| file.closed().is_none()) {
        let (Some(priority), Some(spec)) = (devices.priority(i), specs.get_mut(nr_specs)) else { continue };
        let name = file.dir().to_bytes_with_nul();
        spec.0[..name.len()].copy_from_slice(name);
        (spec.1, spec.2, spec.3, spec.4) = (file.bytes(), priority, file.kind(), file.discard());
        nr_specs += 1;
    }
    // Highest priority first, in case there is no room for all.
    let specs = &mut specs[..nr_specs];
    specs.sort_unstable_by_key(|spec| core::cmp::Reverse(spec.2));
    numbers(own).for_each(|i| devices.write_no_more(i));
    for i in 0..FILES_MAX {
        if devices.file(exclusive, i).is_some_and(|file| file.is_unused(exclusive))
            && let Some(file) = devices.remove(exclusive, i)
        {
            file.destroy(exclusive, &space.budget);
            devices.set_transient_fd(-1);
        }
    }
    let mut writable = false;
    for (dir, bytes, priority, kind, discard) in specs {
        let Ok(dir) = CStr::from_bytes_until_nul(dir) else { continue };
        let priority = Some(*priority);
        // The tree knows how much may be written there.
        let spec = SwapSpec { dir, bytes: *bytes, priority, kind: *kind, discard: *discard, writes: None };
        let file = match SpillFile::create(&spec, devices.lives(), !space.kernel.force().no_direct) {
            Ok(file) => file,
            Err(errno) => {
                devices.note_unmade(errno);
                continue;
            }
        };
        match devices.add(exclusive, file) {
            Ok(i) => {
                devices.write_to(i, spec.priority.unwrap_or_default());
                writable = true;
            }
            Err(file) => file.destroy(exclusive, &space.budget),
        }
    }
    space.swap.set_has_file(writable);
}
