//! Three threads store two blocks together: each frame is taken once, of the right block, and while its block is on offer.
//!
//! The word is real. What is modelled is who stores: each frame is a loom cell, so that two threads with the same frame end the test.

use super::{explore, get, replace};
use ebb::together::{FRAMES, Together};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// Steps of a block: few, because each is a point where threads may change.
const STEPS: usize = 2;

#[derive(Default)]
struct Staging {
    together: Together,
    /// Times that each step of each block was stored.
    stored: [[UnsafeCell<u64>; STEPS]; 2],
    /// Steps of each block that are stored. As the owners of frames, released by who stored them.
    done: [AtomicU64; 2],
}

impl Staging {
    fn step(&self) -> Option<u32> {
        let (block, frames) = self.together.take(FRAMES / STEPS as u32)?;
        assert_eq!(frames.len() as u32, FRAMES / STEPS as u32);
        let cell = &self.stored[block as usize][frames.start as usize * STEPS / FRAMES as usize];
        replace(cell, get(cell) + 1);
        self.done[block as usize].fetch_add(1, Ordering::Release);
        Some(block)
    }

    /// As `swap_out_part` for a block that is a folio.
    fn store(&self, block: u32) {
        if self.together.offer(block) {
            while let Some(took) = self.step() {
                assert_eq!(took, block, "a block stays on offer until its owner ends that");
            }
            self.together.end();
        } else {
            for cell in &self.stored[block as usize] {
                replace(cell, get(cell) + 1);
                self.done[block as usize].fetch_add(1, Ordering::Release);
            }
        }
        while self.done[block as usize].load(Ordering::Acquire) < STEPS as u64 {
            thread::yield_now();
        }
        // The block is released: nobody has any of its frames any more.
        self.stored[block as usize].iter().for_each(|cell| assert_eq!(replace(cell, 0), 1, "stored once"));
    }
}

#[test]
fn each_frame_of_a_block_on_offer_is_stored_once() {
    explore(3, || {
        let staging = Arc::new(Staging::default());
        let threads = [0, 1].map(|block| {
            let staging = staging.clone();
            thread::spawn(move || staging.store(block))
        });
        while staging.step().is_some() {}
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(staging.together.take(1).is_none());
    });
}

#[test]
fn a_block_may_be_offered_again() {
    explore(3, || {
        let staging = Arc::new(Staging::default());
        let helper = {
            let staging = staging.clone();
            thread::spawn(move || while staging.step().is_some() {})
        };
        for _ in 0..2 {
            staging.store(0);
            staging.done[0].store(0, Ordering::Relaxed);
        }
        helper.join().unwrap();
    });
}
