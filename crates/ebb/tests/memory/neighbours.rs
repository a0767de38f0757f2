//! While one thread moves mappings next to a range, another one reads the range, most of which is evicted.

use crate::harness::alone::alone;
use crate::harness::{Random, check, ctx, fill, force, leave, map, space, unmap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const RAM: u64 = 8 << 20;
const PAGES: usize = 6 << 10;
const GUEST: usize = 64;

#[test]
fn memory_beside_a_mapping_that_moves_in_keeps_its_content() {
    alone(|| {
        let space = space(RAM, force());
        let whole = map(space, (PAGES + 2 * GUEST) * 4096);
        // A place to move to on each side; what is in between stays.
        // SAFETY: inside the mapping.
        let (at, after) = unsafe { (whole.add(GUEST * 4096), whole.add((GUEST + PAGES) * 4096)) };
        for page in 0..PAGES {
            fill(at, page, 1, 2 + page as u64 % 2);
        }
        let stop = AtomicBool::new(false);
        let at_shared = at as usize;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = ctx(space);
                let mut random = Random(77);
                let mut version = vec![1u64; PAGES];
                while !stop.load(Relaxed) {
                    let start = random.below(PAGES - 40);
                    for (page, version) in version.iter().enumerate().skip(start).take(40) {
                        check(at_shared as *mut u8, page, *version, 2 + page as u64 % 2);
                    }
                    version[start] += 1;
                    fill(at_shared as *mut u8, start, version[start], 2 + start as u64 % 2);
                }
                for (page, version) in version.iter().enumerate() {
                    check(at_shared as *mut u8, page, *version, 2 + page as u64 % 2);
                }
                leave(space);
            });
            let end = Instant::now() + Duration::from_secs(2);
            let mut moves = 0u64;
            while Instant::now() < end {
                for place in [whole, after] {
                    // Never touched, so that the kernel may join it with what is there.
                    let guest = map(space, GUEST * 4096);
                    let bytes = (GUEST * 4096) as u64;
                    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
                    let r = space.mremap(ctx(space), [guest as u64, bytes, bytes, flags, place as u64, 0]);
                    assert_eq!(r, place as i64);
                    moves += 1;
                }
            }
            stop.store(true, Relaxed);
            println!("{moves} moves");
        });
        space.validate().expect("consistent");
        assert_eq!(space.stats().error_bytes()[0], 0);
        unmap(space, whole, (PAGES + 2 * GUEST) * 4096);
        leave(space);
    });
}
