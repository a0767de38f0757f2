//! What slower codecs would save on the pages that Ebb's codecs leave large: for pages that rarely come back.

use ebb_pool::codec::{Page, same_filled};

use crate::contenders;
use crate::pages::Corpus;
use crate::{Measured, measure};

/// A page is hard if it takes more than this.
const HARD_MIN: usize = size_of::<Page>() / 2;

/// Prints sizes and times.
pub fn print(corpora: &[Corpus]) {
    println!("\n### Pages that take more than half a page\n");
    println!("Bytes a page, then nanoseconds to compress and to decompress one:\n");
    let names: Vec<String> = contenders::slower().into_iter().map(|contender| contender.name).collect();
    println!("| | of its pages | {} |", names.join(" | "));
    println!("|---|---|{}", "---|".repeat(names.len()));
    let (mut ours, mut buffer) = (contenders::ours(), vec![0; 2 * size_of::<Page>()]);
    let mut all = Vec::new();
    for Corpus { name, pages } in corpora {
        let mut is_hard = |page: &&Page| (ours.compress)(page, &mut buffer).is_none_or(|len| len > HARD_MIN);
        let hard: Vec<&Page> = pages.iter().filter(|page| same_filled(page).is_none() && is_hard(page)).collect();
        if !hard.is_empty() {
            row(name, pages.len(), &hard);
        }
        all.extend(hard);
    }
    row("all", corpora.iter().map(|corpus| corpus.pages.len()).sum(), &all);
}

fn row(name: &str, of: usize, hard: &[&Page]) {
    let cell = |Measured { lens, compress_ns, decompress_ns }| {
        let bytes = lens.iter().sum::<usize>() / lens.len().max(1);
        format!("{bytes}, {compress_ns:.0}, {decompress_ns:.0}")
    };
    let cells: Vec<String> = contenders::slower().iter_mut().map(|contender| cell(measure(contender, hard))).collect();
    println!("| {name} | {:.1} % | {} |", 100.0 * hard.len() as f64 / of.max(1) as f64, cells.join(" | "));
}
