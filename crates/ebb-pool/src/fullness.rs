//! The blocks of one size class, on lists by how full they are.
//!
//! Only blocks that are neither empty nor full are on a list. A full block has nothing to give to a store, and
//! compaction gains nothing from it. An empty block leaves the class at once. Storing takes from the fullest list, so
//! that the emptiest blocks can drain. Compaction takes from the emptiest list.
//!
//! Everything here is protected by the class lock.

use crate::SizeClassLock;
use crate::class::ClassId;
use crate::object::Link;
use crate::primitive::{AtomicU32, Lock, Ordering, UnsafeCell};

/// Lists in a class, by eighths of fullness.
pub(crate) const GROUPS: usize = 8;

/// One size class, alone on its cache lines.
#[repr(C, align(128))]
pub(crate) struct Class {
    pub lock: Lock<(), SizeClassLock>,
    pub state: UnsafeCell<ClassState>,
}

/// What the class lock protects besides the class's blocks.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ClassState {
    /// Head of each circular list: block number plus one, zero for an empty list. The head's `prev` is the tail.
    heads: [u32; GROUPS],
    /// Blocks of this class.
    pub blocks: u32,
    /// Objects not on a free list: live ones, and those in transit.
    pub used: u64,
    /// Objects stored; one that is being moved counts once.
    pub stored: u64,
    /// Bytes of those objects' data.
    pub bytes: u64,
}

/// Record of one block.
#[repr(C)]
pub(crate) struct Block {
    /// Class index plus one while the block is in a class. Written under the class lock. A thread that frees an object
    /// reads it without the lock: the object keeps the block in its class. Relaxed, because the claim orders it.
    class: AtomicU32,
    pub state: UnsafeCell<BlockState>,
}

/// What the lock of the block's class protects.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BlockState {
    /// Neighbours on the list: block number plus one, zero when on none.
    next: u32,
    prev: u32,
    /// First free object.
    pub free: Link,
    /// Objects not on the free list.
    pub used: u16,
}

impl Block {
    #[inline]
    pub fn class(&self) -> Option<ClassId> {
        ClassId::from_index((self.class.load(Ordering::Relaxed) as usize).wrapping_sub(1))
    }

    /// Sets the class that the block is in, if any.
    #[inline]
    pub fn set_class(&self, class: Option<ClassId>) {
        self.class.store(class.map_or(0, |class| class.index() as u32 + 1), Ordering::Relaxed);
    }
}

#[cfg(loom)]
impl Class {
    pub fn new() -> Self {
        Self { lock: Lock::new(()), state: UnsafeCell::new(ClassState::default()) }
    }
}

#[cfg(loom)]
impl Block {
    pub fn new() -> Self {
        let state = BlockState { next: 0, prev: 0, free: Link::NONE, used: 0 };
        Self { class: AtomicU32::new(0), state: UnsafeCell::new(state) }
    }
}

/// The list a block with `used` of `objects` belongs on; none for an empty and for a full one.
#[inline]
pub(crate) fn group(used: u16, objects: u16) -> Option<usize> {
    debug_assert!(used <= objects);
    (used != 0 && used != objects).then(|| used as usize * GROUPS / objects as usize)
}

/// A class whose lock is held, with the blocks of the pool.
pub(crate) struct Locked<'a> {
    class: ClassId,
    state: &'a UnsafeCell<ClassState>,
    blocks: &'a [Block],
}

impl<'a> Locked<'a> {
    /// # Safety
    /// The lock of `class`, whose state is `state`, is held as long as the result lives, and there is no other such.
    #[inline]
    pub unsafe fn new(class: ClassId, state: &'a UnsafeCell<ClassState>, blocks: &'a [Block]) -> Self {
        Self { class, state, blocks }
    }

    #[inline]
    pub fn class(&self) -> ClassId {
        self.class
    }

    #[inline]
    pub fn state<R>(&mut self, f: impl FnOnce(&mut ClassState) -> R) -> R {
        // SAFETY: the class lock is held, and `&mut self` says that no other reference was made through us.
        self.state.with_mut(|state| f(unsafe { &mut *state }))
    }

    /// The state of a block of this class, or of one that is in none and known to this thread alone.
    #[inline]
    pub fn block<R>(&mut self, block: u32, f: impl FnOnce(&mut BlockState) -> R) -> R {
        // SAFETY: a block in this class is protected by its lock, which is held; one that is in none is the caller's.
        self.blocks[block as usize].state.with_mut(|state| f(unsafe { &mut *state }))
    }

    /// Is the block in this class?
    #[inline]
    pub fn has_block(&self, block: u32) -> bool {
        self.blocks[block as usize].class() == Some(self.class)
    }

    /// The list that a block of this class is on; none for a full one.
    #[inline]
    pub fn group_of(&mut self, block: u32) -> Option<usize> {
        let used = self.block(block, |state| state.used);
        group(used, self.class.objects())
    }

    /// Is the block in this class, and neither empty nor full?
    #[inline]
    pub fn is_partial(&mut self, block: u32) -> bool {
        self.has_block(block) && self.group_of(block).is_some()
    }

    /// First block of a list.
    #[inline]
    pub fn head(&mut self, group: usize) -> Option<u32> {
        self.state(|state| state.heads[group].checked_sub(1))
    }

    /// The block after `block` on its list, going around.
    #[inline]
    pub fn after(&mut self, block: u32) -> u32 {
        self.block(block, |state| state.next) - 1
    }

    /// A block of the fullest list.
    #[inline]
    pub fn fullest(&mut self) -> Option<u32> {
        (0..GROUPS).rev().find_map(|group| self.head(group))
    }

    /// A block of the emptiest list.
    #[inline]
    pub fn emptiest(&mut self) -> Option<u32> {
        (0..GROUPS).find_map(|group| self.head(group))
    }

    /// Moves the block to the end of its list, if it is the list's head.
    pub fn rotate(&mut self, block: u32) {
        let Some(group) = self.group_of(block) else { return };
        if self.head(group) == Some(block) {
            let next = self.after(block);
            self.state(|state| state.heads[group] = next + 1);
        }
    }

    /// Blocks that would become empty if objects were moved together.
    #[inline]
    pub fn spare_blocks(&mut self) -> u32 {
        let objects = u64::from(self.class.objects());
        self.state(|state| state.blocks.saturating_sub(state.used.div_ceil(objects) as u32))
    }

    /// Brings a block whose objects are all free into the class.
    pub fn add_block(&mut self, block: u32, first_free: Link) {
        debug_assert!(self.blocks[block as usize].class().is_none());
        self.block(block, |state| *state = BlockState { next: 0, prev: 0, free: first_free, used: 0 });
        self.blocks[block as usize].set_class(Some(self.class));
        self.state(|state| state.blocks += 1);
    }

    /// Takes an empty block, which is on no list, out of the class.
    fn remove_block(&mut self, block: u32) {
        self.blocks[block as usize].set_class(None);
        self.state(|state| state.blocks -= 1);
    }

    /// Counts one more used object. `free` is its successor on the free list.
    pub fn grow(&mut self, block: u32, free: Link) {
        let used = self.block(block, |state| {
            state.free = free;
            state.used += 1;
            state.used
        });
        self.state(|state| state.used += 1);
        self.relist(block, used - 1, used);
    }

    /// Counts `n` used objects less. They are on the free list, of which `free` is the first now. True if that emptied
    /// the block, which has then left the class.
    pub fn shrink(&mut self, block: u32, free: Link, n: u16) -> bool {
        let used = self.block(block, |state| {
            debug_assert!(state.used >= n);
            state.free = free;
            state.used -= n;
            state.used
        });
        self.state(|state| state.used -= u64::from(n));
        self.relist(block, used + n, used);
        if used == 0 {
            self.remove_block(block);
        }
        used == 0
    }

    #[inline]
    fn relist(&mut self, block: u32, before: u16, now: u16) {
        let objects = self.class.objects();
        let (from, to) = (group(before, objects), group(now, objects));
        if from == to {
            return;
        }
        if let Some(from) = from {
            self.unlink(block, from);
        }
        if let Some(to) = to {
            self.link(block, to);
        }
    }

    /// Puts the block at the head of a list.
    fn link(&mut self, block: u32, group: usize) {
        match self.head(group) {
            None => self.block(block, |state| (state.next, state.prev) = (block + 1, block + 1)),
            Some(head) => {
                let tail = self.block(head, |state| core::mem::replace(&mut state.prev, block + 1));
                self.block(tail - 1, |state| state.next = block + 1);
                self.block(block, |state| (state.next, state.prev) = (head + 1, tail));
            }
        }
        self.state(|state| state.heads[group] = block + 1);
    }

    fn unlink(&mut self, block: u32, group: usize) {
        let (next, prev) = self.block(block, |state| {
            let neighbours = (state.next, state.prev);
            (state.next, state.prev) = (0, 0);
            neighbours
        });
        debug_assert!(next != 0 && prev != 0, "block {block} is on no list");
        if next == block + 1 {
            self.state(|state| state.heads[group] = 0);
            return;
        }
        self.block(next - 1, |state| state.prev = prev);
        self.block(prev - 1, |state| state.next = next);
        self.state(|state| {
            if state.heads[group] == block + 1 {
                state.heads[group] = next;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_and_full_blocks_are_on_no_list() {
        assert_eq!(group(0, 15), None);
        assert_eq!(group(15, 15), None);
    }

    #[test]
    fn the_fuller_a_block_the_higher_its_list() {
        assert_eq!(group(1, 15), Some(0));
        assert_eq!(group(14, 15), Some(7));
        assert_eq!(group(1, 2), Some(4));
    }
}
