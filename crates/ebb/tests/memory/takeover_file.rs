//! Private mappings of files that are taken over keep their content, and what was not written to stays the file's.

use crate::harness::alone::alone;
use crate::harness::{check, ctx, fill, force, leave, press, resident, space, unmap};
use ebb::{Mapping, PageMap, Which};

const PAGE: usize = 4096;
const BUDGET: u64 = 16 << 20;
const READ_WRITE: u32 = 3;
const READ_ONLY: u32 = 1;

/// A private mapping of a file of so many pages, filled with 7.
fn of_file(pages: usize) -> *mut u8 {
    let path = std::env::temp_dir().join(format!("ebb-takeover-{}-{pages}", std::process::id()));
    std::fs::write(&path, vec![7u8; pages * PAGE]).expect("a file");
    let file = std::fs::File::open(&path).expect("it is there");
    std::fs::remove_file(&path).expect("it can go");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, READ_WRITE as i32, libc::MAP_PRIVATE, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

/// Every byte of the page must be 7.
fn check_file(at: *mut u8, page: usize) {
    // SAFETY: a page of the test's.
    let bytes = unsafe { std::slice::from_raw_parts(at.add(page * PAGE), PAGE) };
    assert!(bytes.iter().all(|byte| *byte == 7), "page {page}");
}

#[test]
fn what_was_written_of_a_file_is_taken_over_and_the_rest_stays_the_files() {
    alone(|| {
        let space = space(BUDGET, force());
        // Runs that are long enough, one that is not, pages that were only read, and such that nobody has touched.
        let (pages, at) = (2000, of_file(2000));
        let written =
            |page: usize| (100..700).contains(&page) || (900..908).contains(&page) || (1200..2000).contains(&page);
        for page in (0..pages).filter(|page| written(*page)) {
            fill(at, page, 3, page as u64 % 4);
        }
        (0..100).for_each(|page| check_file(at, page));
        // SAFETY: memory of the test's own, which is only read from now on.
        assert_eq!(unsafe { libc::mprotect(at.cast(), pages * PAGE, READ_ONLY as i32) }, 0);
        let start = at as usize;
        let mapping = Mapping { start, end: start + pages * PAGE, prot: READ_ONLY, ..Mapping::default() };
        let thread = ctx(space);
        let taken = space.take_over_file(&PageMap::open().expect("procfs"), &mapping, Which::Own);
        assert_eq!(taken, 1400 * PAGE);
        space.make_taken_fit(thread);
        assert_eq!(space.validate(), Ok(()));
        for round in 0..2 {
            press(space, BUDGET);
            let inside = resident(at.wrapping_add(1200 * PAGE), 800);
            assert!(inside < 700, "{inside} pages are in memory in round {round}");
            for page in 0..pages {
                if written(page) { check(at, page, 3, page as u64 % 4) } else { check_file(at, page) }
            }
        }
        // Dropped, it would have to be the file's again.
        let madvise = |page: usize, advice: i32| {
            space.madvise(thread, [(start + page * PAGE) as u64, PAGE as u64, advice as u64, 0, 0, 0])
        };
        for advice in [libc::MADV_DONTNEED, libc::MADV_FREE] {
            assert_eq!(madvise(1300, advice), -i64::from(libc::EINVAL));
        }
        assert_eq!(madvise(800, libc::MADV_DONTNEED), 0);
        check_file(at, 800);
        check(at, 1300, 3, 0);
        unmap(space, at, pages * PAGE);
        assert_eq!(space.validate(), Ok(()));
        leave(space);
    });
}

#[test]
fn variables_are_taken_over_with_what_nobody_has_written_yet() {
    alone(|| {
        let space = space(BUDGET, force());
        let (pages, at) = (1100, of_file(1100));
        for page in (0..pages).filter(|page| page % 3 == 0) {
            fill(at, page, 4, page as u64 % 4);
        }
        let start = at as usize;
        let mapping = Mapping { start, end: start + pages * PAGE, prot: READ_WRITE, fresh: true, ..Mapping::default() };
        let thread = ctx(space);
        assert_eq!(space.take_over_file(&PageMap::open().expect("procfs"), &mapping, Which::All), pages * PAGE);
        space.make_taken_fit(thread);
        press(space, BUDGET);
        for page in 0..pages {
            if page % 3 == 0 { check(at, page, 4, page as u64 % 4) } else { check_file(at, page) }
        }
        for page in 0..pages {
            fill(at, page, 5, page as u64 % 4);
        }
        press(space, BUDGET);
        (0..pages).for_each(|page| check(at, page, 5, page as u64 % 4));
        unmap(space, at, pages * PAGE);
        assert_eq!(space.validate(), Ok(()));
        leave(space);
    });
}
