//! The codecs that are compared, each as a pair of closures that own their state.

use core::ffi::{c_char, c_int, c_void};

use ebb_pool::codec::{self, Lz4State, Page, ZstdDecoder, ZstdEncoder};

type Compress = Box<dyn FnMut(&Page, &mut [u8]) -> Option<usize>>;
type Decompress = Box<dyn FnMut(&[u8], &mut Page) -> bool>;

pub struct Contender {
    pub name: String,
    pub compress: Compress,
    pub decompress: Decompress,
}

type Lz4Function = unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_char, c_int, c_int, c_int) -> c_int;

unsafe extern "C" {
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_HC(src: *const c_char, dst: *mut c_char, src_size: c_int, capacity: c_int, level: c_int) -> c_int;
    fn LZ4_createStream() -> *mut c_void;
    fn LZ4_loadDictSlow(stream: *mut c_void, dictionary: *const c_char, size: c_int) -> c_int;
    fn LZ4_resetStream_fast(stream: *mut c_void);
    fn LZ4_attach_dictionary(stream: *mut c_void, dictionary: *const c_void);
    fn LZ4_compress_fast_continue(
        stream: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_usingDict(
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        dictionary: *const c_char,
        dictionary_size: c_int,
    ) -> c_int;
}

/// All of them; what Ebb uses first. `samples` are other pages of the same memory, for a dictionary.
pub fn all(samples: &[&Page]) -> Vec<Contender> {
    let mut all = vec![ours()];
    all.extend([1, 2, 4, 8].map(|acceleration| {
        lz4_c(format!("lz4 C, acceleration {acceleration}"), LZ4_compress_fast_extState, acceleration)
    }));
    all.push(lz4_c("lz4 C, fastReset".into(), LZ4_compress_fast_extState_fastReset, 1));
    all.push(lz4_dictionary(samples));
    all.extend([lz4_flex(), lz4_flex_safe(), lzo(), snappy(), zstd(-5), zstd(1)]);
    all
}

/// What Ebb uses, and slower ones that compress better.
pub fn slower() -> Vec<Contender> {
    let mut slower = vec![ours(), lz4_high(9)];
    slower.extend([-1, 1, 3].map(zstd));
    slower
}

fn lz4_decode() -> Decompress {
    Box::new(|src, page| codec::lz4_decompress(src, page).is_ok())
}

pub fn ours() -> Contender {
    let mut state = Box::new(Lz4State::new());
    Contender {
        name: "ebb: words, else lz4".into(),
        compress: Box::new(move |page, dst| codec::compress(&mut state, page, &mut dst[..size_of::<Page>() - 1])),
        decompress: Box::new(|src, page| codec::decompress(src, page).is_ok()),
    }
}

/// Calls a function of lz4 that compresses a page; none when it does not get smaller.
///
/// # Safety
///
/// `state` is one that `function` works in.
unsafe fn lz4_call(
    function: Lz4Function,
    state: *mut c_void,
    page: &Page,
    dst: &mut [u8],
    acceleration: c_int,
) -> Option<usize> {
    let size = page.len() as c_int;
    assert!(dst.len() >= page.len());
    // SAFETY: the page is read, and of `dst` less than a page is written.
    let len = unsafe { function(state, page.as_ptr().cast(), dst.as_mut_ptr().cast(), size, size - 1, acceleration) };
    usize::try_from(len).ok().filter(|len| *len > 0)
}

fn lz4_c(name: String, function: Lz4Function, acceleration: c_int) -> Contender {
    let mut state = vec![0u64; 4096];
    Contender {
        name,
        compress: Box::new(move |page, dst| {
            // SAFETY: the state is zeroed at first and larger than lz4's.
            unsafe { lz4_call(function, state.as_mut_ptr().cast(), page, dst, acceleration) }
        }),
        decompress: lz4_decode(),
    }
}

/// lz4's format by a compressor that searches longer. It allocates its state.
fn lz4_high(level: c_int) -> Contender {
    Contender {
        name: format!("lz4hc C, level {level}"),
        compress: Box::new(move |page, dst| {
            let (from, size, to, room) = (page.as_ptr(), page.len() as c_int, dst.as_mut_ptr(), dst.len() as c_int);
            // SAFETY: a whole page is read, and of `dst` no more than its length is written.
            let len = unsafe { LZ4_compress_HC(from.cast(), to.cast(), size, room, level) };
            usize::try_from(len).ok().filter(|len| *len > 0)
        }),
        decompress: lz4_decode(),
    }
}

/// Each page against a dictionary that is other pages of the same memory, as zram's can be.
fn lz4_dictionary(samples: &[&Page]) -> Contender {
    let dictionary: &'static [u8] = samples.iter().flat_map(|page| page.iter().copied()).collect::<Vec<u8>>().leak();
    // SAFETY: new streams; the dictionary outlives the one that refers to it.
    let (loaded, work) = unsafe {
        let loaded = LZ4_createStream();
        LZ4_loadDictSlow(loaded, dictionary.as_ptr().cast(), dictionary.len() as c_int);
        (loaded, LZ4_createStream())
    };
    Contender {
        name: format!("lz4 C, a dictionary of {} pages", samples.len()),
        compress: Box::new(move |page, dst| {
            // SAFETY: both streams and the dictionary live for ever.
            unsafe {
                LZ4_resetStream_fast(work);
                LZ4_attach_dictionary(work, loaded);
                lz4_call(LZ4_compress_fast_continue, work, page, dst, 1)
            }
        }),
        decompress: Box::new(move |src, page| {
            // SAFETY: reads no more than `src` and the dictionary, and writes no more than a page.
            let len = unsafe {
                LZ4_decompress_safe_usingDict(
                    src.as_ptr().cast(),
                    page.as_mut_ptr().cast(),
                    src.len() as c_int,
                    page.len() as c_int,
                    dictionary.as_ptr().cast(),
                    dictionary.len() as c_int,
                )
            };
            len == page.len() as c_int
        }),
    }
}

fn lz4_flex() -> Contender {
    let mut table = lz4_flex::block::CompressTable::default();
    Contender {
        name: "lz4_flex, unsafe".into(),
        compress: Box::new(move |page, dst| lz4_flex::block::compress_into_with_table(page, dst, &mut table).ok()),
        decompress: Box::new(|src, page| lz4_flex::block::decompress_into(src, page).is_ok()),
    }
}

fn lz4_flex_safe() -> Contender {
    Contender {
        name: "lz4_flex, safe (allocates)".into(),
        compress: Box::new(|page, dst| lz4_flex_safe::block::compress_into(page, dst).ok()),
        decompress: Box::new(|src, page| lz4_flex_safe::block::decompress_into(src, page).is_ok()),
    }
}

fn lzo() -> Contender {
    Contender {
        name: "lzo1x-1 in Rust (allocates)".into(),
        compress: Box::new(|page, dst| {
            let data = lzo1x::compress(page, lzo1x::CompressLevel::new(1));
            dst[..data.len()].copy_from_slice(&data);
            Some(data.len())
        }),
        decompress: Box::new(|src, page| lzo1x::decompress(src, page).is_ok()),
    }
}

fn snappy() -> Contender {
    let mut encoder = snap::raw::Encoder::new();
    let mut decoder = snap::raw::Decoder::new();
    Contender {
        name: "snappy in Rust".into(),
        compress: Box::new(move |page, dst| encoder.compress(page, dst).ok()),
        decompress: Box::new(move |src, page| decoder.decompress(src, page).is_ok()),
    }
}

/// What the cold tier is made of: Ebb's own calls of zstd first.
pub fn cold(samples: &[&Page]) -> Vec<Contender> {
    let dictionary: Vec<u8> = samples.iter().flat_map(|page| page.iter().copied()).collect();
    let mut cold = vec![ours_cold()];
    cold.extend([-1, 1, 2, 3, 6].map(zstd));
    cold.push(zstd_with(1, &dictionary));
    cold
}

fn ours_cold() -> Contender {
    let (mut encoder, mut decoder) = (Box::new(ZstdEncoder::new()), Box::new(ZstdDecoder::new()));
    Contender {
        name: "ebb: zstd".into(),
        compress: Box::new(move |page, dst| codec::zstd_compress(&mut encoder, page, dst)),
        decompress: Box::new(move |src, page| codec::zstd_decompress(&mut decoder, src, page).is_ok()),
    }
}

fn zstd(level: i32) -> Contender {
    zstd_with(level, &[])
}

fn zstd_with(level: i32, dictionary: &[u8]) -> Contender {
    let mut compressor = zstd_safe::CCtx::create();
    compressor.set_parameter(zstd_safe::CParameter::CompressionLevel(level)).unwrap();
    compressor.set_parameter(zstd_safe::CParameter::ContentSizeFlag(false)).unwrap();
    let mut decompressor = zstd_safe::DCtx::create();
    let mut name = format!("zstd C, level {level}");
    if !dictionary.is_empty() {
        name += ", a dictionary";
        compressor.load_dictionary(dictionary).unwrap();
        decompressor.load_dictionary(dictionary).unwrap();
    }
    Contender {
        name,
        compress: Box::new(move |page, dst| compressor.compress2(dst, page).ok()),
        decompress: Box::new(move |src, page| decompressor.decompress(&mut page[..], src).is_ok()),
    }
}
