//! Becoming a member, and being found dead.
//!
//! Each member's process holds a record lock on one byte of the shared file. The kernel lets go of it when the process
//! dies, whatever kills it, and keeps it over exec. So who gets the lock of a member that is in use knows that its
//! process is gone, and takes what it held back: the next one that runs short does that, no later than that. Nothing has
//! to be written by the dying, and process numbers that are used again, or that mean something else in another pid
//! namespace, do not matter.

use super::masks;
use super::share::{HOLDERS_MAX, NEAR, PLANE_HOLDERS, Share, holders_of, is_of_several, plane_of};
use super::{Kind, Member, MemberId, Page, Tree, TreeFull, now_ms};
use crate::base::uapi::{self, record_lock};
use crate::protocols::gate::Exclusive;
use crate::protocols::primitive::Ordering;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// Where the bytes are that members lock: behind everything that the file has.
pub(super) const LOCKS_AT: u64 = 1 << 43;
/// The byte that the process locks that started the tree.
const SUPERVISOR_AT: u64 = LOCKS_AT - 1;
/// How long a child may take from fork to its own lock, before its place goes to somebody else. A child that is stopped
/// meanwhile takes another place when it goes on.
const RESERVED_MS: u64 = 5000;
/// Where the bytes are that are locked by who begins with a share, or forgets its masks.
const SHARE_LOCKS_AT: u64 = LOCKS_AT + (1 << 20);
/// A process that called exec so long ago is another program, or finds out that it has lost what it shared.
const EXEC_MS: u64 = 20;
/// Pages whose bits are taken back at a time: as many count too often from then on when who does it is killed meanwhile.
const CHUNK: usize = 64;
/// With what pauses who must take bits back tries, and for how long somebody else may be at it.
const RELEASE_STEP_NS: u64 = 1_000_000;
const STOPPED_MS: u64 = 2000;
/// How often those that run short look for dead ones, all together: a look costs more than in proportion to the members,
/// because the kernel finds each of their locks in a list.
const REAP_EVERY_MS: u64 = 5;
const REAP_EVERY_MS_MAX: u64 = 50;
const MEMBERS_PER_MS: u64 = 4;

/// The place of a member's byte.
fn byte(index: u32) -> u64 {
    LOCKS_AT + u64::from(index)
}

/// The place of a share's byte.
pub fn share_byte(index: u32) -> u64 {
    SHARE_LOCKS_AT + u64::from(index)
}

/// The process behind a member as the caller's pid namespace numbers it; none when it is dead, 0 when it has no number here.
/// For who is no member itself: of its own the kernel says nothing.
pub fn holder(fd: i32, index: u32) -> Option<i32> {
    record_lock::holder(fd, byte(index))
}

/// Makes the calling process the one that started the tree; false when there is one already.
pub fn supervise(fd: i32) -> bool {
    record_lock::try_lock(fd, SUPERVISOR_AT)
}

/// The process that started the tree, as the caller's pid namespace numbers it, 0 when it has no number here; none when it
/// has ended. For who is another process.
pub fn supervisor(fd: i32) -> Option<i32> {
    record_lock::holder(fd, SUPERVISOR_AT)
}

/// Takes back what dead members held; how many there were. By one thread of the process at a time. Of the places in `own`,
/// which may be the process's own, the kernel does not say whether somebody holds them.
pub fn reap(page: &Page, fd: i32, own: &[u32]) -> usize {
    let mut reaped = 0;
    // The bits of who has no member any more are nobody's.
    for (_, share) in page.shares() {
        for (_, id) in share.holders().filter(|(_, id)| page.find(*id).is_none()) {
            release(page, fd, id, || page.find(id).is_none());
        }
    }
    for (index, member) in page.members() {
        let is_young = || now_ms().saturating_sub(member.since_ms.load(Relaxed)) < RESERVED_MS;
        let id = MemberId { index, generation: member.generation() };
        // In this order: see `back_from_exec`.
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
        // Looked at again: until now somebody else may have held it, and cleared it, or made it a child's.
        if !may_live() && release(page, fd, id, || true) {
            member.clear();
            reaped += 1;
        }
        record_lock::unlock(fd, byte(index));
    }
    reaped
}

/// Takes all bits of `id` back, whose process holds nothing any more of what they stand for, as long as `is_gone` says so.
/// False when that was not possible now: somebody else is at it, or there is no room to look.
fn release(page: &Page, fd: i32, id: MemberId, is_gone: impl Fn() -> bool) -> bool {
    let mut done = true;
    let said = page.find(id).map_or(0, |member| member.has_bits.load(Ordering::SeqCst));
    for (index, share) in page.shares().filter(|(_, share)| share.number_of(id).is_some()) {
        // One at a time: who is late would take the bits of whoever has the number next.
        if !record_lock::try_lock(fd, share_byte(index)) {
            // Who has it for so long is stopped.
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
                // What is left out of the sum no more is granted no more either, so that the sum stays what it is.
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
        // Unless it has said since that it has new ones.
        let _ = member.has_bits.compare_exchange(said, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
    done
}

/// Takes a holder's number back without its bits: from now on all pages of the share count in full.
fn give_up(share: &Share, id: MemberId) {
    share.make_void();
    if let Some(number) = share.number_of(id) {
        share.drop_holder(number, id);
    }
}

/// Takes all bits of `id` back by who cannot leave it to somebody else. Waits for who is at it, but not for one that is
/// stopped.
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

/// Forgets the masks of a share when nobody uses it. By who holds its lock.
fn forget_if_empty(share: &Share, fd: i32, index: u32) {
    if share.is_empty() {
        share.reset_empty();
        masks::forget(fd, index);
    }
}

/// The same by who does not.
pub(super) fn forget_share(page: &Page, fd: i32, index: u32) {
    if record_lock::try_lock(fd, share_byte(index)) {
        forget_if_empty(page.share(index), fd, index);
        record_lock::unlock(fd, share_byte(index));
    }
}

/// Makes a member nobody's, and takes its bits back. By who holds its lock.
fn vacate(page: &Page, fd: i32, index: u32) {
    let member = page.member(index);
    release_for_sure(page, fd, MemberId { index, generation: member.generation() });
    member.clear();
}

/// What the masks of all shares say, counted anew: for each share its number, its surplus, and for each holder how many of its
/// pages another is counted for. What cannot be looked at is left out.
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
                // It counts for the first.
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

/// Locks a free place for the calling process.
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

/// Takes a place of [`Kind::Outside`] for the calling process, which may be no process of the tree: there it says what
/// others hold that have no place of their own.
pub fn claim_outside(page: &Page, fd: i32) -> Option<MemberId> {
    let index = page.places().find(|&i| page.member(i).kind() == Kind::Free && try_claim(page, fd, i))?;
    page.member(index).clear();
    Some(begin_outside(page, index))
}

/// Begins at a place that is nobody's, whose lock this process holds.
fn begin_outside(page: &Page, index: u32) -> MemberId {
    let member = page.member(index);
    member.pid.store(uapi::getpid() as u32, Relaxed);
    member.since_ms.store(now_ms(), Relaxed);
    member.set_kind(Kind::Outside);
    page.raise_high_water(index);
    MemberId { index, generation: member.generation() }
}

/// Takes such a place for the calling process, or the one of this kind that it has, and tells who looks from outside: it is about
/// to exec a program that does not take one, or has much before it does. It counts for `pages` until somebody has looked for a
/// while.
pub fn leave_outside(page: &Page, fd: i32, pages: i64) -> Option<MemberId> {
    let pid = uapi::getpid() as u32;
    let is_mine = |(index, member): &(u32, &Member)| {
        // Whoever has bits was managed, and is another one, which had the number before.
        let may_be_mine = member.kind() == Kind::Outside && member.has_bits.load(Relaxed) == 0;
        may_be_mine && member.pid.load(Relaxed) == pid && record_lock::try_lock(fd, byte(*index))
    };
    let mine = page.members().find(is_mine).map(|(index, _)| {
        // It may be that of a process which had this number before, and is dead.
        vacate(page, fd, index);
        begin_outside(page, index)
    });
    let id = mine.or_else(|| claim_outside(page, fd))?;
    expect(page, id, pages);
    tell_left(page);
    Some(id)
}

/// The program that begins at a place will have so many pages before it says so. One alone leaves half of a small budget.
fn expect(page: &Page, id: MemberId, pages: i64) {
    page.member(id.index).outside.store(pages.min(page.limit() as i64 / 2), Ordering::SeqCst);
}

/// Gives such a place back. By the process that took it.
pub fn drop_outside(page: &Page, fd: i32, id: MemberId) {
    if let Some(member) = page.find(id) {
        member.clear();
        record_lock::unlock(fd, byte(id.index));
    }
}

/// Tells who looks from outside that there is a member to look at.
fn tell_left(page: &Page) {
    page.left.fetch_add(1, Ordering::SeqCst);
    uapi::futex_wake_shared(&page.left);
}

impl Tree {
    pub(super) fn fd(&self) -> i32 {
        self.fd.load(Relaxed)
    }

    /// True when this process alone has the page.
    pub fn is_alone(&self) -> bool {
        self.fd() < 0
    }

    /// Takes a place. In a process that did exec, the one that it had.
    pub(super) fn claim_own(&self) -> Result<(), TreeFull> {
        if self.is_alone() {
            self.page.members().for_each(|(_, member)| member.clear());
            self.enter(0, 0);
            return Ok(());
        }
        self.exclusively(|| self.claim_place(0))
    }

    /// Runs `f` while no other thread of this process changes places: record locks do not keep threads apart.
    pub(super) fn exclusively<R>(&self, f: impl FnOnce() -> R) -> R {
        while self.places_busy.swap(true, Ordering::SeqCst) {
            uapi::sched_yield();
        }
        let result = f();
        self.places_busy.store(false, Ordering::SeqCst);
        result
    }

    /// The same where it locks something, and somebody else can do it later: not once another thread has called exec, which
    /// ends this one wherever it is and leaves its locks to the new program.
    pub(super) fn unless_leaving<R>(&self, f: impl FnOnce() -> Option<R>) -> Option<R> {
        self.exclusively(|| if self.leaving.load(Ordering::SeqCst) > 0 { None } else { f() })
    }

    /// Takes a place, in which `granted` pages are granted from its first moment on.
    fn claim_place(&self, granted: i64) -> Result<(), TreeFull> {
        self.forget_holdings();
        let pid = uapi::getpid() as u32;
        let is_mine =
            |(_, m): &(u32, &Member)| matches!(m.kind(), Kind::Outside | Kind::Managed) && m.pid.load(Relaxed) == pid;
        let mut mine =
            self.page.members().filter(is_mine).map(|(index, _)| index).filter(|&index| self.try_lock(index));
        let first = mine.next();
        // See `leave_for_exec`.
        for further in mine {
            vacate(self.page, self.fd(), further);
            record_lock::unlock(self.fd(), byte(further));
        }
        // What it has already counts on, until it is charged.
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

    /// To the kernel threads with tables of descriptors of their own (unshare, clone without CLONE_FILES) are other owners of
    /// record locks: what one of them has locked is this process's all the same.
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

    /// Takes back what dead members held; how many there were.
    pub fn reap(&self) -> usize {
        if self.is_alone() || !self.is_owner() || self.places_busy.swap(true, Ordering::SeqCst) {
            return 0;
        }
        let is_leaving = self.leaving.load(Ordering::SeqCst) > 0;
        let reaped = if is_leaving { 0 } else { reap(self.page, self.fd(), &[self.id().index]) };
        self.places_busy.store(false, Ordering::SeqCst);
        reaped
    }

    /// The same, but not too often.
    pub fn reap_sometimes(&self) -> usize {
        let (now, last) = (now_ms(), self.page.reaped_ms.load(Relaxed));
        let members = self.page.members().filter(|(_, member)| member.kind() != Kind::Free).count() as u64;
        let every = (members / MEMBERS_PER_MS).clamp(REAP_EVERY_MS, REAP_EVERY_MS_MAX);
        // Later than now is the clock of another time namespace.
        let is_due = last > now || now - last >= every;
        // One of them does it.
        if !is_due || self.page.reaped_ms.compare_exchange(last, now, Relaxed, Relaxed).is_err() {
            return 0;
        }
        self.reap()
    }

    /// The page's file has another number now; `close` gives the old one up, and with it all locks.
    pub fn set_fd(&self, fd: i32, close: impl FnOnce()) {
        self.exclusively(|| {
            self.fd.store(fd, Relaxed);
            close();
        });
    }

    /// Makes sure that this process has its lock: it loses that when it closes any descriptor of the file, and it may have
    /// opened one through /proc. Another may have taken it for dead since; then it takes a place again, where the
    /// `charged` pages that it has are granted, and shares nothing. Whether the calling thread's table of descriptors has the lock
    /// and not another thread's, with which it would go.
    pub fn hold(&self, charged: i64) -> Result<bool, TreeFull> {
        if self.is_alone() || !self.is_owner() {
            return Ok(true);
        }
        self.exclusively(|| {
            // Whoever calls exec may leave the locks that were taken to the next program.
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
            // The background thread may wait to be asked at the old place.
            uapi::futex_wake_shared(&self.page.member(old.index).asked);
            Ok(true)
        })
    }

    /// Before exec: from here on others look at what the process holds, until it becomes a member again; at first it counts for
    /// `pages`. When another thread has
    /// the lock in a table of descriptors of its own, that goes with it, and there is another place of which the calling thread has
    /// it: for [`Self::drop_outside`] if the exec fails.
    pub fn leave_for_exec(&self, pages: i64) -> Option<MemberId> {
        // Waits for who has locked something.
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
                // The other place is what the new program has.
                expect(self.page, self.id(), if other.is_some() { 0 } else { pages });
                self.member().left_ms.store(now_ms(), Ordering::SeqCst);
                self.member().set_kind(Kind::Outside);
                tell_left(self.page);
            }
            other
        })
    }

    /// The exec failed; while another thread's goes on, the process stays outside. What it was granted may be less than it has then.
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
        // Who took its bits back meanwhile looked at the clock first, and then found it outside.
        if now_ms().saturating_sub(self.member().left_ms.load(Ordering::SeqCst)) >= EXEC_MS / 2 {
            self.forget_holdings();
            release_for_sure(self.page, self.fd(), self.id());
        }
    }

    /// Takes a place for the calling process, which shares the memory of this space but is another, and is about to exec:
    /// from then on others look at what it holds; at first it counts for `pages`.
    pub fn claim_outside(&self, pages: i64) -> Option<MemberId> {
        if self.is_alone() {
            return None;
        }
        leave_outside(self.page, self.fd(), pages)
    }

    /// The exec failed for which that place was taken.
    pub fn drop_outside(&self, id: MemberId) {
        let drop = || drop_outside(self.page, self.fd(), id);
        // Another thread could take the place, and lose it with this one's lock. A process that only shares the memory has locks of its
        // own, and must not hold anybody up when it is killed.
        if self.is_owner() { self.exclusively(drop) } else { drop() }
    }

    /// Before fork: the member of the child, which holds nothing yet. None when there is none; then the child finds one, and
    /// shares nothing.
    pub fn reserve_child(&self) -> Option<MemberId> {
        // Who only shares the memory leaves it to the child to find a place.
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

    /// The fork failed.
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

    /// In fork's child: takes the place that its parent reserved, or another one.
    pub fn become_child(&self, reserved: Option<MemberId>, granted: i64) -> Result<(), TreeFull> {
        // Another thread of the parent may have held it; here there is none.
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
