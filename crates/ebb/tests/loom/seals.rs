//! What is read from around a slot of a file, with nothing locked, is taken for the content of an owner only if it is.
//!
//! The seal is real. What is modelled, with the engine's own orderings: the slot on the disk (a relaxed atomic, which has the nonce
//! under which it was encrypted), the check of the content against the seal, and the owner's lock and location word. What the
//! owner's content is, is a loom cell, which only who has the owner locked may touch.

use super::{explore, get, replace};
use ebb::seal::{Seal, SealWords};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// The location word of content in the slot of the file.
const HERE: u64 = 1;

fn seal(nonce: u64) -> Seal {
    Seal::new(nonce, 100, [nonce as u8; 16])
}

struct File {
    seal: SealWords,
    disk: AtomicU64,
    is_free: AtomicU64,
    lock: AtomicU64,
    location: AtomicU64,
    /// The nonce of the owner's content.
    content: UnsafeCell<u64>,
}

impl File {
    fn new() -> Self {
        let this = Self {
            seal: SealWords::default(),
            disk: AtomicU64::new(1),
            is_free: AtomicU64::new(0),
            lock: AtomicU64::new(0),
            location: AtomicU64::new(HERE),
            content: UnsafeCell::new(1),
        };
        this.seal.set(seal(1));
        this
    }

    fn try_lock(&self) -> bool {
        self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn unlock(&self) {
        self.lock.store(0, Ordering::Release);
    }

    /// The owner's content goes elsewhere, and the slot is free.
    fn give_up(&self) {
        while !self.try_lock() {
            thread::yield_now();
        }
        self.location.store(0, Ordering::Release);
        self.unlock();
        self.is_free.store(1, Ordering::Release);
    }

    /// New content is written to the slot, if it is free, for the same owner.
    fn write(&self, nonce: u64) {
        if self.is_free.compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        while !self.try_lock() {
            thread::yield_now();
        }
        self.seal.set(seal(nonce));
        self.disk.store(nonce, Ordering::Relaxed);
        replace(&self.content, nonce);
        self.location.store(HERE, Ordering::Release);
        self.unlock();
    }

    /// As `read_window`: whether the content was taken.
    fn read_around(&self) -> bool {
        let (raw, found) = (self.disk.load(Ordering::Relaxed), self.seal.get());
        // What was sealed otherwise does not decrypt.
        if found != seal(raw) || !self.try_lock() {
            return false;
        }
        let is_here = self.location.load(Ordering::Acquire) == HERE;
        let is_it = is_here && self.seal.get().nonce() == found.nonce();
        if is_it {
            assert_eq!(raw, get(&self.content), "content of before");
        }
        self.unlock();
        is_it
    }
}

#[test]
fn what_was_read_before_a_slot_was_written_again_is_not_its_content() {
    explore(3, || {
        let file = Arc::new(File::new());
        let threads = [(2, true), (3, false)].map(|(nonce, gives_up)| {
            let file = file.clone();
            thread::spawn(move || {
                if gives_up {
                    file.give_up();
                }
                file.write(nonce);
            })
        });
        file.read_around();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(file.read_around(), "nobody is in the way any more");
    });
}
