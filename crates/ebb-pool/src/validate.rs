//! Recounts everything the slow way, and compares the results with the counters.

use crate::class::{BLOCK_BYTES, BLOCK_PAGES, ClassId, NR_CLASSES};
use crate::fullness::{GROUPS, Locked, group};
use crate::handle::Handle;
use crate::pool::Pool;

/// What a pool holds, recounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Pages charged.
    pub pages: usize,
    /// Blocks in a class.
    pub blocks: usize,
    /// Blocks in a class that are not full.
    pub partial_blocks: usize,
    /// Live objects.
    pub objects: u64,
    /// Bytes of their data.
    pub bytes: u64,
}

/// What is wrong with a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Inconsistency {
    /// A block is neither free nor in a class.
    #[error("block {block} is in use but in no class")]
    Stray {
        /// Number of the block in the arena.
        block: u32,
    },
    /// A block's number of used objects is not what its counter says.
    #[error("block {block} says that {counted} objects are used, but {live} are live")]
    Used {
        /// Number of the block in the arena.
        block: u32,
        /// Used objects by the block's counter.
        counted: u16,
        /// Objects with a header that says live.
        live: u16,
    },
    /// A block's free list leads to something that is not a free object of that block, or runs in a circle.
    #[error("the free list of block {block} is broken")]
    FreeList {
        /// Number of the block in the arena.
        block: u32,
    },
    /// A list holds a block that belongs elsewhere.
    #[error("block {block} is on list {group} of class {class}, where it does not belong")]
    List {
        /// Number of the block in the arena.
        block: u32,
        /// Index of the size class, 0 for the largest objects.
        class: usize,
        /// Index of the list by fullness, 0 for the emptiest blocks.
        group: usize,
    },
    /// The lists of a class do not hold all its partial blocks.
    #[error("class {class} has {partial} partial blocks, but {listed} on its lists")]
    Listed {
        /// Index of the size class, 0 for the largest objects.
        class: usize,
        /// Blocks of the class that are neither empty nor full.
        partial: u32,
        /// Blocks on the lists of the class.
        listed: u32,
    },
    /// A counter is wrong.
    #[error("{what}: {counter} counted, {found} found")]
    Counter {
        /// The thing counted, in words.
        what: &'static str,
        /// Value of the counter.
        counter: u64,
        /// Value by the recount.
        found: u64,
    },
}

/// Sums over the blocks of one class.
#[derive(Clone, Copy, Default)]
struct Tally {
    blocks: u32,
    partial: u32,
    objects: u64,
    bytes: u64,
}

impl Pool {
    /// Recounts the pool. No other thread may use it meanwhile, or unfinished work would look wrong.
    pub fn validate(&self) -> Result<Summary, Inconsistency> {
        let mut tallies = [Tally::default(); NR_CLASSES];
        let mut next = self.map().next_used(0);
        let mut used_blocks = 0;
        while let Some(block) = next {
            used_blocks += 1;
            let class = self.blocks()[block as usize].class().ok_or(Inconsistency::Stray { block })?;
            self.with_class(class, |locked| self.check_block(locked, block, &mut tallies[class.index()]))?;
            next = self.map().next_used(block + 1);
        }
        let mut sum = Summary { pages: self.used_pages(), ..Summary::default() };
        equal("charged blocks", u64::from(self.map().held()), used_blocks)?;
        for (index, tally) in tallies.iter().enumerate() {
            let Some(class) = ClassId::from_index(index) else { break };
            self.with_class(class, |locked| check_class(locked, tally))?;
            sum.blocks += tally.blocks as usize;
            sum.partial_blocks += tally.partial as usize;
            sum.objects += tally.objects;
            sum.bytes += tally.bytes;
        }
        debug_assert_eq!(sum.pages, sum.blocks * BLOCK_PAGES);
        Ok(sum)
    }

    /// Recounts one block and adds it to the tally of its class.
    fn check_block(&self, locked: &mut Locked, block: u32, tally: &mut Tally) -> Result<(), Inconsistency> {
        let class = locked.class();
        let objects = class.objects();
        let base = block as usize * BLOCK_BYTES;
        let mut live_objects = 0;
        for object in 0..objects as usize {
            let offset = base + object * class.object_bytes();
            if let Some((_, len)) = self.object(Handle::from_offset(offset)) {
                live_objects += 1;
                tally.bytes += len as u64;
            }
        }
        let (counted, mut free) = locked.block(block, |state| (state.used, state.free));
        if counted != live_objects {
            return Err(Inconsistency::Used { block, counted, live: live_objects });
        }
        let mut free_objects = 0;
        while let Some(offset) = free.offset() {
            let is_object = offset.is_multiple_of(class.object_bytes()) && offset + class.object_bytes() <= BLOCK_BYTES;
            let next = is_object.then(|| self.header(base + offset).next_free()).flatten();
            free = next.filter(|_| free_objects < objects).ok_or(Inconsistency::FreeList { block })?;
            free_objects += 1;
        }
        if free_objects + live_objects != objects {
            return Err(Inconsistency::FreeList { block });
        }
        tally.blocks += 1;
        tally.partial += u32::from(group(counted, objects).is_some());
        tally.objects += u64::from(live_objects);
        Ok(())
    }
}

/// Compares a class's lists and counters with what its blocks add up to.
fn check_class(locked: &mut Locked, tally: &Tally) -> Result<(), Inconsistency> {
    let class = locked.class();
    let mut listed = 0;
    for index in 0..GROUPS {
        let Some(head) = locked.head(index) else { continue };
        let mut block = head;
        loop {
            let belongs = locked.has_block(block) && locked.group_of(block) == Some(index);
            if !belongs || listed > tally.partial {
                return Err(Inconsistency::List { block, class: class.index(), group: index });
            }
            listed += 1;
            block = locked.after(block);
            if block == head {
                break;
            }
        }
    }
    if listed != tally.partial {
        return Err(Inconsistency::Listed { class: class.index(), partial: tally.partial, listed });
    }
    let state = locked.state(|state| *state);
    equal("blocks of a class", u64::from(state.blocks), u64::from(tally.blocks))?;
    equal("used objects of a class", state.used, tally.objects)?;
    equal("stored objects of a class", state.stored, tally.objects)?;
    equal("stored bytes of a class", state.bytes, tally.bytes)
}

fn equal(what: &'static str, counter: u64, found: u64) -> Result<(), Inconsistency> {
    if counter == found { Ok(()) } else { Err(Inconsistency::Counter { what, counter, found }) }
}
