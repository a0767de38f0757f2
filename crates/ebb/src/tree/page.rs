//! What the processes of a tree share: one area of atomics, and how its numbers add up.
//!
//! The area has no lock and no total. Each process has a record, its *member*. To take memory from the budget, a
//! process raises what its own member says, and then adds up all members. If the sum is above the budget, it takes its
//! raise back. Of two processes that raise at the same time, at least one sees the other's raise, so the sum of the
//! raises that stay never exceeds the budget. Only work that frees memory takes what it needs whatever the sum says
//! (`force_grow`): a block of the pool, or a page that goes back to where it was, for each thread that does such work.
//! A process that dies at any instruction leaves a member that says too much, never too little, until another process
//! finds it dead (see `claim`).
//!
//! Counting without a total is the idea of the kernel's per-CPU counters; taking batches is that of `memcg_stock`.

use super::share::Share;
use crate::protocols::errand::Errand;
use crate::protocols::primitive::{AtomicI64, AtomicU32, AtomicU64, Ordering, model_fence};

/// Most managed processes of a tree at a time.
pub const MEMBERS_MAX: usize = if cfg!(loom) { 3 } else { 4096 };
/// Most shares of a tree at a time. Beyond that, parents share nothing with their children.
pub const SHARES_MAX: usize = if cfg!(loom) { 1 } else { 240 };
/// Classes of age. Class 0 is less than [`AGE_BASE_MS`]; each further class is twice as old as the one before.
pub const AGES: usize = 16;
/// Upper bound of the youngest class of age, in milliseconds.
pub const AGE_BASE_MS: u64 = 32;

/// Pages that managed processes may hold beside their grants before such pages count: what every program has, and what
/// may be there before anybody has looked.
const BESIDE_FREE: i64 = (8 << 20) / 4096;
/// One part in so many of the budget stays for grants, however much is held beside them. With less, a program would do
/// nothing but swap.
const GRANTED_PART: i64 = 2;

/// Most pages that a word can say: 256 TiB. A word with more in it was not written by counting, and is read as this. So
/// no sum of words overflows, whatever a process of the tree has written there.
pub const PAGES_MAX: u64 = 1 << 36;

/// Pages by which a sum may be too large because of a fork under way, and how often at most it is taken again to avoid
/// more.
const TORN_PAGES: i64 = 64;
const LOOKS_MAX: u32 = if cfg!(loom) { 0 } else { 4 };

/// Pages that a published figure says, at most [`PAGES_MAX`].
pub fn said(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed).min(PAGES_MAX)
}

/// Pages that a word says, within 0 and [`PAGES_MAX`].
fn pages(word: &AtomicI64) -> i64 {
    word.load(Ordering::SeqCst).clamp(0, PAGES_MAX as i64)
}

/// What a member stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Nobody: the place is free.
    Free = 0,
    /// The child of a fork that is under way. It will soon hold the lock itself.
    Reserved = 1,
    /// A managed process.
    Managed = 2,
    /// A process that called exec and has not grown since, or one that is not managed at all. Others say what it holds.
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

/// Pages that are kept for a waiting member, and for how long after it last said that it waits.
const WAITING_PAGES: i64 = 64;
const WAITING_MS: u64 = 1000;

/// Time between two processes of a tree that end for lack of memory: the first if the earlier one is gone, the second
/// while it is still there. What it held comes back only when it is gone, after everything that it waits for in the
/// kernel.
const GIVING_UP_MS_MIN: u64 = 1000;
const GIVING_UP_MS_MAX: u64 = 10_000;

/// The name of a member: its place, and which of those that had the place one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemberId {
    /// Place in the table.
    pub index: u32,
    /// Counts those that had the place.
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
    /// Pages that the process may hold without asking.
    pub granted: AtomicI64,
    /// Not 0 when the process may have bits in shares. Goes up with each new share or child.
    pub has_bits: AtomicU32,
    /// Goes with [`Member::ask_pages`]: what the process may do with memory that it shares, an `ages::OfShared`.
    pub(crate) ask_shared: AtomicU32,
    /// When it last called exec, on the clock of [`Member::published_ms`].
    pub left_ms: AtomicU64,
    /// The [`MemberId`] of the process that forked it; 0 for none.
    parent: AtomicU64,
    /// Pages that the process holds, as seen from outside; for [`Kind::Outside`].
    pub outside: AtomicI64,
    /// Process number in its own pid namespace.
    pub pid: AtomicU32,
    /// Raised, and woken as a shared futex, by a process that wants memory from this one.
    pub asked: AtomicU32,
    /// Pages that the process is asked to give up.
    pub ask_pages: AtomicI64,
    /// What another process asks this one to do with its pages, as `process_madvise` does.
    pub errand: Errand,
    /// When it was asked for pages, on the clock of [`Member::published_ms`].
    pub asked_ms: AtomicU64,
    /// Until when the process is not asked again, because it had too little to give; on the same clock.
    pub declined_until_ms: AtomicU64,
    /// Likewise for memory that it shares: if it is idle, and in any case.
    pub(crate) keeps_shared_until_ms: AtomicU64,
    pub(crate) cannot_give_until_ms: AtomicU64,
    /// When its program was last seen to be idle, on the same clock; 0 when it was busy at the last look.
    pub(crate) idle_ms: AtomicU64,
    /// Pages charged: resident, staged, pool and metadata.
    pub charged: AtomicU64,
    /// How many of the charged pages another process held too, since a fork, when this process last looked.
    pub shared: AtomicU64,
    /// Pages with content, wherever the content is.
    pub wanted: AtomicU64,
    /// Pages of memory that the compressed pool takes.
    pub pool: AtomicU64,
    /// Pages that are staged.
    pub staged: AtomicU64,
    /// Pages whose content is on a device.
    pub on_device: AtomicU64,
    /// Pages in the hot tier of its pool.
    pub hot_pages: AtomicU64,
    /// Bytes of their objects.
    pub hot_bytes: AtomicU64,
    /// Pages in the cold tier.
    pub cold_pages: AtomicU64,
    /// Bytes of their objects.
    pub cold_bytes: AtomicU64,
    /// Bytes of the slots of devices in which it has content.
    pub device_bytes: AtomicU64,
    /// Faults served so far.
    pub faults: AtomicU64,
    /// When [`Member::ages`] was made, in milliseconds of CLOCK_MONOTONIC; 0 for never.
    pub published_ms: AtomicU64,
    /// When the process became a member; of a child whose fork is under way, when that last made progress. On the same
    /// clock.
    pub since_ms: AtomicU64,
    /// Since when it has more to itself than any other process, while another one is short; on the same clock. 0 if it
    /// has not.
    pub rich_ms: AtomicU64,
    /// When a process that was short last saw that.
    pub rich_seen_ms: AtomicU64,
    /// How many of a thousand pages that it evicted lately came back soon, plus 1; 0 if that is not known.
    pub needed_again: AtomicU32,
    /// When [`Member::needed_again`] was found, on the clock of [`Member::published_ms`].
    pub needed_again_ms: AtomicU64,
    /// Its pages in memory by age: how long before [`Member::published_ms`] they were last seen in use.
    pub ages: [AtomicU32; AGES],
}

impl Member {
    /// What the member stands for.
    pub fn kind(&self) -> Kind {
        Kind::from_raw(self.kind.load(Ordering::SeqCst))
    }

    /// Sets what the member stands for. The caller holds the member's lock.
    pub fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u32, Ordering::SeqCst);
    }

    /// Which of those that had the place has it now.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    /// The process that forked this one.
    pub fn parent(&self) -> Option<MemberId> {
        MemberId::from_raw(self.parent.load(Ordering::SeqCst))
    }

    /// Pages for which others count it, if it is outside; otherwise 0.
    pub fn counted_outside(&self) -> i64 {
        if self.kind() == Kind::Outside { pages(&self.outside) } else { 0 }
    }

    /// Makes the member nobody's, and forgets what was known of it. The caller holds the member's lock.
    pub fn clear(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        for word in [&self.granted, &self.outside, &self.ask_pages] {
            word.store(0, Ordering::Relaxed);
        }
        let published = [&self.asked_ms, &self.charged, &self.wanted, &self.pool, &self.staged, &self.on_device];
        for word in published.into_iter().chain([
            &self.hot_pages,
            &self.hot_bytes,
            &self.cold_pages,
            &self.cold_bytes,
            &self.device_bytes,
            &self.shared,
            &self.keeps_shared_until_ms,
            &self.cannot_give_until_ms,
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
        self.errand.clear();
        self.pid.store(0, Ordering::Relaxed);
        self.has_bits.store(0, Ordering::Relaxed);
        self.ask_shared.store(0, Ordering::Relaxed);
        self.left_ms.store(0, Ordering::Relaxed);
        self.needed_again.store(0, Ordering::Relaxed);
        self.needed_again_ms.store(0, Ordering::Relaxed);
        self.declined_until_ms.store(0, Ordering::Relaxed);
        self.ages.iter().for_each(|age| age.store(0, Ordering::Relaxed));
        // Last: from here on the place may be another process's.
        self.set_kind(Kind::Free);
    }
}

/// The shared area. Zeroed memory is a tree without members and with an empty budget.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Page {
    /// Budget in pages.
    limit: AtomicU64,
    /// Places from this one on were never used.
    high_water: AtomicU32,
    /// Raised, and woken as a shared futex, when a member becomes [`Kind::Outside`]: the process that looks from
    /// outside then has something to look at.
    pub left: AtomicU32,
    /// The [`MemberId`] of a process that has found no room for some time; 0 for none. And when it last looked, on the
    /// clock of [`Member::published_ms`].
    waiting: AtomicU64,
    waiting_ms: AtomicU64,
    /// When a process that ran short last looked for dead members, on the clock of [`Member::published_ms`].
    pub reaped_ms: AtomicU64,
    /// When a process last ended because there was no memory for it, on the same clock.
    gave_up_ms: AtomicU64,
    /// The [`MemberId`] of that process.
    gave_up: AtomicU64,
    /// Shares from this one on were never used.
    shares_high_water: AtomicU32,
    /// Pages that managed processes hold beside their grants, as seen from outside: stacks, data of programs, what the
    /// kernel wrote for them.
    beside: AtomicI64,
    members: [Member; MEMBERS_MAX],
    shares: [Share; SHARES_MAX],
}

/// Models construct the area; they cannot use zeroed memory.
#[cfg(loom)]
impl Page {
    /// A tree with a budget of `limit` pages, whose first `managed` places are managed processes.
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
            errand: Errand::default(),
            asked_ms: word(),
            declined_until_ms: word(),
            keeps_shared_until_ms: word(),
            cannot_give_until_ms: word(),
            idle_ms: word(),
            charged: word(),
            shared: word(),
            wanted: word(),
            pool: word(),
            staged: word(),
            on_device: word(),
            hot_pages: word(),
            hot_bytes: word(),
            cold_pages: word(),
            cold_bytes: word(),
            device_bytes: word(),
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
    /// Pages granted. A page that several hold since a fork counts once.
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

    /// Changes the budget. A process that now holds too much learns so when it next asks for memory.
    pub fn set_limit(&self, pages: u64) {
        self.limit.store(pages, Ordering::SeqCst);
    }

    /// Likewise, unless somebody else has changed it since it was `before`; whether it is `pages` now.
    pub fn replace_limit(&self, before: u64, pages: u64) -> bool {
        self.limit.compare_exchange(before, pages, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether the member `own` may end now because there is no memory for it. False while what a process held that
    /// ended so lately may still come back. Where the answer is true, it notes that `own` ends.
    pub fn may_give_up(&self, own: MemberId, now_ms: u64) -> bool {
        let last = self.gave_up_ms.load(Ordering::SeqCst);
        let other = MemberId::from_raw(self.gave_up.load(Ordering::SeqCst));
        let wait_ms = match other.and_then(|id| self.find(id)) {
            Some(_) => GIVING_UP_MS_MAX,
            None => GIVING_UP_MS_MIN,
        };
        // The earlier time may be by the clock of another time namespace.
        let may = (last == 0 || now_ms.abs_diff(last) >= wait_ms)
            && self.gave_up_ms.compare_exchange(last, now_ms.max(1), Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if may {
            self.gave_up.store(own.to_raw(), Ordering::SeqCst);
        }
        may
    }

    /// The member at a place, which must exist.
    pub fn member(&self, index: u32) -> &Member {
        &self.members[index as usize]
    }

    /// Members that may be in use, with their places.
    pub fn members(&self) -> impl Iterator<Item = (u32, &Member)> {
        let high_water = (self.high_water.load(Ordering::SeqCst) as usize).min(MEMBERS_MAX);
        (0..high_water as u32).map(|index| (index, self.member(index)))
    }

    /// Has the background threads of all processes look around. `wake` wakes a shared futex.
    pub fn wake_all(&self, wake: impl Fn(&AtomicU32)) {
        for (_, member) in self.members() {
            member.asked.fetch_add(1, Ordering::SeqCst);
            wake(&member.asked);
        }
    }

    /// Every place, used or not.
    pub fn places(&self) -> core::ops::Range<u32> {
        0..MEMBERS_MAX as u32
    }

    /// Makes sums look at the place.
    pub fn raise_high_water(&self, index: u32) {
        self.high_water.fetch_max(index + 1, Ordering::SeqCst);
    }

    /// The member that `id` names; none when the place is no longer that member's.
    pub fn find(&self, id: MemberId) -> Option<&Member> {
        let member = self.members.get(id.index as usize)?;
        (member.generation() == id.generation && member.kind() != Kind::Free).then_some(member)
    }

    /// Whether the place is still reserved for the child that `id` names.
    pub fn is_reserved(&self, id: MemberId) -> bool {
        self.find(id).is_some_and(|member| member.kind() == Kind::Reserved)
    }

    /// Pages for which `member` counts: what it was granted, or what others say that it holds.
    pub fn held_by(&self, member: &Member) -> i64 {
        match member.kind() {
            Kind::Free => 0,
            Kind::Outside => {
                // Until the bits of the program before the exec are taken back, they stand for pages of its grant.
                let has_bits = member.has_bits.load(Ordering::SeqCst) != 0;
                let granted = if has_bits { pages(&member.granted) } else { 0 };
                pages(&member.outside) + granted
            }
            Kind::Managed | Kind::Reserved => pages(&member.granted),
        }
    }

    /// Adds up all members. Pages that several of them hold since a fork count once.
    pub fn sum(&self) -> Sum {
        // The surplus is read before and after, because it may change meanwhile for pages that this sum has seen, or
        // has not. A thread that lost the processor in between may find that a whole fork was counted meanwhile. It
        // looks again; otherwise what that fork shares would seem to be held twice.
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

    /// Pages that the tree would hold if nothing of it were swapped out, and what it holds now. The first is never less.
    ///
    /// It is an estimate where processes share memory since a fork: nobody knows what of that is swapped out for several.
    /// Of these processes the largest counts for all.
    pub fn wanted_and_held(&self) -> (u64, u64) {
        let (mut alone, mut together) = (0i64, 0i64);
        for (_, member) in self.members() {
            match member.kind() {
                Kind::Managed if member.has_bits.load(Ordering::Relaxed) != 0 => {
                    together = together.max(said(&member.wanted) as i64);
                }
                Kind::Managed => alone += said(&member.wanted) as i64,
                _ => alone += self.held_by(member),
            }
        }
        let sum = self.sum();
        let held = sum.held.max(0);
        ((alone + together + self.beside_counted(sum.limit)).max(held) as u64, held as u64)
    }

    /// Pages that managed processes hold beside their grants, as far as they count in a budget of `limit` pages.
    pub fn beside_counted(&self, limit: i64) -> i64 {
        // Any process that may write here may write anything.
        let beside = self.beside.load(Ordering::SeqCst);
        beside.saturating_sub(BESIDE_FREE).clamp(0, (limit - limit / GRANTED_PART).max(0))
    }

    /// How many of `anonymous` pages are beside the grants of managed processes. `anonymous` is those processes' own
    /// memory as seen from outside, where pages that several share count once.
    pub fn beside_of(&self, anonymous: i64) -> i64 {
        let (granted, surplus) = (self.granted(), self.surplus());
        (anonymous - (granted - surplus).max(0)).max(0)
    }

    /// Sets how many pages managed processes hold beside their grants.
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

    /// The share at an index, which must exist.
    pub fn share(&self, index: u32) -> &Share {
        &self.shares[index as usize]
    }

    /// Shares that may be in use, with their indices.
    pub fn shares(&self) -> impl Iterator<Item = (u32, &Share)> {
        let high_water = (self.shares_high_water.load(Ordering::SeqCst) as usize).min(SHARES_MAX);
        (0..high_water as u32).map(|index| (index, self.share(index)))
    }

    /// Makes sums look at the share.
    pub fn raise_shares_high_water(&self, index: u32) {
        self.shares_high_water.fetch_max(index + 1, Ordering::SeqCst);
    }

    /// Grants `n` more pages to `member`. Returns what is left then; none, and no grant, when that would exceed the
    /// budget or take what is kept for another member that waits.
    pub fn try_grow(&self, member: &Member, n: i64) -> Option<i64> {
        member.granted.fetch_add(n, Ordering::SeqCst);
        model_fence();
        let free = self.sum().free();
        // A waiting process may not get to run while there is room, and the others would always find the room first.
        if free >= 0 && (free >= WAITING_PAGES || !self.others_wait(member)) {
            return Some(free);
        }
        member.granted.fetch_sub(n, Ordering::SeqCst);
        None
    }

    /// Says that member `own` finds no room. From now on the first pages that come free are for this member, as long as
    /// it keeps saying so, and unless another one waits already.
    pub fn wait(&self, own: MemberId, now_ms: u64) {
        let waiting = self.waiting.load(Ordering::SeqCst);
        let is_free = waiting == 0 || waiting == own.to_raw() || !self.is_waiting_still(now_ms);
        if is_free && self.waiting.compare_exchange(waiting, own.to_raw(), Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.waiting_ms.store(now_ms, Ordering::SeqCst);
        }
    }

    /// Says that member `own` has found room.
    pub fn wait_no_more(&self, own: MemberId) {
        let _ = self.waiting.compare_exchange(own.to_raw(), 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn is_waiting_still(&self, now_ms: u64) -> bool {
        now_ms.abs_diff(self.waiting_ms.load(Ordering::SeqCst)) < WAITING_MS
    }

    /// True while a member waits.
    pub fn is_awaited(&self, now_ms: u64) -> bool {
        let id = MemberId::from_raw(self.waiting.load(Ordering::SeqCst));
        id.is_some_and(|id| self.find(id).is_some()) && self.is_waiting_still(now_ms)
    }

    /// True while a member other than `member` waits.
    fn others_wait(&self, member: &Member) -> bool {
        let id = MemberId::from_raw(self.waiting.load(Ordering::SeqCst));
        let Some(waits) = id.and_then(|id| self.find(id)) else { return false };
        !core::ptr::eq(waits, member) && self.is_waiting_still(now_ms())
    }

    /// Reserves the place for the child that `parent` is about to fork. The caller holds the member's lock.
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
