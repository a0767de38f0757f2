//! What becomes of content in files at random, against a map of what each slot must hold.
//!
//! Slots are stored, shared as by a fork, brought in and left clean, evicted, freed and written anew; meanwhile files are cleaned and
//! emptied, and the pool is written back. `PROPTEST_CASES` says how many sequences of steps.

use super::{Evacuation, SwapSpace, WriteBack, file_of, folio_number};
use crate::base::uapi;
use crate::budget::Budget;
use crate::budget::tests::budget;
use crate::counters::stats::Shared;
use crate::device::SwapSpec;
use crate::device::file::{BATCH, Place, SLOT_BYTES, SpillFile};
use crate::device::flights::Flights;
use crate::device::kind::Kind;
use crate::device::list::{Writer, bit};
use crate::protocols::gate::{Exclusive, tests::alone};
use core::cell::RefCell;
use core::sync::atomic::Ordering::Relaxed;
use ebb_pool::codec;
use ebb_slots::{CLUSTER_SLOTS, Folio, Slot, TableEntry};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;

/// Slots of each file.
const FILE_SLOTS: u32 = 6 * CLUSTER_SLOTS;
/// Most references to a slot that a case makes.
const REFERENCES_MAX: u32 = 4;

/// Pages of one kind: so many bytes of each do not compress.
#[derive(Clone, Copy, Debug)]
struct Content {
    version: u64,
    random_bytes: usize,
}

impl Content {
    fn page(self) -> [u8; 4096] {
        let mut state = self.version.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut page = [0; 4096];
        page[4088..].copy_from_slice(&self.version.to_le_bytes());
        for byte in &mut page[..self.random_bytes] {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = (state >> 24) as u8;
        }
        page
    }
}

/// What the model knows of a slot.
#[derive(Clone, Copy, Debug)]
struct Known {
    content: Content,
    references: u32,
    is_resident: bool,
}

/// Which of the slots in use a step is about: one in `of`, in an order that only the step knows.
#[derive(Clone, Copy, Debug)]
struct Part {
    of: usize,
    from: usize,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Store { batches: usize, random_bytes: usize },
    StoreInPool { pages: usize },
    Share(Part),
    BringIn(Part),
    Evict(Part),
    Free(Part),
    Rewrite { part: Part, random_bytes: usize },
    Clean { steps: usize },
    WriteBack { batches: usize },
    Empty { file: usize },
    ReleaseUnused,
}

fn part() -> impl Strategy<Value = Part> {
    (1..12usize, 0..12usize).prop_map(|(of, from)| Part { of, from })
}

/// Many objects fit in a slot, a few do, or one alone.
fn random_bytes() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 20..400usize, 3 => 400..2000usize, 1 => 2000..3500usize, 2 => Just(4088)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..14usize, random_bytes()).prop_map(|(batches, random_bytes)| Op::Store { batches, random_bytes }),
        1 => (1..300usize).prop_map(|pages| Op::StoreInPool { pages }),
        2 => part().prop_map(Op::Share),
        2 => part().prop_map(Op::BringIn),
        2 => part().prop_map(Op::Evict),
        4 => part().prop_map(Op::Free),
        3 => (part(), random_bytes()).prop_map(|(part, random_bytes)| Op::Rewrite { part, random_bytes }),
        6 => (1..10usize).prop_map(|steps| Op::Clean { steps }),
        2 => (1..6usize).prop_map(|batches| Op::WriteBack { batches }),
        1 => (0..2usize).prop_map(|file| Op::Empty { file }),
        1 => Just(Op::ReleaseUnused),
    ]
}

/// What a file is read to.
#[repr(align(4096))]
struct Aligned([u8; 4096]);

/// A swap space with two files, and what its slots must hold.
struct Machine {
    swap: SwapSpace,
    budget: Budget,
    stats: &'static Shared,
    exclusive: Exclusive<'static>,
    data: &'static mut [u8],
    lz4: Box<codec::Lz4State>,
    version: u64,
    known: BTreeMap<u32, Known>,
}

fn folio_of(slot: Slot) -> Folio {
    folio_number(u64::from(slot.0) + 1)
}

/// The folio of one who has a slot, and does not bring it in.
fn other_folio(slot: Slot) -> Folio {
    folio_number(u64::from(slot.0) + (1 << 32))
}

/// Work of one kind in the machine, by a thread that may give up copies of what is in memory. Those are noted.
macro_rules! work {
    ($this:ident, |$writer:ident| $work:expr) => {{
        let given_up: RefCell<Vec<Slot>> = RefCell::default();
        let reclaim = |slot: Slot, at: Place| {
            let is_copy = matches!($this.swap.entry(slot), TableEntry::Cached { count: 0, locked: false, .. });
            if !is_copy || !$this.swap.is_in_file(slot, at) {
                return false;
            }
            let Some(was) = $this.swap.try_claim(slot, folio_of(slot)) else { return false };
            $this.swap.release(&$this.exclusive, &$this.budget, $this.stats, slot, folio_of(slot), was);
            given_up.borrow_mut().push(slot);
            true
        };
        let $writer = Writer { held: &$this.exclusive, shard: 0, reclaim: &reclaim, stats: $this.stats };
        let result = $work;
        for slot in given_up.into_inner() {
            let known = $this.known.remove(&slot.0).expect("a slot in use");
            assert!(known.is_resident && known.references == 0, "{slot:?} was no copy: {known:?}");
        }
        result
    }};
}

impl Machine {
    fn new(kinds: [Kind; 2]) -> Self {
        // SAFETY: fresh zeroed memory is a valid page of counters and stays mapped.
        let stats: &'static Shared = unsafe { &*uapi::reserve(Shared::MAP_BYTES).expect("memory").cast::<Shared>() };
        let bytes = BATCH * SLOT_BYTES;
        // SAFETY: fresh memory that nobody else has.
        let data = unsafe { core::slice::from_raw_parts_mut(uapi::reserve(bytes).expect("memory"), bytes) };
        let mut swap = SwapSpace::new([2048; 2], 64 << 20, stats).expect("memory");
        for kind in kinds {
            let bytes = u64::from(FILE_SLOTS) * SLOT_BYTES as u64;
            let spec = SwapSpec { dir: c"/dev/shm", bytes, kind, ..SwapSpec::DEFAULT };
            let file = SpillFile::create(&spec, swap.devices.lives(), false).expect("a file");
            let number = swap.devices.add_unshared(file).unwrap_or_else(|_| panic!("there is room for a file"));
            swap.devices.write_to(number, 1);
        }
        swap.set_has_file(true);
        let (budget, exclusive) = (budget(1 << 20), alone());
        Self { swap, budget, stats, exclusive, data, lz4: Box::default(), version: 0, known: BTreeMap::new() }
    }

    fn content(&mut self, random_bytes: usize) -> Content {
        self.version += 1;
        Content { version: self.version, random_bytes }
    }

    fn chosen(&self, part: Part) -> Vec<Slot> {
        let is_chosen = |slot: &&u32| (**slot as usize).wrapping_mul(7919) % part.of == part.from % part.of;
        self.known.keys().filter(is_chosen).map(|slot| Slot(*slot)).collect()
    }

    /// Stores pages of new content in files. False if the files are full.
    fn store(&mut self, random_bytes: usize) -> bool {
        let mut slots = [Slot(0); BATCH];
        let n = self.swap.alloc(0, &self.budget, self.stats, &mut slots);
        let slots = &slots[..n];
        let contents: Vec<_> = slots.iter().map(|_| self.content(random_bytes)).collect();
        let mut lens = [0; BATCH];
        for ((content, len), part) in contents.iter().zip(&mut lens).zip(self.data.chunks_mut(SLOT_BYTES)) {
            let page = content.page();
            let size = codec::compress(&mut self.lz4, &page, &mut part[..4095]);
            if size.is_none() {
                part.copy_from_slice(&page);
            }
            *len = size.unwrap_or(4096) as u16;
        }
        let data = &mut self.data[..n * SLOT_BYTES];
        let written = work!(self, |writer| self.swap.write_objects(writer, &self.budget, slots, &lens[..n], data));
        for (slot, content) in slots.iter().zip(contents) {
            match written {
                Ok(()) => self.commit(*slot, content),
                Err(_) => self.swap.unalloc(*slot),
            }
        }
        written.is_ok()
    }

    fn commit(&mut self, slot: Slot, content: Content) {
        self.swap.commit(slot);
        let known = Known { content, references: 1, is_resident: false };
        assert!(self.known.insert(slot.0, known).is_none(), "{slot:?} was in use already");
    }

    fn store_in_pool(&mut self) {
        let content = self.content(600);
        let mut object = [0; 4096];
        let len = codec::compress(&mut self.lz4, &content.page(), &mut object).expect("it compresses");
        let mut slot = [Slot(0)];
        assert_eq!(self.swap.alloc(0, &self.budget, self.stats, &mut slot), 1);
        match self.swap.store_object(&self.budget, self.stats, slot[0], &object[..len]) {
            Ok(location) => {
                self.swap.location(slot[0]).store(location, core::sync::atomic::Ordering::Release);
                self.commit(slot[0], content);
            }
            Err(_) => self.swap.unalloc(slot[0]),
        }
    }

    fn share(&mut self, slot: Slot) {
        let known = self.known.get_mut(&slot.0).expect("a slot in use");
        if known.references < REFERENCES_MAX && self.swap.duplicate(&self.exclusive, slot) {
            known.references += 1;
        }
    }

    fn check(&self, slot: Slot) {
        let (mut out, mut scratch) = (Aligned([0; 4096]), [0; 4096]);
        let was = self.swap.claim(slot, other_folio(slot)).expect("a slot in use");
        let loaded = self.swap.load(&self.exclusive, &self.budget, slot, &mut out.0, &mut scratch);
        self.swap.unclaim(&self.exclusive, slot, was);
        let known = &self.known[&slot.0];
        assert!(
            loaded.is_ok() && out.0 == known.content.page(),
            "{slot:?} holds something else: {loaded:?}, {known:?}"
        );
    }

    fn bring_in(&mut self, slot: Slot) {
        self.check(slot);
        let known = self.known.get_mut(&slot.0).expect("a slot in use");
        if known.is_resident {
            return;
        }
        let was = self.swap.claim(slot, folio_of(slot)).expect("a slot in use");
        self.swap.keep(&self.exclusive, slot, was);
        (known.references, known.is_resident) = (known.references - 1, true);
    }

    fn evict(&mut self, slot: Slot) {
        let known = self.known.get_mut(&slot.0).expect("a slot in use");
        if known.is_resident {
            self.swap.evict(&self.exclusive, slot, folio_of(slot));
            (known.references, known.is_resident) = (known.references + 1, false);
        }
    }

    /// Gives up a reference, or the residence where there is no reference. True if the slot is free then.
    fn free_one(&mut self, slot: Slot) -> bool {
        let known = self.known.get_mut(&slot.0).expect("a slot in use");
        let folio = if known.references > 0 { other_folio(slot) } else { folio_of(slot) };
        match known.references {
            0 => known.is_resident = false,
            _ => known.references -= 1,
        }
        let is_free = known.references == 0 && !known.is_resident;
        if is_free {
            self.known.remove(&slot.0);
        }
        let mut frees = self.swap.frees(&self.exclusive, &self.budget, self.stats);
        assert!(frees.claim(slot, folio), "{slot:?} is gone");
        is_free
    }

    /// Gives up a reference of each, together.
    fn free(&mut self, slots: &[Slot]) {
        let (last, shared): (Vec<Slot>, Vec<Slot>) = slots.iter().partition(|slot| {
            let known = &self.known[&slot.0];
            known.references + u32::from(known.is_resident) == 1
        });
        shared.into_iter().for_each(|slot| assert!(!self.free_one(slot)));
        let mut frees = self.swap.frees(&self.exclusive, &self.budget, self.stats);
        for slot in last {
            let known = self.known.remove(&slot.0).expect("a slot in use");
            let folio = if known.is_resident { folio_of(slot) } else { other_folio(slot) };
            assert!(frees.claim(slot, folio), "{slot:?} is gone");
        }
    }

    fn rewrite(&mut self, slots: &[Slot], random_bytes: usize) {
        for slot in slots {
            while !self.free_one(*slot) {}
        }
        for _ in 0..slots.len().div_ceil(BATCH) {
            self.store(random_bytes);
        }
    }

    /// Where in files the content of the slots is.
    fn places(&self) -> BTreeMap<u32, (usize, Place)> {
        let place = |slot: &u32| Some((*slot, file_of(self.swap.location(Slot(*slot)).load(Relaxed))?));
        self.known.keys().filter_map(place).collect()
    }

    /// Moves a batch out of a cluster; what moved is as it was. Returns how many moved out of slots with several objects.
    fn clean(&mut self) -> u64 {
        let before = self.places();
        let cleaned = self.stats.cleaned_pages.load(Relaxed);
        work!(self, |writer| self.swap.clean_step(writer, &self.budget, self.data));
        let cleaned = self.stats.cleaned_pages.load(Relaxed) - cleaned;
        let after = self.places();
        let moved: Vec<_> = after.iter().filter(|(slot, place)| before[*slot] != **place).collect();
        assert_eq!(moved.len() as u64, cleaned, "as many slots have another place as were moved");
        moved.iter().for_each(|(slot, place)| {
            assert_eq!(before[*slot].0, place.0, "cleaning leaves content in its file");
            self.check(Slot(**slot));
        });
        moved.iter().filter(|(slot, _)| before[*slot].1.is_packed()).count() as u64
    }

    fn write_back(&mut self) {
        let mut flights = Flights::new(None);
        work!(self, |writer| {
            let (budget, stats) = (&self.budget, self.stats);
            self.swap.write_back(writer, WriteBack::Oldest, budget, stats, self.data, &mut flights)
        });
    }

    /// Empties a file as swapoff does. If nothing else takes what it holds, the rest stays there.
    fn empty(&mut self, file: usize) {
        self.swap.devices.write_no_more(file);
        let mut next = Some(Slot(0));
        let mut is_stuck = false;
        while let (Some(from), false) = (next, is_stuck) {
            let step = work!(self, |writer| {
                let job = Evacuation { writer, budget: &self.budget, stats: self.stats, leaving: bit(file) };
                self.swap.evacuate(&job, from, self.data)
            });
            is_stuck = step.is_err();
            next = step.ok().and_then(|step| {
                assert_eq!(step.unreadable, None);
                step.next
            });
        }
        if !is_stuck {
            assert!(self.places().values().all(|(of, _)| *of != file), "no location names the file");
            let left = self.swap.devices.file(&self.exclusive, file).expect("a file");
            assert_eq!((left.nr_used(), left.nr_objects()), (0, 0));
        }
        self.swap.devices.write_to(file, 1);
        self.check_all();
    }

    fn check_all(&self) {
        self.known.keys().for_each(|slot| self.check(Slot(*slot)));
    }

    /// Slots in use, references, and slots and objects in each file are what the model says.
    fn check_counts(&self) {
        let references: u64 = self.known.values().map(|known| u64::from(known.references)).sum();
        let resident = self.known.values().filter(|known| known.is_resident).count() as u64;
        assert_eq!(self.swap.references(), Some((references, resident, 0)));
        assert_eq!(self.swap.nr_used(), self.known.len() as u64);
        // The objects in each slot of a file.
        let mut shared: BTreeMap<(usize, u32), Vec<Place>> = BTreeMap::new();
        for (file, place) in self.places().into_values() {
            shared.entry((file, place.slot)).or_default().push(place);
        }
        for (number, file) in self.swap.devices.all(&self.exclusive) {
            let slots = || shared.iter().filter(|((of, _), _)| *of == number).map(|(_, places)| places);
            let objects: usize = slots().map(Vec::len).sum();
            assert_eq!((file.nr_used() as usize, file.nr_objects() as usize), (slots().count(), objects));
            for places in slots() {
                let is_last = !places[0].is_packed() || places.len() == 1;
                assert!(places.iter().all(|place| file.is_last(*place) == is_last), "{places:?}");
            }
        }
        assert_eq!(self.swap.validate(&self.exclusive), Ok(()));
    }

    fn apply(&mut self, op: Op) -> u64 {
        let mut moved = 0;
        match op {
            Op::Store { batches, random_bytes } => _ = (0..batches).take_while(|_| self.store(random_bytes)).count(),
            Op::StoreInPool { pages } => (0..pages).for_each(|_| self.store_in_pool()),
            Op::Share(part) => self.chosen(part).into_iter().for_each(|slot| self.share(slot)),
            Op::BringIn(part) => self.chosen(part).into_iter().for_each(|slot| self.bring_in(slot)),
            Op::Evict(part) => self.chosen(part).into_iter().for_each(|slot| self.evict(slot)),
            Op::Free(part) => self.free(&self.chosen(part)),
            Op::Rewrite { part, random_bytes } => self.rewrite(&self.chosen(part), random_bytes),
            Op::Clean { steps } => moved = (0..steps).map(|_| self.clean()).sum(),
            Op::WriteBack { batches } => (0..batches).for_each(|_| self.write_back()),
            Op::Empty { file } => self.empty(file),
            Op::ReleaseUnused => _ = self.swap.release_unused(&self.exclusive, &self.budget),
        }
        self.check_counts();
        moved
    }

    /// Gives up everything.
    fn end(mut self) {
        self.check_all();
        for slot in self.known.keys().map(|slot| Slot(*slot)).collect::<Vec<_>>() {
            while !self.free_one(slot) {}
        }
        self.check_counts();
        for file in 0..2 {
            let file = self.swap.devices.remove(&self.exclusive, file).expect("a file");
            file.destroy(&self.exclusive, &self.budget);
        }
    }
}

#[test]
fn slots_hold_what_a_map_says_while_files_are_cleaned_and_emptied() {
    let mut config = Config { failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 24;
    }
    let kinds = || prop_oneof![Just([Kind::Ssd, Kind::Hdd]), Just([Kind::Ssd; 2]), Just([Kind::Hdd; 2])];
    TestRunner::new(config)
        .run(&(kinds(), prop::collection::vec(op(), 20..70)), |(kinds, ops)| {
            let mut machine = Machine::new(kinds);
            ops.into_iter().for_each(|op| _ = machine.apply(op));
            machine.end();
            Ok(())
        })
        .expect("the map and the swap space agree");
}

/// What leads to cleaning for sure: both files are full, more than half of their slots come free here and there, and there are runs to
/// write.
#[test]
fn objects_move_out_of_slots_with_several_when_files_are_cleaned() {
    for kinds in [[Kind::Ssd, Kind::Hdd], [Kind::Ssd; 2], [Kind::Hdd; 2]] {
        let mut machine = Machine::new(kinds);
        let fill = [Op::Store { batches: usize::MAX, random_bytes: 1800 }];
        // Of five objects one stays, and of five slots with two objects two.
        let free = [1, 2, 3, 4].map(|from| Op::Free(Part { of: 5, from }));
        let share = [Op::Share(Part { of: 3, from: 0 }), Op::BringIn(Part { of: 2, from: 0 })];
        let clean = [Op::Store { batches: 2, random_bytes: 4088 }, Op::Clean { steps: 20 }];
        let moved: u64 = fill.into_iter().chain(free).chain(share).chain(clean).map(|op| machine.apply(op)).sum();
        assert!(moved > 100, "{moved} objects moved in files of {kinds:?}");
        machine.end();
    }
}
