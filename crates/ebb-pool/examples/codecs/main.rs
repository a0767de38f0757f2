//! Measures codecs, and the pool's size classes, on pages of real programs.
//!
//! ```text
//! cargo run --release -p ebb-pool --example codecs [-- PAGES]
//! cargo run --release -p ebb-pool --example codecs -- PAGES pid:PID file:PATH ...
//! ```
//!
//! Without sources it starts the programs of `pages.rs` and reads their anonymous memory; with them, it reads that of a
//! running process, or a file. `PAGES` (default 4096) is how many pages are sampled of each.

mod cold;
mod contenders;
mod pages;
mod pools;
mod tiers;
mod waste;

use std::time::Instant;

use contenders::Contender;
use ebb_pool::codec::{Page, same_filled, words_compress};
use pages::Corpus;

/// Pages are timed in runs of this many, each at its best of [`PASSES`], so that what else the machine does falls out.
const RUN: usize = 128;
const PASSES: usize = 9;
/// 60 KiB: lz4 looks no further back than 64, page and all.
const DICTIONARY_PAGES: usize = 15;

struct Measured {
    /// Length of each page, a page's when it did not get smaller.
    lens: Vec<usize>,
    compress_ns: f64,
    decompress_ns: f64,
}

fn main() {
    let mut args = std::env::args().skip(1).peekable();
    let count = args.next_if(|arg| arg.parse::<usize>().is_ok()).map_or(4096, |arg| arg.parse().unwrap());
    let sources: Vec<String> = args.collect();
    let corpora = if sources.is_empty() {
        pages::programs(count)
    } else {
        sources.iter().map(|source| pages::from_source(source, count)).collect()
    };
    let lens: Vec<Vec<usize>> = corpora.iter().map(table).collect();
    waste::print(&lens.concat());
    pools::print(&lens);
    cold::print(&corpora);
    tiers::print(&corpora);
}

/// Prints the table of one corpus and returns the lengths that Ebb makes.
fn table(corpus: &Corpus) -> Vec<usize> {
    let filled = corpus.pages.iter().filter(|page| same_filled(page).is_some()).count();
    let pages: Vec<&Page> = corpus.pages.iter().filter(|page| same_filled(page).is_none()).collect();
    let scan_ns = best(&corpus.pages, |page| usize::from(same_filled(page).is_some()));
    println!("\n### {}\n", corpus.name);
    let by_words = pages.iter().filter(|page| words_compress(page, &mut [0; size_of::<Page>()]).is_some()).count();
    println!(
        "{} pages, {:.1} % of them same-filled (found in {:.0} ns a page); of the others {:.0} % are pages of words:\n",
        corpus.pages.len(),
        100.0 * filled as f64 / corpus.pages.len().max(1) as f64,
        scan_ns,
        100.0 * by_words as f64 / pages.len().max(1) as f64,
    );
    if pages.is_empty() {
        return Vec::new();
    }
    // None that are measured are part of a dictionary.
    let (samples, pages) = pages.split_at(DICTIONARY_PAGES.min(pages.len() - 1));
    println!("| codec | ratio | incompressible | compress ns/page | decompress ns/page |");
    println!("|---|---|---|---|---|");
    let mut lens = Vec::new();
    for mut contender in contenders::all(samples) {
        let measured = measure(&mut contender, pages);
        let sum: usize = measured.lens.iter().sum();
        let incompressible = measured.lens.iter().filter(|len| **len == size_of::<Page>()).count();
        println!(
            "| {} | {:.2} | {:.1} % | {:.0} | {:.0} |",
            contender.name,
            (pages.len() * size_of::<Page>()) as f64 / sum as f64,
            100.0 * incompressible as f64 / pages.len() as f64,
            measured.compress_ns,
            measured.decompress_ns,
        );
        if lens.is_empty() {
            lens = measured.lens;
        }
    }
    lens
}

fn measure(contender: &mut Contender, pages: &[&Page]) -> Measured {
    let mut buffer = vec![0; 2 * size_of::<Page>()];
    let mut compressed = Vec::new();
    for page in pages {
        let len = (contender.compress)(page, &mut buffer).filter(|len| *len < size_of::<Page>());
        compressed.push(len.map(|len| buffer[..len].to_vec()));
    }
    let mut page = [0; size_of::<Page>()];
    for (original, compressed) in pages.iter().zip(&compressed) {
        if let Some(compressed) = compressed {
            assert!((contender.decompress)(compressed, &mut page), "{} does not decode its own", contender.name);
            assert!(page == **original, "{} changes a page", contender.name);
        }
    }
    let compress_ns = best(pages, |page| (contender.compress)(page, &mut buffer).unwrap_or(0));
    let decodable: Vec<&Vec<u8>> = compressed.iter().flatten().collect();
    let decompress_ns = best(&decodable, |data| usize::from((contender.decompress)(data, &mut page)));
    Measured {
        lens: compressed.iter().map(|data| data.as_ref().map_or(size_of::<Page>(), Vec::len)).collect(),
        compress_ns,
        decompress_ns,
    }
}

/// Nanoseconds an item of `f`.
fn best<T>(items: &[T], mut f: impl FnMut(&T) -> usize) -> f64 {
    let mut best = vec![f64::INFINITY; items.len().div_ceil(RUN)];
    for _ in 0..PASSES {
        for (best, run) in best.iter_mut().zip(items.chunks(RUN)) {
            let start = Instant::now();
            std::hint::black_box(run.iter().map(&mut f).sum::<usize>());
            *best = best.min(start.elapsed().as_nanos() as f64);
        }
    }
    best.iter().sum::<f64>() / items.len().max(1) as f64
}
