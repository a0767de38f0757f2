//! `make bench-slots`: the cluster allocator beside one device lock with slot caches, alone and with many threads; what
//! fragmentation does to large folios; and whether a rotational device is written in order.
//!
//! The designs take turns, several rounds, medians. It checks what must hold on any machine; it judges no time.

mod design;
mod device;
mod fragmentation;
mod rotational;
mod threads;
mod waits;

use design::{Clusters, Design, OneLock};
use ebb_slots::Order;
use fragmentation::{Case, SwapIn};
use std::process::ExitCode;

const USAGE: &str = "usage: ebb-bench-slots [--quick] [one-thread | threads | folios | in-order]...";

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> ExitCode {
    let (flags, parts): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|arg| arg.starts_with('-'));
    let known = ["one-thread", "threads", "folios", "in-order"];
    if flags.iter().any(|flag| flag != "--quick") || parts.iter().any(|part| !known.contains(&part.as_str())) {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let quick = !flags.is_empty();
    let wants = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    waits::start();
    let rounds = if quick { 1 } else { 5 };
    if wants("one-thread") {
        one_thread(rounds, if quick { 50_000 } else { 1_000_000 });
    }
    if wants("threads") {
        many_threads(rounds, if quick { 0.05 } else { 1.0 });
    }
    if wants("folios") {
        large_folios();
    }
    if wants("in-order") {
        in_order();
    }
    ExitCode::SUCCESS
}

fn one_thread(rounds: usize, turns: usize) {
    println!("One thread, ns for an allocation and for a free, one at a time (medians of {rounds})");
    println!("{:>8} {:>22} {:>22}", "order", Clusters::NAME, OneLock::NAME);
    for order in [0, 2, 4, 9] {
        let order = Order::new(order).expect("an order");
        let turns = (turns / order.slots() as usize).max(2000);
        let (mut new, mut old) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            new.push(threads::one_thread_ns::<Clusters>(order, turns));
            old.push(threads::one_thread_ns::<OneLock>(order, turns));
        }
        let both = |runs: Vec<(f64, f64)>| {
            let (alloc, free): (Vec<f64>, Vec<f64>) = runs.into_iter().unzip();
            format!("{:.1} + {:.1}", median(alloc), median(free))
        };
        println!("{:>8} {:>22} {:>22}", order.get(), both(new), both(old));
    }
    for batch in [1, 16, 64] {
        let runs = (0..rounds).map(|_| threads::batch_ns(batch, turns)).collect();
        println!("  a slot's allocation in batches of {batch:>2}: {:.1}", median(runs));
    }
    let runs = (0..rounds).map(|_| threads::swap_ns(turns)).collect();
    println!("  a page in and out, device 95 % full: {:.1}", median(runs));
}

fn many_threads(rounds: usize, seconds: f64) {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut counts = vec![1, 2, 4, 8, 16, cores, 2 * cores, 4 * cores];
    counts.retain(|n| *n <= 4 * cores);
    counts.sort_unstable();
    counts.dedup();
    for (title, large) in [("single slots", 0), ("one in ten of order 4, device full", 10)] {
        println!("\nThreads that replace slots at random, {title}; {cores} processors (medians of {rounds})");
        let mixed = if large > 0 {
            format!(" {:>8} {:>8} {:>8} {:>8}", "large", "used", "in runs", "frag")
        } else {
            String::new()
        };
        println!(
            "{:>8} {:>10} {:>12} {:>12} {:>12} {:>12}{mixed}   waits by class",
            "threads", "design", "pairs/s", "contended", "total wait", "max wait"
        );
        for threads in &counts {
            let (mut new, mut old) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                new.push(threads::run::<Clusters>(*threads, seconds, large));
                old.push(threads::run::<OneLock>(*threads, seconds, large));
            }
            print_threads(*threads, Clusters::NAME, &new, large > 0);
            print_threads(*threads, OneLock::NAME, &old, large > 0);
        }
    }
    println!(
        "\nlarge: of the allocations of order 4 those that found a run. In the end, used: of the slots; in runs: of the free \
         slots those in a free run of order 4; frag: of the clusters with 16 free slots those without such a run"
    );
    let (nr_slots, word_bytes) = (1 << 20, size_of::<u64>());
    let at_rest =
        (ebb_slots::metadata_bytes(nr_slots, cores) - nr_slots as usize * word_bytes) as f64 / f64::from(nr_slots);
    println!("\nMemory: {at_rest:.3} bytes a slot at rest, {word_bytes} a slot of a cluster in use");
    assert!(at_rest <= 0.1 && word_bytes <= 8);
}

fn print_threads(threads: usize, name: &str, outcomes: &[threads::Outcome], is_mixed: bool) {
    let of = |f: fn(&threads::Outcome) -> f64| median(outcomes.iter().map(f).collect());
    let waits = |f: fn(&waits::Waits) -> u64| {
        median(outcomes.iter().map(|outcome| outcome.waits.values().map(f).sum::<u64>() as f64).collect())
    };
    let classes = |name: &str| outcomes.iter().filter_map(|outcome| outcome.waits.get(name)).map(|w| w.total_ns).sum();
    let mut by_class: Vec<(u64, &str)> =
        outcomes.iter().flat_map(|outcome| outcome.waits.keys()).map(|name| (classes(name), *name)).collect();
    by_class.sort_unstable();
    by_class.dedup();
    by_class.reverse();
    let by_class: Vec<String> =
        by_class.iter().map(|(ns, name)| format!("{name} {}", time(*ns as f64 / outcomes.len() as f64))).collect();
    let share = |f: fn(&threads::Outcome) -> f64| format!(" {:>7.1}%", of(f) * 100.0);
    let mixed = [
        share(|outcome| outcome.large_ok),
        share(|outcome| outcome.state.used),
        share(|outcome| outcome.state.in_runs),
        share(|outcome| outcome.state.fragmented),
    ];
    println!(
        "{threads:>8} {name:>10} {:>11.2}M {:>12.0} {:>12} {:>12}{}   {}",
        of(|outcome| outcome.pairs_per_s) / 1e6,
        waits(|waits| waits.contended),
        time(waits(|waits| waits.total_ns)),
        time(median(outcomes.iter().map(|o| o.waits.values().map(|w| w.max_ns).max().unwrap_or(0) as f64).collect())),
        if is_mixed { mixed.concat() } else { String::new() },
        by_class.join(", "),
    );
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

fn large_folios() {
    println!("\nLarge folios (64 KiB) that find no run, on a device of 64 MiB with 60 MiB of them in use");
    println!("{:>44} {:>10} {:>10} {:>12}", "", "fallback", "worst", "moves/folio");
    for (name, small, swap_in) in [
        ("large folios only", false, SwapIn::None),
        ("and 1 MiB of small ones", true, SwapIn::None),
        ("swapped in by folio", false, SwapIn::Aligned),
        ("and 1 MiB of small ones, by folio", true, SwapIn::Aligned),
        ("swapped in page by page", false, SwapIn::Random),
        ("and 1 MiB of small ones, page by page", true, SwapIn::Random),
    ] {
        for compacts in [false, true] {
            let case = Case { name, small, swap_in, compacts };
            let outcome = fragmentation::run(&case);
            println!(
                "{:>44} {:>9.1}% {:>9.1}% {:>12.2}",
                format!("{}{}", case.name, if compacts { ", compacting" } else { "" }),
                outcome.fallback * 100.0,
                outcome.worst * 100.0,
                outcome.moves_per_folio,
            );
            assert!(!compacts || outcome.fallback < 0.05, "compaction leaves large folios without a run");
        }
    }
}

fn in_order() {
    println!("\nRotational: writes that follow the one before, by 8 writers");
    let (raw, sorted) = rotational::sequential(8);
    println!("  as begun {:.2} %, behind a queue of 8 {:.2} %", raw * 100.0, sorted * 100.0);
    let (alone, _) = rotational::sequential(1);
    println!("  one writer {:.2} %", alone * 100.0);
    assert!(alone > 0.99, "one writer alone writes out of order");
}
