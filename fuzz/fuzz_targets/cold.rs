//! The codec of the cold tier on any bytes: as a cold object, after its tag, and as a page's content.
//!
//! `cargo +nightly fuzz run cold`
#![no_main]

use ebb_pool::codec::{COLD_TAG, PAGE_BYTES, Page, ZstdDecoder, ZstdEncoder, zstd_compress, zstd_decompress};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

thread_local! {
    /// As in the engine, what was decoded before has left traces in the contexts.
    static CONTEXTS: RefCell<(Box<ZstdEncoder>, Box<ZstdDecoder>)> = RefCell::default();
}

fuzz_target!(|data: &[u8]| CONTEXTS.with_borrow_mut(|(encoder, decoder)| {
    let mut page: Box<Page> = Box::new([0; PAGE_BYTES]);
    // Any answer is right, as long as nothing else is touched.
    let _ = zstd_decompress(decoder, data, &mut page);
    let object: Box<[u8]> = [COLD_TAG].iter().chain(data).copied().collect();
    let _ = zstd_decompress(decoder, &object, &mut page);

    let Some((capacity, content)) = data.split_first_chunk::<2>() else { return };
    let content: Box<Page> = Box::new(core::array::from_fn(|index| *content.get(index).unwrap_or(&0)));
    let mut compressed = vec![0; u16::from_le_bytes(*capacity) as usize % (PAGE_BYTES + 128)];
    if let Some(len) = zstd_compress(encoder, &content, &mut compressed) {
        zstd_decompress(decoder, &compressed[..len], &mut page).expect("what was compressed decodes");
        assert_eq!(page, content);
    }
}));
