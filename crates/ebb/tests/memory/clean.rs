//! Clean pages: what is only read is evicted without being stored again, and nothing that is written gets lost.

use crate::harness::alone::{alone, growth};
use crate::harness::{check, ctx, fill, force, leave, map, space, unmap};
use ebb::{PinResult, Space};

const RAM: u64 = 8 << 20;
const PAGES: usize = 6 << 10;

/// Memory of three times the budget, every page of version 1, read in order twice: much of what is in is clean.
fn with_clean_pages(test: impl FnOnce(&'static Space, *mut u8)) {
    let space = space(RAM, force());
    let at = map(space, PAGES * 4096);
    for page in 0..PAGES {
        fill(at, page, 1, 2 + page as u64 % 2);
    }
    for _ in 0..2 {
        read_all(at, |_| 1);
    }
    test(space, at);
    space.validate().expect("consistent");
    unmap(space, at, PAGES * 4096);
    assert_eq!(space.stats().error_bytes()[0], 0);
    leave(space);
}

fn read_all(at: *mut u8, version: impl Fn(usize) -> u64) {
    for page in 0..PAGES {
        check(at, page, version(page), 2 + page as u64 % 2);
    }
}

#[test]
fn what_is_only_read_is_evicted_without_being_stored_again() {
    alone(|| {
        with_clean_pages(|space, at| {
            let stats = space.stats();
            let stored = |f: &mut dyn FnMut()| {
                growth(&stats.out_pool_pages, || {
                    assert!(growth(&stats.dropped_clean_pages, f) > PAGES as u64 / 2);
                })
            };
            let n = stored(&mut || read_all(at, |_| 1));
            assert!(n < PAGES as u64 / 8, "{n} pages were stored again");
        });
    });
}

#[test]
fn a_write_to_a_clean_page_is_not_lost() {
    alone(|| {
        with_clean_pages(|space, at| {
            let writes = |page: usize| page % 7 == 3;
            let faults = growth(&space.stats().faults_protected, || {
                for page in (0..PAGES).rev() {
                    check(at, page, 1, 2 + page as u64 % 2);
                    if writes(page) {
                        fill(at, page, 2, 2 + page as u64 % 2);
                    }
                }
            });
            assert!(faults > 0);
            for _ in 0..2 {
                read_all(at, |page| 1 + writes(page) as u64);
            }
        });
    });
}

#[test]
fn the_kernel_can_write_to_a_clean_page_that_is_pinned() {
    alone(|| {
        with_clean_pages(|space, at| {
            let mut ends = [0; 2];
            // SAFETY: `ends` has room for both descriptors.
            assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
            for page in (0..PAGES).step_by(5) {
                check(at, page, 1, 2 + page as u64 % 2);
                let (addr, ctx) = (at as usize + page * 4096, ctx(space));
                space.pin_begin(ctx, 1);
                assert_eq!(space.pin_add(ctx, addr, 4096), PinResult::Ok);
                // SAFETY: the page is mapped and this test's own.
                unsafe {
                    assert_eq!(libc::write(ends[1], c"written".as_ptr().cast(), 7), 7);
                    assert_eq!(libc::read(ends[0], addr as *mut libc::c_void, 4096), 7);
                }
                space.pin_end(ctx);
            }
            read_all_but_starts(at);
            for fd in ends {
                // SAFETY: this test's own.
                unsafe { libc::close(fd) };
            }
        });
    });
}

/// Every fifth page begins with what the kernel wrote; everything else is as it was.
fn read_all_but_starts(at: *mut u8) {
    for page in 0..PAGES {
        if page % 5 == 0 {
            // SAFETY: the page is mapped.
            let start = unsafe { std::slice::from_raw_parts(at.add(page * 4096), 7) };
            assert_eq!(start, b"written", "page {page}");
            fill(at, page, 1, 2 + page as u64 % 2);
        }
    }
    read_all(at, |_| 1);
}

#[test]
fn dropped_memory_reads_as_zero_also_where_it_was_clean() {
    alone(|| {
        with_clean_pages(|space, at| {
            let (from, n) = (PAGES / 2, PAGES / 2);
            let start = at as u64 + from as u64 * 4096;
            let r = space.madvise(ctx(space), [start, n as u64 * 4096, libc::MADV_DONTNEED as u64, 0, 0, 0]);
            assert_eq!(r, 0);
            for page in from..PAGES {
                check(at, page, 1, 0);
                fill(at, page, 1, 2 + page as u64 % 2);
            }
            read_all(at, |_| 1);
        });
    });
}

#[test]
fn a_moved_range_and_its_neighbours_take_writes() {
    alone(|| {
        with_clean_pages(|space, at| {
            let place = map(space, 4096 * 4096) as u64 + (1024 << 12);
            let (from, n) = (PAGES - 600, 300u64);
            let start = at as u64 + from as u64 * 4096;
            let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
            assert_eq!(space.mremap(ctx(space), [start, n << 12, n << 12, flags, place, 0]), place as i64);
            let back = [place, n << 12, n << 12, flags, start, 0];
            for page in PAGES - 300..PAGES {
                fill(at, page, 2, 2 + page as u64 % 2);
            }
            assert_eq!(space.mremap(ctx(space), back), start as i64);
            for page in from..from + n as usize {
                fill(at, page, 2, 2 + page as u64 % 2);
            }
            for _ in 0..2 {
                read_all(at, |page| 1 + (page >= from) as u64);
            }
            unmap(space, (place - (1024 << 12)) as *mut u8, 4096 * 4096);
        });
    });
}
