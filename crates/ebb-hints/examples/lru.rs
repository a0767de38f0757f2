//! A cache that tells Ebb what it knows: what it drops is dead, and what the next requests ask for is needed soon. It serves the
//! same requests twice, first without telling, and prints what telling saved.
//!
//! ```sh
//! cargo build --release -p ebb-hints --example lru
//! ebb run --ram 24M -- target/release/examples/lru
//! ```
//!
//! Alone it runs as well, and saves nothing. `examples/lru.c` is the same for C, and also says what is cold.

use ebb_hints::{Advice, Error, PAGE};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Bytes of a document: whole pages.
const DOCUMENT: usize = 32 << 10;
/// Documents that the cache holds.
const SLOTS: usize = 1536;
/// Requests that it knows ahead, and how many of their documents change elsewhere afterwards, so that the cache must drop them.
const BATCH: u64 = 24;
const CHANGED: u64 = 8;
const BATCHES: u64 = 120;

/// Memory for the documents, in whole pages.
struct Slots(*mut u8);

impl Slots {
    const LAYOUT: Layout = match Layout::from_size_align(SLOTS * DOCUMENT, PAGE) {
        Ok(layout) => layout,
        Err(_) => panic!("documents are whole pages"),
    };

    fn new() -> Self {
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc_zeroed(Self::LAYOUT) };
        if at.is_null() { handle_alloc_error(Self::LAYOUT) } else { Self(at) }
    }

    fn document(&mut self, slot: usize) -> &mut [u8] {
        assert!(slot < SLOTS);
        // SAFETY: within the allocation, and borrowed for as long as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(slot * DOCUMENT), DOCUMENT) }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.0, Self::LAYOUT) }
    }
}

struct Cache {
    slots: Slots,
    /// The slot of each document, and when that was last used.
    known: HashMap<u64, (usize, u64)>,
    /// Documents by when they were last used.
    order: BTreeMap<u64, u64>,
    /// The one that is free for longest is used first.
    free: VecDeque<usize>,
    clock: u64,
    tells: bool,
}

impl Cache {
    fn new(tells: bool) -> Self {
        let (known, order) = (HashMap::new(), BTreeMap::new());
        Self { slots: Slots::new(), known, order, free: (0..SLOTS).collect(), clock: 0, tells }
    }

    /// Says that the document will be asked for.
    fn warm(&mut self, document: u64) -> Result<(), Error> {
        match self.known.get(&document) {
            Some(&(slot, _)) if self.tells => ebb_hints::soon(self.slots.document(slot)),
            _ => Ok(()),
        }
    }

    /// Drops a document, if it is there.
    fn drop(&mut self, document: u64) -> Result<(), Error> {
        let Some((slot, used)) = self.known.remove(&document) else { return Ok(()) };
        self.order.remove(&used);
        self.free.push_back(slot);
        let content = self.slots.document(slot);
        if self.tells {
            // SAFETY: whoever gets a free slot writes all of it first.
            unsafe { ebb_hints::advise(content.as_mut_ptr(), content.len(), Advice::Dead)? };
        }
        Ok(())
    }

    fn get(&mut self, document: u64) -> Result<&[u8], Error> {
        self.clock += 1;
        let slot = match self.known.get(&document) {
            Some(&(slot, used)) => {
                self.order.remove(&used);
                slot
            }
            None => {
                if let (true, Some((_, &oldest))) = (self.free.is_empty(), self.order.first_key_value()) {
                    self.drop(oldest)?;
                }
                let slot = self.free.pop_front().expect("one was dropped");
                make(document, self.slots.document(slot));
                slot
            }
        };
        self.known.insert(document, (slot, self.clock));
        self.order.insert(self.clock, document);
        Ok(self.slots.document(slot))
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// Makes a document, as a server would by a query: half of it compresses.
fn make(document: u64, into: &mut [u8]) {
    for (i, word) in (0u64..).zip(into.chunks_exact_mut(8)) {
        let of = if i & 512 != 0 { i } else { i / 16 };
        word.copy_from_slice(&mix(document * DOCUMENT as u64 + of).to_le_bytes());
    }
}

/// Serves all requests; a sum of what they got.
fn serve(tells: bool) -> Result<u64, Error> {
    let (mut cache, mut sum, mut random) = (Cache::new(tells), 0u64, 1);
    for batch in 0..BATCHES {
        // Every third request is for a document of some time ago, the others go through all of them.
        let asked: Vec<u64> = (batch * BATCH..(batch + 1) * BATCH)
            .map(|next| {
                random = mix(random + 1);
                if next % 3 > 0 { next } else { next.saturating_sub(random % 600 * 2) }
            })
            .collect();
        for &document in &asked {
            cache.warm(document)?;
        }
        for &document in &asked {
            let words = cache.get(document)?.as_chunks::<8>().0;
            sum = words.iter().fold(sum.rotate_left(1), |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
        }
        for &document in asked.iter().skip(1).step_by(3).take(CHANGED as usize) {
            cache.drop(document)?;
        }
    }
    Ok(sum)
}

/// Serves all requests. Returns the sum, the bytes that were swapped out and written, and faults on swapped memory.
fn cost(tells: bool) -> Result<(u64, [u64; 3]), Error> {
    let now = || {
        let stats = ebb_hints::stats().unwrap_or_default();
        let faults = stats.tree_faults_staged + stats.tree_faults_pool + stats.tree_faults_device;
        [stats.tree_swapped_out_bytes >> 10, stats.tree_device_write_bytes >> 10, faults]
    };
    let before = now();
    let sum = serve(tells)?;
    let after = now();
    Ok((sum, [0, 1, 2].map(|i| after[i] - before[i])))
}

fn main() -> Result<(), Error> {
    let ((sum, untold), (same, told)) = (cost(false)?, cost(true)?);
    assert_eq!(sum, same, "the documents differ");
    println!("all documents: {sum:016x}");
    if !ebb_hints::is_active() {
        println!("Ebb is not here, and nothing was swapped");
        return Ok(());
    }
    println!("{:<26} {:>10} {:>10}", "", "untold", "told");
    for (i, what) in ["KiB swapped out", "KiB written to a device", "faults on swapped memory"].into_iter().enumerate()
    {
        let saved = 100.0 - 100.0 * told[i] as f64 / untold[i].max(1) as f64;
        println!("{what:<26} {:>10} {:>10}  {saved:3.0} % saved", untold[i], told[i]);
    }
    Ok(())
}
