//! Prints what the pool's operations cost.
//!
//! ```text
//! cargo run --release -p ebb-pool --example bench [-- OBJECTS]
//! ```
//!
//! `OBJECTS` (default 100000) objects of 600 to 2600 bytes are stored; then random ones are loaded, and replaced by
//! others of random length (the steady state of a full pool); then all but a third are freed and the rest compacted.
//! Times are of the pool alone: its memory is touched beforehand, except where a row says otherwise.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Mutex;
use std::time::Instant;

use ebb_pool::{BLOCK_BYTES, Backing, Handle, Owners, Pool};

/// Memory that is simply there.
struct Unlimited;

impl Backing for Unlimited {
    fn acquire(&self, _block: u32, _pages: u32) -> bool {
        true
    }

    fn release(&self, _block: u32, _pages: u32) {}
}

/// Nobody else has a claim.
struct Handles(Mutex<Vec<Option<Handle>>>);

impl Owners for Handles {
    fn try_claim(&self, _owner: u32, _handle: Handle) -> bool {
        true
    }

    fn moved(&self, owner: u32, _old: Handle, new: Handle) {
        self.0.lock().unwrap()[owner as usize] = Some(new);
    }

    fn unclaim(&self, _owner: u32) {}
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }

    fn len(&mut self) -> usize {
        600 + self.below(2000)
    }
}

/// Prints nanoseconds an operation.
fn timed(what: &str, operations: usize, f: impl FnOnce()) {
    let start = Instant::now();
    f();
    println!("| {what} | {:.0} |", start.elapsed().as_nanos() as f64 / operations as f64);
}

fn main() {
    let objects: usize = std::env::args().nth(1).map_or(100_000, |arg| arg.parse().expect("a number of objects"));
    let arena_bytes = (objects * 2600).next_multiple_of(BLOCK_BYTES) + 256 * BLOCK_BYTES;
    let metadata_bytes = Pool::metadata_bytes(arena_bytes);
    let [arena_layout, metadata_layout] =
        [arena_bytes, metadata_bytes].map(|bytes| Layout::from_size_align(bytes, 4096).expect("a sane size"));
    // SAFETY: neither size is zero.
    let [arena, metadata] = [arena_layout, metadata_layout].map(|layout| unsafe { alloc_zeroed(layout) });
    assert!(!arena.is_null() && !metadata.is_null());
    // SAFETY: both are freed after the last use of the pool.
    let pool = unsafe { Pool::init(arena, arena_bytes, metadata, metadata_bytes) };

    println!("| operation | ns |\n|---|---|");
    run(&pool, objects);
    // SAFETY: allocated with these layouts; nobody uses the pool any more.
    unsafe {
        dealloc(arena, arena_layout);
        dealloc(metadata, metadata_layout);
    }
}

fn run(pool: &Pool, objects: usize) {
    let data = vec![0x5a; 4096];
    let mut random = Random(1);
    let mut handles = vec![None; objects];
    let store = |len: usize, owner: usize| Some(pool.store(&Unlimited, owner as u32, &data[..len]).expect("room"));

    timed("store, into memory never touched", objects, || {
        (0..objects).for_each(|owner| handles[owner] = store(random.len(), owner));
    });
    let held = (pool.used_pages() * 4096) as f64;
    eprintln!("{:.1} % of the memory held is objects' data", 100.0 * pool.stored_bytes() as f64 / held);
    for handle in handles.iter_mut().filter_map(Option::take) {
        assert!(pool.free(&Unlimited, handle));
    }
    timed("store, one after the other", objects, || {
        (0..objects).for_each(|owner| handles[owner] = store(random.len(), owner));
    });
    timed("object, at random", objects, || {
        let sum: usize = (0..objects).map(|_| pool.object(handles[random.below(objects)].unwrap()).unwrap().1).sum();
        std::hint::black_box(sum);
    });
    timed("load and copy, at random", objects, || {
        let mut page = [0; 4096];
        for _ in 0..objects {
            // SAFETY: nobody moves or frees anything meanwhile.
            let data = unsafe { pool.load(handles[random.below(objects)].unwrap()) };
            page[..data.len()].copy_from_slice(data);
            std::hint::black_box(&page);
        }
    });
    timed("free and store, at random", objects, || {
        for _ in 0..objects {
            let owner = random.below(objects);
            pool.free(&Unlimited, handles[owner].take().unwrap());
            handles[owner] = store(random.len(), owner);
        }
    });
    let mut freed = 0;
    timed("free, two of three in order", objects * 2 / 3, || {
        for handle in handles.iter_mut().enumerate().filter(|(owner, _)| owner % 3 != 0).map(|(_, handle)| handle) {
            freed += usize::from(pool.free(&Unlimited, handle.take().unwrap()));
        }
    });
    let (pages, spare) = (pool.used_pages(), pool.spare_pages());
    let owners = Handles(Mutex::new(handles));
    let start = Instant::now();
    let moved = pool.compact(&Unlimited, &owners, usize::MAX);
    println!("| compact, an object moved | {:.0} |", start.elapsed().as_nanos() as f64 / moved.max(1) as f64);
    eprintln!(
        "{freed} freed; {moved} moved gave back {} of {pages} pages, {spare} foretold",
        pages - pool.used_pages()
    );
    pool.validate().expect("a sound pool");
    two_threads(pool, objects);
}

/// Each of two threads stores and frees its own objects of the same few classes.
fn two_threads(pool: &Pool, objects: usize) {
    let data = [0x5a; 1200];
    let churn = |first: u32| {
        let mut handles = [None; 64];
        for round in 0..objects {
            let place = round % handles.len();
            if let Some(handle) = handles[place].take() {
                pool.free(&Unlimited, handle);
            }
            handles[place] = pool.store(&Unlimited, first + place as u32, &data[..1100 + round % 3 * 50]).ok();
        }
    };
    timed("free and store, one thread, three classes", objects, || churn(0));
    timed("the same, two threads at once", objects, || {
        std::thread::scope(|scope| {
            scope.spawn(|| churn(0));
            scope.spawn(|| churn(64));
        });
    });
}
