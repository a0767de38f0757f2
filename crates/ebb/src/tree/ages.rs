//! Which process gives up memory when the tree runs short: the one whose memory has been cold longest.
//!
//! User space has no accessed bit. But a process knows when each of its units last needed a fault, and what came back
//! of the pages that it swept. It publishes how many of its pages were last seen in use how long ago. A process that
//! runs short adds the time since then, because a process that published nothing new may have used nothing. If the
//! process did use its pages, it finds out when it is asked: the pages that it sweeps come back, and are young in what
//! it publishes next. This is the kernel's second chance, with a histogram for each process in place of one list for
//! all (multi-generational LRU).

use super::share::Share;
use super::{AGE_BASE_MS, AGES, Kind, Member, MemberId, Page, said};
use crate::protocols::primitive::Ordering;
use core::sync::atomic::Ordering::Relaxed;

/// Pages. Waking a process is not worth it for fewer.
pub const WORTH_PAGES: u64 = 64;
/// How long a process that had little to give is not asked again: the first time, and at most.
const DECLINED_MS: u64 = 100;
const DECLINED_MS_MAX: u64 = 5000;
/// How long a process that kept what it shares is not asked for that again in the same way, at most. Less than [`IDLE_KNOWN_MS`], so
/// that all processes that share some memory can be known to be idle at the same time.
const KEEPS_SHARED_MS_MAX: u64 = 2000;
/// How long a process that was seen idle is taken to be idle.
const IDLE_KNOWN_MS: u64 = 5000;
/// A process that learns this late that it is asked for everything it shares keeps it: it was stopped, and much may
/// have changed.
const GIVE_MS: u64 = 1000;
/// Least time between two requests to one process for everything that it shares.
const GIVE_EVERY_MS: u64 = 100;

/// A process that has not answered for this long is passed over: it may be stopped.
const SILENT_MS: u64 = 50;

/// How long the figure counts that says how much a process needed again of what it evicted.
const NEEDED_AGAIN_MS: u64 = 1000;
/// A process is short if, of a thousand pages that it evicted, it needed at least so many again.
const SHORT_PERMILLE: u32 = 200;
/// A process has pages to spare if it needs again so many times fewer than the process that is short.
const SPARE_PART: u32 = 4;
/// A process that owes gives some if it has more than the process that is short by over this part.
const EVEN_PART: u64 = 64;
/// A process owes some of its memory when it has had the most for this long while another one was short. Not sooner: of
/// many short-lived processes that do not all fit, the largest ends soon and leaves its memory to the others, if
/// nothing holds it up.
const RICH_MS: u64 = 10_000;
/// If no process was short for this long, [`RICH_MS`] begins anew.
const RICH_SEEN_MS: u64 = 2000;
/// One part in so many of what a process holds may be Ebb's books.
const BOOKS_PART: u64 = 16;
/// How many shares of a process are looked at to see what it has in common with others.
const SHARES_LOOKED_AT: usize = 4;
/// One part in so many of what a process holds is what it is asked for.
pub const ASK_PART: u64 = 16;

/// The class of an age in milliseconds.
pub fn class_of(age_ms: u64) -> usize {
    let doublings = (age_ms / AGE_BASE_MS).checked_ilog2().map_or(0, |log| log as usize + 1);
    doublings.min(AGES - 1)
}

/// The least age of a class, in milliseconds.
pub fn least_of(class: usize) -> u64 {
    if class == 0 { 0 } else { AGE_BASE_MS << (class - 1) }
}

/// Numbers of pages by age.
pub type Histogram = [u32; AGES];

/// What a process that is asked for memory does with pages that other processes hold too. Such a page becomes free only
/// when all holders have given it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum OfShared {
    /// Keep it.
    Keep = 0,
    /// Give it up, if the program is idle: the asking process keeps needing what it evicts.
    IfIdle = 1,
    /// Give it up: the asking process has nothing, and no other process gives anything.
    Give = 2,
}

impl Member {
    /// Publishes how old its pages are.
    pub fn publish_ages(&self, ages: &Histogram, now_ms: u64) {
        for (to, n) in self.ages.iter().zip(ages) {
            to.store(*n, Relaxed);
        }
        self.published_ms.store(now_ms.max(1), Ordering::Release);
    }

    /// The least age of its coldest pages, in milliseconds, taking as many of them as are worth asking for; none when
    /// it has too few.
    pub fn coldest_ms(&self, now_ms: u64) -> Option<u64> {
        let charged = said(&self.charged);
        if charged < WORTH_PAGES {
            return None;
        }
        let published = self.published_ms.load(Ordering::Acquire);
        if published == 0 {
            return Some(now_ms.saturating_sub(self.since_ms.load(Relaxed)));
        }
        let worth = (charged / 64).max(WORTH_PAGES);
        let mut sum = 0;
        let class = (0..AGES).rev().find(|class| {
            sum += u64::from(self.ages[*class].load(Relaxed));
            sum >= worth
        });
        class.map(|class| least_of(class) + now_ms.saturating_sub(published))
    }

    /// Pages in memory that the process had to itself when it last looked.
    pub fn unshared(&self) -> u64 {
        self.ages.iter().map(|pages| u64::from(pages.load(Relaxed))).sum()
    }

    /// Publishes that the process evicted `evicted` pages lately, and soon needed `again` of them again.
    pub fn publish_needed_again(&self, again: u64, evicted: u64, now_ms: u64) {
        let permille = (again * 1000 / evicted.max(1)).min(1000) as u32;
        self.needed_again.store(permille + 1, Relaxed);
        self.needed_again_ms.store(now_ms, Relaxed);
    }

    /// How many of a thousand pages that the process evicted lately it soon needed again; none while it evicts little.
    pub fn needed_again_permille(&self, now_ms: u64) -> Option<u32> {
        let is_recent = now_ms.saturating_sub(self.needed_again_ms.load(Relaxed)) < NEEDED_AGAIN_MS;
        self.needed_again.load(Relaxed).checked_sub(1).filter(|_| is_recent)
    }

    /// Notes that a process that is short sees that this one has more to itself than any other.
    fn note_rich(&self, now_ms: u64) {
        let is_new = now_ms.saturating_sub(self.rich_seen_ms.load(Relaxed)) > RICH_SEEN_MS;
        if self.rich_ms.load(Relaxed) == 0 || is_new && !self.owes() {
            self.rich_ms.store(now_ms.max(1), Relaxed);
        }
        if !self.owes() {
            self.rich_seen_ms.store(now_ms, Relaxed);
        }
    }

    /// True when the process was seen to have the most for so long that it gives some to processes that are short and
    /// have less, from then on.
    pub fn owes(&self) -> bool {
        let (from, to) = (self.rich_ms.load(Relaxed), self.rich_seen_ms.load(Relaxed));
        from != 0 && to.saturating_sub(from) >= RICH_MS
    }

    /// Notes that this process gets memory from `other`, which owes it. If this one has been a member for `RICH_MS`,
    /// it will owe too as soon as it has more.
    pub fn owes_like(&self, other: &Self, now_ms: u64) {
        if now_ms.saturating_sub(self.since_ms.load(Relaxed)) >= RICH_MS {
            self.rich_ms.store(other.rich_ms.load(Relaxed), Relaxed);
            self.rich_seen_ms.store(other.rich_seen_ms.load(Relaxed), Relaxed);
        }
    }

    /// True when the process was asked for memory long ago and has not answered.
    fn is_silent(&self, now_ms: u64) -> bool {
        let asked = self.asked_ms.load(Relaxed);
        self.ask_pages.load(Relaxed) > 0 && now_ms.saturating_sub(asked) > SILENT_MS
    }

    /// True when asking the process is worth it.
    fn answers(&self, now_ms: u64) -> bool {
        !self.is_silent(now_ms) && now_ms >= self.declined_until_ms.load(Relaxed)
    }

    /// Answers a request: the process gave `given` of the pages that it was asked for. If it had little to give, it is
    /// left alone for a while, longer than the `last_ms` of the last time. Returns for how long, in milliseconds; 0 if
    /// it is not left alone.
    pub fn answer(&self, given: i64, now_ms: u64, last_ms: u64) -> u64 {
        let asked = self.take_ask();
        if given * 4 >= asked {
            return 0;
        }
        let pause_ms = (2 * last_ms).clamp(DECLINED_MS, DECLINED_MS_MAX);
        self.declined_until_ms.store(now_ms + pause_ms, Relaxed);
        pause_ms
    }

    /// Answers a request for shared memory with little or nothing. The process is left alone for a while, longer than the
    /// `last_ms` of the last time. If it was to give such memory in any case ([`OfShared::Give`]), that holds for all
    /// such requests; otherwise only for those that ask the idle. Returns for how long, in milliseconds.
    pub fn keep_shared(&self, asked: OfShared, now_ms: u64, last_ms: u64) -> u64 {
        let pause_ms = (2 * last_ms).clamp(DECLINED_MS, KEEPS_SHARED_MS_MAX);
        self.keeps_shared_until_ms.store(now_ms + pause_ms, Relaxed);
        if asked == OfShared::Give {
            self.cannot_give_until_ms.store(now_ms + pause_ms, Relaxed);
        }
        pause_ms
    }

    /// What the process is asked to do with memory that it shares.
    pub fn asked_of_shared(&self, now_ms: u64) -> OfShared {
        match self.ask_shared.load(Ordering::SeqCst) {
            0 => OfShared::Keep,
            1 => OfShared::IfIdle,
            _ if now_ms.saturating_sub(self.asked_ms.load(Relaxed)) > GIVE_MS => OfShared::Keep,
            _ => OfShared::Give,
        }
    }

    /// Ends a request, and returns how many pages were asked for. The pages go first: a request that comes meanwhile
    /// may be lost, and will be made again, but a request for shared memory never stays behind without pages.
    pub fn take_ask(&self) -> i64 {
        let pages = self.ask_pages.swap(0, Ordering::SeqCst);
        self.ask_shared.store(OfShared::Keep as u32, Ordering::SeqCst);
        pages
    }

    /// Sets whether its program is idle.
    pub fn set_idle(&self, is_idle: bool, now_ms: u64) {
        self.idle_ms.store(if is_idle { now_ms.max(1) } else { 0 }, Relaxed);
    }

    /// True when its program was lately seen idle.
    pub fn is_idle(&self, now_ms: u64) -> bool {
        let seen = self.idle_ms.load(Relaxed);
        seen != 0 && now_ms.saturating_sub(seen) < IDLE_KNOWN_MS
    }

    /// True when the process may be asked for memory that it shares, in this way.
    fn answers_for_shared(&self, asked: OfShared, now_ms: u64) -> bool {
        let until = if asked == OfShared::Give { &self.cannot_give_until_ms } else { &self.keeps_shared_until_ms };
        !self.is_silent(now_ms) && now_ms >= until.load(Relaxed)
    }

    /// Asks the process for `pages`. The caller then wakes it through [`Member::asked`].
    pub fn ask(&self, pages: i64, shared: OfShared, now_ms: u64) {
        self.ask_shared.fetch_max(shared as u32, Ordering::SeqCst);
        if self.ask_pages.fetch_max(pages, Ordering::SeqCst) <= 0 {
            self.asked_ms.store(now_ms, Relaxed);
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
    }
}

/// A member that may spare pages.
#[derive(Debug, PartialEq, Eq)]
pub struct Spare {
    /// Its place in the tree's page, as [`Page::member`] takes it.
    pub index: u32,
    /// Pages of 4 KiB to ask it for, before the limits of one request apply.
    pub pages: u64,
    /// The member has more than the asking process, which needs it as much. The asking process waits for the pages: if
    /// both evicted, the difference would stay.
    pub owes: bool,
}

impl Page {
    /// The member to ask first, and the least age of its coldest pages in milliseconds. It is the one with the oldest
    /// coldest pages among those that answer, are not `own`, and have at least `pages_min` pages.
    pub fn coldest(&self, own: Option<u32>, pages_min: u64, now_ms: u64) -> Option<(u32, u64)> {
        self.members()
            .filter(|(index, member)| Some(*index) != own && member.kind() == Kind::Managed)
            .filter(|(_, member)| said(&member.charged) >= pages_min && member.answers(now_ms))
            .filter_map(|(index, member)| Some((index, member.coldest_ms(now_ms)?)))
            .max_by_key(|(_, age)| *age)
    }

    /// The member with the most pages among those that answer, are not `own`, and have at least `pages_min` pages. Its
    /// ages may say that it has nothing to give: they are as old as its last look, and an idle process does not see
    /// that others no longer share with it.
    pub fn largest(&self, own: Option<u32>, pages_min: u64, now_ms: u64) -> Option<u32> {
        self.largest_of(own, pages_min, |member| member.answers(now_ms))
    }

    /// Likewise among those that may be asked for memory that they share in this way, see [`Member::keep_shared`].
    pub fn largest_to_give(&self, own: Option<u32>, pages_min: u64, shared: OfShared, now_ms: u64) -> Option<u32> {
        self.largest_of(own, pages_min, |member| {
            member.answers_for_shared(shared, now_ms) && now_ms.abs_diff(member.asked_ms.load(Relaxed)) >= GIVE_EVERY_MS
        })
    }

    /// Whom member `own` asks for memory when, as far as is known, nobody has any to give: which member, how many pages that one
    /// has, and what it may do with those that it shares.
    ///
    /// The largest is asked whatever it has published: a process that waits for nothing does not look at what it has. The one
    /// that shares most, with `pages_min` at least, is asked for that if it is idle. After a long time (`is_long`) the largest is
    /// asked for what it shares, idle or not. That request comes first: a process that is being asked is not asked for more,
    /// and one whose sharers are busy declines whatever is asked of the idle.
    pub fn last_resorts(
        &self,
        own: u32,
        pages_min: u64,
        is_long: bool,
        now_ms: u64,
    ) -> impl Iterator<Item = (u32, u64, OfShared)> {
        let to_give = || self.largest_to_give(Some(own), WORTH_PAGES, OfShared::Give, now_ms);
        let charged = |index: u32| said(&self.member(index).charged);
        [
            is_long.then(to_give).flatten().map(|index| (index, charged(index), OfShared::Give)),
            self.largest(Some(own), WORTH_PAGES, now_ms).map(|index| (index, charged(index), OfShared::Keep)),
            self.largest_sharer(own, pages_min, now_ms)
                .map(|index| (index, said(&self.member(index).shared), OfShared::IfIdle)),
        ]
        .into_iter()
        .flatten()
    }

    fn largest_of(&self, own: Option<u32>, pages_min: u64, may_be: impl Fn(&Member) -> bool) -> Option<u32> {
        self.members()
            .filter(|(index, member)| Some(*index) != own && member.kind() == Kind::Managed)
            .filter(|(_, member)| said(&member.charged) >= pages_min && may_be(member))
            .max_by_key(|(_, member)| said(&member.charged))
            .map(|(index, _)| index)
    }

    /// True when the member at `own` needs again what it evicts.
    pub fn is_short(&self, own: u32, now_ms: u64) -> bool {
        self.member(own).needed_again_permille(now_ms).is_some_and(|permille| permille >= SHORT_PERMILLE)
    }

    /// The member that shares the most among those that may be asked for that, are not `own`, and share at least
    /// `pages_min` pages.
    pub fn largest_sharer(&self, own: u32, pages_min: u64, now_ms: u64) -> Option<u32> {
        self.members()
            .filter(|(index, member)| *index != own && member.kind() == Kind::Managed)
            .filter(|(_, member)| member.answers_for_shared(OfShared::IfIdle, now_ms))
            .map(|(index, member)| (index, said(&member.shared)))
            .filter(|(_, shared)| *shared >= pages_min.max(WORTH_PAGES))
            .max_by_key(|(_, shared)| *shared)
            .map(|(index, _)| index)
    }

    /// Member `own` is short: notes which member has more to itself than any other, `own` included.
    fn note_richest(&self, own: u32, now_ms: u64) {
        let managed = self.members().filter(|(_, member)| member.kind() == Kind::Managed);
        let richest = managed.max_by_key(|(_, member)| member.unshared());
        if let Some((_, member)) = richest.filter(|(index, _)| *index != own) {
            member.note_rich(now_ms);
        }
    }

    /// A member that may spare pages, and how many, while `own` needs again what it evicts. Ages do not tell that. It
    /// is one of these, with at least `pages_min` pages:
    ///
    /// * A member that does not need what it evicts, because it reads once through memory or fills it.
    /// * If `share`, so the processes share since a fork most of what they have: one of the family with more than twice
    ///   as much to itself. What is left beside the shared memory may be less than one of them needs to get anywhere.
    /// * If there is no such member: one that owes and has more than `own`. Both need it, so both shall get the same.
    ///
    /// Of several, the one that has the most to itself.
    pub fn spendthrift(&self, own: u32, pages_min: u64, share: bool, now_ms: u64) -> Option<Spare> {
        let member = self.member(own);
        let short = member.needed_again_permille(now_ms).filter(|permille| *permille >= SHORT_PERMILLE)?;
        let unshared = member.unshared();
        if !share {
            self.note_richest(own, now_ms);
        }
        let mut shares = [None; SHARES_LOOKED_AT];
        if share {
            let held = self.shares().filter(|(_, share)| share.number_of(self.id_of(own)).is_some());
            shares.iter_mut().zip(held).for_each(|(to, (_, share))| *to = Some(share));
        }
        // How many pages to ask for, how many it has to itself, and whether it owes.
        let spares = |index: u32, m: &Member| {
            if share && self.are_family(own, index) {
                let theirs = self.unshared_now(index, shares.iter().flatten().copied());
                let more = theirs.saturating_sub(unshared);
                if more > unshared + WORTH_PAGES {
                    return Some((more / 2, theirs, false));
                }
            }
            // A member that gives too much will need again what it evicts, and is then asked no more.
            let (needs, theirs) = (m.needed_again_permille(now_ms), m.unshared());
            if needs.is_some_and(|permille| permille <= short / SPARE_PART) && theirs >= WORTH_PAGES {
                return Some((theirs / ASK_PART, theirs, false));
            }
            // A process that has most of its memory resident uses it so often that its pages are never cold, and takes
            // back at once what it gives. Of two that do the same work, one would have everything for ever. Under
            // `share` this is left out, because shared memory says nothing of which process has how much.
            let more = theirs.saturating_sub(unshared);
            (!share && m.owes() && more > unshared / EVEN_PART + WORTH_PAGES).then_some((more / 4, theirs, true))
        };
        self.members()
            .filter(|(index, member)| *index != own && member.kind() == Kind::Managed)
            .filter(|(_, member)| member.answers(now_ms))
            .filter(|(_, member)| said(&member.charged) >= pages_min)
            .filter_map(|(index, member)| Some((index, spares(index, member)?)))
            .max_by_key(|(_, (_, unshared, owes))| (!owes, *unshared))
            .map(|(index, (pages, _, owes))| Spare { index, pages, owes })
    }

    fn id_of(&self, index: u32) -> MemberId {
        MemberId { index, generation: self.member(index).generation() }
    }

    /// Pages that the member at `index` has to itself. If it is in `shares`, by what it holds now and has in common
    /// with others there; otherwise as it last published. An idle process does not look, and does not see that others
    /// no longer share with it.
    fn unshared_now<'a>(&self, index: u32, shares: impl Iterator<Item = &'a Share>) -> u64 {
        let (member, id) = (self.member(index), self.id_of(index));
        let of_program = |share: &Share| (share.surplus() - share.pool_surplus()).max(0) as u64;
        let common = shares.filter(|share| share.number_of(id).is_some()).map(of_program);
        let Some(common) = common.reduce(|sum, pages| sum + pages) else { return member.unshared() };
        // Pool memory may be had or not, and staged pages are reclaimed anyway.
        let charged = said(&member.charged);
        let elsewhere = said(&member.pool) + said(&member.staged) + charged / BOOKS_PART;
        charged.saturating_sub(common + elsewhere).max(member.unshared())
    }

    /// True when one member is the other's parent, or both have the same parent.
    fn are_family(&self, a: u32, b: u32) -> bool {
        let (of_a, of_b) = (self.member(a).parent(), self.member(b).parent());
        of_a == Some(self.id_of(b)) || of_b == Some(self.id_of(a)) || of_a.is_some() && of_a == of_b
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A page with managed members. For each: pages that it holds, pages that it has to itself, and how many of a
    /// thousand evicted pages it needs again.
    fn page_of(members: &[(u64, u32, u64)], now_ms: u64) -> &'static Page {
        let at = crate::base::uapi::reserve(size_of::<Page>()).expect("memory");
        // SAFETY: zeroed memory of its size is a valid page; never unmapped.
        let page: &'static Page = unsafe { &*at.cast::<Page>() };
        for (index, (charged, unshared, again)) in (0..).zip(members) {
            // All members are children of the first.
            let parent = MemberId { index: 0, generation: page.member(0).generation() };
            page.reserve(index, parent, now_ms);
            let member = page.member(index);
            member.rich_ms.store(1, Relaxed);
            member.rich_seen_ms.store(1 + RICH_MS, Relaxed);
            member.set_kind(Kind::Managed);
            member.charged.store(*charged, Relaxed);
            let mut ages = [0; AGES];
            ages[0] = *unshared;
            member.publish_ages(&ages, now_ms);
            member.publish_needed_again(*again, 1000, now_ms);
        }
        page
    }

    #[test]
    fn of_several_that_find_no_memory_one_ends_at_a_time() {
        let page = page_of(&[(1000, 1000, 0), (1000, 1000, 0)], 0);
        let id = |index: u32| MemberId { index, generation: page.member(index).generation() };
        let may = |index, now_ms| page.may_give_up(id(index), now_ms);
        assert!(may(0, 7000));
        // What the first one held is there when it is gone.
        assert!(!may(1, 7000) && !may(1, 7999) && !may(1, 16_999));
        page.member(0).set_kind(Kind::Free);
        assert!(may(1, 8000) && !may(1, 8999));
        // The process may take its time to end, but not for ever.
        assert!(!may(1, 17_999) && may(1, 18_000));
        // The time is by another clock.
        assert!(may(1, 10) && !may(1, 20));
    }

    #[test]
    fn who_does_not_need_what_it_evicts_gives_to_who_does() {
        let page = page_of(&[(1000, 1000, 900), (3200, 3200, 10), (1600, 1600, 10), (100_000, 100_000, 800)], 15_000);
        let gives = |index, pages| Some(Spare { index, pages, owes: false });
        assert_eq!(page.spendthrift(0, 64, false, 15_000), gives(1, 200));
        assert_eq!(page.spendthrift(1, 64, false, 15_000), None);
        assert_eq!(page.spendthrift(3, 64, false, 15_000), gives(1, 200));
        // No member has enough to be asked; then nothing is known any more.
        assert_eq!(page.spendthrift(0, 200_000, false, 15_000), None);
        assert_eq!(page.spendthrift(0, 64, false, 15_000 + NEEDED_AGAIN_MS), None);
        page.member(1).declined_until_ms.store(16_000, Relaxed);
        assert_eq!(page.spendthrift(0, 64, false, 15_000), gives(2, 100));
    }

    #[test]
    fn of_equals_who_has_more_owes_some_however_much_it_needs_it() {
        // The second needs nothing again because it has everything; or everything, because it was asked for some.
        for needs in [0, 300, 1000] {
            let page = page_of(&[(2000, 1000, 400), (16_000, 15_000, needs)], 15_000);
            let found = page.spendthrift(0, 64, false, 15_000).unwrap();
            assert_eq!((found.index, found.owes), (1, needs > 100));
            assert_eq!(page.spendthrift(1, 64, false, 15_000).filter(|spare| spare.owes), None);
        }
        // The second has published no such figure.
        let page = page_of(&[(2000, 1000, 400), (16_000, 15_000, 0)], 15_000);
        page.member(1).needed_again.store(0, Relaxed);
        assert_eq!(page.spendthrift(0, 64, false, 15_000), Some(Spare { index: 1, pages: 3500, owes: true }));
        // A little more does not count as more, and a process that needs little again has enough.
        let page = page_of(&[(16_000, 15_000, 400), (16_000, 15_290, 400)], 15_000);
        assert_eq!(page.spendthrift(0, 64, false, 15_000), None);
        let page = page_of(&[(2000, 1000, 100), (16_000, 15_000, 400)], 15_000);
        assert_eq!(page.spendthrift(0, 64, false, 15_000), None);
        // A process that has not had it for long owes nothing.
        let page = page_of(&[(2000, 1000, 400), (16_000, 15_000, 400)], 15_000);
        page.member(1).rich_ms.store(0, Relaxed);
        for now_ms in (15_000..25_000).step_by(500) {
            page.member(0).publish_needed_again(400, 1000, now_ms);
            assert_eq!(page.spendthrift(0, 64, false, now_ms), None);
        }
        page.member(0).publish_needed_again(400, 1000, 25_000);
        assert!(page.spendthrift(0, 64, false, 25_000).is_some_and(|spare| spare.owes));
        // Where processes share, their memory cannot be compared.
        let page = page_of(&[(2000, 5000, 400), (16_000, 9000, 400)], 15_000);
        assert_eq!(page.spendthrift(0, 64, true, 15_000), None);
    }

    #[test]
    fn who_has_most_for_long_owes_for_good() {
        let page = page_of(&[(2000, 1000, 400), (16_000, 15_000, 400), (2000, 1500, 400)], 15_000);
        let reset = || {
            for (_, member) in page.members() {
                member.rich_ms.store(0, Relaxed);
                member.rich_seen_ms.store(0, Relaxed);
            }
        };
        let (poor, rich) = (page.member(0), page.member(1));
        let notes = |from, to| (from..=to).step_by(1000).for_each(|now_ms| page.note_richest(0, now_ms));
        reset();
        notes(20_000, 29_000);
        assert!(!rich.owes());
        notes(30_000, 30_000);
        assert!(rich.owes() && !page.member(2).owes());
        // For a while, short or long, no process was short.
        for gap in [3000, 60_000] {
            reset();
            notes(20_000, 25_000);
            notes(25_000 + gap, 34_000 + gap);
            assert!(!rich.owes());
            notes(35_000 + gap, 35_000 + gap);
            assert!(rich.owes());
        }
        notes(200_000, 200_000);
        assert!(rich.owes());
        // A process does not note itself.
        (70_000..90_000).step_by(1000).for_each(|now_ms| page.note_richest(1, now_ms));
        assert!(!poor.owes());
        // A process that has just begun does not owe in turn.
        poor.since_ms.store(90_001 - RICH_MS, Relaxed);
        poor.owes_like(rich, 90_000);
        assert!(!poor.owes());
        poor.owes_like(rich, 90_001);
        assert!(poor.owes());
    }

    #[test]
    fn where_most_is_shared_who_has_little_beside_it_gets_half_of_what_is_more() {
        let page = page_of(&[(10_000, 100, 900), (16_000, 6100, 900), (9_000, 90, 900)], 15_000);
        let gives = |index, pages| Some(Spare { index, pages, owes: false });
        assert_eq!(page.spendthrift(0, 64, true, 15_000), gives(1, 3000));
        assert_eq!(page.spendthrift(1, 64, true, 15_000), None);
        // A sibling may be asked too, and one that evicts nothing.
        page.member(1).needed_again.store(0, Relaxed);
        assert_eq!(page.spendthrift(2, 64, true, 15_000), gives(1, 3005));
        let page = page_of(&[(10_000, 3000, 900), (16_000, 5900, 900)], 15_000);
        assert_eq!(page.spendthrift(0, 64, true, 15_000), None);
    }

    #[test]
    fn who_does_not_look_is_asked_for_what_others_left_to_it() {
        // The second has published that it has nothing to itself.
        let page = page_of(&[(10_000, 100, 900), (16_000, 0, 0), (16_000, 0, 0)], 15_000);
        let share = page.share(0);
        let id = |index: u32| MemberId { index, generation: page.member(index).generation() };
        assert!((0..3).all(|index| share.enter(id(index)).is_some()));
        page.raise_shares_high_water(0);
        share.count(15_500, 0);
        assert_eq!(page.spendthrift(0, 64, true, 15_000), None);
        share.count(-9500, 0);
        // What books take cannot be had.
        let left = (16_000 - 6000 - 1000 - 100) / 2;
        let spare = page.spendthrift(0, 64, true, 15_000).unwrap();
        assert_eq!((spare.pages, spare.owes), (left, false));
        // In a void share each process has what it holds.
        page.member(1).clear();
        share.make_void();
        assert_eq!(
            page.spendthrift(0, 64, true, 15_000),
            Some(Spare { index: 2, pages: (16_000 - 1000 - 100) / 2, owes: false })
        );
    }

    #[test]
    fn a_stranger_is_not_asked_for_a_part_of_what_is_not_shared() {
        let page = page_of(&[(0, 0, 0), (10_000, 100, 900), (16_000, 6100, 900)], 15_000);
        let stranger = MemberId { index: 7, generation: 3 };
        page.member(2).clear();
        page.reserve(2, stranger, 15_000);
        let member = page.member(2);
        member.set_kind(Kind::Managed);
        member.charged.store(16_000, Relaxed);
        let mut ages = [0; AGES];
        ages[0] = 6100;
        member.publish_ages(&ages, 15_000);
        member.publish_needed_again(900, 1000, 15_000);
        assert_eq!(page.spendthrift(1, 64, true, 15_000), None);
        member.publish_needed_again(9, 1000, 15_000);
        assert_eq!(
            page.spendthrift(1, 64, true, 15_000),
            Some(Spare { index: 2, pages: 6100 / ASK_PART, owes: false })
        );
    }

    #[test]
    fn who_has_most_is_asked_whatever_it_said_last() {
        let page = page_of(&[(500, 0, 0), (4900, 0, 0), (1800, 0, 0), (40, 0, 0)], 15_000);
        // As far as they know, none has anything to give.
        assert_eq!(page.coldest(Some(0), 64, 15_000), None);
        assert_eq!(page.largest(Some(0), 64, 15_000), Some(1));
        assert_eq!(page.largest(Some(1), 64, 15_000), Some(2));
        page.member(1).declined_until_ms.store(16_000, Relaxed);
        assert_eq!(page.largest(Some(0), 64, 15_000), Some(2));
        page.member(2).ask(64, OfShared::Keep, 14_000);
        assert_eq!(page.largest(Some(0), 64, 15_000), None);
        assert_eq!(page.largest(Some(0), 64, 16_000), Some(1));
    }

    #[test]
    fn who_shares_most_is_asked_for_it_by_one_that_needs_again_what_it_evicts() {
        let page = page_of(&[(500, 400, 900), (4900, 0, 0), (4800, 0, 0), (4800, 0, 0)], 15_000);
        for (index, shared) in [(0, 4900), (1, 3000), (2, 4000), (3, 50)] {
            page.member(index).shared.store(shared, Relaxed);
        }
        assert_eq!(page.largest_sharer(0, 64, 15_000), Some(2));
        assert_eq!(page.member(2).keep_shared(OfShared::IfIdle, 15_000, 0), 100);
        assert_eq!(page.largest_sharer(0, 64, 15_099), Some(1));
        assert_eq!(page.largest_sharer(0, 64, 15_100), Some(2));
        // One that declined to give what is its own may still be asked for what it shares.
        page.member(2).declined_until_ms.store(20_000, Relaxed);
        assert_eq!(page.largest_sharer(0, 64, 15_100), Some(2));
        page.member(2).ask(64, OfShared::IfIdle, 15_000);
        assert_eq!(page.largest_sharer(0, 64, 15_100), Some(1));
        assert_eq!(page.largest_sharer(0, 3001, 15_100), None);
        assert!(page.is_short(0, 15_000) && !page.is_short(1, 15_000));
        // The largest is asked for everything that it shares, whatever it declined, but at most ten times a second.
        let to_give = |shared, now_ms| page.largest_to_give(Some(0), 64, shared, now_ms);
        page.member(1).declined_until_ms.store(20_000, Relaxed);
        page.member(1).keep_shared(OfShared::IfIdle, 15_000, KEEPS_SHARED_MS_MAX);
        assert_eq!([OfShared::Give, OfShared::IfIdle].map(|shared| to_give(shared, 15_100)), [Some(1), Some(3)]);
        page.member(1).ask(64, OfShared::Give, 15_100);
        page.member(1).take_ask();
        assert_eq!([15_199, 15_200].map(|ms| to_give(OfShared::Give, ms)), [Some(3), Some(1)]);
        page.member(1).ask(64, OfShared::Keep, 15_200);
        assert_eq!(to_give(OfShared::Give, 16_000), Some(3));
    }

    #[test]
    fn who_declines_what_is_asked_of_the_idle_is_asked_to_give_after_a_long_time() {
        let page = page_of(&[(500, 0, 0), (4900, 0, 0), (4800, 0, 0)], 15_000);
        for (index, shared) in [(1, 4900), (2, 4800)] {
            page.member(index).shared.store(shared, Relaxed);
        }
        let asked = |is_long, now_ms| page.last_resorts(0, 64, is_long, now_ms).collect::<Vec<_>>();
        let (keep, if_idle, give) = (OfShared::Keep, OfShared::IfIdle, OfShared::Give);
        assert_eq!(asked(false, 15_000), [(1, 4900, keep), (1, 4900, if_idle)]);
        for index in [1, 2] {
            page.member(index).declined_until_ms.store(20_000, Relaxed);
            page.member(index).keep_shared(OfShared::IfIdle, 15_000, KEEPS_SHARED_MS_MAX);
        }
        assert_eq!(asked(false, 15_000), []);
        assert_eq!(asked(true, 15_000), [(1, 4900, give)]);
        // When all pauses are over at the same moment, this request is the first.
        assert_eq!(asked(true, 25_000), [(1, 4900, give), (1, 4900, keep), (1, 4900, if_idle)]);
    }

    #[test]
    fn the_largest_that_cannot_give_leave_it_to_those_that_can() {
        const NR: u32 = 20;
        let sizes: Vec<(u64, u32, u64)> = (0..=NR).map(|index| (5000 - u64::from(index), 0, 0)).collect();
        let page = page_of(&sizes, 15_000);
        let mut last_ms = [0; NR as usize];
        // A waiter looks every 20 ms, for eight seconds. None but the smallest can give.
        let asked_last = (15_000..23_000).step_by(20).find(|now_ms| {
            let Some(index) = page.largest_to_give(Some(0), 64, OfShared::Give, *now_ms) else { return false };
            let member = page.member(index);
            member.ask(64, OfShared::Give, *now_ms);
            member.take_ask();
            if index < NR {
                last_ms[index as usize] = member.keep_shared(OfShared::Give, *now_ms, last_ms[index as usize]);
            }
            index == NR
        });
        assert!(asked_last.is_some_and(|ms| ms < 20_000), "{asked_last:?}");
    }

    #[test]
    fn who_has_nothing_outweighs_who_has_little() {
        let member = page_of(&[(500, 400, 900)], 15_000).member(0);
        assert_eq!(member.asked_of_shared(15_000), OfShared::Keep);
        member.ask(64, OfShared::Give, 15_000);
        member.ask(80, OfShared::IfIdle, 15_000);
        assert_eq!([16_000, 16_001].map(|ms| member.asked_of_shared(ms)), [OfShared::Give, OfShared::Keep]);
        assert_eq!((member.take_ask(), member.asked_of_shared(15_000)), (80, OfShared::Keep));
    }

    #[test]
    fn who_keeps_what_it_shares_is_asked_again_while_the_others_are_still_known_to_be_idle() {
        let member = page_of(&[(500, 400, 900)], 15_000).member(0);
        assert!(!member.is_idle(15_000));
        member.set_idle(true, 15_000);
        let mut pause_ms = 0;
        for _ in 0..9 {
            pause_ms = member.keep_shared(OfShared::IfIdle, 15_000, pause_ms);
        }
        assert!(pause_ms == KEEPS_SHARED_MS_MAX && member.is_idle(15_000 + 2 * pause_ms));
        assert!(!member.is_idle(15_000 + IDLE_KNOWN_MS));
        member.set_idle(false, 15_000);
        assert!(!member.is_idle(15_000));
    }

    #[test]
    fn the_first_pages_that_come_free_are_for_who_waits() {
        let now_ms = crate::tree::now_ms();
        let page = page_of(&[(500, 0, 0), (4900, 0, 0), (0, 0, 0)], now_ms);
        let id = |index: u32| MemberId { index, generation: page.member(index).generation() };
        let grow = |index: u32, n: i64| page.try_grow(page.member(index), n);
        page.set_limit(1000);
        assert_eq!(grow(1, 960), Some(40));
        page.wait(id(0), now_ms);
        // The second to wait is too late, and the one that has the most cannot take what is left.
        page.wait(id(2), now_ms);
        assert_eq!([grow(1, 10), grow(2, 10)], [None; 2]);
        assert!(page.is_awaited(now_ms) && !page.is_awaited(now_ms + 5000));
        page.member(1).granted.fetch_sub(100, Relaxed);
        assert_eq!([grow(1, 100), grow(1, 76)], [None, Some(64)]);
        assert_eq!(grow(0, 10), Some(54));
        page.wait_no_more(id(2));
        assert_eq!(grow(1, 10), None);
        page.wait_no_more(id(0));
        assert!(!page.is_awaited(now_ms));
        assert_eq!(grow(1, 10), Some(44));
        // A member that no longer says that it waits, or that is gone, keeps nobody away.
        page.wait(id(0), now_ms.saturating_sub(5000));
        assert_eq!(grow(1, 10), Some(34));
        page.wait(id(2), now_ms);
        page.member(2).clear();
        assert!(!page.is_awaited(now_ms));
        assert_eq!(grow(1, 10), Some(24));
    }

    #[test]
    fn classes_double() {
        assert_eq!([0, 31, 32, 63, 64, 127, 128].map(class_of), [0, 0, 1, 1, 2, 2, 3]);
        assert_eq!(class_of(u64::MAX), AGES - 1);
        assert!((0..AGES).all(|class| class_of(least_of(class)) == class));
    }
}
