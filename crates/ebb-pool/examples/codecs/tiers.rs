//! What the cold tier makes of the objects of the hot one: those that get clearly smaller are replaced, the others stay.

use ebb_pool::codec::{Page, same_filled};

use crate::contenders::{self, Contender};
use crate::pages::Corpus;
use crate::{DICTIONARY_PAGES, Measured, measure};

/// An object is replaced if it gets smaller by 1/8 at least.
const GAIN_PART: usize = 8;

/// The objects of the hot tier, and the pages that they were made of.
struct Hot<'a> {
    pages: Vec<&'a Page>,
    lens: Vec<usize>,
}

/// Prints a table for each corpus, and one for all of them.
pub fn print(corpora: &[Corpus]) {
    println!("\n### The cold tier\n");
    println!(
        "Of the objects of each program: bytes in the hot tier, and after those were replaced that get smaller by"
    );
    println!(
        "1/{GAIN_PART}; nanoseconds to compress one, and to decompress one. The last columns are about the objects"
    );
    println!("that take at most half a page in the hot tier, and about the others.\n");
    println!("| | codec | hot | cold | less | replaced | compress | decompress | up to half a page | the others |");
    println!("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for Corpus { name, pages } in corpora {
        let pages: Vec<&Page> = pages.iter().filter(|page| same_filled(page).is_none()).collect();
        let (samples, pages) = pages.split_at(DICTIONARY_PAGES.min(pages.len().saturating_sub(1)));
        if pages.is_empty() {
            continue;
        }
        let lens = measure(&mut contenders::ours(), pages).lens;
        let hot = Hot { pages: pages.to_vec(), lens };
        contenders::cold(samples).iter_mut().for_each(|contender| row(name, &hot, contender));
    }
}

fn row(name: &str, hot: &Hot<'_>, contender: &mut Contender) {
    let Measured { lens, compress_ns, decompress_ns } = measure(contender, &hot.pages);
    let is_replaced = |hot: usize, cold: usize| cold <= hot - hot / GAIN_PART;
    let both = || hot.lens.iter().copied().zip(lens.iter().copied());
    let replaced = both().filter(|(hot, cold)| is_replaced(*hot, *cold)).count();
    let sums = |is_wanted: &dyn Fn(usize) -> bool| {
        both().filter(|(hot, _)| is_wanted(*hot)).fold((0, 0), |(before, after), (hot, cold)| {
            (before + hot, after + if is_replaced(hot, cold) { cold } else { hot })
        })
    };
    let less = |(before, after): (usize, usize)| match before {
        0 => "-".to_owned(),
        _ => format!("{:.0} %", 100.0 * (before - after) as f64 / before as f64),
    };
    let (n, all) = (hot.lens.len(), sums(&|_| true));
    println!(
        "| {name} | {} | {} | {} | {} | {:.0} % | {compress_ns:.0} | {decompress_ns:.0} | {} | {} |",
        contender.name,
        all.0 / n,
        all.1 / n,
        less(all),
        100.0 * replaced as f64 / n as f64,
        less(sums(&|hot| hot <= size_of::<Page>() / 2)),
        less(sums(&|hot| hot > size_of::<Page>() / 2)),
    );
}
