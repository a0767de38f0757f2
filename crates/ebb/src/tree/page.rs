//! What the processes of a tree share: one area of atomics, and how its numbers add up.
//!
//! There is no lock in it and no total. Each process has a record, its *member*, and takes memory from the budget by
//! raising what its own member says and then adding up all of them: whoever finds the sum above the budget takes its own
//! raise back. Of two that raise at the same time at least one sees the other, so the sum of what was kept never passes
//! the budget. Only work that frees memory takes what it needs for that, whatever the sum says (`force_grow`): a block of the
//! pool, or a page that goes back to where it was, for each thread that is at it. A process that dies at any instruction
//! leaves a member that says too much, never too little, until somebody finds it dead (see `claim`).
//!
//! The idea of counting without a total is the kernel's per-CPU counter; that of taking batches is `memcg_stock`.

use super::share::Share;
use crate::protocols::primitive::{AtomicI64, AtomicU32, AtomicU64, Ordering, model_fence};

/// Most managed processes of a tree at a time.
pub const MEMBERS_MAX: usize = if cfg!(loom) { 3 } else { 4096 };
/// Most shares of a tree at a time: with more, parents share nothing with their children.
pub const SHARES_MAX: usize = if cfg!(loom) { 1 } else { 240 };
/// Classes of age: class 0 is less than [`AGE_BASE_MS`], each further one twice as old.
pub const AGES: usize = 16;
/// Upper bound of the youngest class of ages.
pub const AGE_BASE_MS: u64 = 32;

/// Pages that managed processes may hold beside what they are granted before these count: what every program has, and what may be
/// there before anybody has looked.
const BESIDE_FREE: i64 = (8 << 20) / 4096;
/// The part of the budget that stays for what is granted, however much there is beside it: with less a program would only page.
const GRANTED_PART: i64 = 2;

/// No word says more pages than these, 256 TiB: who has another one in it has not counted. So nothing that is made of words
/// overflows, whatever a process of the tree has written there.
pub const PAGES_MAX: u64 = 1 << 36;

/// Pages by which a sum may say too much because of a fork under way, and looks at most to avoid more.
const TORN_PAGES: i64 = 64;
const LOOKS_MAX: u32 = if cfg!(loom) { 0 } else { 4 };

/// Pages that a published figure says.
pub fn said(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed).min(PAGES_MAX)
}

/// Pages that a word says.
fn pages(word: &AtomicI64) -> i64 {
    word.load(Ordering::SeqCst).clamp(0, PAGES_MAX as i64)
}

/// What a member stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Nobody.
    Free = 0,
    /// The child of a fork that is under way: it will hold the lock itself soon.
    Reserved = 1,
    /// A managed process.
    Managed = 2,
    /// A process that called exec and has not grown since, or is not managed at all: others say what it holds.
    Outside = 3,
}

impl Kind {
    fn from_raw(raw: u32) -> Self {
        match raw {
            1 => Self::Reserved,
            2 => Self::Managed,
            3 => Self::Outside,
            _ => Self::Free,
        }
    }
}

/// Pages that are kept for a member that waits, and for how long after it last said that it does.
const WAITING_PAGES: i64 = 64;
const WAITING_MS: u64 = 1000;

/// Time between two processes of a tree that end for lack of memory: what the first one held is given back when it is gone, after
/// all that it waits for in the kernel.
const GIVING_UP_MS_MIN: u64 = 1000;
const GIVING_UP_MS_MAX: u64 = 10_000;

/// Which member, and which of those that had the place one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemberId {
    /// Place in the table.
    pub index: u32,
    /// Counts who had the place.
    pub generation: u32,
}

impl MemberId {
    pub(super) fn to_raw(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index + 1)
    }

    pub(super) fn from_raw(raw: u64) -> Option<Self> {
        let index = (raw as u32).checked_sub(1)?;
        Some(Self { index, generation: (raw >> 32) as u32 })
    }
}

/// One process. Counts are pages.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Member {
    kind: AtomicU32,
    generation: AtomicU32,
    /// What the process may hold without asking.
    pub granted: AtomicI64,
    /// Not 0 when it may have bits in shares; counts on with each new one.
    pub has_bits: AtomicU32,
    /// With [`Member::ask_pages`]: what it may do with what it shares, an `ages::OfShared`.
    pub(crate) ask_shared: AtomicU32,
    /// When it last called exec, on the clock of [`Member::published_ms`].
    pub left_ms: AtomicU64,
    /// The [`MemberId`] of the process that forked it; 0 for none.
    parent: AtomicU64,
    /// What it holds, as seen from outside; for [`Kind::Outside`].
    pub outside: AtomicI64,
    /// Process number in its own pid namespace.
    pub pid: AtomicU32,
    /// Raised, and woken as a shared futex, by who wants memory from this process.
    pub asked: AtomicU32,
    /// Pages that it is asked to give up.
    pub ask_pages: AtomicI64,
    /// When it was asked, on the clock of [`Member::published_ms`].
    pub asked_ms: AtomicU64,
    /// Until when it is not asked again, because it had too little to give, on the same clock.
    pub declined_until_ms: AtomicU64,
    /// The same of what it shares.
    pub(crate) keeps_shared_until_ms: AtomicU64,
    /// When its program was last seen to do nothing, on the same clock; 0 when it did something at the last look.
    pub(crate) idle_ms: AtomicU64,
    /// Pages charged: resident, staged, pool and metadata.
    pub charged: AtomicU64,
    /// Of the charged pages, what another process holds, too, since a fork, when it last looked.
    pub shared: AtomicU64,
    /// Pages with content, wherever it is.
    pub wanted: AtomicU64,
    /// Pages of memory that the compressed pool has.
    pub pool: AtomicU64,
    /// Pages that are staged.
    pub staged: AtomicU64,
    /// Pages whose content is on a device.
    pub on_device: AtomicU64,
    /// Faults served so far.
    pub faults: AtomicU64,
    /// When [`Member::ages`] was made: milliseconds of CLOCK_MONOTONIC; 0 for never.
    pub published_ms: AtomicU64,
    /// When the process became a member.
    pub since_ms: AtomicU64,
    /// Since when it has more than any other, of a budget that is short, on the same clock; 0 for not so.
    pub rich_ms: AtomicU64,
    /// When another that was short last saw that.
    pub rich_seen_ms: AtomicU64,
    /// How many of a thousand pages that it evicted lately it needed again soon, and one; 0 for not known.
    pub needed_again: AtomicU32,
    /// When that was found, on the clock of [`Member::published_ms`].
    pub needed_again_ms: AtomicU64,
    /// Of its pages in memory, how many were last seen in use how long before [`Member::published_ms`].
    pub ages: [AtomicU32; AGES],
}

impl Member {
    /// What it stands for.
    pub fn kind(&self) -> Kind {
        Kind::from_raw(self.kind.load(Ordering::SeqCst))
    }

    /// Says what it stands for. By who holds the member's lock.
    pub fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u32, Ordering::SeqCst);
    }

    /// Who has the place.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    /// The process that forked it.
    pub fn parent(&self) -> Option<MemberId> {
        MemberId::from_raw(self.parent.load(Ordering::SeqCst))
    }

    /// Pages for which it counts as others see it, if it is outside.
    pub fn counted_outside(&self) -> i64 {
        if self.kind() == Kind::Outside { pages(&self.outside) } else { 0 }
    }

    /// Makes the member nobody's: what was known of it is gone. By who holds its lock.
    pub fn clear(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        for word in [&self.granted, &self.outside, &self.ask_pages] {
            word.store(0, Ordering::Relaxed);
        }
        let published = [&self.asked_ms, &self.charged, &self.wanted, &self.pool, &self.staged, &self.on_device];
        for word in published.into_iter().chain([
            &self.shared,
            &self.keeps_shared_until_ms,
            &self.idle_ms,
            &self.faults,
            &self.published_ms,
            &self.since_ms,
            &self.rich_ms,
            &self.rich_seen_ms,
            &self.parent,
        ]) {
            word.store(0, Ordering::Relaxed);
        }
        self.pid.store(0, Ordering::Relaxed);
        self.has_bits.store(0, Ordering::Relaxed);
        self.ask_shared.store(0, Ordering::Relaxed);
        self.left_ms.store(0, Ordering::Relaxed);
        self.needed_again.store(0, Ordering::Relaxed);
        self.needed_again_ms.store(0, Ordering::Relaxed);
        self.declined_until_ms.store(0, Ordering::Relaxed);
        self.ages.iter().for_each(|age| age.store(0, Ordering::Relaxed));
        // Last: from here on the place may be somebody else's.
        self.set_kind(Kind::Free);
    }
}

/// The shared area. Zeroed memory is a tree without members, and with nothing to share out.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Page {
    /// Budget in pages.
    limit: AtomicU64,
    /// Members at or above this were never used.
    high_water: AtomicU32,
    /// Raised, and woken as a shared futex, when a member becomes [`Kind::Outside`]: who looks from outside has something
    /// to look at.
    pub left: AtomicU32,
    /// The [`MemberId`] of one that has found no room for some time, and when it last looked, on the clock of
    /// [`Member::published_ms`]; 0 for none.
    waiting: AtomicU64,
    waiting_ms: AtomicU64,
    /// When somebody who ran short last looked for dead members, on the clock of [`Member::published_ms`].
    pub reaped_ms: AtomicU64,
    /// When a process last ended because there was no memory for it, on the same clock.
    gave_up_ms: AtomicU64,
    /// The [`MemberId`] of that process.
    gave_up: AtomicU64,
    /// Shares at or above this were never used.
    shares_high_water: AtomicU32,
    /// Pages that managed processes hold beside what they are granted, as seen from outside: stacks, data of programs, what
    /// the kernel wrote for them.
    beside: AtomicI64,
    members: [Member; MEMBERS_MAX],
    shares: [Share; SHARES_MAX],
}

/// In a model memory is made, not zeroed.
#[cfg(loom)]
impl Page {
    /// A tree with that budget whose first `managed` places are managed processes.
    pub fn with_members(limit: u64, managed: u32) -> Self {
        let word = || AtomicU64::new(0);
        let signed = || AtomicI64::new(0);
        let member = |index| Member {
            kind: AtomicU32::new(if index < managed { Kind::Managed } else { Kind::Free } as u32),
            generation: AtomicU32::new(0),
            granted: signed(),
            has_bits: AtomicU32::new(0),
            ask_shared: AtomicU32::new(0),
            left_ms: word(),
            parent: word(),
            outside: signed(),
            pid: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            ask_pages: signed(),
            asked_ms: word(),
            declined_until_ms: word(),
            keeps_shared_until_ms: word(),
            idle_ms: word(),
            charged: word(),
            shared: word(),
            wanted: word(),
            pool: word(),
            staged: word(),
            on_device: word(),
            faults: word(),
            published_ms: word(),
            since_ms: word(),
            rich_ms: word(),
            rich_seen_ms: word(),
            needed_again: AtomicU32::new(0),
            needed_again_ms: word(),
            ages: core::array::from_fn(|_| AtomicU32::new(0)),
        };
        Self {
            limit: AtomicU64::new(limit),
            left: AtomicU32::new(0),
            high_water: AtomicU32::new(MEMBERS_MAX as u32),
            waiting: word(),
            waiting_ms: word(),
            reaped_ms: word(),
            gave_up_ms: word(),
            gave_up: word(),
            shares_high_water: AtomicU32::new(SHARES_MAX as u32),
            beside: signed(),
            members: core::array::from_fn(|index| member(index as u32)),
            shares: core::array::from_fn(|_| Share::default()),
        }
    }
}

/// What all members hold together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    /// Pages granted, those that several hold since a fork once.
    pub held: i64,
    /// Budget in pages.
    pub limit: i64,
}

impl Sum {
    /// Pages that are left; negative when too many are held.
    pub fn free(self) -> i64 {
        self.limit - self.held
    }
}

#[cfg(not(loom))]
use super::now_ms;

/// In a model no time passes.
#[cfg(loom)]
fn now_ms() -> u64 {
    0
}

impl Page {
    /// Budget in pages.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::SeqCst).min(PAGES_MAX)
    }

    /// Changes the budget. Who holds more than is left then learns it when it next wants something.
    pub fn set_limit(&self, pages: u64) {
        self.limit.store(pages, Ordering::SeqCst);
    }

    /// `own` is about to end because there is no memory for it: whether it may, or what another one held, that did so lately, is
    /// still to come.
    pub fn may_give_up(&self, own: MemberId, now_ms: u64) -> bool {
        let last = self.gave_up_ms.load(Ordering::SeqCst);
        let other = MemberId::from_raw(self.gave_up.load(Ordering::SeqCst));
        let wait_ms = match other.and_then(|id| self.find(id)) {
            Some(_) => GIVING_UP_MS_MAX,
            None => GIVING_UP_MS_MIN,
        };
        // The other clock may be that of another time namespace.
        let may = (last == 0 || now_ms.abs_diff(last) >= wait_ms)
            && self.gave_up_ms.compare_exchange(last, now_ms.max(1), Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if may {
            self.gave_up.store(own.to_raw(), Ordering::SeqCst);
        }
        may
    }

    /// The member at a place that exists.
    pub fn member(&self, index: u32) -> &Member {
        &self.members[index as usize]
    }

    /// Members that may be in use, with their places.
    pub fn members(&self) -> impl Iterator<Item = (u32, &Member)> {
        let high_water = (self.high_water.load(Ordering::SeqCst) as usize).min(MEMBERS_MAX);
        (0..high_water as u32).map(|index| (index, self.member(index)))
    }

    /// Every place, used or not.
    pub fn places(&self) -> core::ops::Range<u32> {
        0..MEMBERS_MAX as u32
    }

    /// Makes the place one that sums look at.
    pub fn raise_high_water(&self, index: u32) {
        self.high_water.fetch_max(index + 1, Ordering::SeqCst);
    }

    /// The member that `id` names, while it is that one's.
    pub fn find(&self, id: MemberId) -> Option<&Member> {
        let member = self.members.get(id.index as usize)?;
        (member.generation() == id.generation && member.kind() != Kind::Free).then_some(member)
    }

    /// What `member` was granted, or is said to hold.
    pub fn held_by(&self, member: &Member) -> i64 {
        match member.kind() {
            Kind::Free => 0,
            Kind::Outside => {
                // Until its bits are taken back they stand for what it was granted as another program.
                let has_bits = member.has_bits.load(Ordering::SeqCst) != 0;
                let granted = if has_bits { pages(&member.granted) } else { 0 };
                pages(&member.outside) + granted
            }
            Kind::Managed | Kind::Reserved => pages(&member.granted),
        }
    }

    /// Adds all members up, and leaves out what several of them hold since a fork.
    pub fn sum(&self) -> Sum {
        // Before and after, because it may be counted up or down meanwhile, for pages that were seen, or were not. Who lost the
        // processor in between, and finds a whole fork counted up, looks again: what that shares would seem to be held twice.
        let mut before = self.surplus();
        let mut looks = 0;
        loop {
            let granted: i64 = self.members().map(|(_, member)| self.held_by(member)).sum();
            let after = self.surplus();
            if after - before > TORN_PAGES && looks < LOOKS_MAX {
                (before, looks) = (after, looks + 1);
                continue;
            }
            let limit = self.limit() as i64;
            return Sum { held: (granted - before.min(after)).max(0) + self.beside_counted(limit), limit };
        }
    }

    /// Pages that managed processes hold beside what they are granted, as far as these count for a budget of `limit` pages.
    pub fn beside_counted(&self, limit: i64) -> i64 {
        // Whoever may write here may write anything.
        let beside = self.beside.load(Ordering::SeqCst);
        beside.saturating_sub(BESIDE_FREE).clamp(0, (limit - limit / GRANTED_PART).max(0))
    }

    /// What of `anonymous` pages is beside what managed processes are granted: of memory of their own, seen from outside, what several
    /// share counted once.
    pub fn beside_of(&self, anonymous: i64) -> i64 {
        let (granted, surplus) = (self.granted(), self.surplus());
        (anonymous - (granted - surplus).max(0)).max(0)
    }

    /// Says how many pages managed processes hold beside what they are granted.
    pub fn tell_beside(&self, pages: i64) {
        self.beside.store(pages, Ordering::SeqCst);
    }

    /// Pages that managed processes are granted.
    fn granted(&self) -> i64 {
        let managed = |(_, member): &(u32, &Member)| matches!(member.kind(), Kind::Managed | Kind::Reserved);
        self.members().filter(managed).map(|(_, member)| self.held_by(member)).sum()
    }

    /// Pages that are granted more than once.
    fn surplus(&self) -> i64 {
        self.shares().map(|(_, share)| share.surplus()).sum()
    }

    /// The share at an index that exists.
    pub fn share(&self, index: u32) -> &Share {
        &self.shares[index as usize]
    }

    /// Shares that may be in use, with their indices.
    pub fn shares(&self) -> impl Iterator<Item = (u32, &Share)> {
        let high_water = (self.shares_high_water.load(Ordering::SeqCst) as usize).min(SHARES_MAX);
        (0..high_water as u32).map(|index| (index, self.share(index)))
    }

    /// Makes the share one that sums look at.
    pub fn raise_shares_high_water(&self, index: u32) {
        self.shares_high_water.fetch_max(index + 1, Ordering::SeqCst);
    }

    /// Grants `n` pages more to `member`; what is left then, or none when they are too many.
    pub fn try_grow(&self, member: &Member, n: i64) -> Option<i64> {
        member.granted.fetch_add(n, Ordering::SeqCst);
        model_fence();
        let free = self.sum().free();
        // Who waits may not run for long when there is room, and others always find it first.
        if free >= 0 && (free >= WAITING_PAGES || !self.others_wait(member)) {
            return Some(free);
        }
        member.granted.fetch_sub(n, Ordering::SeqCst);
        None
    }

    /// Member `own` finds no room: from now on the first pages that come free are its own, as long as it goes on saying so, and
    /// unless another waits already.
    pub fn wait(&self, own: MemberId, now_ms: u64) {
        let waiting = self.waiting.load(Ordering::SeqCst);
        let is_free = waiting == 0 || waiting == own.to_raw() || !self.is_waiting_still(now_ms);
        if is_free && self.waiting.compare_exchange(waiting, own.to_raw(), Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.waiting_ms.store(now_ms, Ordering::SeqCst);
        }
    }

    /// It has found some.
    pub fn wait_no_more(&self, own: MemberId) {
        let _ = self.waiting.compare_exchange(own.to_raw(), 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn is_waiting_still(&self, now_ms: u64) -> bool {
        now_ms.abs_diff(self.waiting_ms.load(Ordering::SeqCst)) < WAITING_MS
    }

    /// True while another than `member` waits.
    fn others_wait(&self, member: &Member) -> bool {
        let id = MemberId::from_raw(self.waiting.load(Ordering::SeqCst));
        let Some(waits) = id.and_then(|id| self.find(id)) else { return false };
        !core::ptr::eq(waits, member) && self.is_waiting_still(now_ms())
    }

    /// Marks the place as the child's of the fork that `parent` is about to make. By who holds the member's lock.
    pub fn reserve(&self, index: u32, parent: MemberId, now_ms: u64) -> MemberId {
        let member = self.member(index);
        member.clear();
        member.parent.store(parent.to_raw(), Ordering::SeqCst);
        member.since_ms.store(now_ms, Ordering::Relaxed);
        member.set_kind(Kind::Reserved);
        self.raise_high_water(index);
        MemberId { index, generation: member.generation() }
    }
}
