//! What the codec of the cold tier works in: some 96 KiB for each thread that decompresses at a time, and as much for one that
//! compresses.
//!
//! Few threads read cold objects at a time, so there are few decoders, and a thread that finds none free yields until one is. That
//! takes microseconds: who has one waits for nothing, neither for a page nor for a device. A decoder is charged from its first use
//! on, and its memory is given back when nothing is cold any more. So is an encoder's when there is nothing left to compress.

use crate::base::uapi::{self, Errno};
use crate::budget::Budget;
use crate::places::work::{Buffers, Lease, first};
use core::mem::size_of;
use core::sync::atomic::AtomicU32;
use ebb_pool::codec::{self, Corrupt, Page, ZSTD_SLACK, ZstdDecoder, ZstdEncoder};

/// Most decoders, and those that there are in any case.
const DECODERS_MAX: usize = 8;
const DECODERS_MIN: usize = 2;
/// There is one more for each so many pages that the process may expect of the budget, up to the number of processors.
const DECODER_EVERY: usize = 8192;
/// Who finds no decoder sleeps this long after so many yields.
const WAIT_NS: u64 = 50_000;
const YIELDS: u32 = 64;
/// Encoders: the background thread has one, and one that reclaims on demand.
const ENCODERS: usize = 2;

/// Working memory to decompress a cold object.
#[repr(C, align(4096))]
pub struct Decoder(ZstdDecoder);

/// Working memory to make an object cold.
#[repr(C, align(4096))]
pub struct Encoder {
    /// The page's content.
    pub page: Page,
    object: [u8; 4096 + ZSTD_SLACK],
    zstd: ZstdEncoder,
}

impl Encoder {
    /// Compresses [`Self::page`] to `len_max` bytes at most, if it can.
    pub fn compress(&mut self, len_max: usize) -> Option<&[u8]> {
        let room = (len_max + ZSTD_SLACK).min(self.object.len());
        let len = codec::zstd_compress(&mut self.zstd, &self.page, &mut self.object[..room])?;
        (len <= len_max).then(|| &self.object[..len])
    }
}

/// The decoders and encoders of a space.
pub struct Codecs {
    decoders: Buffers<Decoder>,
    encoders: Buffers<Encoder>,
    nr_cpus: usize,
}

impl Codecs {
    /// Reserves them.
    pub fn new() -> Result<Self, Errno> {
        let (decoders, encoders) = (Buffers::reserve(DECODERS_MAX)?, Buffers::reserve(ENCODERS)?);
        Ok(Self { decoders, encoders, nr_cpus: uapi::nr_cpus() })
    }

    /// After fork, in the child: frees those of threads that died inside the gate. They are leased inside the gate only.
    pub fn reset(&self) {
        self.decoders.reset();
        self.encoders.reset();
    }

    /// How many decoders a process may use that may expect `share` pages of the budget.
    fn nr_decoders(nr_cpus: usize, share: usize) -> usize {
        (DECODERS_MIN + share / DECODER_EVERY).min(nr_cpus.clamp(DECODERS_MIN, DECODERS_MAX))
    }

    /// Decompresses an object that is cold. Yields while other threads have all decoders.
    pub fn decompress(&self, budget: &Budget, object: &[u8], out: &mut Page) -> Result<(), Corrupt> {
        let allowed = first(Self::nr_decoders(self.nr_cpus, budget.expected()));
        let mut turns = 0u32;
        loop {
            // The first that is free, so that no more have memory than are in use at a time.
            if let Some(mut decoder) = self.decoders.lease_of(allowed, 0) {
                decoder.charge(size_of::<Decoder>() / 4096, budget);
                return codec::zstd_decompress(&mut decoder.0, object, out);
            }
            turns += 1;
            // A thread with a real-time priority yields to nobody below it.
            match turns % YIELDS {
                0 => uapi::futex_wait(&AtomicU32::new(0), 0, Some(WAIT_NS)),
                _ => uapi::sched_yield(),
            }
        }
    }

    /// Leases an encoder, if one is free. Call it inside the gate only, and [`Self::charge_encoder`] before it is used.
    pub fn try_encoder(&self) -> Option<Lease<'_, Encoder>> {
        self.encoders.lease_of(first(ENCODERS), 0)
    }

    /// Charges an encoder that is about to be used, if it is not charged yet.
    pub fn charge_encoder(encoder: &Lease<'_, Encoder>, budget: &Budget) {
        encoder.charge(size_of::<Encoder>() / 4096, budget);
    }

    /// Frees the memory of the encoders, and with `decoders` that of the decoders, except those in use; returns how many pages that
    /// freed. Call it inside the gate or with the gate closed.
    pub fn trim(&self, decoders: bool, budget: &Budget) -> usize {
        let freed = if decoders { self.decoders.trim(0, budget) } else { 0 };
        freed + self.encoders.trim(0, budget)
    }

    /// Whether any of them has memory.
    pub fn have_memory(&self) -> bool {
        (self.decoders.excess(0) | self.encoders.excess(0)) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::tests::budget;

    fn page(seed: usize) -> Page {
        core::array::from_fn(|i| if i % 8 < 3 { (i * seed / 24) as u8 } else { 0 })
    }

    #[test]
    fn a_page_survives_and_its_working_memory_is_charged_until_it_is_trimmed() {
        let (g, codecs) = (budget(1 << 20), Codecs::new().expect("memory"));
        assert!(!codecs.have_memory());
        for seed in 1..20 {
            let mut encoder = codecs.try_encoder().expect("free");
            Codecs::charge_encoder(&encoder, &g);
            encoder.page = page(seed);
            let object = encoder.compress(4000).expect("small").to_vec();
            drop(encoder);
            let mut out = [0xee; 4096];
            codecs.decompress(&g, &object, &mut out).expect("sound");
            assert_eq!(out, page(seed));
            assert!(codecs.decompress(&g, &object[..object.len() - 1], &mut out).is_err());
        }
        let pages = [size_of::<Encoder>(), size_of::<Decoder>()].map(|bytes| bytes / 4096);
        assert_eq!(g.meta_pages(), pages.iter().sum::<usize>());
        assert_eq!((codecs.trim(false, &g), codecs.trim(true, &g), g.meta_pages()), (pages[0], pages[1], 0));
        assert!(!codecs.have_memory());
        // Memory that was given back is zeroed, and works again.
        let mut encoder = codecs.try_encoder().expect("free");
        Codecs::charge_encoder(&encoder, &g);
        encoder.page = page(3);
        assert!(encoder.compress(4000).is_some() && encoder.compress(10).is_none());
    }

    #[test]
    fn threads_share_the_decoders() {
        let (g, codecs) = (budget(1 << 20), Codecs::new().expect("memory"));
        let mut encoder = codecs.try_encoder().expect("free");
        Codecs::charge_encoder(&encoder, &g);
        encoder.page = page(5);
        let object = encoder.compress(4000).expect("small").to_vec();
        std::thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    let mut out = [0; 4096];
                    for _ in 0..2000 {
                        codecs.decompress(&g, &object, &mut out).expect("sound");
                        assert_eq!(out, page(5));
                    }
                });
            }
        });
    }
}
