//! MOVE beside the kernel's copying of shared pages: what it says that it moved is what it moved.
//!
//! The destination is empty and nobody else's, as a frame of staging is. A page that the kernel moved without saying so would
//! be taken for one that stayed where it was, and lost.

use crate::harness::alone::alone;
use ebb::uapi::uffd::{Uffd, UffdError};
use std::time::{Duration, Instant};

const PAGE: usize = ebb::PAGE;
const PAGES: usize = 512;
/// How long to wait for what a busy machine seldom does.
const PATIENCE: Duration = Duration::from_secs(400);

/// Anonymous memory of small pages.
fn anonymous() -> usize {
    // SAFETY: new memory.
    let at = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(std::ptr::null_mut(), PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        // Fails where there are no huge pages at all.
        libc::madvise(at, PAGES * PAGE, libc::MADV_NOHUGEPAGE);
        at
    };
    at as usize
}

/// A child that has all of this process's memory in common with it, and does nothing.
fn sharer() -> i32 {
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: waits for its end; ends by itself should the test have died.
        unsafe {
            libc::alarm(400);
            loop {
                libc::pause();
            }
        }
    }
    pid
}

/// Moves all of `src` while another thread has the kernel copy one page after the other. How often the mover had to wait.
fn move_behind_copies(uffd: &Uffd, dst: usize, src: usize) -> usize {
    std::thread::scope(|scope| {
        let copies = scope.spawn(|| {
            for page in 0..PAGES {
                // A copy without a change. A page that has gone is not brought back.
                // SAFETY: memory of the test.
                unsafe { libc::madvise((src + page * PAGE) as *mut _, PAGE, libc::MADV_POPULATE_WRITE) };
            }
        });
        let (mut done, mut waits) = (0, 0);
        while done < PAGES {
            let is_copied = copies.is_finished();
            match uffd.move_pages(dst + done * PAGE, src + done * PAGE, (PAGES - done) * PAGE) {
                Ok(()) => done = PAGES,
                Err((bytes, UffdError::Shared | UffdError::Again)) => {
                    done += bytes / PAGE;
                    waits += 1;
                    assert!(!is_copied, "page {done} of {PAGES} is this process's own, and does not move");
                }
                Err(e) => panic!("page {done} of {PAGES}: {e:?}"),
            }
        }
        waits
    })
}

#[test]
fn what_the_kernel_moves_while_it_copies_is_where_it_says() {
    alone(|| {
        let uffd = Uffd::open().expect("userfaultfd");
        if !uffd.has_move() {
            return;
        }
        let (mut waits, began) = (0, Instant::now());
        // Where all processors are busy the two threads may run one after the other, many times.
        for round in 0.. {
            if round >= 60 && (waits > 0 || began.elapsed() > PATIENCE) {
                break;
            }
            let (src, dst) = (anonymous(), anonymous());
            uffd.register(dst, PAGES * PAGE).expect("registered");
            let word = |page: usize| (round * PAGES + page + 1) as u64;
            for page in 0..PAGES {
                // SAFETY: memory of the test, which is not registered now.
                unsafe { ((src + page * PAGE) as *mut u64).write_volatile(word(page)) };
            }
            uffd.register(src, PAGES * PAGE).expect("registered");
            let child = sharer();
            waits += move_behind_copies(&uffd, dst, src);
            // SAFETY: the test's own child.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
            for page in 0..PAGES {
                assert!(ebb::uapi::is_mapped(dst + page * PAGE), "round {round}: page {page} is nowhere");
                // SAFETY: it is mapped.
                assert_eq!(unsafe { ((dst + page * PAGE) as *const u64).read_volatile() }, word(page), "round {round}");
            }
            for at in [src, dst] {
                // SAFETY: memory of the test.
                assert_eq!(unsafe { libc::munmap(at as *mut _, PAGES * PAGE) }, 0);
            }
        }
        assert!(waits > 0, "the mover was never behind the copies: this tested nothing");
    });
}
