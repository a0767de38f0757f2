//! Fork: one space becomes two.
//!
//! The thread that forks closes the gate, so no other thread is inside the engine and no page is busy; the child then
//! owns a private copy of all of Ebb's memory in a consistent state. What the child does not inherit is the
//! registration of its regions: it opens a userfaultfd of its own and registers everything before it runs one
//! instruction of the program. An evicted page read before that would silently be zero.

use crate::books::CHILD_PAGES;
use crate::ctx::ThreadCtx;
use crate::device::file::SpillFile;
use crate::device::list::{FILES_MAX, bit, numbers};
use crate::device::{DEVICES_MAX, NAME_BYTES_MAX, SwapSpec};
use crate::region::Region;
use crate::space::{InitError, Space};
use crate::stats;
use crate::uapi::{self, Errno, uffd::Uffd};
use core::ffi::CStr;
use core::sync::atomic::Ordering::Relaxed;

/// The part of the budget that is free before a process forks that holds much of it.
const FORK_ROOM_PART: usize = 8;
/// How long a process that forks reclaims at most for what the child will have for itself.
const FORK_WAIT_NS: u64 = 250_000_000;

impl Space {
    /// Whether a child of fork would find a number for its userfaultfd. Otherwise fork is to fail with EMFILE.
    pub fn may_fork(&self) -> bool {
        uapi::fd::is_replaceable(self.uffd().fd())
    }

    /// Before fork: nobody else is inside the engine until [`Self::fork_parent`]. The caller must not be inside.
    pub fn fork_prepare(&self, ctx: &ThreadCtx) {
        self.gate.close(uapi::getpid() as u32, self.contexts.all().map(|c| &c.gate));
        self.requests.freeze();
        self.background.set_forked();
        self.empty_stock();
        let child = self.swap.devices.lives().begin_child();
        self.swap.devices.all().for_each(|(_, file)| file.adopt(child));
        self.complete_fork_room(ctx);
        let reserved = self.tree().reserve_child();
        let shared = reserved.map_or(0, |child| self.share_pages(child));
        // Now that the child has it: meanwhile the sum says too much rather than too little.
        self.release_fork_room(ctx);
        if shared > 0 {
            let number = self.nr_sharing_forks.fetch_add(1, Relaxed).wrapping_add(1).max(1);
            self.sharing.store(number, Relaxed);
            self.shares_much.store(true, Relaxed);
            self.look_at_shared_pool();
        }
        // SAFETY: under the exclusive gate.
        unsafe { *self.reserved_child.get() = reserved };
    }

    /// Charges what the child will have for itself at once; and frees a part of the budget, where this
    /// process holds much of it and would share that: what is shared frees nothing when one side evicts it, so both would have
    /// to work in what happens to be left. Takes as long as reclaim does: before any lock.
    pub fn make_fork_room(&self, ctx: &ThreadCtx) {
        self.tree().reap_sometimes();
        self.open_books();
        let (limit, charged) = (self.group.limit(), self.group.charged());
        if !self.can_protect || self.tree().is_alone() {
            return;
        }
        let most = limit / FORK_ROOM_PART;
        let holds_much = charged >= limit / 4;
        let room = if holds_much { most.min(charged / 2) } else { 0 };
        let mut steps = 4 * room / self.sweep_max() + 8;
        self.group.give_back_unused();
        let _closed = self.close_stock();
        while holds_much && self.shrink_stock(ctx) {}
        while steps > 0 && self.tree().look().free() < room as i64 {
            steps -= 1;
            self.reclaim_step(ctx);
            self.group.give_back_unused();
        }
        let own = self.not_shared().min(most);
        // Where there is no room, as all is shared and others are as short, the child takes it all the same.
        if !self.charge_fork_room(ctx, own) && self.try_direct_reclaim(ctx, own, FORK_WAIT_NS) {
            self.charge_fork_room(ctx, own);
        }
    }

    /// Charges `n` pages for the child. Inside the gate, so that a fork by another thread finds none of it charged, or all of it
    /// known for what it is.
    fn charge_fork_room(&self, ctx: &ThreadCtx, n: usize) -> bool {
        self.gate.enter(&ctx.gate);
        let charged = self.group.try_charge(n);
        if charged {
            ctx.fork_room.fetch_add(n as u32, Relaxed);
        }
        self.gate.leave(&ctx.gate);
        charged
    }

    /// Charges what books have come to since [`Self::make_fork_room`], if there is room. Under the exclusive gate.
    fn complete_fork_room(&self, ctx: &ThreadCtx) {
        let charged = ctx.fork_room.load(Relaxed) as usize;
        let lacks = self.not_shared().saturating_sub(charged);
        if charged > 0 && lacks > 0 && self.group.try_charge(lacks) {
            ctx.fork_room.fetch_add(lacks as u32, Relaxed);
        }
    }

    /// Pages that a child would have for itself.
    fn not_shared(&self) -> usize {
        if self.knows_books() { CHILD_PAGES } else { self.group.meta_pages() }
    }

    /// What was charged for the child is there for it. Under the exclusive gate.
    pub(crate) fn release_fork_room(&self, ctx: &ThreadCtx) {
        let room = ctx.fork_room.swap(0, Relaxed) as usize;
        if room > 0 {
            self.group.uncharge(room);
            self.group.give_back_unused();
        }
    }

    /// After fork, in the parent, also when it failed (`ok` false).
    pub fn fork_parent(&self, ok: bool) {
        if !ok {
            // SAFETY: under the exclusive gate.
            if let Some(child) = unsafe { *self.reserved_child.get() } {
                self.tree().drop_child(child);
            }
            self.swap.devices.all().for_each(|(_, file)| file.disown());
        }
        self.swap.devices.lives().end_child();
        self.requests.thaw();
        self.gate.open();
    }

    /// After fork, in the child, as its first act.
    pub fn fork_child(&self, ctx: &ThreadCtx) -> Result<(), InitError> {
        // First of all: until then what is charged here is charged to the parent.
        // SAFETY: the only thread, under the exclusive gate.
        let reserved = unsafe { *self.reserved_child.get() };
        let charged = self.group.charged() as i64;
        self.tree().become_child(reserved, charged).map_err(|_| InitError::Processes)?;
        self.look_at_shared_pool();
        self.publish_sizes();
        // What its parent evicted and needs again says nothing of the child.
        self.forked_at.store(self.swap.clock(), Relaxed);
        self.nr_evicted.store(0, Relaxed);
        self.nr_needed_again.store(0, Relaxed);
        let in_flight = self.contexts.keep_only(ctx);
        self.requests.thaw();
        self.requests.forget_all();
        self.group.uncharge(in_flight);
        self.work.reset();
        self.runs.reset();
        self.background.reset(self.stats);
        self.read_ahead.reset();
        self.stock.reset();
        self.page_out.reset();
        self.drivers.reset();
        // Who was at it is not here.
        uapi::fd::reset_in_child();
        self.is_changing_swap.store(false, Relaxed);
        self.undo_swapoff();
        self.swap.devices.close_transient();
        let old = self.uffd();
        uapi::close(old.fd());
        let uffd = uapi::fd::beyond_limit(Uffd::open).map_err(InitError::Userfaultfd)?;
        // Where the number that it has is the only one, it keeps that.
        let uffd = uffd.raise().unwrap_or(uffd);
        // SAFETY: the only thread, under the exclusive gate.
        unsafe { *self.uffd.get() = uffd };
        let refused = |_| InitError::Userfaultfd(Errno::INVAL);
        self.staging.register(&uffd).map_err(refused)?;
        // Before anything is freed: what the child frees from here on, it frees for itself, not for its parent.
        if !self.swap.devices.lives().become_child() {
            return Err(InitError::Life);
        }
        for file in self.swap.devices.all_mut().iter_mut().flatten() {
            file.inherit(&self.group);
        }
        // Regions that the child does not have, or has empty, come out of the books first.
        while let Some(r) = self.regions.all().iter().copied().find(|r| r.attr.is_dontfork()) {
            self.wipe(r);
            self.regions.remove(r.start, r.end);
        }
        for i in 0..self.regions.all().len() {
            let r = self.regions.all()[i];
            if r.attr.is_wipeonfork() {
                self.wipe(r);
            }
            uffd.register(r.start, r.end - r.start).map_err(refused)?;
        }
        self.reopen_books();
        self.unlock_all();
        // The kernel gave the child its pages without protection.
        self.protect_in_child();
        self.staging.rebuild();
        self.open_own_files();
        stats::add(&self.stats.processes, 1);
        if self.is_sharing() {
            self.look_at_books();
        }
        self.gate.open();
        // It may never fault, and is asked all the same.
        self.background.kick_if(self, false);
        Ok(())
    }

    /// Drops the states of a region whose memory this process does not have.
    fn wipe(&self, r: Region) {
        self.drop_content(r.start, r.end);
    }

    /// Gives the child files of its own, beside those of its parent that it writes to no more, and forgets files that have
    /// nothing of it. Without one, what does not compress stays in RAM.
    fn open_own_files(&self) {
        let devices = &self.swap.devices;
        let own = devices.own().fold(0, |files, (i, _)| files | bit(i));
        let mut specs = [([0u8; NAME_BYTES_MAX], 0u64, 0i16); DEVICES_MAX];
        let mut nr_specs = 0;
        for (i, file) in devices.own() {
            let (Some(priority), Some(spec)) = (devices.priority(i), specs.get_mut(nr_specs)) else { continue };
            let name = file.dir().to_bytes_with_nul();
            spec.0[..name.len()].copy_from_slice(name);
            (spec.1, spec.2) = (file.bytes(), priority);
            nr_specs += 1;
        }
        // The best first, should there be no room for all.
        let specs = &mut specs[..nr_specs];
        specs.sort_unstable_by_key(|spec| core::cmp::Reverse(spec.2));
        numbers(own).for_each(|i| devices.write_no_more(i));
        for i in 0..FILES_MAX {
            if devices.file(i).is_some_and(SpillFile::is_unused)
                && let Some(file) = devices.remove(i)
            {
                file.destroy(&self.group);
                devices.set_transient_fd(-1);
            }
        }
        let mut writable = false;
        for (dir, bytes, priority) in specs {
            let Ok(dir) = CStr::from_bytes_until_nul(dir) else { continue };
            let spec = SwapSpec { dir, bytes: *bytes, priority: Some(*priority) };
            let file = match SpillFile::create(&spec, 1, devices.lives(), !self.force.no_direct) {
                Ok(file) => file,
                Err(errno) => {
                    devices.note_unmade(errno);
                    continue;
                }
            };
            match devices.add(file) {
                Ok(i) => {
                    devices.write_to(i, *priority);
                    writable = true;
                }
                Err(file) => file.destroy(&self.group),
            }
        }
        self.swap.set_has_file(writable);
    }
}
