//! What this process holds in common with others since a fork: the shares in which it has a bit.
//!
//! A page that this process shares has its bit in at most one share. At a fork the child gets a bit in a share of its
//! parent with the first page that they have in common there. If the parent has its bit set for a page, the child's
//! bit is set beside it. A page that the parent holds alone goes to the first share where its mask has no other use,
//! and to a new share if there is none. So a family uses one share for as long as its pages allow.

use super::claim::{forget_share, share_byte};
use super::masks::{Extent, Masks, Planes, Shape, Spot};
use super::own::{Tree, now_ms};
use super::page::SHARES_MAX;
use super::share::{Bit, Share, is_taken, plane_of};
use super::{Kind, MemberId, Page};
use crate::base::uapi::record_lock;
use crate::protocols::gate::Exclusive;
use crate::protocols::primitive::Ordering;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize};

/// Most shares in which one process has a bit.
const HOLDINGS_MAX: usize = 16;
/// Pages that are counted at a time. If the process is killed meanwhile, at most so many count too often.
const CHUNK: i64 = 64;

/// How many of the processes that share with this one are looked at.
pub const OTHERS_MAX: usize = 16;
/// A share is not looked at for others if it has less than this part of the pages of the largest one.
const OTHERS_PART: i64 = 8;

/// The processes that this process shares most with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Others {
    /// How many there are, at most [`OTHERS_MAX`].
    pub number: usize,
    /// How many of them are not known to be idle.
    pub busy: usize,
}

/// In [`Holding::child`]: the share has no bit for the child.
const NO_ROOM: u32 = u32::MAX;

/// A share in which this process has a bit. It may be cleared at any time. Apart from that and from its counts, it
/// changes with the gate closed only.
struct Holding {
    /// Number of the share, plus 1; 0 for none.
    share: AtomicU32,
    /// Number of this process's bit.
    own: AtomicU32,
    /// Number of the bit of the child whose fork is under way, plus 1. 0 while the child has none yet, [`NO_ROOM`]
    /// when it gets none.
    child: AtomicU32,
    /// Pages for which this process has its bit set here, as far as it knows: the other holders may have given some
    /// of them up. `pool_pages` are those of the pool.
    pages: AtomicI64,
    pool_pages: AtomicI64,
    /// Likewise for the child whose fork is under way.
    child_pages: AtomicI64,
    child_pool_pages: AtomicI64,
    /// Where its masks and planes are mapped, see [`Masks`].
    at: AtomicUsize,
    nr_leaves: AtomicUsize,
    extra_addr: AtomicUsize,
    extra_pages: AtomicUsize,
    planes: [AtomicUsize; 2],
}

impl Holding {
    const fn none() -> Self {
        Self {
            share: AtomicU32::new(0),
            own: AtomicU32::new(0),
            child: AtomicU32::new(0),
            pages: AtomicI64::new(0),
            pool_pages: AtomicI64::new(0),
            child_pages: AtomicI64::new(0),
            child_pool_pages: AtomicI64::new(0),
            at: AtomicUsize::new(0),
            nr_leaves: AtomicUsize::new(0),
            extra_addr: AtomicUsize::new(0),
            extra_pages: AtomicUsize::new(0),
            planes: [const { AtomicUsize::new(0) }; 2],
        }
    }

    fn set_planes(&self, planes: Planes) {
        self.planes.iter().zip(planes.0).for_each(|(to, plane)| to.store(plane, Relaxed));
    }
}

/// All shares of this process.
pub(super) struct Holdings([Holding; HOLDINGS_MAX]);

/// A copy of a holding as it is now.
#[derive(Clone, Copy)]
struct Held<'a> {
    index: u32,
    share: &'a Share,
    masks: Masks,
    own: u32,
    child: u32,
}

impl Held<'_> {
    /// This process's bit for the page at `addr`, and where the mask is; none if the process cannot have one.
    fn own_bit(&self, addr: usize) -> Option<(Bit<'_>, Spot<'_>)> {
        let spot = self.masks.get(addr)?;
        Some((self.masks.bit(spot, self.own)?, spot))
    }

    /// The number of the child's bit, if it has one.
    fn child(&self) -> Option<u32> {
        if self.child == NO_ROOM { None } else { self.child.checked_sub(1) }
    }
}

impl Holdings {
    pub const fn new() -> Self {
        Self([const { Holding::none() }; HOLDINGS_MAX])
    }

    fn get<'a>(&self, page: &'a Page, place: usize) -> Option<Held<'a>> {
        let holding = &self.0[place];
        let index = holding.share.load(Relaxed).checked_sub(1)?;
        let shape = Shape {
            nr_leaves: holding.nr_leaves.load(Relaxed),
            extra_addr: holding.extra_addr.load(Relaxed),
            extra_pages: holding.extra_pages.load(Relaxed),
        };
        Some(Held {
            index,
            share: page.share(index),
            masks: Masks {
                at: holding.at.load(Relaxed),
                shape,
                planes: Planes([0, 1].map(|place: usize| holding.planes[place].load(Relaxed))),
            },
            own: holding.own.load(Relaxed),
            child: holding.child.load(Relaxed),
        })
    }

    fn all<'a>(&self, page: &'a Page) -> impl Iterator<Item = (usize, Held<'a>)> {
        (0..HOLDINGS_MAX).filter_map(move |place| Some((place, self.get(page, place)?)))
    }

    fn set(&self, place: usize, index: u32, own: u32, masks: Masks) {
        let holding = &self.0[place];
        holding.at.store(masks.at, Relaxed);
        holding.nr_leaves.store(masks.shape.nr_leaves, Relaxed);
        holding.extra_addr.store(masks.shape.extra_addr, Relaxed);
        holding.extra_pages.store(masks.shape.extra_pages, Relaxed);
        holding.set_planes(masks.planes);
        holding.own.store(own, Relaxed);
        for count in [&holding.pages, &holding.pool_pages] {
            count.store(0, Relaxed);
        }
        self.begin_child(place);
        holding.share.store(index + 1, Relaxed);
    }

    /// Forgets the child of the last fork: the next one holds nothing yet.
    fn begin_child(&self, place: usize) {
        let holding = &self.0[place];
        holding.child.store(0, Relaxed);
        holding.child_pages.store(0, Relaxed);
        holding.child_pool_pages.store(0, Relaxed);
    }

    /// Forgets the share at a place: it is this process's no more. Its masks stay mapped, because another thread may
    /// still use them.
    fn forget(&self, place: usize) {
        self.0[place].share.store(0, Relaxed);
    }

    /// Counts one page less that this process holds by the share at a place.
    fn uncount(&self, place: usize, of_pool: bool) {
        self.0[place].pages.fetch_sub(1, Relaxed);
        self.0[place].pool_pages.fetch_sub(i64::from(of_pool), Relaxed);
    }

    /// Counts a chunk: its pages for the child, and for this process those that begin to be shared.
    fn count_chunk(&self, place: usize, chunk: Chunk) {
        let holding = &self.0[place];
        holding.pages.fetch_add(chunk.begun, Relaxed);
        holding.pool_pages.fetch_add(chunk.begun_of_pool, Relaxed);
        holding.child_pages.fetch_add(chunk.pages, Relaxed);
        holding.child_pool_pages.fetch_add(chunk.of_pool, Relaxed);
    }

    /// In fork's child: what was counted for the child is now its own.
    fn become_child(&self, place: usize, own: u32) {
        let holding = &self.0[place];
        holding.own.store(own, Relaxed);
        holding.pages.store(holding.child_pages.load(Relaxed), Relaxed);
        holding.pool_pages.store(holding.child_pool_pages.load(Relaxed), Relaxed);
        self.begin_child(place);
    }

    /// Pages that this process holds by the share at a place, and how many of them are of the pool.
    fn pages(&self, place: usize) -> (i64, i64) {
        let holding = &self.0[place];
        (holding.pages.load(Relaxed).max(0), holding.pool_pages.load(Relaxed).max(0))
    }
}

/// A fork under way, and what the child will share.
pub struct Fork<'a> {
    tree: &'a Tree,
    own: MemberId,
    child: MemberId,
    extent: Extent,
    /// Shares in which the child has a bit: the share's index, the parent's number, the child's number.
    used: [Option<(u32, u32, u32)>; HOLDINGS_MAX],
    /// When this process last called exec. Another of its threads may do so during the fork.
    left_ms: u64,
    /// A share for pages that fit into no other was made in this fork, or could not be made.
    has_made: bool,
    /// What is not counted yet, for each holding.
    chunks: [Chunk; HOLDINGS_MAX],
    total: i64,
}

/// Pages that became shared and are not counted yet: all of them, those of the pool, and those that the parent held
/// alone before, in all and of the pool.
#[derive(Clone, Copy, Default)]
struct Chunk {
    pages: i64,
    of_pool: i64,
    begun: i64,
    begun_of_pool: i64,
}

impl Fork<'_> {
    /// Shares the page at `addr`, which is mapped, with the child. False when the page will count twice.
    pub fn share(&mut self, addr: usize) -> bool {
        let (page, holdings) = (self.tree.page(), &self.tree.holdings);
        for (place, held) in holdings.all(page) {
            let Some((own, spot)) = held.own_bit(addr).filter(|(own, _)| own.is_set()) else { continue };
            if held.share.is_void() {
                // A void share leaves nothing out of the sum, so the page may be shared anew elsewhere.
                self.tree.leave(place, held, addr);
                break;
            }
            let Some(child) = self.child_number(place, held) else { return false };
            // `child_number` may have mapped the child's plane.
            let masks = holdings.get(page, place).map_or(held.masks, |held| held.masks);
            if masks.bit(spot, child).is_some_and(|child| held.share.join(own, child)) {
                self.add(place, spot.is_extra, false);
                return true;
            }
            break;
        }
        if holdings.all(page).any(|(place, held)| self.begin(place, held, addr)) {
            return true;
        }
        if self.has_made {
            return false;
        }
        self.has_made = true;
        (0..HOLDINGS_MAX).for_each(|place| self.flush(place));
        let made = self.tree.make_share(&self.extent);
        made.and_then(|place| Some((place, holdings.get(page, place)?)))
            .is_some_and(|(place, held)| self.begin(place, held, addr))
    }

    /// The number of the child's bit in a share. The child gets it with its first page there.
    fn child_number(&mut self, place: usize, held: Held<'_>) -> Option<u32> {
        if held.child == 0 {
            let number = held.share.enter(self.child).filter(|number| {
                let is_mapped = self.tree.map_plane(place, held, *number);
                if !is_mapped {
                    held.share.drop_holder(*number, self.child);
                }
                is_mapped
            });
            let child = number.map_or(NO_ROOM, |number| number + 1);
            self.tree.holdings.0[place].child.store(child, Relaxed);
            self.used[place] = number.map(|number| (held.index, held.own, number));
            return number;
        }
        held.child()
    }

    /// Makes the page at `addr` one that parent and child hold, and nobody else. False when this share has no place
    /// for it.
    fn begin(&mut self, place: usize, held: Held<'_>, addr: usize) -> bool {
        if held.share.is_void() {
            return false;
        }
        // If other holders use the mask, there is no place here, and the child needs no number for it.
        if held.masks.get(addr).is_some_and(|spot| is_taken(spot.mask.load(Relaxed))) {
            return false;
        }
        let Some(child) = self.child_number(place, held) else { return false };
        // `child_number` may have mapped the child's plane.
        let Some(Held { masks, .. }) = self.tree.holdings.get(self.tree.page(), place) else { return false };
        let Some(spot) = masks.make(addr) else { return false };
        let (Some(own), Some(child)) = (masks.bit(spot, held.own), masks.bit(spot, child)) else { return false };
        let begun = held.share.begin(own, child);
        if begun {
            self.add(place, spot.is_extra, true);
        }
        begun
    }

    fn add(&mut self, place: usize, is_pool: bool, is_begun: bool) {
        let chunk = &mut self.chunks[place];
        chunk.pages += 1;
        chunk.of_pool += i64::from(is_pool);
        chunk.begun += i64::from(is_begun);
        chunk.begun_of_pool += i64::from(is_begun && is_pool);
        self.total += 1;
        if chunk.pages == CHUNK {
            self.flush(place);
        }
    }

    /// Counts the chunk of a holding. The child's pages are granted first, so that the surplus never leaves out pages
    /// that the sum does not have.
    fn flush(&mut self, place: usize) {
        let chunk = core::mem::take(&mut self.chunks[place]);
        if chunk.pages == 0 {
            return;
        }
        // A child that was taken for dead meanwhile has no bits.
        if let Some(held) = self.tree.holdings.get(self.tree.page(), place)
            && held.child().is_some_and(|number| held.share.is_held_by(number, self.child))
            && let Some(member) = self.tree.page().find(self.child)
        {
            member.granted.fetch_add(chunk.pages, Ordering::SeqCst);
            // The fork is slow, not stuck: the child keeps its place.
            member.since_ms.store(now_ms(), Relaxed);
            held.share.count(chunk.pages, chunk.of_pool);
            self.tree.holdings.count_chunk(place, chunk);
        }
    }

    /// Takes the child's bit for the page at `addr` back: the child will have a page there, but in common with
    /// nobody.
    pub fn unshare(&mut self, addr: usize) {
        for (_, held) in self.tree.holdings.all(self.tree.page()) {
            if let Some(child) = held.child()
                && let Some(spot) = held.masks.get(addr)
                && let Some(child) = held.masks.bit(spot, child)
            {
                held.share.leave(child, spot.is_extra);
            }
        }
    }

    /// Ends the record of a fork, after all that is shared. The child's grant becomes `granted` pages. Returns how many
    /// pages are shared.
    pub fn finish(mut self, granted: i64) -> usize {
        (0..HOLDINGS_MAX).for_each(|place| self.flush(place));
        let page = self.tree.page();
        if let Some(member) = page.find(self.child) {
            member.granted.store(granted, Ordering::SeqCst);
            member.since_ms.store(now_ms(), Relaxed);
        }
        // Another process may have taken parent or child for dead, or the parent for another program. Bits that were
        // set since then are nobody's.
        let is_same = self.tree.id() == self.own
            && page.find(self.own).is_some_and(|member| {
                member.kind() == Kind::Managed && member.left_ms.load(Ordering::SeqCst) == self.left_ms
            });
        for (share, own, child) in self.used.iter().flatten().copied() {
            let share = page.share(share);
            let is_sound = share.is_held_by(own, self.own) && share.is_held_by(child, self.child);
            if !is_same || !is_sound {
                share.make_void();
            }
        }
        self.total as usize
    }
}

impl Tree {
    /// Before fork: begins to record what the child will share. The child is a member already, and holds nothing.
    pub fn begin_fork(&self, _exclusive: &Exclusive<'_>, child: MemberId, extent: Extent) -> Fork<'_> {
        let own = self.id();
        let left_ms = self.member().left_ms.load(Ordering::SeqCst);
        let mut has_spare = false;
        for (place, held) in self.holdings.all(self.page) {
            // This process was taken for dead since it got its bit.
            if !held.share.is_held_by(held.own, own) {
                self.holdings.forget(place);
                continue;
            }
            if held.share.others(held.own) == 0 {
                // Nobody else uses this share. One such share is kept, if it covers all that the process now has:
                // otherwise the fork would need another share beside it. A share that had far holders is not kept,
                // because one that was killed in the middle of a change may have left something in the masks.
                let is_clean = !held.share.is_void() && held.share.planes() == 0;
                if has_spare || !is_clean || !held.masks.covers(&extent) {
                    self.drop_holding(place, held);
                    continue;
                }
                has_spare = true;
                // Clears what processes that were killed in the middle of a change have left in the counts.
                held.share.reset();
            }
            self.holdings.begin_child(place);
        }
        self.say_bits(child);
        let used = [None; HOLDINGS_MAX];
        Fork {
            tree: self,
            own,
            child,
            used,
            extent,
            left_ms,
            has_made: false,
            chunks: [Chunk::default(); HOLDINGS_MAX],
            total: 0,
        }
    }

    /// Notes that the member may have bits from now on, which somebody will have to take back.
    fn say_bits(&self, id: MemberId) {
        if let Some(member) = self.page.find(id) {
            member.has_bits.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Maps the plane of the holder with that number; false where it cannot be mapped. With the gate closed only.
    fn map_plane(&self, place: usize, held: Held<'_>, number: u32) -> bool {
        let planes = held.masks.with_plane_of(self.fd(), held.index, number, held.own);
        self.holdings.0[place].set_planes(planes);
        plane_of(number).is_none_or(|plane| planes.has(plane))
    }

    /// Makes a new share. Returns the place of its holding.
    fn make_share(&self, extent: &Extent) -> Option<usize> {
        let place = self.free_holding()?;
        self.say_bits(self.id());
        let (index, masks) = self.unless_leaving(|| self.claim_share(extent))?;
        self.holdings.set(place, index, self.page.share(index).number_of(self.id())?, masks);
        Some(place)
    }

    /// A place for one more holding: an unused place, or that of a share that nobody else uses, which is given up.
    fn free_holding(&self) -> Option<usize> {
        if let Some(place) = (0..HOLDINGS_MAX).find(|place| self.holdings.get(self.page, *place).is_none()) {
            return Some(place);
        }
        let (place, held) = self.holdings.all(self.page).find(|(_, held)| held.share.others(held.own) == 0)?;
        self.drop_holding(place, held);
        Some(place)
    }

    /// Gives up a share in which nobody else has a bit. Only a holder lets others in, so nobody can get a bit there
    /// meanwhile.
    fn drop_holding(&self, place: usize, held: Held<'_>) {
        self.holdings.forget(place);
        held.masks.retire();
        held.share.drop_holder(held.own, self.id());
        self.unless_leaving(|| {
            forget_share(self.page, self.fd(), held.index);
            Some(())
        });
    }

    /// Takes a share that nobody uses, and makes masks for `extent` in it.
    fn claim_share(&self, extent: &Extent) -> Option<(u32, Masks)> {
        let fd = self.fd();
        for index in 0..SHARES_MAX as u32 {
            let share = self.page.share(index);
            if !share.is_empty() || !record_lock::try_lock(fd, share_byte(index)) {
                continue;
            }
            share.note_locked();
            let made = share.is_empty().then(|| Masks::create(fd, index, extent));
            if let Some(Ok(_)) = made {
                share.reset_empty();
                let _ = share.enter(self.id());
                self.page.raise_shares_high_water(index);
            }
            record_lock::unlock(fd, share_byte(index));
            match made {
                Some(Ok(masks)) => return Some((index, masks)),
                // The masks of the next share would be refused, too.
                Some(Err(_)) => return None,
                None => {}
            }
        }
        None
    }

    /// Forgets all holdings: this process had its bits under the name of another member, or the bits are gone.
    pub(super) fn forget_holdings(&self) {
        (0..HOLDINGS_MAX).for_each(|place| self.holdings.forget(place));
    }

    /// In fork's child: takes over the bits that its parent has set for it. If the child is not the member that its
    /// parent reserved (`is_this` false), it shares nothing.
    pub(super) fn inherit_holdings(&self, is_this: bool) {
        for (place, held) in self.holdings.all(self.page) {
            match held.child() {
                Some(own) if is_this => self.holdings.become_child(place, own),
                _ => self.holdings.forget(place),
            }
        }
    }

    /// The most pages that this process may still share, as far as is known; none when no other process is left to
    /// share with.
    pub fn shared_pages(&self) -> Option<usize> {
        let shared = self.holdings.all(self.page).filter(|(_, held)| held.share.others(held.own) > 0);
        let pages = shared.map(|(place, held)| self.holdings.pages(place).0.min(held.share.surplus()) as usize);
        pages.reduce(|sum, pages| sum + pages)
    }

    /// The processes that this process shares most with, and how many of them are busy.
    pub fn others(&self, now_ms: u64) -> Others {
        let all = || self.holdings.all(self.page).map(|(place, held)| (self.holdings.pages(place).0, held));
        let most = all().map(|(pages, _)| pages).max().unwrap_or(0);
        let (mut seen, mut others) = ([None; OTHERS_MAX], Others::default());
        for (_, held) in all().filter(|(pages, _)| *pages >= most / OTHERS_PART) {
            for (_, id) in held.share.holders().filter(|(number, _)| *number != held.own) {
                let Some(member) = self.page.find(id).filter(|member| member.kind() == Kind::Managed) else { continue };
                if others.number == OTHERS_MAX || seen.contains(&Some(id)) {
                    continue;
                }
                seen[others.number] = Some(id);
                others.number += 1;
                others.busy += !member.is_idle(now_ms) as usize;
            }
        }
        others
    }

    /// True while this process and another one both hold the page at `addr` by their bits. Inside the gate this may
    /// become false, but not true.
    pub fn is_shared(&self, addr: usize) -> bool {
        self.holdings
            .all(self.page)
            .any(|(_, held)| held.own_bit(addr).is_some_and(|(own, _)| own.is_shared()) && !held.share.is_void())
    }

    /// Pages of the program that all other holders have given up, and that are left to this process alone, as far as
    /// is known. Where more than two processes have pages in common, the number is too low.
    pub fn deserted_pages(&self) -> usize {
        let deserted = |(place, held): (usize, Held<'_>)| {
            let (pages, pool_pages) = self.holdings.pages(place);
            let in_common = held.share.surplus() - held.share.pool_surplus();
            (pages - pool_pages - in_common).max(0) as usize
        };
        self.holdings.all(self.page).map(deserted).sum()
    }

    /// Pages of the pool that this process still shares, as far as is known; and how many pages of pools the whole
    /// tree counts too often.
    pub fn shared_pool_pages(&self) -> (usize, usize) {
        let own = self
            .holdings
            .all(self.page)
            .map(|(place, held)| self.holdings.pages(place).1.min(held.share.pool_surplus()) as usize);
        let all = self.page.shares().map(|(_, share)| share.pool_surplus() as usize);
        (own.sum(), all.sum())
    }

    /// Takes this process's bit for the page at `addr` away in the share at a place. Returns whether others hold the
    /// page; none when this process did not hold it there.
    fn leave(&self, place: usize, held: Held<'_>, addr: usize) -> Option<bool> {
        let (own, spot) = held.own_bit(addr)?;
        let others = held.share.leave(own, spot.is_extra)?;
        self.holdings.uncount(place, spot.is_extra);
        Some(others)
    }

    /// Makes all pages of the range this process's own.
    pub fn break_range(&self, start: usize, end: usize) {
        const UNIT_BYTES: usize = 2 << 20;
        let mut at = start;
        while at < end {
            let next = (at / UNIT_BYTES + 1) * UNIT_BYTES;
            if self.holdings.all(self.page).any(|(_, held)| held.masks.get(at).is_some()) {
                (at..next.min(end)).step_by(4096).for_each(|addr| {
                    self.break_page(addr);
                });
            }
            at = next;
        }
    }

    /// Makes the page at `addr` this process's own, because it writes to the page or gives it up. Returns how many
    /// pages more the tree counts if this process has a copy: 0 or 1.
    pub fn break_page(&self, addr: usize) -> usize {
        // The bits of a process that was taken for dead may be another's by now.
        if self.is_lost() {
            return 0;
        }
        for (place, held) in self.holdings.all(self.page) {
            if let Some(others) = self.leave(place, held, addr) {
                return usize::from(others && !held.share.is_void());
            }
        }
        0
    }
}
