//! A file that a family of processes shares: its owner, and those that were forked from it and still need its slots.
//!
//! A table that all of them map has one word a slot with a bit for each member; only the owner allocates, and only where
//! no bit is left. A member that was killed keeps its bits until the owner finds it gone.

use super::SpillFile;
use crate::uapi;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ebb_slots::{Slot, TableEntry};

/// Members of a family that can share one file; a further one makes the slots in use unreclaimable.
pub(super) const MEMBERS: u32 = 62;
/// The bit that nobody ever clears.
const FOR_EVER: u64 = 1 << 63;
/// The owner is done with the slot and others are not: the last of them leaves it for the owner to collect.
const ZOMBIE: u64 = 1 << 62;
/// Zombies after which collecting is worth a look at every slot.
const ZOMBIES_MIN: u32 = 4096;

/// Shared by all members of a family of processes.
#[repr(C)]
pub(super) struct Family {
    /// Process of each member; 0 for none.
    pub(super) pids: [AtomicU32; MEMBERS as usize],
    /// Slots at or above this were never used.
    pub(super) high_water: AtomicU32,
}

impl SpillFile {
    pub(super) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    pub(super) fn member(&self, slot: u32) -> &AtomicU64 {
        assert!(slot < self.nr_slots);
        // SAFETY: checked index into an array of atomics.
        unsafe { &*self.members.add(slot as usize) }
    }

    pub(super) fn family(&self) -> &Family {
        // SAFETY: mapped for as long as the file, atomics only.
        unsafe { &*self.family }
    }

    /// Slots whose content this process may still want. Takes no lock: a process that forks meanwhile would leave its
    /// child one that nobody opens.
    pub fn nr_used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// The same, counted: none where the books do not say, in one member too many of a family, which has no bit. With the
    /// gate closed.
    fn count_used(&self) -> Option<u32> {
        let own = self.own_bit.load(Ordering::Relaxed);
        if !self.is_shared() {
            return Some(self.slots.nr_used());
        }
        let slots = 0..self.family().high_water.load(Ordering::Relaxed);
        let held = slots.filter(|slot| self.member(*slot).load(Ordering::Relaxed) & own != 0).count() as u32;
        (own != 0).then_some(held)
    }

    /// True when nothing of this process is in the file. With the gate closed.
    pub fn is_unused(&self) -> bool {
        self.nr_used() == 0 && self.count_used().unwrap_or(0) == 0
    }

    /// Slots that are counted as used, and those that are, where these differ. With the gate closed.
    pub fn miscounted(&self) -> Option<(u32, u32)> {
        let (kept, counted) = (self.nr_used(), self.count_used()?);
        (kept != counted).then_some((kept, counted))
    }

    /// Whether the owner's own bit is not the only one of a slot.
    pub(super) fn is_held_by_others(&self, slot: u32) -> bool {
        let own = self.own_bit.load(Ordering::Relaxed);
        self.is_shared() && self.member(slot).load(Ordering::Relaxed) & !own != 0
    }

    /// This process needs the slot no more.
    pub fn free(&self, slot: u32) {
        if self.rest_until_ns.load(Ordering::Relaxed) != 0 {
            self.rest_until_ns.store(0, Ordering::Relaxed);
        }
        self.used.fetch_sub(1, Ordering::Relaxed);
        let own = self.own_bit.load(Ordering::Relaxed);
        if !self.owner {
            self.member(slot).fetch_and(!own, Ordering::AcqRel);
            return;
        }
        if !self.is_shared() {
            self.put(Slot(slot));
            return;
        }
        // One atomic step decides who gives the slot back: this call when nobody else holds it, `collect` otherwise.
        let others = |word: u64| word & !own & !ZOMBIE;
        let before = self.member(slot).fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            Some(if others(word) == 0 { 0 } else { others(word) | ZOMBIE })
        });
        match before {
            Ok(word) if others(word) == 0 => {
                self.put(Slot(slot));
            }
            _ => {
                self.zombies.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes back slots that this process freed and that nobody else holds any more; how many.
    pub(super) fn collect(&self) -> u32 {
        let zombies = self.zombies.load(Ordering::Relaxed);
        if zombies == 0 {
            return 0;
        }
        self.bury_dead_members();
        let mut freed = 0;
        for slot in 0..self.family().high_water.load(Ordering::Relaxed) {
            // Whoever takes the mark off gives the slot back.
            if self.member(slot).compare_exchange(ZOMBIE, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.put(Slot(slot));
                freed += 1;
            }
        }
        let left = self.zombies.fetch_sub(freed, Ordering::Relaxed).saturating_sub(freed);
        self.zombies_left.store(left, Ordering::Relaxed);
        freed
    }

    /// Clears the bits of members whose process is gone.
    fn bury_dead_members(&self) {
        let mut dead = 0u64;
        for (i, pid) in self.family().pids.iter().enumerate() {
            let p = pid.load(Ordering::Relaxed);
            if p != 0 && p != u32::MAX && !uapi::process_exists(p as i32) {
                dead |= 1 << i;
            }
        }
        if dead == 0 {
            return;
        }
        for slot in 0..self.family().high_water.load(Ordering::Relaxed) {
            self.member(slot).fetch_and(!dead, Ordering::AcqRel);
        }
        for (i, pid) in self.family().pids.iter().enumerate() {
            if dead & 1 << i != 0 {
                pid.store(0, Ordering::Release);
            }
        }
    }

    /// Before fork: enters a new member that holds all slots this process holds. Its number, for [`Self::inherit`]: that of
    /// nobody where there is no room, and where this process has no bit itself, by which its slots could be told.
    pub fn adopt(&self) -> u32 {
        let take = |f: &Family| {
            f.pids.iter().position(|p| p.compare_exchange(0, u32::MAX, Ordering::AcqRel, Ordering::Relaxed).is_ok())
        };
        let own = self.own_bit.load(Ordering::Relaxed);
        if own == 0 {
            return FOR_EVER.trailing_zeros();
        }
        let found = take(self.family()).or_else(|| {
            self.bury_dead_members();
            take(self.family())
        });
        let bit = found.map_or(FOR_EVER, |i| 1 << i);
        if !self.is_shared() {
            // Until the first fork nobody needed the table: it starts with the slots in use.
            for slot in 0..self.family().high_water.load(Ordering::Relaxed) {
                if matches!(self.slots.get(Slot(slot)), TableEntry::Stored(_) | TableEntry::Cached { .. }) {
                    self.member(slot).store(own, Ordering::Relaxed);
                }
            }
            self.shared.store(true, Ordering::Relaxed);
        }
        for slot in 0..self.family().high_water.load(Ordering::Relaxed) {
            let word = self.member(slot);
            if word.load(Ordering::Relaxed) & own != 0 {
                word.fetch_or(bit, Ordering::AcqRel);
            }
        }
        bit.trailing_zeros()
    }

    /// After a fork that failed: takes [`Self::adopt`] back.
    pub fn disown(&self, member: u32) {
        if member >= MEMBERS {
            return;
        }
        for slot in 0..self.family().high_water.load(Ordering::Relaxed) {
            self.member(slot).fetch_and(!(1 << member), Ordering::AcqRel);
        }
        self.family().pids[member as usize].store(0, Ordering::Release);
    }

    /// After fork, in the child: this process is that member, and only reads.
    pub fn inherit(&mut self, member: u32) {
        self.owner = false;
        if member < MEMBERS {
            self.family().pids[member as usize].store(uapi::getpid() as u32, Ordering::Release);
            self.own_bit.store(1 << member, Ordering::Relaxed);
        } else {
            self.own_bit.store(0, Ordering::Relaxed);
        }
    }

    /// [`Self::collect`], if there may be much to take back: again only when zombies have doubled since the last look, which
    /// visits every slot.
    pub(super) fn collect_if_many(&self) {
        let zombies = self.zombies.load(Ordering::Relaxed);
        if zombies > ZOMBIES_MIN && zombies > 2 * self.zombies_left.load(Ordering::Relaxed) {
            self.collect();
        }
    }
}
