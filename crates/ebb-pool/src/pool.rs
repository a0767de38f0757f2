//! The pool: storing, loading, freeing and moving objects.
//!
//! # Who may touch an object's bytes
//!
//! The class lock decides who has an object's *place*. The owner's claim decides who has its *bytes*. A store takes a
//! place under the lock, writes the bytes without it, and marks the object live last. Compaction finds a live object
//! under the lock and tries to claim its owner. Only then does it take a new place and mark the old one in transit. So
//! it never sees an object that a store has not finished (not live), nor one that a thread is loading or freeing
//! (claimed). Two compactions may run at once: the claim, and the mark in transit, give each object to one of them.
//!
//! # A block's life
//!
//! Free in the block map -> taken by a store, charged, its free list written, no lock held -> in the class -> emptied
//! by a free or by compaction, which take it out of the class under the class lock -> released, no lock held -> free in
//! the block map. From the moment it leaves the class until the map has it back, only one thread knows it.

use crate::blocks::BlockMap;
use crate::class::{BLOCK_BYTES, BLOCK_PAGES, ClassId, NR_CLASSES, OBJECT_MAX};
use crate::fullness::{Block, Class, Locked};
use crate::handle::{GRAIN, Handle};
use crate::object::{HEADER_BYTES, Header, Link, Live};
use crate::primitive::Hint;

/// Where the pool's memory comes from and goes to. Called with no lock of the pool held.
pub trait Backing {
    /// Charges the memory of `block`, which is `pages` pages, and makes it usable. Its content does not matter. False
    /// if there is no budget; then nothing has changed.
    fn acquire(&self, block: u32, pages: u32) -> bool;

    /// Gives the memory of `block` back and uncharges it. No one uses it until it is acquired again.
    fn release(&self, block: u32, pages: u32);

    /// Does what [`Backing::release`] does for each of `blocks`, which are in order.
    fn release_all(&self, blocks: &[u32], pages: u32) {
        blocks.iter().for_each(|block| self.release(*block, pages));
    }

    /// Tells that pages `first..first + pages` of `block` are about to be written. A backing that shares memory
    /// copy-on-write copies them now.
    fn will_write(&self, block: u32, first: u32, pages: u32) {
        let _ = (block, first, pages);
    }
}

/// The owners of stored objects: asked before an object moves, and told afterwards.
pub trait Owners {
    /// Claims `owner` if nobody has claimed it and `handle` is what it refers to. Called with a lock of the pool held:
    /// it must not wait, nor call the pool. What the claim's previous holder did must be visible afterwards.
    fn try_claim(&self, owner: u32, handle: Handle) -> bool;

    /// The object is at `new` now. The caller has the claim; no lock of the pool is held.
    fn moved(&self, owner: u32, old: Handle, new: Handle);

    /// Ends a claim of [`Owners::try_claim`]. No lock of the pool is held.
    fn unclaim(&self, owner: u32);
}

/// Why an object was not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PoolFull {
    /// [`Backing::acquire`] refused.
    #[error("no budget for another {BLOCK_PAGES} pages; free or write out objects, or compact")]
    Budget,
    /// Every block of the arena is in use.
    #[error("every block of the arena is in use; free or write out objects, or compact")]
    Arena,
    /// The data is empty, or longer than [`OBJECT_MAX`].
    #[error("an object has 1 to {OBJECT_MAX} bytes")]
    TooLarge,
}

/// A pool of objects in one arena. Any thread may make any call at any time, under the rules of
/// [claims](crate#invariants).
pub struct Pool {
    arena: *mut u8,
    classes: *const Class,
    blocks: *const Block,
    nr_blocks: u32,
    map: BlockMap,
    /// Where the next compaction starts, so that all classes get their turn.
    next_class: Hint,
}

// SAFETY: the memory behind the pointers is used under the locks, by atomics, or under the owners' claims.
unsafe impl Send for Pool {}
// SAFETY: likewise.
unsafe impl Sync for Pool {}

/// Headers that compaction looks at before it gives up the class lock for others.
const SCAN_BATCH: usize = 32;

/// Looks at [`SCAN_BATCH`] headers each, in vain and in a row, after which compaction leaves a class.
const VAIN_LOOKS_MAX: u32 = if cfg!(loom) { 3 } else { 128 };

/// An object on the move.
struct Move {
    from: usize,
    to: usize,
    live: Live,
}

/// A block that compaction is emptying, and how far it has looked.
struct Source {
    block: u32,
    next_offset: usize,
}

/// What compaction found under one hold of the class lock.
enum Step {
    Move(Move),
    /// Nothing yet: look again after others had the lock.
    Again,
    Done,
}

impl Pool {
    /// Bytes of zeroed memory that a pool over `arena_bytes` needs for its metadata. The part of blocks that are never
    /// used is never touched.
    pub const fn metadata_bytes(arena_bytes: usize) -> usize {
        let nr_blocks = arena_bytes / BLOCK_BYTES;
        NR_CLASSES * size_of::<Class>() + nr_blocks * size_of::<Block>() + BlockMap::metadata_bytes(nr_blocks as u32)
    }

    /// Makes a pool over `arena`. Bytes after the last whole block are not used.
    ///
    /// # Panics
    /// If the arena holds no block, or more than 2^31, or if an address or `metadata_len` does not fit.
    ///
    /// # Safety
    /// Both ranges live as long as the pool, and nobody else uses them. `metadata` is zeroed and aligned to 128 bytes;
    /// `arena` is aligned to a page. A block's memory is accessed only between its [`Backing::acquire`] and its
    /// [`Backing::release`], so that is when it must be accessible.
    pub unsafe fn init(arena: *mut u8, arena_bytes: usize, metadata: *mut u8, metadata_len: usize) -> Self {
        let nr_blocks = arena_bytes / BLOCK_BYTES;
        assert!(nr_blocks > 0 && nr_blocks <= 1 << 31, "{nr_blocks} blocks in an arena");
        assert!(metadata_len >= Self::metadata_bytes(arena_bytes), "{metadata_len} bytes of metadata are too few");
        assert!(metadata.addr().is_multiple_of(align_of::<Class>()), "metadata is not aligned");
        assert!(arena.addr().is_multiple_of(align_of::<Header>().max(GRAIN)), "arena is not aligned");
        let nr_blocks = nr_blocks as u32;
        let classes = metadata.cast::<Class>();
        // SAFETY: the three parts follow one another within `metadata_bytes`, each aligned: a class is a multiple of
        // its alignment, a block is aligned to less and a multiple of 8 bytes long.
        let (blocks, map) = unsafe {
            let blocks = classes.add(NR_CLASSES).cast::<Block>();
            (blocks, BlockMap::init(blocks.add(nr_blocks as usize).cast(), nr_blocks))
        };
        #[cfg(loom)]
        // SAFETY: as above; headers are within the arena.
        unsafe {
            Self::construct(arena, classes, blocks, nr_blocks);
        }
        Self { arena, classes, blocks, nr_blocks, map, next_class: Hint::new() }
    }

    /// Sets up what is not valid as zeroes under loom.
    ///
    /// # Safety
    /// As for [`Pool::init`], which calls it with the memory it was given.
    #[cfg(loom)]
    unsafe fn construct(arena: *mut u8, classes: *mut Class, blocks: *mut Block, nr_blocks: u32) {
        assert!(NR_CLASSES == 1, "headers stay where they are under loom");
        let class = ClassId::from_index(0).expect("there is one class");
        // SAFETY: the caller of `init` gave this memory.
        unsafe {
            classes.write(Class::new());
            for block in 0..nr_blocks as usize {
                blocks.add(block).write(Block::new());
                for object in 0..class.objects() as usize {
                    let offset = block * BLOCK_BYTES + object * class.object_bytes();
                    Header::construct(arena.add(offset).cast());
                }
            }
        }
    }

    /// Stores `data` for `owner`. The caller holds the owner's claim until it has recorded the handle.
    pub fn store(&self, backing: &impl Backing, owner: u32, data: &[u8]) -> Result<Handle, PoolFull> {
        let class = ClassId::for_len(data.len()).ok_or(PoolFull::TooLarge)?;
        let held = self.map.held();
        let offset = match class.or_larger(held).find_map(|class| self.take_place(class, data.len())) {
            Some(offset) => offset,
            None => self.take_place_in_new_block(backing, class.of_new_block(held), data.len())?,
        };
        Self::tell_write(backing, offset, HEADER_BYTES + data.len());
        let header = self.header(offset);
        header.touch().write();
        // SAFETY: the place was taken for this thread alone, and has room for its class's longest data.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), self.data(offset), data.len()) };
        header.set_live(offset, Live { owner, len: data.len() as u16 });
        Ok(Handle::from_offset(offset))
    }

    /// Tells `backing` that `len` bytes at `offset` are about to be written.
    pub(crate) fn tell_write(backing: &impl Backing, offset: usize, len: usize) {
        let page_bytes = BLOCK_BYTES / BLOCK_PAGES;
        let (first, last) = (offset % BLOCK_BYTES / page_bytes, (offset % BLOCK_BYTES + len - 1) / page_bytes);
        backing.will_write((offset / BLOCK_BYTES) as u32, first as u32, (last - first + 1) as u32);
    }

    /// The data of a stored object; empty if `handle` names none.
    ///
    /// # Safety
    /// The caller holds the claim of the object's owner as long as it uses the data.
    pub unsafe fn load(&self, handle: Handle) -> &[u8] {
        let Some(live) = self.live(handle) else { return &[] };
        let offset = handle.offset();
        self.header(offset).touch().read();
        // SAFETY: a live object's bytes are initialised, and the caller's claim keeps others from changing them.
        unsafe { core::slice::from_raw_parts(self.data(offset), live.len as usize) }
    }

    /// Frees a stored object. The caller holds its owner's claim, or held it when it took the handle away from the
    /// owner. False if `handle` names no object; then nothing happened.
    pub fn free(&self, backing: &impl Backing, handle: Handle) -> bool {
        if self.live(handle).is_none() {
            return false;
        }
        let offset = handle.offset();
        let block = offset / BLOCK_BYTES;
        let Some(class) = self.blocks()[block].class() else { return false };
        if !(offset % BLOCK_BYTES).is_multiple_of(class.object_bytes()) {
            return false;
        }
        Self::tell_write(backing, offset, HEADER_BYTES);
        let emptied = self.with_class(class, |locked| {
            // Look again: another thread may have freed it since, against the rules.
            let live = locked.has_block(block as u32).then(|| self.header(offset).live(offset)).flatten()?;
            locked.state(|state| {
                state.stored -= 1;
                state.bytes -= u64::from(live.len);
            });
            Some(self.put_place(locked, offset))
        });
        if emptied == Some(true) {
            self.give_block(backing, block as u32);
        }
        emptied.is_some()
    }

    /// The object's owner and length; none if `handle` names no object.
    pub fn object(&self, handle: Handle) -> Option<(u32, usize)> {
        self.live(handle).map(|live| (live.owner, live.len as usize))
    }

    /// Moves up to `max_objects` objects out of the emptiest blocks into the fullest of their class, wherever that
    /// gives blocks back. Returns how many it moved.
    pub fn compact(&self, backing: &impl Backing, owners: &impl Owners, max_objects: usize) -> usize {
        let start = self.next_class.get();
        let mut moved = 0;
        for step in 0..NR_CLASSES {
            if moved >= max_objects {
                break;
            }
            let index = (start + step) % NR_CLASSES;
            if let Some(class) = ClassId::from_index(index) {
                moved += self.compact_class(class, backing, owners, max_objects - moved);
            }
            self.next_class.set(index + usize::from(moved < max_objects));
        }
        moved
    }

    /// Pages that compaction could give back if every object could be moved.
    pub fn spare_pages(&self) -> usize {
        (0..NR_CLASSES)
            .filter_map(ClassId::from_index)
            .map(|class| self.with_class(class, |locked| locked.spare_blocks() as usize) * BLOCK_PAGES)
            .sum()
    }

    /// Pages that are charged.
    pub fn used_pages(&self) -> usize {
        self.map.held() as usize * BLOCK_PAGES
    }

    /// Objects stored. Takes each class lock in turn, so the figure is of no single moment while others store and free.
    pub fn stored_objects(&self) -> u64 {
        self.sum(|locked| locked.state(|state| state.stored))
    }

    /// Bytes of the stored objects' data, like [`Pool::stored_objects`].
    pub fn stored_bytes(&self) -> u64 {
        self.sum(|locked| locked.state(|state| state.bytes))
    }

    fn sum(&self, f: impl Fn(&mut Locked) -> u64) -> u64 {
        (0..NR_CLASSES).filter_map(ClassId::from_index).map(|class| self.with_class(class, &f)).sum()
    }

    pub(crate) fn map(&self) -> &BlockMap {
        &self.map
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        // SAFETY: `init` was given memory for this many; zeroed bytes are valid blocks.
        unsafe { core::slice::from_raw_parts(self.blocks, self.nr_blocks as usize) }
    }

    /// Runs `f` with the lock of `class` held.
    #[inline]
    pub(crate) fn with_class<R>(&self, class: ClassId, f: impl FnOnce(&mut Locked) -> R) -> R {
        // SAFETY: `init` was given memory for all classes; zeroed bytes are valid ones.
        let entry = unsafe { &*self.classes.add(class.index()) };
        let _guard = entry.lock.lock();
        // SAFETY: the lock is held until `f` has returned, and this is the only place that makes one.
        f(&mut unsafe { Locked::new(class, &entry.state, self.blocks()) })
    }

    /// The header at `offset`, which is where an object starts, or might: it is aligned and within the arena.
    #[inline]
    pub(crate) fn header(&self, offset: usize) -> &Header {
        debug_assert!(offset.is_multiple_of(GRAIN) && offset + HEADER_BYTES <= self.nr_blocks as usize * BLOCK_BYTES);
        // SAFETY: within the arena, aligned, and any bytes are a valid word.
        unsafe { &*self.arena.add(offset).cast::<Header>() }
    }

    /// Where the data of the object at `offset` starts.
    #[inline]
    fn data(&self, offset: usize) -> *mut u8 {
        // SAFETY: an object's header and data are within its block.
        unsafe { self.arena.add(offset + HEADER_BYTES) }
    }

    /// Owner and length of the object that `handle` names, if it is live. Nothing is read if the handle's block is not
    /// in use.
    fn live(&self, handle: Handle) -> Option<Live> {
        let offset = handle.offset();
        let class = self.blocks().get(offset / BLOCK_BYTES)?.class()?;
        if offset % BLOCK_BYTES + class.object_bytes() > BLOCK_BYTES {
            return None;
        }
        self.header(offset).live(offset).filter(|live| live.len as usize <= class.data_bytes())
    }

    /// Takes a free object of the fullest block of the class.
    fn take_place(&self, class: ClassId, len: usize) -> Option<usize> {
        self.with_class(class, |locked| {
            let block = locked.fullest()?;
            Self::count_stored(locked, len);
            Some(self.take_place_in(locked, block))
        })
    }

    fn count_stored(locked: &mut Locked, len: usize) {
        locked.state(|state| {
            state.stored += 1;
            state.bytes += len as u64;
        });
    }

    /// Takes the first free object of a block that has one.
    fn take_place_in(&self, locked: &mut Locked, block: u32) -> usize {
        let free = locked.block(block, |state| state.free);
        // The free list is in memory that a stray write of the program can reach: better to end here than to follow it
        // out.
        let in_block = free.offset().expect("a block that is not full has a free object");
        assert!(in_block + locked.class().object_bytes() <= BLOCK_BYTES, "block {block} links to {in_block}");
        let offset = block as usize * BLOCK_BYTES + in_block;
        let header = self.header(offset);
        let next = header.next_free().expect("an object on a free list is free");
        header.set_in_transit();
        locked.grow(block, next);
        offset
    }

    /// Puts an object's place back on the free list. True if that emptied its block, which has then left the class.
    fn put_place(&self, locked: &mut Locked, offset: usize) -> bool {
        let block = (offset / BLOCK_BYTES) as u32;
        let next = locked.block(block, |state| state.free);
        self.header(offset).set_free(next);
        locked.shrink(block, Link::to(offset % BLOCK_BYTES), 1)
    }

    /// Brings a new block into the class and takes an object of it.
    #[cold]
    fn take_place_in_new_block(&self, backing: &impl Backing, class: ClassId, len: usize) -> Result<usize, PoolFull> {
        let block = self.map.take().ok_or(PoolFull::Arena)?;
        if !backing.acquire(block, BLOCK_PAGES as u32) {
            self.map.give(block);
            return Err(PoolFull::Budget);
        }
        self.map.count_held(true);
        backing.will_write(block, 0, BLOCK_PAGES as u32);
        let first = self.format(block, class);
        Ok(self.with_class(class, |locked| {
            locked.add_block(block, first);
            Self::count_stored(locked, len);
            // Take it from the new block, even if others have added one meanwhile: a class has no empty blocks.
            self.take_place_in(locked, block)
        }))
    }

    /// Writes the free list of a block that is this thread's alone: lowest object first. Returns its head.
    fn format(&self, block: u32, class: ClassId) -> Link {
        let base = block as usize * BLOCK_BYTES;
        let mut next = Link::NONE;
        for object in (0..class.objects() as usize).rev() {
            let offset = object * class.object_bytes();
            self.header(base + offset).set_free(next);
            next = Link::to(offset);
        }
        next
    }

    /// Gives back a block that has left its class.
    #[cold]
    fn give_block(&self, backing: &impl Backing, block: u32) {
        backing.release(block, BLOCK_PAGES as u32);
        self.map.count_held(false);
        self.map.give(block);
    }

    fn compact_class(&self, class: ClassId, backing: &impl Backing, owners: &impl Owners, max_objects: usize) -> usize {
        let mut moved = 0;
        let mut source = None;
        let mut vain_looks = 0;
        let mut vacated: Option<usize> = None;
        loop {
            let (emptied, step) = self.with_class(class, |locked| {
                let emptied = vacated.take().filter(|offset| self.put_place(locked, *offset));
                if moved == max_objects || vain_looks == VAIN_LOOKS_MAX {
                    return (emptied, Step::Done);
                }
                (emptied, self.next_move(locked, &mut source, owners))
            });
            if let Some(offset) = emptied {
                self.give_block(backing, (offset / BLOCK_BYTES) as u32);
            }
            match step {
                Step::Move(object) => {
                    Self::tell_write(backing, object.from, HEADER_BYTES);
                    Self::tell_write(backing, object.to, HEADER_BYTES + object.live.len as usize);
                    self.carry(&object, owners);
                    vacated = Some(object.from);
                    moved += 1;
                    vain_looks = 0;
                }
                Step::Again => vain_looks += 1,
                Step::Done => return moved,
            }
        }
    }

    /// Finds an object to move, claims it, takes its new place and marks the old one in transit.
    fn next_move(&self, locked: &mut Locked, source: &mut Option<Source>, owners: &impl Owners) -> Step {
        if locked.spare_blocks() == 0 {
            return Step::Done;
        }
        // Others had the lock meanwhile: the block may be full, or may have left the class.
        if source.as_ref().is_some_and(|source| !locked.is_partial(source.block)) {
            *source = None;
        }
        if source.is_none() {
            *source = locked.emptiest().map(|block| Source { block, next_offset: 0 });
        }
        let Some(from) = source else { return Step::Done };
        let Some(to_block) = Self::destination(locked, from.block) else {
            *source = None;
            return Step::Again;
        };
        let class = locked.class();
        let end = class.objects() as usize * class.object_bytes();
        for _ in 0..SCAN_BATCH {
            if from.next_offset == end {
                // What is left in the block is claimed by others: try another block next.
                locked.rotate(from.block);
                *source = None;
                return Step::Again;
            }
            let offset = from.block as usize * BLOCK_BYTES + from.next_offset;
            from.next_offset += class.object_bytes();
            let header = self.header(offset);
            let Some(live) = header.live(offset) else { continue };
            if !owners.try_claim(live.owner, Handle::from_offset(offset)) {
                continue;
            }
            let to = self.take_place_in(locked, to_block);
            header.set_in_transit();
            return Step::Move(Move { from: offset, to, live });
        }
        Step::Again
    }

    /// The fullest block other than `source`, unless it is on a list of emptier blocks. On the same list, either block
    /// may be the fuller one. What counts is that objects keep moving in the same direction.
    fn destination(locked: &mut Locked, source: u32) -> Option<u32> {
        let fullest = locked.fullest()?;
        let block = if fullest == source { locked.after(source) } else { fullest };
        (block != source && locked.group_of(block) >= locked.group_of(source)).then_some(block)
    }

    /// Copies a claimed object to its new place and tells its owner.
    fn carry(&self, object: &Move, owners: &impl Owners) {
        let Move { from, to, live } = *object;
        self.header(from).touch().read();
        self.header(to).touch().write();
        // SAFETY: the claim keeps others from the old bytes, the place taken is this thread's alone, both belong to
        // one class, and two objects do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(self.data(from), self.data(to), live.len as usize) };
        self.header(to).set_live(to, live);
        owners.moved(live.owner, Handle::from_offset(from), Handle::from_offset(to));
        owners.unclaim(live.owner);
    }
}
