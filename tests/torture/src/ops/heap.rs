//! Blocks of the C library's heap: malloc, calloc, realloc, free, with every byte checked.

use crate::report::{COUNTS, add, fail};
use crate::rng::{GOLDEN, mix};
use crate::worker::Worker;

/// A block of the heap, whose words follow from a seed.
pub struct Block {
    at: usize,
    words: usize,
    seed: u64,
}

/// Blocks a worker holds at most.
const BLOCKS_MAX: usize = 400;

impl Block {
    fn word(&self, i: usize) -> u64 {
        // Every fourth word is random: compresses, but not to nothing.
        if i.is_multiple_of(4) {
            mix(self.seed.wrapping_add((i as u64).wrapping_mul(GOLDEN)))
        } else {
            self.seed ^ i as u64
        }
    }

    fn slice(&self) -> &'static mut [u64] {
        // SAFETY: the block is allocated with this many words and has this one owner.
        unsafe { core::slice::from_raw_parts_mut(self.at as *mut u64, self.words) }
    }

    fn fill(&self, from: usize) {
        for (i, word) in self.slice().iter_mut().enumerate().skip(from) {
            *word = self.word(i);
        }
        add(&COUNTS.pages_written, (self.words - from) / 512);
    }

    fn check_words(&self, upto: usize) {
        for (i, &word) in self.slice()[..upto].iter().enumerate() {
            if word != self.word(i) {
                let at = self.at + i * 8;
                fail(format_args!(
                    "{}: heap word {i} of a block of {} words, at {at:#x}, holds {word:#x}, not {:#x}",
                    if word == 0 { "LOST" } else { "WRONG" },
                    self.words,
                    self.word(i)
                ));
            }
        }
        add(&COUNTS.pages_checked, upto / 512);
    }

    /// Checks every byte.
    pub fn check(&self) {
        self.check_words(self.words);
    }

    /// Gives the block back.
    pub fn release(self) {
        // SAFETY: allocated by the C library, freed once.
        unsafe { libc::free(self.at as *mut libc::c_void) };
    }
}

/// Allocates, reallocates, checks or frees.
pub fn step(worker: &mut Worker) {
    let words = match worker.rng.below(12) {
        0..=6 => worker.rng.between(2, 64),
        7..=9 => worker.rng.between(64, 1024),
        10 => worker.rng.between(1024, 8192),
        _ => worker.rng.between(8192, 40_000),
    };
    let seed = worker.rng.next();
    let choice = worker.rng.below(8);
    if worker.blocks.is_empty() || (choice < 3 && worker.blocks.len() < BLOCKS_MAX) {
        // SAFETY: plain allocation.
        let at = unsafe {
            match choice {
                0 => libc::calloc(words, 8),
                1 => libc::memalign(64, words * 8),
                _ => libc::malloc(words * 8),
            }
        };
        let block = Block { at: at as usize, words, seed };
        if block.at == 0 {
            fail(format_args!("the heap has no {words} words left"));
        }
        if choice == 0 && block.slice().iter().any(|&word| word != 0) {
            fail(format_args!("calloc at {:#x} gave memory that is not zero", block.at));
        }
        block.fill(0);
        worker.blocks.push(block);
        return;
    }
    let i = worker.rng.below(worker.blocks.len());
    match choice {
        3 | 4 => worker.blocks[i].check(),
        5 | 6 => {
            let block = &mut worker.blocks[i];
            let old = block.words;
            // SAFETY: the block came from this heap; its old address is used no more.
            block.at = unsafe { libc::realloc(block.at as *mut libc::c_void, words * 8) } as usize;
            block.words = words;
            if block.at == 0 {
                fail(format_args!("realloc to {words} words failed"));
            }
            block.check_words(old.min(words));
            block.fill(old.min(words));
        }
        _ => {
            let block = worker.blocks.swap_remove(i);
            block.check();
            block.release();
            if worker.rng.one_in(64) {
                // SAFETY: gives free memory back to the kernel.
                unsafe { libc::malloc_trim(0) };
            }
        }
    }
}
