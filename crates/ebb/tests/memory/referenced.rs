//! What is used all the time stays in memory while a larger set goes in and out.

use crate::harness::alone::{COMPRESSIBLE, PAGE, Pages, RAM_PAGES, alone, assert_sound, space_on};
use crate::harness::{Random, ctx};
use ebb::SwapSpec;
use std::sync::atomic::Ordering::Relaxed;

/// Pages of a buffer that system calls use.
const BUFFER_PAGES: usize = 5;

#[test]
fn buffers_of_system_calls_get_a_second_chance() {
    alone(|| {
        let space =
            space_on(&[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }], true);
        let data = Pages::new(space, 2 * RAM_PAGES, COMPRESSIBLE);
        // Among the data: what a sweep takes it takes of a unit as a whole.
        let (ctx, mut random) = (ctx(space), Random(7));
        let buffers: Vec<usize> = (0..4).map(|i| data.addr(i * RAM_PAGES / 2 + 300)).collect();
        let (mut rounds, mut missed) = (0, 0);
        let before = space.stats().referenced_pages.load(Relaxed);
        for _ in 0..4000 {
            for _ in 0..16 {
                data.check(random.below(data.len()));
            }
            for &buffer in &buffers {
                let len = BUFFER_PAGES * PAGE;
                rounds += 1;
                if !space.pin_fast(ctx, u64::MAX, buffer, len) {
                    missed += 1;
                    assert!(space.bring_in(ctx, buffer, len));
                } else {
                    space.pin_end(ctx);
                }
            }
        }
        let spared = space.stats().referenced_pages.load(Relaxed) - before;
        eprintln!("{missed} of {rounds} times a buffer was out; {spared} pages had a second chance");
        assert!(missed * 10 < rounds, "{missed} of {rounds} times a buffer was out");
        assert!(spared > 0);
        assert_sound(&data);
    });
}
