//! zstd, the C library, with state that the caller owns.
//!
//! Uses contexts in the caller's memory (`ZSTD_initStaticCCtx`, `ZSTD_initStaticDCtx`). The library never allocates for
//! these: where a context is too small, the call fails. From the C library it calls memcpy, memmove and memset. Its
//! tables are in the contexts, so it needs little stack; the tests below measure how much.
//!
//! A frame has neither magic number, size, nor checksum: it takes 5 bytes more than its content, and a tag in front. An
//! object in RAM needs no checksum, and what leaves RAM is authenticated.

use core::ffi::c_int;
use core::ptr::from_mut;

use zstd_sys as c;

use super::{COLD_TAG, Corrupt, PAGE_BYTES, Page};

/// How hard the compressor tries. On 4 KiB, higher levels find next to nothing more.
const LEVEL: c_int = 1;

/// What `ZSTD_estimateCCtxSize_usingCParams` says for pages, and a little more.
const ENCODER_BYTES: usize = 80 << 10;
/// What `ZSTD_estimateDCtxSize` says, and a little more.
const DECODER_BYTES: usize = (96 << 10) - 64;
/// Says that a context is set up.
const READY: u64 = 0x7a73_7464_5f6f_6b31;

/// Working memory to compress: one for each thread that compresses at a time. Zeroed memory can be used as one. It must not
/// move once it was used.
#[repr(C, align(64))]
pub struct ZstdEncoder {
    /// [`READY`] once the context is set up. That asks the processor what it can do, which takes long in a guest.
    ready: u64,
    context: Context<ENCODER_BYTES>,
}

/// Working memory to decompress: one for each thread that decompresses at a time. Zeroed memory can be used as one. It
/// must not move once it was used. A page touches a part of it only.
#[repr(C, align(64))]
pub struct ZstdDecoder {
    ready: u64,
    context: Context<DECODER_BYTES>,
}

#[repr(C, align(64))]
struct Context<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Context<BYTES> {
    const ZEROED: Self = Self([0; BYTES]);
}

impl ZstdEncoder {
    /// State for a first call.
    pub const fn new() -> Self {
        Self { ready: 0, context: Context::ZEROED }
    }

    /// The context, set up; none if the library does not accept it.
    fn context(&mut self) -> Option<*mut c::ZSTD_CCtx> {
        let at: *mut c::ZSTD_CCtx = from_mut(&mut self.context).cast();
        if self.ready != READY {
            // SAFETY: as long and as aligned as the library wants, which then uses only these bytes.
            let is_set_up = unsafe {
                let made = c::ZSTD_initStaticCCtx(at.cast(), ENCODER_BYTES);
                let set = |parameter, value| c::ZSTD_isError(c::ZSTD_CCtx_setParameter(at, parameter, value)) == 0;
                // `ZSTD_c_format` is an experimental parameter, and so has a number only.
                made == at
                    && set(c::ZSTD_cParameter::ZSTD_c_compressionLevel, LEVEL)
                    && set(c::ZSTD_cParameter::ZSTD_c_experimentalParam2, MAGICLESS)
                    && set(c::ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0)
                    && set(c::ZSTD_cParameter::ZSTD_c_checksumFlag, 0)
                    && set(c::ZSTD_cParameter::ZSTD_c_dictIDFlag, 0)
            };
            if !is_set_up {
                return None;
            }
            self.ready = READY;
        }
        Some(at)
    }
}

impl Default for ZstdEncoder {
    fn default() -> Self {
        Self::new()
    }
}

impl ZstdDecoder {
    /// State for a first call.
    pub const fn new() -> Self {
        Self { ready: 0, context: Context::ZEROED }
    }

    /// The context, set up; none if the library does not accept it.
    fn context(&mut self) -> Option<*mut c::ZSTD_DCtx> {
        let at: *mut c::ZSTD_DCtx = from_mut(&mut self.context).cast();
        if self.ready != READY {
            // SAFETY: as long and as aligned as the library wants, which then uses only these bytes.
            let is_set_up = unsafe {
                let made = c::ZSTD_initStaticDCtx(at.cast(), DECODER_BYTES);
                let format = c::ZSTD_dParameter::ZSTD_d_experimentalParam1;
                made == at && c::ZSTD_isError(c::ZSTD_DCtx_setParameter(at, format, MAGICLESS)) == 0
            };
            if !is_set_up {
                return None;
            }
            self.ready = READY;
        }
        Some(at)
    }
}

impl Default for ZstdDecoder {
    fn default() -> Self {
        Self::new()
    }
}

/// `ZSTD_f_zstd1_magicless`: frames without the magic number.
const MAGICLESS: c_int = c::ZSTD_format_e::ZSTD_f_zstd1_magicless as c_int;

/// Bytes that `dst` must have beyond what [`zstd_compress`] makes of a page: the library checks for room for the longest
/// headers before it writes any.
pub const ZSTD_SLACK: usize = 32;

/// Compresses a page into the start of `dst`. Returns how many bytes that took; none if `dst` is too short, see
/// [`ZSTD_SLACK`].
pub fn zstd_compress(encoder: &mut ZstdEncoder, src: &Page, dst: &mut [u8]) -> Option<usize> {
    let (tag, room) = dst.split_first_mut()?;
    let context = encoder.context()?;
    // SAFETY: the context is set up; the call reads the page, and writes no more than there is room.
    let len = unsafe {
        let len = c::ZSTD_compress2(context, room.as_mut_ptr().cast(), room.len(), src.as_ptr().cast(), PAGE_BYTES);
        if c::ZSTD_isError(len) == 0 { Some(len) } else { None }
    };
    *tag = COLD_TAG;
    len.map(|len| len + 1)
}

/// Decompresses what [`zstd_compress`] made of a page. After an error, the content of `dst` is unspecified.
pub fn zstd_decompress(decoder: &mut ZstdDecoder, src: &[u8], dst: &mut Page) -> Result<(), Corrupt> {
    let corrupt = Corrupt { len: src.len() };
    let Some((&COLD_TAG, frame)) = src.split_first() else { return Err(corrupt) };
    let context = decoder.context().ok_or(corrupt)?;
    // SAFETY: the context is set up; the call reads the frame, and writes no more than a page.
    let decoded = unsafe {
        let (to, from) = (dst.as_mut_ptr().cast(), frame.as_ptr().cast());
        c::ZSTD_decompressDCtx(context, to, PAGE_BYTES, from, frame.len())
    };
    // Errors are larger than any length.
    if decoded == PAGE_BYTES { Ok(()) } else { Err(corrupt) }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    /// Room for any page, whether it gets smaller or not.
    const LONG: usize = PAGE_BYTES + 128;

    fn page(seed: usize) -> Page {
        core::array::from_fn(|index| (index * (seed + 3) / 7 % 50 * (index / 64 + seed) / 11) as u8)
    }

    #[test]
    fn the_contexts_are_as_large_as_the_library_says() {
        // SAFETY: these compute numbers.
        let (encoder, decoder) = unsafe {
            let parameters = c::ZSTD_getCParams(LEVEL, PAGE_BYTES as u64, 0);
            (c::ZSTD_estimateCCtxSize_usingCParams(parameters), c::ZSTD_estimateDCtxSize())
        };
        assert!(encoder <= ENCODER_BYTES && ENCODER_BYTES < encoder + (8 << 10), "{encoder}");
        assert!(decoder <= DECODER_BYTES && DECODER_BYTES < decoder + (8 << 10), "{decoder}");
    }

    #[test]
    fn a_page_comes_back_as_it_was() {
        let (mut encoder, mut decoder) = (Box::new(ZstdEncoder::new()), Box::new(ZstdDecoder::new()));
        for seed in 0..200 {
            let (page, mut object, mut decoded) = (page(seed), [0; LONG], [0; PAGE_BYTES]);
            let len = zstd_compress(&mut encoder, &page, &mut object).unwrap();
            assert_eq!(object[0], COLD_TAG);
            zstd_decompress(&mut decoder, &object[..len], &mut decoded).unwrap();
            assert_eq!(decoded, page);
        }
    }

    #[test]
    fn a_page_that_does_not_fit_makes_nothing_and_spoils_nothing() {
        let mut encoder = Box::new(ZstdEncoder::new());
        let (mut object, mut again) = ([0; LONG], [0; LONG]);
        let len = zstd_compress(&mut encoder, &page(1), &mut object).unwrap();
        for room in 0..len {
            assert_eq!(zstd_compress(&mut encoder, &page(1), &mut [0; LONG][..room]), None);
        }
        assert_eq!(zstd_compress(&mut encoder, &page(1), &mut again[..len + ZSTD_SLACK]), Some(len));
        assert_eq!(object[..len], again[..len]);
    }

    #[test]
    fn what_decodes_to_less_than_a_page_is_corrupt() {
        let (mut encoder, mut decoder) = (Box::new(ZstdEncoder::new()), Box::new(ZstdDecoder::new()));
        let (mut object, mut decoded) = ([0; LONG], [0; PAGE_BYTES]);
        let len = zstd_compress(&mut encoder, &page(7), &mut object).unwrap();
        for cut in 0..len {
            assert_eq!(zstd_decompress(&mut decoder, &object[..cut], &mut decoded), Err(Corrupt { len: cut }));
        }
        // A context that has seen errors decodes all the same.
        zstd_decompress(&mut decoder, &object[..len], &mut decoded).unwrap();
        assert_eq!(decoded, page(7));
    }

    /// What a thread with a small stack of a known content has written of it.
    fn stack_used(work: impl FnOnce() + Send) -> usize {
        const BYTES: usize = 256 << 10;
        #[inline(never)]
        fn paint() {
            let mut room = [0xa5u8; BYTES / 2];
            std::hint::black_box(&mut room);
        }
        #[inline(never)]
        fn touched() -> usize {
            // Uninitialised on purpose: the bytes that `paint` left, as far as nobody wrote there since.
            let room = core::mem::MaybeUninit::<[u8; BYTES / 2 - 1024]>::uninit();
            let at: *const u8 = std::hint::black_box(&room).as_ptr().cast();
            // SAFETY: within this frame; volatile, because the bytes are whatever memory has.
            let intact = (0..BYTES / 2 - 1024).take_while(|i| unsafe { at.add(*i).read_volatile() } == 0xa5).count();
            BYTES / 2 - intact
        }
        std::thread::scope(|scope| {
            let run = || {
                paint();
                work();
                touched()
            };
            std::thread::Builder::new().stack_size(2 * BYTES).spawn_scoped(scope, run).unwrap().join().unwrap()
        })
    }

    #[test]
    fn both_ways_take_little_stack() {
        let (mut encoder, mut decoder) = (Box::new(ZstdEncoder::new()), Box::new(ZstdDecoder::new()));
        let (mut object, mut decoded) = (Box::new([0; LONG]), Box::new([0; PAGE_BYTES]));
        let pages: Vec<Page> = (0..64).map(page).collect();
        let mut lens = Vec::with_capacity(pages.len());
        let in_use = stack_used(|| ());
        let compressing = stack_used(|| {
            for page in &pages {
                lens.push(zstd_compress(&mut encoder, page, &mut object[..]).unwrap());
            }
        });
        let len = lens[lens.len() - 1];
        let decompressing = stack_used(|| zstd_decompress(&mut decoder, &object[..len], &mut decoded).unwrap());
        assert!(compressing < in_use + (8 << 10), "{compressing} of {in_use}");
        assert!(decompressing < in_use + (4 << 10), "{decompressing} of {in_use}");
    }
}
