//! The codecs on any bytes: as a compressed object, and as a page's content.
//!
//! `cargo +nightly fuzz run page`
#![no_main]

use ebb_pool::codec::{Lz4State, PAGE_BYTES, Page, compress, decompress, lz4_decompress, words_decompress};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut page: Box<Page> = Box::new([0; PAGE_BYTES]);
    // Any answer is right, as long as nothing else is touched.
    let _ = lz4_decompress(data, &mut page);
    let _ = words_decompress(data, &mut page);
    let _ = decompress(data, &mut page);

    let Some((capacity, content)) = data.split_first_chunk::<2>() else { return };
    let content: Box<Page> = Box::new(core::array::from_fn(|index| *content.get(index).unwrap_or(&0)));
    let mut compressed = vec![0; u16::from_le_bytes(*capacity) as usize % (PAGE_BYTES + 64)];
    if let Some(len) = compress(&mut Lz4State::new(), &content, &mut compressed) {
        decompress(&compressed[..len], &mut page).expect("what was compressed decodes");
        assert_eq!(page, content);
    }
});
