//! A program whose touches are known: it does the same in each run, whatever the time.

use std::hint::black_box;

const PAGE: usize = 4096;

/// Fills memory, and then touches pages of it: `seq`, `random` or `zipf`.
pub fn run(pattern: &str, mib: usize, touches: usize) -> Result<(), String> {
    let pages = mib * 256;
    let mut memory = vec![0u8; pages * PAGE];
    let mut state = 1u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for page in memory.chunks_exact_mut(PAGE) {
        // Compresses to about a third.
        for word in page.chunks_exact_mut(24) {
            word[..8].copy_from_slice(&random().to_le_bytes());
        }
    }
    // The sum of 1/k up to k is about the logarithm of k. So this inverts Zipf's law with exponent 1.
    let zipf =
        |random: u64| ((pages as f64).powf((random >> 11) as f64 / (1u64 << 53) as f64) as usize - 1).min(pages - 1);
    let mut sum = 0u64;
    for i in 0..touches {
        let page = match pattern {
            "seq" => i % pages,
            "random" => random() as usize % pages,
            // Pages that are used often lie anywhere.
            "zipf" => zipf(random()).wrapping_mul(0x9E37_79B1) % pages,
            _ => return Err(format!("{pattern}: there is no such pattern")),
        };
        sum = sum.wrapping_add(u64::from(black_box(&memory)[page * PAGE]));
    }
    println!("{sum}");
    Ok(())
}
