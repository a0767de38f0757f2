//! Codec for pages of words: pointers, small numbers, floats, and records of these. Heaps mostly hold such pages.
//!
//! A general compressor looks for repetitions byte by byte. For each one it takes a branch that nobody can predict:
//! some 50 cycles. In a heap, what repeats are aligned words, or their upper bytes. So each of a page's 512 words is
//! written as one of sixteen classes, without a branch: zero, small, only upper bytes, a pair of small halves; or as
//! the lower bytes of its difference to an earlier word with the same upper bytes. Two table look-ups find such words:
//! one that is near, and one that is nearer. Pages that do not fit this, text above all, are given up early.
//!
//! The idea is that of WKdm (Wilson, Kaplan and Smaragdakis, *The Case for Compressed Caching in Virtual Memory
//! Systems*, USENIX 1999), which has four classes for 32-bit words. The classes here, and the bits that two words must
//! have in common, were chosen by the measurements in `docs/codecs.md`.
//!
//! # Format
//!
//! A tag byte; 256 bytes of classes, four bits a word, the lower half of a byte first; then each word's bytes, in
//! order, little-endian:
//!
//! | class | bytes | word |
//! |---|---|---|
//! | 0 | 0 | zero |
//! | 1, 2, 3, 4, 5, 6 | 1, 2, 3, 4, 6, 8 | the bytes, zeros above them |
//! | 7, 8 | 3, 4 | the bytes, zeros below them |
//! | 9, 10 | 2, 4 | half of the bytes in the lower 32 bits and half in the upper, zeros above each |
//! | 11 .. 15 | 1 .. 5 | the number, modulo 256, of one of the 256 words before; then the exclusive or with that word |
//!
//! Words before the first are zero.

use core::arch::x86_64::{
    __cpuid, __m128i, _mm_cmpeq_epi8, _mm_extract_epi64, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x,
    _mm_setzero_si128, _mm_shuffle_epi8, _mm_slli_epi64,
};

use super::{Corrupt, PAGE_BYTES, Page};
use crate::primitive::Hint;

/// First byte of an object made here. In an lz4 block this byte is 0x10 or more: the block begins with a literal,
/// because there is nothing before it to repeat.
pub const WORDS_TAG: u8 = 1;

const WORDS: usize = PAGE_BYTES / 8;
const CLASSES_BYTES: usize = WORDS / 2;
/// Where the words' bytes begin.
const BYTES_AT: usize = 1 + CLASSES_BYTES;
/// Words between two checks of the length so far.
const BLOCK: usize = 16;
/// Bytes touched from the start of a block's bytes on: the copy for the last two words ends there at the latest.
const BLOCK_BYTES: usize = BLOCK * 8;
/// A page that takes more than half is given up: lz4 may do better.
const LEN_MAX: usize = PAGE_BYTES / 2;
/// How many bytes more than its part of `LEN_MAX` the beginning of a page may take.
const AHEAD_MAX: usize = 192;
/// Room that is written to: what a page may take, what its beginning may take more, and one block before that is
/// noticed.
const ROOM: usize = LEN_MAX + AHEAD_MAX + BLOCK_BYTES;

/// Mixes a word whose bytes are in reverse order. Odd, so that no bit of the word is lost.
const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Where in the product with [`MIXER`] the two hashes of a word begin. What is above a bit of a factor changes nothing
/// at that bit of the product. So the first hash depends on the upper five bytes of the word, and the second on the
/// upper seven.
const HASHES_AT: [u32; 2] = [32, 48];
/// Earlier words that a word may be like, and places in each table that finds them.
const NEAR: usize = 256;

/// Which part of a word, or of its difference to another word, is written.
#[derive(Clone, Copy)]
enum Part {
    /// Its lowest bytes.
    Low,
    /// Its highest bytes.
    High,
    /// The lowest bytes of each half.
    Halves,
    /// The name of another word, then the lowest bytes of the difference to that word.
    Difference,
}

/// How a word is written and read.
#[derive(Clone, Copy)]
struct Class {
    part: Part,
    /// Bytes that the word takes.
    len: usize,
}

const CLASSES: [Class; 16] = {
    use Part::{Difference, Halves, High, Low};
    const fn of(part: Part, len: usize) -> Class {
        Class { part, len }
    }
    [
        of(Low, 0),
        of(Low, 1),
        of(Low, 2),
        of(Low, 3),
        of(Low, 4),
        of(Low, 6),
        of(Low, 8),
        of(High, 3),
        of(High, 4),
        of(Halves, 2),
        of(Halves, 4),
        of(Difference, 1),
        of(Difference, 2),
        of(Difference, 3),
        of(Difference, 4),
        of(Difference, 5),
    ]
};

impl Class {
    const fn is_difference(self) -> bool {
        matches!(self.part, Part::Difference)
    }

    /// Which byte of the word the `at`-th written byte is. For a difference, the name of the other word counts as its
    /// lowest byte.
    const fn place(self, at: usize) -> usize {
        match self.part {
            Part::Low | Part::Difference => at,
            Part::High => 8 - self.len + at,
            Part::Halves => at % (self.len / 2) + 4 * (at / (self.len / 2)),
        }
    }

    /// Whether nothing is lost of a word, or of a difference, in which exactly the bytes `zeros` are zero (a bit for
    /// each).
    const fn fits(self, zeros: usize) -> bool {
        let mut written = 0;
        let mut at = if self.is_difference() { 1 } else { 0 };
        while at < self.len {
            written |= 1 << (self.place(at) - self.is_difference() as usize);
            at += 1;
        }
        (zeros | written) & 0xff == 0xff
    }
}

/// The class that takes least, for each set of zero bytes. Either classes of words, or classes of differences, which
/// may be [`NONE`].
const fn best(of_differences: bool) -> [u8; 256] {
    let mut numbers = [NONE; 256];
    let mut zeros = 0;
    while zeros < 256 {
        let mut number = 0;
        while number < CLASSES.len() {
            let class = CLASSES[number];
            if class.is_difference() == of_differences && class.fits(zeros) && class.len < len_of(numbers[zeros]) {
                numbers[zeros] = number as u8;
            }
            number += 1;
        }
        zeros += 1;
    }
    numbers
}

/// Stands for a class where none fits.
const NONE: u8 = 16;

const fn len_of(number: u8) -> usize {
    if number == NONE { usize::MAX } else { CLASSES[number as usize].len }
}

/// Index of the choice between a class for the word and one for a difference.
const fn choice(own: u8, difference: u8) -> usize {
    own as usize * 32 + difference as usize
}

/// Number of choices.
const CHOICES: usize = choice(NONE, 0);

/// Where each of sixteen bytes comes from. A byte is zero if the highest bit is set.
type Shuffle = [u8; 16];
const ZERO: u8 = 0x80;

/// Shuffles that bring the written bytes of two words together: those of words, or those of differences, which are
/// shifted up by a byte for the name.
const fn gather(differences: bool) -> [Shuffle; 256] {
    let mut pairs = [[ZERO; 16]; 256];
    let mut classes = 0;
    while classes < 256 {
        let (mut to, mut i) = (0, 0);
        while i < 2 {
            let class = CLASSES[classes >> (4 * i) & 15];
            let mut at = 0;
            while at < class.len {
                if class.is_difference() == differences {
                    pairs[classes][to] = (8 * i + class.place(at)) as u8;
                }
                to += 1;
                at += 1;
            }
            i += 1;
        }
        classes += 1;
    }
    pairs
}

/// Shuffles that bring the written bytes back to where they belong.
const fn spread() -> [Shuffle; 256] {
    let mut pairs = [[ZERO; 16]; 256];
    let mut classes = 0;
    while classes < 256 {
        let (mut from, mut i) = (0, 0);
        while i < 2 {
            let class = CLASSES[classes >> (4 * i) & 15];
            let mut at = if class.is_difference() { 1 } else { 0 };
            while at < class.len {
                pairs[classes][8 * i + class.place(at) - class.is_difference() as usize] = (from + at) as u8;
                at += 1;
            }
            from += class.len;
            i += 1;
        }
        classes += 1;
    }
    pairs
}

/// The encoder's tables, in one place because registers are few.
#[repr(align(64))]
struct Encoder {
    /// By the classes of two words.
    gather_words: [Shuffle; 256],
    gather_differences: [Shuffle; 256],
    /// Bytes that two words take, by their classes.
    lens: [u8; 256],
    /// The class for a word, by which of its bytes are zero, as the first part of a [`choice`].
    own: [u16; 256],
    /// The class for a difference, by which of its bytes are zero.
    difference: [u8; 256],
    /// The class chosen, by [`choice`].
    chosen: [u8; CHOICES],
}

static ENCODER: Encoder = {
    let (own, difference) = (best(false), best(true));
    let mut tables = Encoder {
        gather_words: gather(false),
        gather_differences: gather(true),
        lens: lens(),
        own: [0; 256],
        difference,
        chosen: [0; CHOICES],
    };
    let mut zeros = 0;
    while zeros < 256 {
        tables.own[zeros] = choice(own[zeros], 0) as u16;
        zeros += 1;
    }
    let mut number = 0;
    while number < NONE {
        let mut other = 0;
        while other <= NONE {
            tables.chosen[choice(number, other)] = if len_of(other) < len_of(number) { other } else { number };
            other += 1;
        }
        number += 1;
    }
    tables
};

/// The decoder's tables.
#[repr(align(64))]
struct Decoder {
    /// By the classes of two words.
    spread: [Shuffle; 256],
    lens: [u8; 256],
    /// By class: all ones for a difference.
    is_difference: [u64; 16],
    /// By class: bytes that a word takes.
    len: [u8; 16],
}

static DECODER: Decoder = {
    let mut tables = Decoder { spread: spread(), lens: lens(), is_difference: [0; 16], len: [0; 16] };
    let mut number = 0;
    while number < 16 {
        tables.len[number] = CLASSES[number].len as u8;
        if CLASSES[number].is_difference() {
            tables.is_difference[number] = u64::MAX;
        }
        number += 1;
    }
    tables
};

/// Bytes that two words take, by their classes.
const fn lens() -> [u8; 256] {
    let mut lens = [0; 256];
    let mut classes = 0;
    while classes < 256 {
        lens[classes] = (CLASSES[classes & 15].len + CLASSES[classes >> 4].len) as u8;
        classes += 1;
    }
    lens
}

fn vector(bytes: [u8; 16]) -> __m128i {
    // SAFETY: any bytes are a vector.
    unsafe { core::mem::transmute::<[u8; 16], __m128i>(bytes) }
}

fn bytes_of(vector: __m128i) -> [u8; 16] {
    // SAFETY: a vector is sixteen bytes.
    unsafe { core::mem::transmute::<__m128i, [u8; 16]>(vector) }
}

/// Whether the processor has SSSE3 and SSE4.1, which this codec needs. All processors made since 2013 have both, and
/// most made since 2008. Ask once before signal handlers do: a program may have the question refused later
/// (`ARCH_CPUID`).
pub fn has_words() -> bool {
    const NO: usize = 1;
    const YES: usize = 2;
    // Kept, because under a hypervisor the answer takes as long as ten pages.
    static ANSWER: Hint = Hint::new();
    if ANSWER.get() == 0 {
        const NEEDED: u32 = 1 << 9 | 1 << 19;
        // SAFETY: every 64-bit processor has the instruction. (The function is safe in later versions of Rust.)
        #[allow(unused_unsafe)]
        let has = !cfg!(miri) && unsafe { __cpuid(1) }.ecx & NEEDED == NEEDED;
        ANSWER.set(if has { YES } else { NO });
    }
    ANSWER.get() == YES
}

/// Compresses a page of words into the start of `dst`. Returns how many bytes that took, at most half a page. None if
/// half a page is too little, if `dst` does not have somewhat more room than that, or without [`has_words`].
pub fn words_compress(src: &Page, dst: &mut [u8]) -> Option<usize> {
    let dst: &mut [u8; ROOM] = dst.first_chunk_mut()?;
    if !has_words() {
        return None;
    }
    // SAFETY: the processor has what it needs.
    unsafe { encode(src, dst) }
}

#[target_feature(enable = "ssse3,sse4.1")]
fn encode(src: &Page, dst: &mut [u8; ROOM]) -> Option<usize> {
    let words: &[[u8; 8]; WORDS] = src.as_chunks().0.try_into().ok()?;
    let (head, bytes) = dst.split_first_chunk_mut::<BYTES_AT>()?;
    head[0] = WORDS_TAG;
    let (blocks, classes) = (words.as_chunks().0, head[1..].as_chunks_mut().0);
    let mut near = Near { words: [0; NEAR], last: [[0; NEAR]; 2] };
    let mut at = 0;
    for (number, (block, classes)) in blocks.iter().zip(classes).enumerate() {
        if at > AHEAD_MAX + number * ((LEN_MAX - BYTES_AT) / (WORDS / BLOCK)) {
            return None;
        }
        let bytes = bytes.get_mut(at..)?.first_chunk_mut()?;
        at += encode_block(block, near.differences(block, number * BLOCK % NEAR), classes, bytes);
    }
    (BYTES_AT + at <= LEN_MAX).then_some(BYTES_AT + at)
}

/// The words before, and where to look for some like a certain word.
struct Near {
    words: [u64; NEAR],
    /// For each hash, the place of the last word that has it. That place may hold another word by now: then the
    /// difference is long, but correct.
    last: [[u8; NEAR]; 2],
}

/// For each word of a block, the difference to the most similar word that was found, and that word's name.
struct Differences {
    bits: [u64; BLOCK],
    names: [u8; BLOCK],
}

impl Near {
    /// Looks for words like those of a block, and adds these. `first` is the place of the block's first word.
    fn differences(&mut self, block: &[[u8; 8]; BLOCK], first: usize) -> Differences {
        let mut differences = Differences { bits: [0; BLOCK], names: [0; BLOCK] };
        let [far, close] = &mut self.last;
        for (number, word) in block.iter().enumerate() {
            let place = (first + number) % NEAR;
            let word = u64::from_le_bytes(*word);
            let [by_five, by_seven] = HASHES_AT.map(|at| (hashes(word) >> at) as usize % NEAR);
            let five = core::mem::replace(&mut far[by_five], place as u8);
            let seven = core::mem::replace(&mut close[by_seven], place as u8);
            let to_five = word ^ self.words[five as usize];
            let to_seven = word ^ self.words[seven as usize];
            self.words[place] = word;
            // Of two differences, the lesser one has no more bytes.
            differences.bits[number] = to_five.min(to_seven);
            differences.names[number] = if to_seven < to_five { seven } else { five };
        }
        differences
    }
}

/// The product that [`HASHES_AT`] is about.
fn hashes(word: u64) -> u64 {
    word.swap_bytes().wrapping_mul(MIXER)
}

/// Writes a block's words to `bytes`, and their classes to `classes`. Returns how many bytes.
///
/// Here, and with the look-ups before, three short loops take less time than a long one: in a short one the processor
/// works on several words at once.
#[target_feature(enable = "ssse3,sse4.1")]
fn encode_block(
    block: &[[u8; 8]; BLOCK],
    near: Differences,
    classes: &mut [u8; BLOCK / 2],
    bytes: &mut [u8; BLOCK_BYTES],
) -> usize {
    let tables = &ENCODER;
    let zero = _mm_setzero_si128();
    let pairs: &[[u8; 16]] = block.as_flattened().as_chunks().0;
    let difference = |pair: usize| _mm_set_epi64x(near.bits[2 * pair + 1] as i64, near.bits[2 * pair] as i64);
    for (pair, to) in classes.iter_mut().enumerate() {
        let (own, difference) = (vector(pairs[pair]), difference(pair));
        let own_zeros = _mm_movemask_epi8(_mm_cmpeq_epi8(own, zero)) as usize;
        let zeros = _mm_movemask_epi8(_mm_cmpeq_epi8(difference, zero)) as usize;
        let [low, high] = [0, 8].map(|bit| {
            let own = tables.own[own_zeros >> bit & 0xff] as usize;
            let choice = own + tables.difference[zeros >> bit & 0xff] as usize;
            tables.chosen[choice % CHOICES]
        });
        *to = low | high << 4;
    }
    let mut used = 0;
    for (pair, both) in classes.iter().enumerate() {
        let both = *both as usize;
        let (own, difference) = (vector(pairs[pair]), difference(pair));
        let names = _mm_set_epi64x(near.names[2 * pair + 1].into(), near.names[2 * pair].into());
        let named = _mm_or_si128(_mm_slli_epi64::<8>(difference), names);
        let packed = _mm_or_si128(
            _mm_shuffle_epi8(own, vector(tables.gather_words[both])),
            _mm_shuffle_epi8(named, vector(tables.gather_differences[both])),
        );
        bytes[used..used + 16].copy_from_slice(&bytes_of(packed));
        used += tables.lens[both] as usize;
    }
    used
}

/// Decompresses what [`words_compress`] made of a page. After an error, the content of `dst` is unspecified.
pub fn words_decompress(src: &[u8], dst: &mut Page) -> Result<(), Corrupt> {
    let corrupt = Corrupt { len: src.len() };
    if !has_words() {
        return Err(corrupt);
    }
    // SAFETY: the processor has what it needs.
    unsafe { decode(src, dst) }.ok_or(corrupt)
}

#[target_feature(enable = "ssse3,sse4.1")]
fn decode(src: &[u8], dst: &mut Page) -> Option<()> {
    let (head, mut rest) = src.split_first_chunk::<BYTES_AT>()?;
    if head[0] != WORDS_TAG {
        return None;
    }
    let words: &mut [[u8; 8]; WORDS] = dst.as_chunks_mut().0.try_into().ok()?;
    let (blocks, classes) = (words.as_chunks_mut().0, head[1..].as_chunks().0);
    let mut near = [0; NEAR];
    let mut tail;
    for (number, (block, classes)) in blocks.iter_mut().zip(classes).enumerate() {
        let bytes = match rest.first_chunk() {
            Some(bytes) => bytes,
            None => {
                tail = [0; BLOCK_BYTES];
                tail[..rest.len()].copy_from_slice(rest);
                &tail
            }
        };
        let used = decode_block(classes, bytes, number * BLOCK % NEAR, &mut near, block);
        rest = rest.get(used..)?;
    }
    rest.is_empty().then_some(())
}

/// Reads a block's words from `bytes`. Returns how many bytes they took.
#[target_feature(enable = "ssse3,sse4.1")]
fn decode_block(
    classes: &[u8; BLOCK / 2],
    bytes: &[u8; BLOCK_BYTES],
    first: usize,
    near: &mut [u64; NEAR],
    words: &mut [[u8; 8]; BLOCK],
) -> usize {
    let tables = &DECODER;
    let mut used = 0;
    for (pair, both) in classes.iter().enumerate() {
        let both = *both as usize;
        let second = used + tables.len[both & 15] as usize;
        let written: [u8; 16] = bytes[used..used + 16].try_into().unwrap_or_default();
        let spread = _mm_shuffle_epi8(vector(written), vector(tables.spread[both]));
        let part = [_mm_extract_epi64::<0>(spread) as u64, _mm_extract_epi64::<1>(spread) as u64];
        let names = [bytes[used], bytes[second]];
        let masks = [tables.is_difference[both & 15], tables.is_difference[both >> 4]];
        for i in 0..2 {
            let word = part[i] ^ near[names[i] as usize] & masks[i];
            near[(first + 2 * pair + i) % NEAR] = word;
            words[2 * pair + i] = word.to_le_bytes();
        }
        used += tables.lens[both] as usize;
    }
    used
}

// Miri has no such processor.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn page_of(word: impl Fn(usize) -> u64) -> Page {
        let mut page = [0; PAGE_BYTES];
        for (number, bytes) in page.as_chunks_mut().0.iter_mut().enumerate() {
            *bytes = word(number).to_le_bytes();
        }
        page
    }

    /// Compresses a page, and checks that the same page comes back. Returns the object and its length.
    fn compressed(page: &Page) -> Option<(Page, usize)> {
        let mut dst = [0xa5; PAGE_BYTES];
        let len = words_compress(page, &mut dst)?;
        // Nothing of the old content may show.
        let mut back = [0x5a; PAGE_BYTES];
        assert_eq!(words_decompress(&dst[..len], &mut back), Ok(()));
        assert_eq!(back, *page);
        Some((dst, len))
    }

    /// A number that no other one is near to, whatever the table finds.
    fn mixed(number: usize) -> u64 {
        (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    }

    #[test]
    fn zeros_take_nothing_but_their_classes() {
        assert_eq!(compressed(&[0; PAGE_BYTES]).unwrap().1, BYTES_AT);
    }

    /// Each word stands alone on a page of zeros.
    #[test]
    fn each_class_takes_as_many_bytes_as_it_says() {
        let cases: [(u64, usize); 14] = [
            (0, 0),
            (0xff, 1),
            (0xff00, 2),
            (0x0080_0000, 3),
            (0xffff_ffff, 4),
            (0x7fff_1234_5678, 6),
            (0x0000_8000_0000_0000, 3),
            (u64::MAX, 8),
            (0x4059_2300_0000_0000, 3),
            (0x4059_2345_0000_0000, 4),
            (0x0000_007f_0000_0001, 2),
            (0x0000_7f00_0000_00ff, 4),
            (0x0001_0000_0000_0000, 3),
            (0x0100_0000_0000_0001, 8),
        ];
        for (word, bytes) in cases {
            let page = page_of(|number| if number == 300 { word } else { 0 });
            assert_eq!(compressed(&page).unwrap().1, BYTES_AT + bytes, "{word:#x}");
        }
    }

    #[test]
    fn a_word_like_an_earlier_one_takes_its_name_and_the_difference() {
        let pointer = 0x7f3a_1234_5000;
        for (other, bytes) in [(pointer, 1), (pointer + 0x80, 2), (pointer + 0xff8, 3)] {
            for (first, second) in [(0, 1), (0, 255), (3, 259), (100, 101), (101, 102), (255, 511), (510, 511)] {
                let page = page_of(|number| match number {
                    _ if number == first => pointer,
                    _ if number == second => other,
                    _ => 0,
                });
                let len = compressed(&page).unwrap().1;
                assert_eq!(len, BYTES_AT + 6 + bytes, "{other:#x} at {first} and {second}");
            }
        }
    }

    #[test]
    fn words_further_apart_than_a_name_reaches_take_what_they_are() {
        let page = page_of(|number| if number == 0 || number == 257 { 0x7f3a_1234_5000 } else { 0 });
        assert_eq!(compressed(&page).unwrap().1, BYTES_AT + 12);
    }

    /// The place in the table is that of the word itself, 256 words before.
    #[test]
    fn a_word_is_like_the_one_that_had_its_name_before() {
        let page = page_of(|number| if number % 256 == 77 { 0x7f3a_1234_5000 } else { 0 });
        assert_eq!(compressed(&page).unwrap().1, BYTES_AT + 7);
    }

    #[test]
    fn what_takes_more_than_half_a_page_is_given_up() {
        // 8 bytes each for 224 words are 1,792: with classes and tag a byte too many.
        let page = |words: usize| page_of(move |number| if number >= WORDS - words { mixed(number) } else { 0 });
        assert_eq!(compressed(&page(223)).unwrap().1, BYTES_AT + 223 * 8);
        assert_eq!(compressed(&page(224)), None);
        assert_eq!(compressed(&page_of(mixed)), None);
    }

    #[test]
    fn a_page_that_begins_with_much_and_goes_on_with_little_is_not_given_up() {
        let page = page_of(|number| if number < 30 { mixed(number) } else { number as u64 % 200 });
        assert!(compressed(&page).is_some());
    }

    #[test]
    fn without_room_nothing_is_made() {
        assert_eq!(words_compress(&[0; PAGE_BYTES], &mut [0; ROOM - 1]), None);
        assert_eq!(words_compress(&[0; PAGE_BYTES], &mut [0; ROOM]), Some(BYTES_AT));
    }

    #[test]
    fn what_is_cut_longer_or_of_another_kind_is_corrupt() {
        let (mut whole, whole_len) = compressed(&page_of(|number| number as u64 * 3)).unwrap();
        let mut page = [0; PAGE_BYTES];
        for len in 0..whole_len {
            assert_eq!(words_decompress(&whole[..len], &mut page), Err(Corrupt { len }));
        }
        let len = whole_len + 1;
        assert_eq!(words_decompress(&whole[..len], &mut page), Err(Corrupt { len }));
        whole[0] += 1;
        assert_eq!(words_decompress(&whole[..whole_len], &mut page), Err(Corrupt { len: whole_len }));
    }

    /// Every class next to every other one, in both places.
    #[test]
    fn all_pairs_of_classes_come_back() {
        const FAR: u64 = 0x7f3a_5566_7000;
        // After FAR, a word's class is `number`, unless the other word of the pair is more like it. A difference of
        // four bytes comes only from a word found by chance: see below.
        let word = |number: usize| match number {
            0 => 0,
            1..=4 => 0xa5a5_a5a5 >> (32 - 8 * number),
            5 => 0xa5a5_a5a5_a5a5,
            6 => u64::MAX / 3,
            7 => 0x00a5_a5a5 << 40,
            8 => 0xa5a5_a5a5 << 32,
            9 => 0xa5_0000_005a,
            10 => 0xa5a5_0000_5a5a,
            11 => FAR,
            12 => FAR ^ 0x5a,
            13 => FAR ^ 0x5a5,
            _ => FAR ^ 0x5a_5a5a,
        };
        let mut seen = [[0; 16]; 2];
        for (first, second) in (0..15).flat_map(|first| (0..15).map(move |second| (first, second))) {
            let page = page_of(|number| match number % 16 {
                0 => FAR,
                6 => word(first),
                7 => word(second),
                _ => 0,
            });
            let (object, _) = compressed(&page).unwrap();
            let both = object[1..BYTES_AT][3] as usize;
            seen[0][both & 15] += 1;
            seen[1][both >> 4] += 1;
        }
        assert!(seen.iter().all(|seen| seen[..15].iter().all(|count| *count > 0)), "{seen:?}");
    }

    #[test]
    fn of_two_words_like_it_a_word_takes_the_more_similar_one() {
        let pointer = 0x7f3a_1234_5000;
        // The last word with the same upper five bytes is the second one; with the same upper seven, the first.
        for (third, bytes) in [(pointer, 1), (pointer + 0x80, 2), (pointer ^ 0x23_4501, 2)] {
            let page = page_of(|number| match number {
                10 => pointer,
                20 => pointer ^ 0x23_4500,
                30 => third,
                _ => 0,
            });
            assert_eq!(compressed(&page).unwrap().1, BYTES_AT + 6 + 4 + bytes, "{third:#x}");
        }
    }

    /// Decodes as the table of the format says, a word at a time.
    fn decoded_slowly(object: &[u8]) -> Page {
        let (classes, mut rest) = object[1..].split_at(CLASSES_BYTES);
        let mut take = |len: usize| {
            let mut word = [0; 8];
            let (bytes, after) = rest.split_at(len);
            word[..len].copy_from_slice(bytes);
            rest = after;
            u64::from_le_bytes(word)
        };
        // Zeros before the first.
        let mut words = [0u64; 256 + WORDS];
        for number in 0..WORDS {
            let class = usize::from(classes[number / 2] >> (4 * (number % 2)) & 15);
            let word = match class {
                0..=6 => take([0, 1, 2, 3, 4, 6, 8][class]),
                7 => take(3) << 40,
                8 => take(4) << 32,
                9 => take(1) | take(1) << 32,
                10 => take(2) | take(2) << 32,
                _ => {
                    let name = take(1) as usize;
                    let like = (number..number + 256).find(|other| other % 256 == name).unwrap();
                    words[like] ^ take(class - 11)
                }
            };
            words[256 + number] = word;
        }
        assert!(rest.is_empty());
        page_of(|number| words[256 + number])
    }

    #[test]
    fn pages_of_any_words_decode_as_the_format_says() {
        let (mut state, mut made) = (1u64, 0);
        let mut next = move |bound: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % bound
        };
        for case in 0..3000u64 {
            let (kinds, heaps) = (1 + case % 9, 1 + next(4));
            let words: [u64; WORDS] = core::array::from_fn(|number| match next(kinds) {
                0 | 1 => 0,
                2 => 0x7f00_0000_0000 + (next(heaps) << 28) + next(1 << (8 + case % 24)) * 8,
                3 => next(1 << 8),
                4 => next(1 << 31) >> next(31),
                5 => next(1 << 20) << (44 - next(20)),
                6 => next(1 << 16) | next(1 << 16) << 32,
                7 => f64::from(next(1 << 10) as u32).to_bits(),
                _ => mixed(number) >> next(40),
            });
            let page = page_of(|number| words[number]);
            if let Some((object, len)) = compressed(&page) {
                assert!(decoded_slowly(&object[..len]) == page, "case {case}");
                made += 1;
            }
        }
        assert!(made > 2000, "{made}");
    }

    /// If words of two kinds share a place in a table, it finds one for the other: that gives differences of four
    /// bytes.
    #[test]
    fn differences_of_three_and_four_bytes_come_back() {
        let mut seen = [0; 16];
        for seed in 0..400 {
            let base = mixed(seed) | 1 << 63;
            let page = page_of(|number| if number % 8 == 0 { base ^ mixed(number) >> (32 + seed % 16) } else { 0 });
            if let Some((object, _)) = compressed(&page) {
                object[1..BYTES_AT].iter().for_each(|both| {
                    seen[*both as usize & 15] += 1;
                    seen[*both as usize >> 4] += 1;
                });
            }
        }
        assert!(seen[14] > 0 && seen[15] > 0, "{seen:?}");
    }

    /// So what is decoded never depends on what the page held before.
    #[test]
    fn words_before_the_first_are_zero() {
        let mut object = [0; BYTES_AT + 1];
        object[0] = WORDS_TAG;
        // The first word is like the one named 200.
        (object[1], object[BYTES_AT]) = (11, 200);
        let mut page = [0xff; PAGE_BYTES];
        assert_eq!(words_decompress(&object, &mut page), Ok(()));
        assert_eq!(page, [0; PAGE_BYTES]);
    }
}
