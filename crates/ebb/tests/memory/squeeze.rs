//! One process, many times its budget, several threads: every word of every page comes back.

use crate::harness::alone::alone;
use crate::harness::{Random, check, ctx, fill, force, leave, map, space, unmap};
use std::sync::atomic::Ordering::Relaxed;

const RAM: u64 = 16 << 20;
const PAGES: usize = 16 << 10;

fn work(seed: u64, rounds: usize) {
    let space = space(RAM, force());
    let at = map(space, PAGES * 4096);
    let mut random = Random(seed);
    let mut version = vec![0u64; PAGES];
    let mut kind = vec![0u64; PAGES];
    for page in 0..PAGES {
        kind[page] = random.below(7) as u64;
        version[page] = 1;
        fill(at, page, 1, kind[page]);
    }
    for page in 0..PAGES {
        check(at, page, version[page], kind[page]);
    }
    for _ in 0..rounds {
        let page = random.below(PAGES);
        match random.below(8) {
            0 => {
                let n = random.below(32).min(PAGES - page - 1) + 1;
                let addr = at as u64 + page as u64 * 4096;
                let r = space.madvise(ctx(space), [addr, n as u64 * 4096, libc::MADV_DONTNEED as u64, 0, 0, 0]);
                assert_eq!(r, 0);
                kind[page..page + n].fill(0);
            }
            1..=3 => {
                version[page] += 1;
                kind[page] = random.below(7) as u64;
                fill(at, page, version[page], kind[page]);
            }
            _ => check(at, page, version[page], kind[page]),
        }
    }
    for page in 0..PAGES {
        check(at, page, version[page], kind[page]);
    }
    unmap(space, at, PAGES * 4096);
    leave(space);
}

#[test]
fn threads_that_want_sixteen_times_the_budget_read_what_they_wrote() {
    alone(|| {
        let threads: Vec<_> = (1..=4).map(|i| std::thread::spawn(move || work(i * 77, 60_000))).collect();
        for thread in threads {
            thread.join().expect("no page lost");
        }
        let space = space(RAM, force());
        space.validate().expect("consistent");
        let mut lines = String::new();
        space.stats().for_each(|name, value| lines.push_str(&format!("{name}={value} ")));
        println!("{lines}");
        assert!(space.stats().peak_held_bytes.load(Relaxed) <= RAM + (5 << 20));
        assert_eq!(space.stats().error_bytes()[0], 0);
    });
}
