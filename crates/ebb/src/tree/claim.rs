//! How a process becomes a member, and how it is found dead.
//!
//! Each member's process holds a record lock on one byte of the shared file. The kernel releases the lock when the
//! process dies, whatever kills it, and keeps the lock over exec. So a process that gets the lock of a member in use
//! knows that the member's process is dead, and takes back what it held. The next process that runs short does so, at
//! the latest. A dying process has to write nothing. Process numbers do not matter, although they are used again and
//! mean something else in another pid namespace.

use super::masks;
use super::share::{HOLDERS_MAX, NEAR, PLANE_HOLDERS, Share, holders_of, is_of_several, plane_of};
use super::{Kind, Member, MemberId, Page, Tree, TreeFull, now_ms};
use crate::base::uapi::{self, record_lock};
use crate::protocols::gate::Exclusive;
use crate::protocols::primitive::Ordering;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// Where the bytes that members lock begin: beyond everything that the file has.
pub(super) const LOCKS_AT: u64 = 1 << 43;
/// The byte that is locked by the process that started the tree.
const SUPERVISOR_AT: u64 = LOCKS_AT - 1;
/// How long a child may take from fork to its own lock before another process gets its place. A child that is stopped
/// meanwhile takes another place when it goes on.
const RESERVED_MS: u64 = 5000;
/// Where the bytes of shares begin. A process locks one while it begins with the share, takes bits back there, or
/// forgets its masks.
const SHARE_LOCKS_AT: u64 = LOCKS_AT + (1 << 20);
/// A process that called exec this long ago is another program by now, or finds out that it has lost what it shared.
const EXEC_MS: u64 = 20;
/// Pages whose bits are taken back at a time. If the process that does so is killed meanwhile, at most so many count
/// too often from then on.
const CHUNK: usize = 64;
/// The pause between two attempts of a process that must take bits back; and after how long another process that is at
/// it is taken to be stopped.
const RELEASE_STEP_NS: u64 = 1_000_000;
const STOPPED_MS: u64 = 2000;
/// How often processes that run short look for dead ones, all of them together. Twice the members cost a look more than
/// twice as much, because the kernel finds each of their locks in a list. So looks become rarer as members become more.
const REAP_EVERY_MS: u64 = 5;
const REAP_EVERY_MS_MAX: u64 = 50;
const MEMBERS_PER_MS: u64 = 4;

/// The byte of a member.
fn byte(index: u32) -> u64 {
    LOCKS_AT + u64::from(index)
}

/// The byte of a share.
pub fn share_byte(index: u32) -> u64 {
    SHARE_LOCKS_AT + u64::from(index)
}

/// The process behind a member, as the caller's pid namespace numbers it. None when it is dead, 0 when it has no number
/// here. The caller must be another process: the kernel does not report a process's own locks.
pub fn holder(fd: i32, index: u32) -> Option<i32> {
    record_lock::holder(fd, byte(index))
}

impl Tree {
    /// The managed member whose process has the number `pid` here and `own_pid` in its own pid namespace. The kernel does not
    /// say of this process's own locks who holds them, so it is not found.
    pub fn member_of(&self, pid: i32, own_pid: u32) -> Option<MemberId> {
        if self.is_alone() || pid <= 0 {
            return None;
        }
        let is_it = |(index, member): &(u32, &Member)| {
            member.kind() == Kind::Managed
                && member.pid.load(Relaxed) == own_pid
                && holder(self.fd(), *index) == Some(pid)
        };
        let (index, member) = self.page.members().find(is_it)?;
        Some(MemberId { index, generation: member.generation() })
    }
}

/// Makes the calling process the one that started the tree; false when there is one already.
pub fn supervise(fd: i32) -> bool {
    record_lock::try_lock(fd, SUPERVISOR_AT)
}

/// The process that started the tree, as the caller's pid namespace numbers it. None when it has ended, 0 when it has
/// no number here. The caller must be another process.
pub fn supervisor(fd: i32) -> Option<i32> {
    record_lock::holder(fd, SUPERVISOR_AT)
}

/// Takes back what dead members held. Returns how many there were. One thread of a process may call this at a time.
/// `own` are places that may be the calling process's own; for these the kernel does not say whether a process holds
/// them.
pub fn reap(page: &Page, fd: i32, own: &[u32]) -> usize {
    let mut reaped = 0;
    // Bits under the name of a member that is gone are nobody's.
    for (_, share) in page.shares() {
        for (_, id) in share.holders().filter(|(_, id)| page.find(*id).is_none()) {
            release(page, fd, id, || page.find(id).is_none());
        }
    }
    for (index, member) in page.members() {
        let is_young = || now_ms().saturating_sub(member.since_ms.load(Relaxed)) < RESERVED_MS;
        let id = MemberId { index, generation: member.generation() };
        // The order matters: see `come_back`.
        let left_ms = member.left_ms.load(Ordering::SeqCst);
        let has_left = || {
            now_ms().saturating_sub(left_ms) >= EXEC_MS
                && member.kind() == Kind::Outside
                && member.left_ms.load(Ordering::SeqCst) == left_ms
        };
        if member.has_bits.load(Relaxed) != 0 && has_left() {
            release(page, fd, id, has_left);
        }
        let may_live = || match member.kind() {
            Kind::Free => true,
            Kind::Reserved => member.parent().is_some_and(|parent| page.find(parent).is_some()) && is_young(),
            Kind::Managed | Kind::Outside => false,
        };
        if may_live() || own.contains(&index) || !record_lock::try_lock(fd, byte(index)) {
            continue;
        }
        // Look again: until the lock was taken, another process may have held the place and cleared it, or made it a
        // child's.
        if !may_live() && release(page, fd, id, || true) {
            member.clear();
            reaped += 1;
        }
        record_lock::unlock(fd, byte(index));
    }
    reaped
}

/// Takes all bits of `id` back, as long as `is_gone` says that its process holds nothing any more of what they stand
/// for. False when that was not possible now: another process is at it, or there is no room to look.
fn release(page: &Page, fd: i32, id: MemberId, is_gone: impl Fn() -> bool) -> bool {
    let mut done = true;
    let said = page.find(id).map_or(0, |member| member.has_bits.load(Ordering::SeqCst));
    for (index, share) in page.shares().filter(|(_, share)| share.number_of(id).is_some()) {
        // One process at a time: a late one would take the bits of the next holder that gets the number.
        if !record_lock::try_lock(fd, share_byte(index)) {
            // A process that has had the lock for so long is stopped.
            if share.wait_ms(now_ms()) >= STOPPED_MS && is_gone() {
                give_up(share, id);
            } else {
                done = false;
            }
            continue;
        }
        share.note_locked();
        if let Some(number) = share.number_of(id).filter(|_| is_gone()) {
            share.begin_leaving(number, id);
            let planes = plane_of(number).map_or(0..0, |plane| plane..plane + 1);
            let taken = masks::walk(fd, index, planes, |unit| {
                // Pages that are no longer left out of the sum are no longer granted either, so that the sum stays what
                // it is.
                for first in (0..unit.masks.len()).step_by(CHUNK) {
                    let part = first..(first + CHUNK).min(unit.masks.len());
                    let pages = share.leave_all(unit.bits(number, part), unit.is_extra);
                    if pages > 0
                        && let Some(member) = page.find(id)
                    {
                        member.granted.fetch_sub(pages, Ordering::SeqCst);
                    }
                }
            });
            if taken.is_ok() {
                share.drop_holder(number, id);
                forget_if_empty(share, fd, index);
            }
            done &= taken.is_ok();
        } else {
            done &= share.number_of(id).is_none();
        }
        record_lock::unlock(fd, share_byte(index));
    }
    if done && let Some(member) = page.find(id) {
        // Unless the member has said since that it may have new bits.
        let _ = member.has_bits.compare_exchange(said, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
    done
}

/// Takes a holder's number back without its bits. From now on all pages of the share count in full.
fn give_up(share: &Share, id: MemberId) {
    share.make_void();
    if let Some(number) = share.number_of(id) {
        share.drop_holder(number, id);
    }
}

/// Takes all bits of `id` back, for a caller that cannot leave this to another process. Waits for another process that
/// is at it, but not for one that is stopped.
fn release_for_sure(page: &Page, fd: i32, id: MemberId) {
    let began_ms = now_ms();
    while !release(page, fd, id, || true) {
        if now_ms().saturating_sub(began_ms) >= 2 * STOPPED_MS {
            page.shares().for_each(|(_, share)| {
                if share.number_of(id).is_some() {
                    give_up(share, id);
                }
            });
            return;
        }
        uapi::futex_wait(&AtomicU32::new(0), 0, Some(RELEASE_STEP_NS));
    }
}

/// Forgets the masks of a share when nobody uses it. The caller holds the share's lock.
fn forget_if_empty(share: &Share, fd: i32, index: u32) {
    if share.is_empty() {
        share.reset_empty();
        masks::forget(fd, index);
    }
}

/// Likewise, for a caller that does not hold the share's lock.
pub(super) fn forget_share(page: &Page, fd: i32, index: u32) {
    if record_lock::try_lock(fd, share_byte(index)) {
        forget_if_empty(page.share(index), fd, index);
        record_lock::unlock(fd, share_byte(index));
    }
}

/// Makes a member nobody's, and takes its bits back. The caller holds the member's lock.
fn vacate(page: &Page, fd: i32, index: u32) {
    let member = page.member(index);
    release_for_sure(page, fd, MemberId { index, generation: member.generation() });
    member.clear();
}

/// Counts anew what the masks of all shares say. Calls `f` for each share with its index, its surplus, and for each
/// holder how many of its pages count for another holder. Shares that cannot be looked at are left out.
pub fn recount(page: &Page, fd: i32, mut f: impl FnMut(u32, i64, &[(MemberId, u64)])) {
    for (index, share) in page.shares().filter(|(_, share)| !share.is_empty()) {
        let (mut surplus, mut counted_elsewhere) = (0, [0u64; HOLDERS_MAX]);
        let planes = share.planes();
        let looked = masks::walk(fd, index, 0..planes, |unit| {
            for (i, mask) in unit.masks.iter().enumerate() {
                let mask = mask.load(Relaxed);
                if !is_of_several(mask) {
                    continue;
                }
                let words = (0..planes).map(|plane| (NEAR + PLANE_HOLDERS * plane as u32, unit.far_word(plane, i)));
                // The page counts for its first holder.
                let mut is_first = true;
                for (number, mut word) in core::iter::once((0, holders_of(mask).0)).chain(words) {
                    while word != 0 {
                        if !core::mem::take(&mut is_first) {
                            counted_elsewhere[(number + word.trailing_zeros()) as usize] += 1;
                            surplus += 1;
                        }
                        word &= word - 1;
                    }
                }
            }
        });
        if looked.is_err() {
            continue;
        }
        let mut holders = [(MemberId { index: 0, generation: 0 }, 0); HOLDERS_MAX];
        let mut nr_holders = 0;
        for (number, id) in share.holders() {
            let pages = if share.is_void() { 0 } else { counted_elsewhere[number as usize] };
            holders[nr_holders] = (id, pages);
            nr_holders += 1;
        }
        f(index, surplus, &holders[..nr_holders]);
    }
}

/// Locks a free place for the calling process; false when the place is taken.
fn try_claim(page: &Page, fd: i32, index: u32) -> bool {
    if !record_lock::try_lock(fd, byte(index)) {
        return false;
    }
    let is_free = page.member(index).kind() == Kind::Free;
    if !is_free {
        record_lock::unlock(fd, byte(index));
    }
    is_free
}

/// Takes a place of [`Kind::Outside`] for the calling process, which may be no process of the tree. There it says what
/// processes without a place of their own hold. None when no place is free.
pub fn claim_outside(page: &Page, fd: i32) -> Option<MemberId> {
    let index = page.places().find(|&i| page.member(i).kind() == Kind::Free && try_claim(page, fd, i))?;
    page.member(index).clear();
    Some(begin_outside(page, index))
}

/// Begins at a place that is nobody's, and whose lock this process holds.
fn begin_outside(page: &Page, index: u32) -> MemberId {
    let member = page.member(index);
    member.pid.store(uapi::getpid() as u32, Relaxed);
    member.since_ms.store(now_ms(), Relaxed);
    member.set_kind(Kind::Outside);
    page.raise_high_water(index);
    MemberId { index, generation: member.generation() }
}

/// Takes a place of [`Kind::Outside`] for the calling process, or begins anew at the one that it has, and wakes the
/// process that looks from outside. The caller is about to exec a program that takes no place itself, or that has much
/// memory before it does. The place counts for `pages` until it has been looked at for a while. None when no place is
/// free.
pub fn leave_outside(page: &Page, fd: i32, pages: i64) -> Option<MemberId> {
    let pid = uapi::getpid() as u32;
    let is_mine = |(index, member): &(u32, &Member)| {
        // A member with bits was managed: it is that of an earlier process with this number.
        let may_be_mine = member.kind() == Kind::Outside && member.has_bits.load(Relaxed) == 0;
        may_be_mine && member.pid.load(Relaxed) == pid && record_lock::try_lock(fd, byte(*index))
    };
    let mine = page.members().find(is_mine).map(|(index, _)| {
        // The place may be that of an earlier process with this number, which is dead.
        vacate(page, fd, index);
        begin_outside(page, index)
    });
    let id = mine.or_else(|| claim_outside(page, fd))?;
    expect(page, id, pages);
    tell_left(page);
    Some(id)
}

/// Counts `pages` at a place whose program will have them before it says so. No single program counts for more than
/// half of the budget, so that something is left of a small one.
fn expect(page: &Page, id: MemberId, pages: i64) {
    page.member(id.index).outside.store(pages.min(page.limit() as i64 / 2), Ordering::SeqCst);
}

/// Gives an outside place back. Only the process that took it may call this.
pub fn drop_outside(page: &Page, fd: i32, id: MemberId) {
    if let Some(member) = page.find(id) {
        member.clear();
        record_lock::unlock(fd, byte(id.index));
    }
}

/// Wakes the process that looks from outside: there is a member to look at.
fn tell_left(page: &Page) {
    page.left.fetch_add(1, Ordering::SeqCst);
    uapi::futex_wake_shared(&page.left);
}

impl Tree {
    pub(super) fn fd(&self) -> i32 {
        self.fd.load(Relaxed)
    }

    /// True when no other process has the page.
    pub fn is_alone(&self) -> bool {
        self.fd() < 0
    }

    /// Takes a place. After exec, that is the place which the process had.
    pub(super) fn claim_own(&self) -> Result<(), TreeFull> {
        if self.is_alone() {
            self.page.members().for_each(|(_, member)| member.clear());
            self.enter(0, 0);
            return Ok(());
        }
        self.exclusively(|| self.claim_place(0))
    }

    /// Runs `f` while no other thread of this process changes places. Record locks do not keep threads of one process
    /// apart.
    pub(super) fn exclusively<R>(&self, f: impl FnOnce() -> R) -> R {
        while self.places_busy.swap(true, Ordering::SeqCst) {
            uapi::sched_yield();
        }
        let result = f();
        self.places_busy.store(false, Ordering::SeqCst);
        result
    }

    /// Likewise, for work that takes a lock and that another process can do later. Does nothing once a thread of this
    /// process has called exec: the exec ends this thread wherever it is, and leaves its locks to the new program.
    pub(super) fn unless_leaving<R>(&self, f: impl FnOnce() -> Option<R>) -> Option<R> {
        self.exclusively(|| if self.leaving.load(Ordering::SeqCst) > 0 { None } else { f() })
    }

    /// Takes a place where `granted` pages are granted from its first moment on.
    fn claim_place(&self, granted: i64) -> Result<(), TreeFull> {
        self.forget_holdings();
        let pid = uapi::getpid() as u32;
        let is_mine =
            |(_, m): &(u32, &Member)| matches!(m.kind(), Kind::Outside | Kind::Managed) && m.pid.load(Relaxed) == pid;
        let mut mine =
            self.page.members().filter(is_mine).map(|(index, _)| index).filter(|&index| self.try_lock(index));
        let first = mine.next();
        // Where these come from: see `leave_for_exec`.
        for further in mine {
            vacate(self.page, self.fd(), further);
            record_lock::unlock(self.fd(), byte(further));
        }
        // What the process counts for from outside counts on, until it is charged.
        let granted = granted.max(first.map_or(0, |index| self.page.member(index).counted_outside()));
        let free = |&index: &u32| self.page.member(index).kind() == Kind::Free && self.try_claim(index);
        if let Some(index) = first.or_else(|| self.page.places().find(free)) {
            self.enter(index, granted);
            return Ok(());
        }
        reap(self.page, self.fd(), &[]);
        let index = self.page.places().find(free).ok_or(TreeFull)?;
        self.enter(index, granted);
        Ok(())
    }

    fn try_lock(&self, index: u32) -> bool {
        record_lock::try_lock(self.fd(), byte(index))
    }

    /// True when another thread of this process has the lock. To the kernel, threads with descriptor tables of their
    /// own (unshare, clone without CLONE_FILES) are other owners of record locks. What one of them has locked is this
    /// process's all the same.
    fn another_thread_has(&self, index: u32) -> bool {
        record_lock::holder(self.fd(), byte(index)) == Some(uapi::getpid())
    }

    fn try_claim(&self, index: u32) -> bool {
        try_claim(self.page, self.fd(), index)
    }

    /// Begins as the member at a place whose lock this process holds.
    fn enter(&self, index: u32, granted: i64) {
        let member = self.page.member(index);
        vacate(self.page, self.fd(), index);
        member.pid.store(uapi::getpid() as u32, Relaxed);
        member.since_ms.store(now_ms(), Relaxed);
        member.granted.store(granted, Ordering::SeqCst);
        member.set_kind(Kind::Managed);
        self.page.raise_high_water(index);
        self.set_id(MemberId { index, generation: member.generation() });
        self.look();
    }

    /// Works on places if no other thread does, none calls exec, and this process is not one that only shares the memory. Waits
    /// for nobody.
    fn unless_busy<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        if self.is_alone() || !self.is_owner() || self.places_busy.swap(true, Ordering::SeqCst) {
            return None;
        }
        let is_leaving = self.leaving.load(Ordering::SeqCst) > 0;
        let done = if is_leaving { None } else { Some(f()) };
        self.places_busy.store(false, Ordering::SeqCst);
        done
    }

    /// Takes back what dead members held. Returns how many there were.
    pub fn reap(&self) -> usize {
        self.unless_busy(|| reap(self.page, self.fd(), &[self.id().index])).unwrap_or(0)
    }

    /// Likewise, but not too often.
    pub fn reap_sometimes(&self) -> usize {
        let (now, last) = (now_ms(), self.page.reaped_ms.load(Relaxed));
        let members = self.page.members().filter(|(_, member)| member.kind() != Kind::Free).count() as u64;
        let every = (members / MEMBERS_PER_MS).clamp(REAP_EVERY_MS, REAP_EVERY_MS_MAX);
        // A last look that is later than now was by the clock of another time namespace.
        let is_due = last > now || now - last >= every;
        // One process looks for all.
        if !is_due || self.page.reaped_ms.compare_exchange(last, now, Relaxed, Relaxed).is_err() {
            return 0;
        }
        self.reap()
    }

    /// Notes that the page's file has the number `fd` now. `close` gives the old number up, and with it all locks.
    pub fn set_fd(&self, fd: i32, close: impl FnOnce()) {
        self.exclusively(|| {
            self.fd.store(fd, Relaxed);
            close();
        });
    }

    /// Makes sure that this process has its member's lock. It loses the lock when it closes any descriptor of the file,
    /// and the program may have opened one through /proc. Another process may then have taken it for dead. In that case
    /// it takes a place again, where its `charged` pages are granted, and shares nothing.
    ///
    /// Returns whether the lock is in the calling thread's descriptor table, or none is needed. A lock in another
    /// thread's table goes away with that table. Fails when all places are taken.
    pub fn hold(&self, charged: i64) -> Result<bool, TreeFull> {
        if self.is_alone() || !self.is_owner() {
            return Ok(true);
        }
        self.exclusively(|| {
            // An exec may leave locks that are taken now to the next program.
            if self.leaving.load(Ordering::SeqCst) > 0 {
                return if self.is_lost() { Err(TreeFull) } else { Ok(false) };
            }
            let old = self.id();
            let is_here = self.try_lock(old.index);
            let is_locked = is_here || self.another_thread_has(old.index);
            if is_locked && self.page.find(old).is_some() {
                return Ok(is_here);
            }
            if is_here {
                record_lock::unlock(self.fd(), byte(old.index));
            }
            self.claim_place(charged)?;
            // The background thread may be waiting for requests at the old place.
            uapi::futex_wake_shared(&self.page.member(old.index).asked);
            Ok(true)
        })
    }

    /// Before exec: from here on others look at what the process holds, until it becomes a member again. At first it
    /// counts for `pages`.
    ///
    /// Another thread may have the lock in a descriptor table of its own, and the lock goes away with that table. The
    /// calling thread then takes a place of its own, which is returned: for [`Self::drop_outside`] if the exec fails.
    pub fn leave_for_exec(&self, pages: i64) -> Option<MemberId> {
        // Waits for threads that have locked something.
        self.exclusively(|| {
            let is_first = self.leaving.fetch_add(1, Ordering::SeqCst) == 0;
            if self.is_lost() {
                return None;
            }
            let is_here = self.is_alone() || self.try_lock(self.id().index);
            let other = if is_here { None } else { claim_outside(self.page, self.fd()) };
            if let Some(id) = other {
                expect(self.page, id, pages);
            }
            if is_first {
                // If there is another place, it is the new program's.
                expect(self.page, self.id(), if other.is_some() { 0 } else { pages });
                self.member().left_ms.store(now_ms(), Ordering::SeqCst);
                self.member().set_kind(Kind::Outside);
                tell_left(self.page);
            }
            other
        })
    }

    /// After a failed exec: the process is managed again, unless another thread's exec goes on. Its grant may be less
    /// than what it has by then.
    pub fn back_from_exec(&self, _exclusive: &Exclusive<'_>) {
        self.exclusively(|| {
            let is_last = self.leaving.fetch_sub(1, Ordering::SeqCst) == 1;
            if is_last && !self.is_lost() {
                self.come_back();
            }
        });
    }

    fn come_back(&self) {
        self.member().set_kind(Kind::Managed);
        // A process that took the bits back meanwhile looked at the clock first, and found this one outside after that.
        if now_ms().saturating_sub(self.member().left_ms.load(Ordering::SeqCst)) >= EXEC_MS / 2 {
            self.forget_holdings();
            release_for_sure(self.page, self.fd(), self.id());
        }
    }

    /// Takes a place for the calling process, which only shares this space's memory and is about to exec. From then on
    /// others look at what it holds. At first it counts for `pages`.
    pub fn claim_outside(&self, pages: i64) -> Option<MemberId> {
        if self.is_alone() {
            return None;
        }
        leave_outside(self.page, self.fd(), pages)
    }

    /// After a failed exec: gives the place back that was taken for it.
    pub fn drop_outside(&self, id: MemberId) {
        let drop = || drop_outside(self.page, self.fd(), id);
        // Another thread could take the place, and lose it when this thread releases the lock. A process that only
        // shares the memory has locks of its own, and must not hold anybody up if it is killed.
        if self.is_owner() { self.exclusively(drop) } else { drop() }
    }

    /// Before fork: reserves a member for the child, which holds nothing yet. None when that is not possible; the child
    /// then finds a place itself, and shares nothing.
    pub fn reserve_child(&self) -> Option<MemberId> {
        // A process that only shares the memory leaves it to the child to find a place.
        if self.is_alone() || !self.is_owner() || self.is_lost() {
            return None;
        }
        self.unless_leaving(|| {
            let free = |&i: &u32| self.page.member(i).kind() == Kind::Free && self.try_claim(i);
            let index = self.page.places().find(free)?;
            let id = self.page.reserve(index, self.id(), now_ms());
            record_lock::unlock(self.fd(), byte(index));
            Some(id)
        })
    }

    /// After a failed fork: gives the child's member back.
    pub fn drop_child(&self, id: MemberId) {
        self.unless_leaving(|| {
            release_for_sure(self.page, self.fd(), id);
            if self.page.find(id).is_some() && self.try_lock(id.index) {
                vacate(self.page, self.fd(), id.index);
                record_lock::unlock(self.fd(), byte(id.index));
            }
            Some(())
        });
    }

    /// Takes back what a child held that died before it took the place that was reserved for it, as the caller knows. True if
    /// that is done; false also while another thread is at the places.
    pub fn reap_child(&self, id: MemberId) -> bool {
        self.unless_busy(|| {
            if !self.page.is_reserved(id) || !self.try_lock(id.index) {
                return false;
            }
            // Another process may have done it until the lock was taken.
            let is_reaped = self.page.is_reserved(id) && release(self.page, self.fd(), id, || true);
            if is_reaped {
                self.page.member(id.index).clear();
            }
            record_lock::unlock(self.fd(), byte(id.index));
            is_reaped
        })
        .unwrap_or(false)
    }

    /// In fork's child: takes the place that its parent reserved, or another one. Fails when all places are taken.
    pub fn become_child(&self, reserved: Option<MemberId>, granted: i64) -> Result<(), TreeFull> {
        // Another thread of the parent may have set it; the child has no other thread.
        self.places_busy.store(false, Relaxed);
        self.leaving.store(0, Relaxed);
        self.forget_own_tables();
        masks::reset_in_child();
        if let Some(id) = reserved
            && self.try_lock(id.index)
        {
            let member = self.page.member(id.index);
            if self.page.find(id).is_some() && member.kind() == Kind::Reserved {
                member.pid.store(uapi::getpid() as u32, Relaxed);
                member.set_kind(Kind::Managed);
                self.set_id(id);
                self.inherit_holdings(true);
                return Ok(());
            }
            record_lock::unlock(self.fd(), byte(id.index));
        }
        self.inherit_holdings(false);
        self.claim_own()?;
        if let Some(id) = reserved {
            self.exclusively(|| release_for_sure(self.page, self.fd(), id));
        }
        self.force_grow(granted);
        Ok(())
    }
}
