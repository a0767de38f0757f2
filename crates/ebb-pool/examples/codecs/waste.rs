//! What block sizes and size classes cost on the lengths that were measured.

use ebb_pool::{BLOCK_BYTES, NR_CLASSES, class_bytes};

/// Object header, and what objects are rounded up to.
const HEADER: usize = 8;
const GRAIN: usize = 8;

/// Prints the waste of the pool's own classes, and of others.
pub fn print(lens: &[usize]) {
    let lens: Vec<usize> = lens.iter().copied().filter(|len| *len < 4096).collect();
    let data: usize = lens.iter().sum();
    if data == 0 {
        return;
    }
    println!("\n### Size classes, on the {} compressible pages above\n", lens.len());
    println!("| block KiB | step | classes | lost in full blocks | half a block a class, KiB |");
    println!("|---|---|---|---|---|");
    let ours: u64 = lens.iter().filter_map(|len| class_bytes(*len)).sum();
    row("**pool** ", BLOCK_BYTES, "", NR_CLASSES, ours as f64 / 1000.0, data);
    for block_pages in [4, 8, 16, 32] {
        for step in [32, 24, 16, 12] {
            let classes = classes(block_pages * 4096, step);
            let taken: f64 = lens.iter().map(|len| taken(&classes, block_pages * 4096, *len)).sum();
            row("", block_pages * 4096, &format!("1/{step}"), classes.len(), taken, data);
        }
    }
}

fn row(name: &str, block: usize, step: &str, classes: usize, taken: f64, data: usize) {
    let lost = 100.0 * (taken - data as f64) / taken;
    println!("| {name}{} | {step} | {classes} | {lost:.1} % | {} |", block / 1024, classes * block / 2048);
}

/// Objects a block holds, largest objects first: sizes at least a `1/step` part apart.
fn classes(block: usize, step: usize) -> Vec<usize> {
    let mut classes = vec![block / (4096 + HEADER)];
    let mut size = block / classes[0];
    for objects in classes[0] + 1..=2048 {
        let next = block / objects / GRAIN * GRAIN;
        if next <= size - size.div_ceil(step).max(GRAIN) && next > HEADER {
            classes.push(objects);
            size = next;
        }
    }
    classes
}

fn taken(classes: &[usize], block: usize, len: usize) -> f64 {
    let fits = |objects: &&usize| block / **objects / GRAIN * GRAIN - HEADER >= len;
    block as f64 / *classes.iter().rev().find(fits).expect("the first class holds a page") as f64
}
