//! Codecs on what is not what it should be: nothing outside the buffers is read or written, nothing panics, and a page
//! comes out whole or not at all.
//!
//! The buffers end and begin at pages that no one may touch, so one byte too far is a crash. `fuzz/` has the same
//! property for cargo-fuzz, without end.
#![cfg(all(not(loom), not(miri), feature = "lz4", feature = "zstd"))]

use ebb_pool::codec::{
    Lz4State, PAGE_BYTES, Page, WORDS_TAG, ZSTD_SLACK, ZstdDecoder, ZstdEncoder, compress, decompress, lz4_compress,
    same_decompress, words_decompress, zstd_compress, zstd_decompress,
};

const CASES: usize = 150_000;

/// Pages between two that must not be touched.
struct Fenced {
    at: *mut u8,
    bytes: usize,
}

impl Fenced {
    fn new(pages: usize) -> Self {
        let bytes = pages * PAGE_BYTES;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, of which only the middle is made accessible.
        let at = unsafe {
            let at = libc::mmap(std::ptr::null_mut(), bytes + 2 * PAGE_BYTES, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let at = at.cast::<u8>().add(PAGE_BYTES);
            assert_eq!(libc::mprotect(at.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE), 0);
            at
        };
        Self { at, bytes }
    }

    /// The last `len` bytes before the fence.
    fn last(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.bytes);
        // SAFETY: within the accessible pages, borrowed from us.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(self.bytes - len), len) }
    }

    /// The first `len` bytes after the fence.
    fn first(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.bytes);
        // SAFETY: within the accessible pages, borrowed from us.
        unsafe { std::slice::from_raw_parts_mut(self.at, len) }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.at.sub(PAGE_BYTES).cast(), self.bytes + 2 * PAGE_BYTES) };
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 32) as usize % bound
    }
}

/// A page with more or less repetition in it.
fn page(random: &mut Random) -> Page {
    let mut page = [0; PAGE_BYTES];
    let letters = 1 + random.below(255);
    let mut at = 0;
    while at < PAGE_BYTES {
        let len = (1 + random.below(64)).min(PAGE_BYTES - at);
        let back = random.below(at + 1);
        for index in at..at + len {
            page[index] = if back > 0 { page[index - back] } else { random.below(letters) as u8 };
        }
        at += len;
    }
    page
}

/// A page of words as heaps have them: pointers, small numbers, floats, and here and there something else.
fn page_of_words(random: &mut Random) -> Page {
    let mut page = [0; PAGE_BYTES];
    let heap = random.next() >> 16 & !0xff_ffff;
    let odd = random.below(12);
    for bytes in page.as_chunks_mut().0 {
        let word = match random.below(12) {
            n if n < odd / 4 => random.next(),
            0..4 => heap | random.next() & 0xf_fff8,
            4..6 => random.next() >> (24 + random.below(40)),
            6 => random.next() << (8 * random.below(8)),
            7 => random.next() & 0x0000_ffff_0000_ffff,
            _ => 0,
        };
        *bytes = u64::to_le_bytes(word);
    }
    page
}

/// A page that one codec is for, or the other.
fn any_page(random: &mut Random) -> Page {
    if random.below(2) == 0 { page(random) } else { page_of_words(random) }
}

/// Bytes that may or may not be what a page compresses to.
fn damaged(random: &mut Random, valid: &[u8], kind: usize) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    match kind {
        0 => bytes = (0..random.below(300)).map(|_| random.next() as u8).collect(),
        1 => bytes.truncate(random.below(valid.len())),
        2 => (0..1 + random.below(4)).for_each(|_| {
            let at = random.below(valid.len());
            bytes[at] ^= 1 << random.below(8);
        }),
        3 => {
            let at = random.below(valid.len());
            bytes[at..].fill_with(|| random.next() as u8);
        }
        4 => bytes.extend((0..1 + random.below(40)).map(|_| random.next() as u8)),
        // Long runs of the byte that continues a length.
        _ => {
            let at = random.below(valid.len());
            bytes.splice(at..at, std::iter::repeat_n(0xff, random.below(600)));
        }
    }
    bytes
}

#[test]
fn damaged_input_never_makes_a_decoder_leave_its_buffers() {
    let mut random = Random(0x5eed);
    let mut state = Lz4State::new();
    let (mut source, mut target) = (Fenced::new(3), Fenced::new(1));
    let mut compressed = [0; PAGE_BYTES + 64];
    // Of lz4's, and of words.
    let (mut made, mut accepted) = ([0; 2], [0; 2]);
    for case in 0..CASES {
        let content = any_page(&mut random);
        let len = compress(&mut state, &content, &mut compressed).unwrap();
        let by_words = usize::from(compressed[0] == WORDS_TAG);
        made[by_words] += 1;
        let bytes = damaged(&mut random, &compressed[..len], case % 6);
        let source = if case % 2 == 0 { source.last(bytes.len()) } else { source.first(bytes.len()) };
        source.copy_from_slice(&bytes);
        let target: &mut Page = target.last(PAGE_BYTES).try_into().unwrap();
        // What the page held before makes no difference.
        let mut other = [case as u8; PAGE_BYTES];
        let answer = decompress(source, target);
        assert_eq!(decompress(source, &mut other), answer);
        if answer.is_ok() {
            accepted[by_words] += 1;
            assert_eq!(*target, other);
        }
    }
    assert!(made.iter().all(|made| *made > CASES / 8), "{made:?}");
    assert!((0..2).all(|kind| accepted[kind] > 0 && accepted[kind] < made[kind]), "{accepted:?} of {made:?}");
}

#[test]
fn the_compressor_stays_within_whatever_it_is_given_and_its_output_decodes() {
    let mut random = Random(0xfeed);
    let mut state = Lz4State::new();
    let (mut source, mut target) = (Fenced::new(1), Fenced::new(2));
    let mut decoded = [0; PAGE_BYTES];
    for case in 0..CASES / 5 {
        let content = any_page(&mut random);
        let source: &mut Page = source.last(PAGE_BYTES).try_into().unwrap();
        *source = content;
        let capacity = random.below(PAGE_BYTES + 100);
        let target = if case % 2 == 0 { target.last(capacity) } else { target.first(capacity) };
        if let Some(len) = compress(&mut state, source, target) {
            assert!(len <= capacity);
            decompress(&target[..len], &mut decoded).unwrap();
            assert_eq!(decoded, content);
        }
    }
}

#[test]
fn damaged_cold_objects_never_make_a_decoder_leave_its_buffers() {
    let mut random = Random(0xc01d);
    let (mut encoder, mut decoder) = (Box::new(ZstdEncoder::new()), Box::new(ZstdDecoder::new()));
    let (mut source, mut target) = (Fenced::new(3), Fenced::new(1));
    let mut compressed = [0; PAGE_BYTES + 128];
    let mut accepted = 0;
    for case in 0..CASES / 3 {
        let content = any_page(&mut random);
        let len = zstd_compress(&mut encoder, &content, &mut compressed).unwrap();
        let bytes = damaged(&mut random, &compressed[..len], case % 6);
        let source = if case % 2 == 0 { source.last(bytes.len()) } else { source.first(bytes.len()) };
        source.copy_from_slice(&bytes);
        let target: &mut Page = target.last(PAGE_BYTES).try_into().unwrap();
        let mut other = [case as u8; PAGE_BYTES];
        let answer = zstd_decompress(&mut decoder, source, target);
        // What the decoder has seen before makes no difference, nor what the page held.
        if case % 16 == 0 {
            *decoder = ZstdDecoder::new();
        }
        assert_eq!(zstd_decompress(&mut decoder, source, &mut other), answer);
        if answer.is_ok() {
            accepted += 1;
            assert_eq!(*target, other);
        }
        zstd_decompress(&mut decoder, &compressed[..len], &mut other).unwrap();
        assert_eq!(other, content);
    }
    assert!(accepted > 0 && accepted < CASES / 3, "{accepted}");
}

#[test]
fn what_cools_pages_stays_within_whatever_it_is_given() {
    let mut random = Random(0xc01e);
    let (mut encoder, mut decoder) = (Box::new(ZstdEncoder::new()), Box::new(ZstdDecoder::new()));
    let (mut source, mut target) = (Fenced::new(1), Fenced::new(2));
    let mut decoded = [0; PAGE_BYTES];
    for case in 0..CASES / 10 {
        let content = any_page(&mut random);
        let source: &mut Page = source.last(PAGE_BYTES).try_into().unwrap();
        *source = content;
        let capacity = random.below(PAGE_BYTES + 100);
        let target = if case % 2 == 0 { target.last(capacity) } else { target.first(capacity) };
        let mut roomy = [0; PAGE_BYTES + 128];
        let needs = zstd_compress(&mut encoder, source, &mut roomy).unwrap();
        match zstd_compress(&mut encoder, source, target) {
            Some(len) => {
                assert!(len <= capacity);
                zstd_decompress(&mut decoder, &target[..len], &mut decoded).unwrap();
                assert_eq!(decoded, content);
            }
            None => assert!(needs + ZSTD_SLACK > capacity, "{needs} of {capacity}"),
        }
    }
}

/// By its first byte an object is known.
#[test]
fn what_one_codec_makes_the_other_refuses() {
    let mut random = Random(0xfeed);
    let mut state = Lz4State::new();
    let (mut object, mut page) = ([0; PAGE_BYTES + 64], [0; PAGE_BYTES]);
    let (mut encoder, mut decoder) = (Box::new(ZstdEncoder::new()), Box::new(ZstdDecoder::new()));
    for _ in 0..CASES / 10 {
        let content = any_page(&mut random);
        let mut cold = [0; PAGE_BYTES + 128];
        let len = zstd_compress(&mut encoder, &content, &mut cold).unwrap();
        assert!(decompress(&cold[..len], &mut page).is_err());
        let len = compress(&mut state, &content, &mut object).unwrap();
        assert!(zstd_decompress(&mut decoder, &object[..len], &mut page).is_err());
        let len = lz4_compress(&mut state, &content, &mut object).unwrap();
        assert!(object[0] >= 0x10, "{:#x}", object[0]);
        assert!(words_decompress(&object[..len], &mut page).is_err());
        assert!(same_decompress(&object[..len], &mut page).is_err());
    }
}

#[test]
fn state_of_any_content_compresses_the_same() {
    let mut random = Random(0xbeef);
    let content = page(&mut random);
    let (mut fresh, mut used) = (Box::new(Lz4State::new()), Box::new(Lz4State::new()));
    let (mut first, mut second) = ([0; PAGE_BYTES + 64], [0; PAGE_BYTES + 64]);
    for _ in 0..100 {
        lz4_compress(&mut used, &page(&mut random), &mut second).unwrap();
    }
    assert_eq!(
        lz4_compress(&mut fresh, &content, &mut first).map(|len| first[..len].to_vec()),
        lz4_compress(&mut used, &content, &mut second).map(|len| second[..len].to_vec()),
    );
}
