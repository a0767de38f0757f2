//! lz4, the C library, with state that the caller owns.
//!
//! Uses only functions of `lz4.c` that allocate nothing. `LZ4_compress_fast_extState` works in the state it is given.
//! `LZ4_decompress_safe` works on the stack. (`LZ4_HEAPMODE`, which lz4-sys leaves at 0, is about functions without
//! caller-given state.) From the C library they call memcpy, memmove and memset.

use core::ffi::{c_char, c_int, c_void};

use super::{Corrupt, PAGE_BYTES, Page};

// Not declared by lz4-sys, but in the library it builds; `LZ4LIB_API` in lz4.h.
unsafe extern "C" {
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    #[cfg(test)]
    fn LZ4_sizeofState() -> c_int;
}

/// `LZ4_STREAM_MINSIZE`: the hash table and some fields.
const STATE_BYTES: usize = (1 << 14) + 32;

/// lz4's default: every position is tried.
const ACCELERATION: c_int = 1;

/// Working memory of lz4, some 16 KiB: one for each thread that compresses at a time. Its content between calls does
/// not matter. Any content is valid, so zeroed memory can be used as one.
#[repr(C, align(64))]
pub struct Lz4State([u8; STATE_BYTES.next_multiple_of(64)]);

impl Lz4State {
    /// State for a first call.
    pub const fn new() -> Self {
        Self([0; STATE_BYTES.next_multiple_of(64)])
    }
}

impl Default for Lz4State {
    fn default() -> Self {
        Self::new()
    }
}

/// Compresses a page into the start of `dst`. Returns how many bytes that took; none if `dst` is too short. With a
/// short `dst`, it gives up quickly on an incompressible page.
#[inline]
pub fn lz4_compress(work: &mut Lz4State, src: &Page, dst: &mut [u8]) -> Option<usize> {
    let capacity = c_int::try_from(dst.len()).unwrap_or(c_int::MAX);
    // SAFETY: the state is as large and as aligned as lz4 wants, and set up by the call itself; it reads the page and
    // writes no more than `capacity` bytes.
    let len = unsafe {
        LZ4_compress_fast_extState(
            work.0.as_mut_ptr().cast(),
            src.as_ptr().cast(),
            dst.as_mut_ptr().cast(),
            PAGE_BYTES as c_int,
            capacity,
            ACCELERATION,
        )
    };
    debug_assert!(len <= capacity);
    usize::try_from(len).ok().filter(|len| *len > 0)
}

/// Decompresses what [`lz4_compress`] made of a page. After an error, the content of `dst` is unspecified.
#[inline]
pub fn lz4_decompress(src: &[u8], dst: &mut Page) -> Result<(), Corrupt> {
    let corrupt = Corrupt { len: src.len() };
    let len = c_int::try_from(src.len()).map_err(|_| corrupt)?;
    // SAFETY: reads no more than `len` bytes, and writes no more than a page.
    let decoded =
        unsafe { lz4_sys::LZ4_decompress_safe(src.as_ptr().cast(), dst.as_mut_ptr().cast(), len, PAGE_BYTES as c_int) };
    if decoded == PAGE_BYTES as c_int { Ok(()) } else { Err(corrupt) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_as_large_as_the_library_says() {
        // SAFETY: takes nothing and returns a constant.
        assert_eq!(unsafe { LZ4_sizeofState() }, STATE_BYTES as c_int);
    }

    #[test]
    fn a_page_comes_back_as_it_was() {
        let page: Page = core::array::from_fn(|index| (index / 7 % 50) as u8);
        let mut compressed = [0; PAGE_BYTES];
        let len = lz4_compress(&mut Lz4State::new(), &page, &mut compressed).unwrap();
        let mut decoded = [0; PAGE_BYTES];
        lz4_decompress(&compressed[..len], &mut decoded).unwrap();
        assert_eq!(decoded, page);
    }

    #[test]
    fn a_page_that_does_not_fit_makes_nothing() {
        let page: Page =
            core::array::from_fn(|index| (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[6]);
        let mut compressed = [0; 64];
        assert_eq!(lz4_compress(&mut Lz4State::new(), &page, &mut compressed), None);
    }

    #[test]
    fn what_decodes_to_less_than_a_page_is_corrupt() {
        let page = [3; PAGE_BYTES];
        let mut compressed = [0; 256];
        let len = lz4_compress(&mut Lz4State::new(), &page, &mut compressed).unwrap();
        assert_eq!(lz4_decompress(&compressed[..len - 1], &mut [0; PAGE_BYTES]), Err(Corrupt { len: len - 1 }));
        assert_eq!(lz4_decompress(&[], &mut [0; PAGE_BYTES]), Err(Corrupt { len: 0 }));
    }
}
