//! The seal of a slot of a file: what it takes to decrypt and authenticate its content again.
//!
//! Whoever allocated a slot writes its seal, and whoever has an owner of content in the slot locked reads it. A third
//! kind of reader has nothing locked: it reads what lies around a slot, and may meet a seal that somebody writes. Such a
//! seal does not fit what was read, so the content fails its check. If it does fit, the content was in the slot when it
//! was sealed, but perhaps is no longer. Then the nonce tells, which is never used twice. The reader locks an owner, and
//! sees that the owner's content still is in the slot. From then on the slot's seal does not change, and if it has the
//! nonce of the seal that fitted, what was read is the content.
//!
//! Invariant: a slot is sealed anew only while no location word names it. Such a word is stored with release after
//! the seal, and read with acquire before it.

use crate::protocols::primitive::{AtomicU64, Ordering};

/// What it takes to decrypt and authenticate a slot's content.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Seal {
    /// The nonce in the low 52 bits, the length less one in the top 12.
    nonce_len: u64,
    tag: [u8; 16],
}

impl Seal {
    const NONCE_BITS: u32 = 52;

    /// The seal of `len` bytes.
    pub fn new(nonce: u64, len: usize, tag: [u8; 16]) -> Self {
        debug_assert!((1..=1 << (u64::BITS - Self::NONCE_BITS)).contains(&len) && nonce >> Self::NONCE_BITS == 0);
        Self { nonce_len: nonce | (len as u64 - 1) << Self::NONCE_BITS, tag }
    }

    /// The number that makes the nonce; 0 in a seal that was never written.
    pub fn nonce(self) -> u64 {
        self.nonce_len & ((1 << Self::NONCE_BITS) - 1)
    }

    /// Bytes of the slot that have content.
    pub fn content_len(self) -> usize {
        (self.nonce_len >> Self::NONCE_BITS) as usize + 1
    }

    /// The tag of the content.
    pub fn tag(self) -> [u8; 16] {
        self.tag
    }
}

/// A seal in memory. Each word is relaxed: see the invariant for what orders them.
#[repr(C)]
#[derive(Debug)]
pub struct SealWords([AtomicU64; 3]);

impl Default for SealWords {
    fn default() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl SealWords {
    /// The seal; whoever has nothing locked may get parts of two.
    pub fn get(&self) -> Seal {
        let [nonce_len, tag @ ..] = &self.0;
        let mut bytes = [0; 16];
        for (part, word) in bytes.as_chunks_mut().0.iter_mut().zip(tag) {
            *part = word.load(Ordering::Relaxed).to_le_bytes();
        }
        Seal { nonce_len: nonce_len.load(Ordering::Relaxed), tag: bytes }
    }

    /// Seals a slot that is the caller's alone.
    pub fn set(&self, seal: Seal) {
        let [nonce_len, tag @ ..] = &self.0;
        nonce_len.store(seal.nonce_len, Ordering::Relaxed);
        for (word, part) in tag.iter().zip(seal.tag.as_chunks().0) {
            word.store(u64::from_le_bytes(*part), Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_seal_comes_back_as_it_was() {
        let (words, tag) = (SealWords::default(), core::array::from_fn(|i| i as u8 * 3 + 1));
        assert_eq!(words.get(), Seal::default());
        for (nonce, len) in [(1, 1), ((1 << 52) - 1, 4096), (77, 300)] {
            words.set(Seal::new(nonce, len, tag));
            let seal = words.get();
            assert_eq!((seal.nonce(), seal.content_len(), seal.tag()), (nonce, len, tag));
        }
    }
}
