//! The state word of one page, and the only ways it may change.
//!
//! A word says where the page's content is. Whoever turns it to `BUSY` by compare-and-swap owns the page until it
//! stores the next state with [`PageWord::finish`]; everybody else waits on the word. There is no other lock on a page.
//!
//! Orderings: a claim acquires what the last `finish` released, so the owner sees the content and the bookkeeping of
//! the state it claimed. A claim is also sequentially consistent, because eviction claims a page and then looks at
//! pins, while a system call publishes its pin and then looks at the page: one of the two must see the other.
//!
//! ```text
//!  NONE ----first touch---> PRESENT --sweep--> STAGED --swap-out--> SWAPPED
//!    ^                       ^   ^                |                    |
//!    +-------- discard ------+   +--- soft fault--+----- swap-in ------+      each arrow passes through BUSY
//! ```
//!
//! A present page can be *clean*: it was swapped in for reading, is mapped write-protected, and its swap slot still
//! holds the same content. The first write makes it an ordinary present page and frees the slot. So does a system call
//! that may write behind the page table's back. Eviction only unmaps a clean page. The idea is the kernel's swap cache,
//! where a page keeps its slot until it is dirtied.
//!
//! A present page can be *shared*: it was there at a fork, is mapped write-protected on both sides, and its memory is
//! counted once for both (`sharing`). The first write on either side breaks the sharing. A page can be clean and shared.
//!
//! A present page can be *referenced*: it was used since a sweep last looked at it. Ebb knows this only of buffers of system
//! calls. A sweep takes the mark, and takes the page only the next time (the second chance of CLOCK). The mark is a hint.
//!
//! A claim on a present page can be *loose*. A sweep that compresses or copies pages takes long, and a thread that writes to one
//! of them need not wait for it: it takes the page back. Before the sweep reads or drops a page it makes its claim firm again, and
//! finds out. Each sweep has a ticket of its own, so that it cannot take another's claim for its own.
//!
//! Invariant: while a page is clean or shared, nothing can change its content without a fault.

use crate::protocols::gate::Exclusive;
use crate::protocols::primitive::{AtomicU64, Ordering, spin, wait_on, waiting, wake_all};

const TAG: u64 = 7;
const WAITERS: u64 = 1 << 3;
const PINNED: u64 = 1 << 4;
const CLEAN: u64 = 1 << 5;
const SHARED: u64 = 1 << 6;
const REFERENCED: u64 = 1 << 7;
/// Pinned until munlock.
const LOCKED: u64 = 1 << 48;
/// Of a busy page: the claim is loose, and the payload is its ticket.
const LOOSE: u64 = 1 << 49;
const PAYLOAD_SHIFT: u32 = 8;
const PAYLOAD_MASK: u64 = (1 << 40) - 1;

/// Turns of spinning before a waiter sleeps: about four microseconds, the time of one swap-in.
const SPINS: u32 = if cfg!(loom) { 1 } else { 120 };

/// Where a page's content is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tag {
    /// Nowhere: reads as zero. Every page that is not managed has this tag, too.
    None,
    /// In the page table.
    Present,
    /// In the frame that the payload numbers.
    Staged,
    /// In the swap entry that the payload names.
    Swapped,
    /// On the move; one thread owns the page.
    Busy,
}

/// A value of a state word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State(u64);

impl State {
    /// No content.
    pub const NONE: Self = Self(0);
    /// Mapped.
    pub const PRESENT: Self = Self(1);
    const BUSY: u64 = 4;

    /// The word of a page with a loose claim.
    fn loose(ticket: u64) -> u64 {
        Self::BUSY | LOOSE | (ticket & PAYLOAD_MASK) << PAYLOAD_SHIFT
    }

    /// Held by frame `frame`.
    pub fn staged(frame: u32) -> Self {
        Self(2 | (frame as u64) << PAYLOAD_SHIFT)
    }

    /// Held by swap entry `entry` (40 bits).
    pub fn swapped(entry: u64) -> Self {
        debug_assert!(entry <= PAYLOAD_MASK);
        Self(3 | (entry & PAYLOAD_MASK) << PAYLOAD_SHIFT)
    }

    /// Mapped write-protected, and also held by swap entry `entry` (40 bits).
    pub fn clean(entry: u64) -> Self {
        debug_assert!(entry <= PAYLOAD_MASK);
        Self(Self::PRESENT.0 | CLEAN | (entry & PAYLOAD_MASK) << PAYLOAD_SHIFT)
    }

    /// True for a page that is mapped write-protected and has a swap entry; see the head of this file.
    pub fn is_clean(self) -> bool {
        self.0 & CLEAN != 0
    }

    /// True for a page that is mapped write-protected because its memory is shared since a fork.
    pub fn is_shared(self) -> bool {
        self.0 & SHARED != 0
    }

    /// This state of a present page, shared or not.
    pub fn with_shared(self, shared: bool) -> Self {
        debug_assert!(self.tag() == Tag::Present);
        Self(if shared { self.0 | SHARED } else { self.0 & !SHARED })
    }

    /// This state of a clean page, without its swap entry.
    pub fn without_slot(self) -> Self {
        debug_assert!(self.is_clean());
        Self(self.0 & !(CLEAN | PAYLOAD_MASK << PAYLOAD_SHIFT))
    }

    /// True for a page that is mapped write-protected.
    pub fn is_protected(self) -> bool {
        self.0 & (CLEAN | SHARED) != 0
    }

    /// True for a page that is mapped and may be written.
    pub fn is_open(self) -> bool {
        self.tag() == Tag::Present && !self.is_protected()
    }

    /// True for a page that was used since a sweep last looked.
    pub fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    /// This state of a present page, referenced or not.
    pub fn with_referenced(self, referenced: bool) -> Self {
        debug_assert!(self.tag() == Tag::Present);
        Self(if referenced { self.0 | REFERENCED } else { self.0 & !REFERENCED })
    }

    /// The word's bits, to keep a state aside.
    pub fn to_raw(self) -> u64 {
        self.0
    }

    /// The state that [`Self::to_raw`] kept aside.
    pub fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// This state, to stay mapped for good.
    pub fn with_pinned(self) -> Self {
        Self(self.0 | PINNED)
    }

    /// This state, to stay mapped until it is unlocked, or no longer for that reason.
    pub fn with_locked(self, locked: bool) -> Self {
        Self(if locked { self.0 | LOCKED } else { self.0 & !LOCKED })
    }

    /// This state, to stay mapped for the reasons that `other` has, and no others.
    pub fn pinned_as(self, other: Self) -> Self {
        Self(self.0 & !(PINNED | LOCKED) | other.0 & (PINNED | LOCKED))
    }

    /// Where the content is.
    pub fn tag(self) -> Tag {
        match self.0 & TAG {
            0 => Tag::None,
            1 => Tag::Present,
            2 => Tag::Staged,
            3 => Tag::Swapped,
            _ => Tag::Busy,
        }
    }

    /// Frame number or swap entry.
    pub fn payload(self) -> u64 {
        self.0 >> PAYLOAD_SHIFT & PAYLOAD_MASK
    }

    /// True for a page that stays mapped until it is unlocked.
    pub fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    /// True for a page that must not be evicted.
    pub fn is_pinned(self) -> bool {
        self.0 & (PINNED | LOCKED) != 0
    }
}

/// The state word of one page.
#[derive(Clone, Copy)]
pub struct PageWord<'a>(pub &'a AtomicU64);

impl PageWord<'_> {
    /// The state at this moment.
    #[inline]
    pub fn load(self) -> State {
        // Sequentially consistent for the pin protocol: see the head of this file.
        State(self.0.load(Ordering::SeqCst) & !WAITERS)
    }

    /// Takes the page from `seen` to busy. False when the word is no longer `seen`, or is busy.
    #[inline]
    #[must_use]
    pub fn try_claim(self, seen: State) -> bool {
        if seen.tag() == Tag::Busy {
            return false;
        }
        let busy = State::BUSY | seen.0 & (PINNED | LOCKED);
        self.0.compare_exchange(seen.0, busy, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Takes the page to busy if it is in a state that `is_meant`. Returns that state, or none when the page is in
    /// another. For callers under the exclusive gate, where only the mark of a reference can change meanwhile, or where nobody can look
    /// the page up.
    pub fn claim_while(self, is_meant: impl Fn(State) -> bool) -> Option<State> {
        loop {
            let state = self.load();
            if !is_meant(state) {
                return None;
            }
            if self.try_claim(state) {
                return Some(state);
            }
        }
    }

    /// Marks the present page, last seen as `seen`, as used since a sweep last looked, or not. Does nothing when the
    /// page has changed meanwhile.
    #[inline]
    pub fn set_referenced(self, seen: State, referenced: bool) {
        let new = seen.with_referenced(referenced);
        if new != seen {
            // Sequentially consistent as a claim is: others rely on the order of what they see of this word.
            let _ = self.0.compare_exchange(seen.0, new.0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Ends a claim: publishes the new state and wakes those who wait.
    #[inline]
    pub fn finish(self, new: State) {
        debug_assert!(new.tag() != Tag::Busy);
        let old = self.0.swap(new.0, Ordering::SeqCst);
        debug_assert!(State(old).tag() == Tag::Busy);
        if old & WAITERS != 0 {
            wake_all(self.0);
        }
    }

    /// Claims a page that nobody can look up any more, whatever it holds: waits for a thread that is still busy with it. None if it has
    /// no content.
    pub fn claim_content(self) -> Option<State> {
        self.claim_settled_while(|state| state.tag() != Tag::None)
    }

    /// The same if the page's state `is_meant`.
    pub fn claim_settled_while(self, is_meant: impl Fn(State) -> bool) -> Option<State> {
        loop {
            let state = self.settled();
            if !is_meant(state) {
                return None;
            }
            if self.try_claim(state) {
                return Some(state);
            }
        }
    }

    /// The page's state once nobody is busy with it.
    pub fn settled(self) -> State {
        loop {
            let state = self.load();
            if state.tag() != Tag::Busy {
                return state;
            }
            waiting("page", || self.wait_while_busy());
        }
    }

    /// Ends the caller's claim by moving what the page had, in `state`, to `target`, a page without content that nobody else claims.
    /// `follow` tells of the new place whatever leads to pages by what holds them. Who comes that way finds one of the two pages
    /// busy, until the content can be found where it is now.
    pub fn move_to(self, target: PageWord<'_>, state: State, follow: impl FnOnce()) {
        assert!(target.try_claim(State::NONE), "a page moves to a place that has content");
        follow();
        target.finish(state);
        self.finish(State::NONE);
    }

    /// Changes the state without a claim: with the gate closed nobody can be busy with the page or wait for it.
    pub fn set_exclusive(self, _exclusive: &Exclusive<'_>, new: State) {
        debug_assert!(State(self.0.load(Ordering::Relaxed)).tag() != Tag::Busy);
        self.0.store(new.0, Ordering::Release);
    }

    /// Makes the caller's claim on an open page loose: see the head of this file. `ticket` is no other loose claim's.
    pub fn loosen(self, ticket: u64) {
        let old = self.0.fetch_or(State::loose(ticket), Ordering::SeqCst);
        debug_assert!(old & !WAITERS == State::BUSY);
        if old & WAITERS != 0 {
            // They can take it back now.
            wake_all(self.0);
        }
    }

    /// Makes the caller's loose claim a claim again. False if the page was taken back, and is no longer the caller's.
    #[must_use]
    pub fn firm_up(self, ticket: u64) -> bool {
        self.end_loose(|raw| raw & !WAITERS == State::loose(ticket))
    }

    /// Takes a page back from a loose claim: it is the caller's, who must make it open again. False if it is not claimed loosely.
    #[must_use]
    pub fn try_take_back(self) -> bool {
        self.end_loose(|raw| State(raw).tag() == Tag::Busy && raw & LOOSE != 0)
    }

    /// Turns a loose claim that `is_meant` into the caller's.
    fn end_loose(self, is_meant: impl Fn(u64) -> bool) -> bool {
        let mut raw = self.0.load(Ordering::SeqCst);
        while is_meant(raw) {
            let busy = State::BUSY | raw & WAITERS;
            match self.0.compare_exchange(raw, busy, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                // Somebody waits now, or the claim has ended.
                Err(now) => raw = now,
            }
        }
        false
    }

    /// Waits until the page is no longer busy, or until it can be taken back; may return early.
    pub fn wait_while_busy(self) {
        let must_wait = |raw: u64| State(raw).tag() == Tag::Busy && raw & LOOSE == 0;
        for _ in 0..SPINS {
            if !must_wait(self.0.load(Ordering::SeqCst)) {
                return;
            }
            spin();
        }
        let raw = self.0.load(Ordering::Relaxed);
        if !must_wait(raw) {
            return;
        }
        let marked = raw | WAITERS;
        if raw == marked || self.0.compare_exchange(raw, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            wait_on(self.0, marked);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_reference_changes_nothing_else() {
        let word = AtomicU64::new(State::clean(9).with_shared(true).to_raw());
        let (word, before) = (PageWord(&word), State::clean(9).with_shared(true));
        word.set_referenced(before, true);
        let marked = word.load();
        assert!(marked.is_referenced() && marked.is_clean() && marked.is_shared() && marked.payload() == 9);
        word.set_referenced(before, true);
        assert_eq!(word.load(), marked);
        word.set_referenced(marked, false);
        assert_eq!(word.load(), before);
        assert!(word.try_claim(before));
        word.set_referenced(before, true);
        assert_eq!(word.load().tag(), Tag::Busy);
    }

    #[test]
    fn a_claimed_page_cannot_be_claimed_again() {
        let word = AtomicU64::new(0);
        let page = PageWord(&word);
        assert!(page.try_claim(State::NONE));
        assert!(!page.try_claim(page.load()));
        page.finish(State::PRESENT);
        assert_eq!(page.load(), State::PRESENT);
    }

    #[test]
    fn payloads_survive_the_word() {
        assert_eq!(State::staged(0xdead_beef).payload(), 0xdead_beef);
        assert_eq!(State::swapped(0xff_ffff_ffff).payload(), 0xff_ffff_ffff);
        assert_eq!(State::swapped(7).tag(), Tag::Swapped);
    }

    #[test]
    fn a_clean_page_is_present_and_knows_its_entry() {
        let state = State::clean(0xff_0000_0001);
        assert_eq!((state.tag(), state.payload()), (Tag::Present, 0xff_0000_0001));
        assert!(state.is_clean() && !state.is_open() && !state.is_pinned());
        assert!(State::PRESENT.is_open() && !State::swapped(1).is_clean());
    }

    #[test]
    fn a_shared_page_is_protected_with_and_without_a_slot() {
        let state = State::clean(9).with_shared(true);
        assert!(state.is_shared() && state.is_clean() && !state.is_open());
        let state = state.without_slot();
        assert!(state.is_shared() && !state.is_clean() && state.is_protected() && state.payload() == 0);
        assert_eq!(state.with_shared(false), State::PRESENT);
    }

    #[test]
    fn a_pinned_page_stays_pinned_while_it_is_busy() {
        let word = AtomicU64::new(0);
        let page = PageWord(&word);
        for pinned in [State::PRESENT.with_pinned(), State::PRESENT.with_locked(true)] {
            page.set_exclusive(&crate::protocols::gate::tests::alone(), pinned);
            assert!(page.try_claim(pinned));
            assert!(page.load().is_pinned());
            page.finish(pinned);
        }
    }

    #[test]
    fn a_loose_claim_is_one_sweeps_until_somebody_takes_the_page_back() {
        let word = AtomicU64::new(State::PRESENT.to_raw());
        let page = PageWord(&word);
        assert!(!page.try_take_back(), "it is not claimed");
        assert!(page.try_claim(page.load()));
        assert!(!page.try_take_back(), "the claim is not loose");
        page.loosen(7);
        assert!(page.load().tag() == Tag::Busy && !page.try_claim(page.load()));
        assert!(!page.firm_up(8), "it is another's");
        assert!(page.firm_up(7) && !page.try_take_back());
        page.loosen(9);
        assert!(page.try_take_back() && !page.try_take_back() && !page.firm_up(9));
        page.finish(State::PRESENT);
        assert!(page.load() == State::PRESENT && !page.firm_up(9));
    }

    #[test]
    fn what_is_unlocked_stays_pinned_for_other_reasons() {
        let both = State::clean(u64::MAX >> 24).with_pinned().with_locked(true);
        assert_eq!(both.payload(), u64::MAX >> 24);
        let unlocked = both.with_locked(false);
        assert!(unlocked.is_pinned() && unlocked.with_locked(true) == both);
        assert_eq!(State::PRESENT.with_locked(true).with_locked(false), State::PRESENT);
        assert!(
            [both, unlocked, State::PRESENT].iter().all(|s| State::PRESENT.pinned_as(*s).is_pinned() == s.is_pinned())
        );
        assert_eq!(both.pinned_as(unlocked), unlocked);
    }
}
