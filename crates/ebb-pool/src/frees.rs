//! Freeing many objects at once.
//!
//! Objects of one class are freed with its lock taken once for all of them, and neighbours in a block with its record
//! written once. Blocks that this empties go back together: neighbours among them with one call of the backing. The
//! headers are asked for before the first of them is needed, because each is a miss of the processor's caches.

use crate::class::{BLOCK_BYTES, BLOCK_PAGES, ClassId, NR_CLASSES};
use crate::fullness::Locked;
use crate::handle::Handle;
use crate::object::{HEADER_BYTES, Link};
use crate::pool::{Backing, Pool};

/// Objects that are sorted by class at a time.
pub(crate) const BATCH: usize = if cfg!(loom) { 2 } else { 128 };
/// Objects that are freed under one hold of a class lock.
const HOLD_MAX: usize = 32;

const _: () = assert!(BATCH <= u8::MAX as usize && NR_CLASSES <= u64::BITS as usize);

/// Objects by class: the first and the last of each class that has any, and for each object the next of its class.
/// Numbers are positions in the batch.
struct ByClass {
    /// A bit for each class that has any.
    classes: u64,
    ends: [(u8, u8); NR_CLASSES],
    /// The last of a class is followed by itself.
    next: [u8; BATCH],
}

impl ByClass {
    fn push(&mut self, class: ClassId, at: usize) {
        let (is_first, at) = (self.classes >> class.index() & 1 == 0, at as u8);
        self.classes |= 1 << class.index();
        self.next[usize::from(at)] = at;
        let ends = &mut self.ends[class.index()];
        if is_first {
            *ends = (at, at);
        } else {
            self.next[usize::from(ends.1)] = at;
            ends.1 = at;
        }
    }

    /// The next object of a class, if there is one, which is the class's no more.
    fn pop(&mut self, class: ClassId) -> Option<usize> {
        if self.classes >> class.index() & 1 == 0 {
            return None;
        }
        let ends = &mut self.ends[class.index()];
        let at = ends.0;
        if at == ends.1 {
            self.classes &= !(1 << class.index());
        }
        ends.0 = self.next[usize::from(at)];
        Some(at.into())
    }

    /// A class that has any.
    fn class(&self) -> Option<ClassId> {
        if self.classes == 0 { None } else { ClassId::from_index(self.classes.trailing_zeros() as usize) }
    }
}

/// Blocks that were emptied and have left their class.
struct Emptied {
    blocks: [u32; BATCH],
    n: usize,
}

/// Objects of one block that were put on its free list, of which its record knows nothing yet.
struct Row {
    block: u32,
    head: Link,
    n: u16,
}

impl Pool {
    /// Frees stored objects, as [`Pool::free`] does for each. Returns how many of `handles` named one. `freed` is told
    /// the length of each, with a lock of the pool held: it must not wait, nor call the pool.
    pub fn free_all(&self, backing: &impl Backing, handles: &[Handle], mut freed: impl FnMut(usize)) -> usize {
        handles.chunks(BATCH).map(|batch| self.free_batch(backing, batch, &mut freed)).sum()
    }

    fn free_batch(&self, backing: &impl Backing, handles: &[Handle], freed: &mut impl FnMut(usize)) -> usize {
        handles.iter().for_each(|handle| self.ask_for(*handle));
        let mut by_class = ByClass { classes: 0, ends: [(0, 0); NR_CLASSES], next: [0; BATCH] };
        for (at, handle) in handles.iter().enumerate() {
            if let Some(class) = self.class_of(*handle) {
                Self::tell_write(backing, handle.offset(), HEADER_BYTES);
                by_class.push(class, at);
            }
        }
        let mut emptied = Emptied { blocks: [0; BATCH], n: 0 };
        let mut n = 0;
        while let Some(class) = by_class.class() {
            let mut next = || by_class.pop(class).map(|at| handles[at].offset());
            n += self.with_class(class, |locked| self.free_of_class(locked, &mut next, &mut emptied, freed));
        }
        self.give_blocks(backing, &mut emptied.blocks[..emptied.n]);
        n
    }

    /// The class of the object that a handle names, if it may name one.
    fn class_of(&self, handle: Handle) -> Option<ClassId> {
        self.object(handle)?;
        let class = self.blocks()[handle.offset() / BLOCK_BYTES].class()?;
        (handle.offset() % BLOCK_BYTES).is_multiple_of(class.object_bytes()).then_some(class)
    }

    /// Frees objects of a class until there is no `next`, or the lock was held for long enough. Returns how many.
    fn free_of_class(
        &self,
        locked: &mut Locked,
        next: &mut impl FnMut() -> Option<usize>,
        emptied: &mut Emptied,
        freed: &mut impl FnMut(usize),
    ) -> usize {
        let (mut n, mut bytes) = (0, 0);
        let mut row: Option<Row> = None;
        for _ in 0..HOLD_MAX {
            let Some(offset) = next() else { break };
            let block = (offset / BLOCK_BYTES) as u32;
            // Look again: another thread may have freed it since, against the rules.
            let live = locked.has_block(block).then(|| self.header(offset).live(offset)).flatten();
            let Some(live) = live else { continue };
            if row.as_ref().is_none_or(|row| row.block != block) {
                self.end_row(locked, row.take(), emptied);
            }
            let head = locked.block(block, |state| state.free);
            let row = row.get_or_insert(Row { block, head, n: 0 });
            self.header(offset).set_free(row.head);
            (row.head, row.n) = (Link::to(offset % BLOCK_BYTES), row.n + 1);
            freed(live.len.into());
            (n, bytes) = (n + 1, bytes + u64::from(live.len));
        }
        self.end_row(locked, row, emptied);
        locked.state(|state| {
            state.stored -= n as u64;
            state.bytes -= bytes;
        });
        n
    }

    /// Tells the record of a block what was freed of it.
    fn end_row(&self, locked: &mut Locked, row: Option<Row>, emptied: &mut Emptied) {
        let Some(Row { block, head, n }) = row else { return };
        if locked.shrink(block, head, n) {
            emptied.blocks[emptied.n] = block;
            emptied.n += 1;
        }
    }

    /// Gives back blocks that have left their class.
    fn give_blocks(&self, backing: &impl Backing, blocks: &mut [u32]) {
        if blocks.is_empty() {
            return;
        }
        blocks.sort_unstable();
        backing.release_all(blocks, BLOCK_PAGES as u32);
        for block in blocks {
            self.map().count_held(false);
            self.map().give(*block);
        }
    }

    /// Has the processor bring in the header of an object that will be freed. Touches nothing if the handle can name none.
    #[inline]
    fn ask_for(&self, handle: Handle) {
        let offset = handle.offset();
        if offset / BLOCK_BYTES < self.blocks().len() {
            #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
            // SAFETY: asks for memory and accesses none; every x86-64 processor does it or takes it for nothing.
            unsafe {
                use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_ET0>(core::ptr::from_ref(self.header(offset)).cast());
            }
        }
    }
}
