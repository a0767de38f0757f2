//! What fragmentation does to large folios: the cases of the kernel's own `thp_swap_allocator_test`, against the
//! allocator alone.
//!
//! A device of 64 MiB, an area of 60 MiB in folios of 64 KiB, and perhaps 1 MiB of small ones. In each round a quarter
//! of the area is given up and written anew, as large folios; some pages are swapped in, aligned to folios or not, and
//! are small from then on; and everything that is in memory is swapped out. A large folio that finds no run falls back
//! to single slots.

use crate::design::FOLIO;
use crate::device;
use ebb_slots::{Options, Order, Placement, Relocate, Shadow, Shard, Slot, SwapDevice};
use fastrand::Rng;

const NR_SLOTS: u32 = (64 << 20) / 4096;
const LARGE_PAGES: usize = 16;
const AREA_CHUNKS: usize = (60 << 20) / (64 << 10);
const SMALL_PAGES: usize = (1 << 20) / 4096;
const GIVEN_UP_CHUNKS: usize = (16 << 20) / (64 << 10);
const GIVEN_UP_SMALL: usize = (768 << 10) / 4096;
/// Swapped in by each round: 2 MiB.
const SWAPPED_IN_PAGES: usize = (2 << 20) / 4096;
const ROUNDS: usize = 100;

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    /// There is an area of small folios too.
    pub small: bool,
    /// Pages are swapped in by whole folios, one by one, or not at all.
    pub swap_in: SwapIn,
    pub compacts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapIn {
    None,
    Aligned,
    Random,
}

pub struct Outcome {
    /// Of the large folios swapped out in the second half of the rounds, those that found no run.
    pub fallback: f64,
    /// The same of the worst round of these.
    pub worst: f64,
    /// Slots moved by compaction for each large folio swapped out.
    pub moves_per_folio: f64,
}

/// A page of the program's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    /// In memory; its chunk says whether as part of a large folio.
    Present,
    Swapped(Slot),
}

struct World {
    device: SwapDevice,
    pages: Vec<Page>,
    /// Which chunks are one folio while they are in memory.
    is_large: Vec<bool>,
    /// The page that each slot belongs to.
    owner: Vec<usize>,
    moves: usize,
}

struct Mover<'a> {
    device: &'a SwapDevice,
    pages: &'a mut [Page],
    owner: &'a mut [usize],
    moves: &'a mut usize,
}

impl Relocate for Mover<'_> {
    fn relocate(&mut self, from: Slot, to: Slot) -> bool {
        let page = self.owner[from.0 as usize];
        assert!(self.pages[page] == Page::Swapped(from));
        let Ok(stored) = self.device.cache_add(from, FOLIO) else { return false };
        store(self.device, to, stored.shadow);
        self.device.put(from);
        self.device.cache_del(from, Shadow(0));
        self.pages[page] = Page::Swapped(to);
        self.owner[to.0 as usize] = page;
        *self.moves += 1;
        true
    }
}

/// A slot that was allocated holds a page from now on.
fn store(device: &SwapDevice, slot: Slot, shadow: Shadow) {
    device.dup(slot).expect("a count that fits");
    device.cache_del(slot, shadow);
}

impl World {
    fn new(small: bool) -> Self {
        let pages = AREA_CHUNKS * LARGE_PAGES + if small { SMALL_PAGES } else { 0 };
        Self {
            device: device::new(&Options::fixed(NR_SLOTS, 1, Placement::Sharded)),
            pages: vec![Page::Present; pages],
            is_large: vec![true; AREA_CHUNKS],
            owner: vec![usize::MAX; NR_SLOTS as usize],
            moves: 0,
        }
    }

    fn bring_in(&mut self, page: usize) {
        if let Page::Swapped(slot) = self.pages[page] {
            self.device.put(slot);
            self.pages[page] = Page::Present;
        }
    }

    fn put_out(&mut self, page: usize, slot: Slot) {
        store(&self.device, slot, Shadow(0));
        self.pages[page] = Page::Swapped(slot);
        self.owner[slot.0 as usize] = page;
    }

    fn put_out_small(&mut self, page: usize) {
        if self.pages[page] == Page::Present {
            let mut out = [Slot(0)];
            assert_eq!(self.device.alloc(Shard(0), Order::ZERO, FOLIO, &mut out), 1, "no slot");
            self.put_out(page, out[0]);
        }
    }

    /// A run for a large folio, perhaps made.
    fn large_run(&mut self, compacts: bool) -> Option<Slot> {
        let order = Order::new(4).expect("an order");
        let mut out = [Slot(0)];
        for attempt in 0..2 {
            if self.device.alloc(Shard(0), order, FOLIO, &mut out) == 1 {
                return Some(out[0]);
            }
            if attempt == 0 && compacts {
                let Self { device, pages, owner, moves, .. } = self;
                let mut mover = Mover { device, pages, owner, moves };
                // As many as a batch of swap-outs uses, so that the search is not made for each.
                device.compact(order, 8, 128, FOLIO, &mut mover);
            }
        }
        None
    }

    fn round(&mut self, case: &Case, rng: &mut Rng) -> (usize, usize) {
        for _ in 0..GIVEN_UP_CHUNKS {
            let chunk = rng.usize(..AREA_CHUNKS);
            for page in chunk * LARGE_PAGES..(chunk + 1) * LARGE_PAGES {
                self.bring_in(page);
            }
            self.is_large[chunk] = true;
        }
        let area = AREA_CHUNKS * LARGE_PAGES;
        if case.small {
            for _ in 0..GIVEN_UP_SMALL {
                self.bring_in(area + rng.usize(..SMALL_PAGES));
            }
        }
        let mut swapped_in = 0;
        while case.swap_in != SwapIn::None && swapped_in < SWAPPED_IN_PAGES {
            let page = rng.usize(..area);
            let chunk = page / LARGE_PAGES;
            let pages = match case.swap_in {
                SwapIn::Aligned => chunk * LARGE_PAGES..(chunk + 1) * LARGE_PAGES,
                _ => page..page + 1,
            };
            swapped_in += pages.len();
            for page in pages {
                if self.pages[page] != Page::Present {
                    self.bring_in(page);
                    self.is_large[chunk] = false;
                }
            }
        }
        let (mut tried, mut failed) = (0, 0);
        for chunk in 0..AREA_CHUNKS {
            let pages = chunk * LARGE_PAGES..(chunk + 1) * LARGE_PAGES;
            if self.is_large[chunk] && self.pages[pages.start] == Page::Present {
                tried += 1;
                if let Some(first) = self.large_run(case.compacts) {
                    for (page, slot) in pages.zip((first.0..).map(Slot)) {
                        self.put_out(page, slot);
                    }
                    continue;
                }
                failed += 1;
                self.is_large[chunk] = false;
            }
            pages.for_each(|page| self.put_out_small(page));
        }
        (area..self.pages.len()).for_each(|page| self.put_out_small(page));
        (tried, failed)
    }
}

pub fn run(case: &Case) -> Outcome {
    let mut world = World::new(case.small);
    let mut rng = Rng::with_seed(11);
    let (mut tried, mut failed, mut worst) = (0, 0, 0.0f64);
    for round in 0..ROUNDS {
        let (t, f) = world.round(case, &mut rng);
        if round >= ROUNDS / 2 {
            tried += t;
            failed += f;
            worst = worst.max(f as f64 / t.max(1) as f64);
        }
    }
    world.device.validate().expect("a consistent device");
    let moves_per_folio = world.moves as f64 / (2 * tried).max(1) as f64;
    Outcome { fallback: failed as f64 / tried.max(1) as f64, worst, moves_per_folio }
}
