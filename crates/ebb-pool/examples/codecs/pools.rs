//! What a pool takes beyond its data: when it is filled, when objects have come and gone, and when it is compacted.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::RefCell;

use ebb_pool::{Backing, Handle, Owners, Pool};

use crate::pages::Random;

/// Objects that a pool holds.
const OBJECTS: [usize; 7] = [1000, 2000, 4000, 8000, 16000, 32000, 64000];
/// How often an object is replaced by another, on average.
const TURNS: usize = 2;
const ARENA_BYTES: usize = 512 << 20;

/// Memory that is simply there.
struct Unlimited;

impl Backing for Unlimited {
    fn acquire(&self, _block: u32, _pages: u32) -> bool {
        true
    }

    fn release(&self, _block: u32, _pages: u32) {}
}

/// Nobody else has a claim.
struct Handles(RefCell<Vec<Handle>>);

impl Owners for Handles {
    fn try_claim(&self, _owner: u32, _handle: Handle) -> bool {
        true
    }

    fn moved(&self, owner: u32, _old: Handle, new: Handle) {
        self.0.borrow_mut()[owner as usize] = new;
    }

    fn unclaim(&self, _owner: u32) {}
}

/// Prints the mean over the programs, of whose pages these are the lengths.
pub fn print(programs: &[Vec<usize>]) {
    println!("\n### Pools of few objects, on the mean of the programs above\n");
    println!("| objects | filled | each object replaced {TURNS} times | compacted |");
    println!("|---|---|---|---|");
    let arena = zeroed(ARENA_BYTES, 4096);
    for objects in OBJECTS {
        let mut sums = [0.0; 3];
        for lens in programs.iter().filter(|lens| !lens.is_empty()) {
            let taken = taken(arena, objects, lens);
            sums.iter_mut().zip(taken).for_each(|(sum, taken)| *sum += taken / programs.len() as f64);
        }
        let [filled, replaced, compacted] = sums.map(|sum| format!("{:.1} %", 100.0 * (sum - 1.0)));
        println!("| {objects} | {filled} | {replaced} | {compacted} |");
    }
}

/// The pool's memory as a multiple of its data, at the three moments.
fn taken(arena: *mut u8, objects: usize, lens: &[usize]) -> [f64; 3] {
    let metadata_len = Pool::metadata_bytes(ARENA_BYTES);
    // SAFETY: the arena is no other pool's by now, and nobody else knows the metadata. Neither is freed.
    let pool = unsafe { Pool::init(arena, ARENA_BYTES, zeroed(metadata_len, 128), metadata_len) };
    let mut random = Random(9);
    let data = [7; 4096];
    let mut store = |owner: usize| {
        let len = lens[random.below(lens.len())];
        pool.store(&Unlimited, owner as u32, &data[..len]).expect("the arena is large enough")
    };
    let handles = Handles(RefCell::new((0..objects).map(&mut store).collect()));
    let now = || (pool.used_pages() * 4096) as f64 / pool.stored_bytes() as f64;
    let filled = now();
    let mut random = Random(10);
    for _ in 0..TURNS * objects {
        let owner = random.below(objects);
        pool.free(&Unlimited, handles.0.borrow()[owner]);
        handles.0.borrow_mut()[owner] = store(owner);
    }
    let replaced = now();
    while pool.compact(&Unlimited, &handles, objects) > 0 {}
    [filled, replaced, now()]
}

fn zeroed(bytes: usize, align: usize) -> *mut u8 {
    let layout = Layout::from_size_align(bytes, align).expect("a power of two");
    // SAFETY: the size is not zero.
    let at = unsafe { alloc_zeroed(layout) };
    assert!(!at.is_null());
    at
}
