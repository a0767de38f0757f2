//! Measures the calls by which pages come and go, in microseconds a page: by how many pages a call takes, and by
//! whether another thread of the process runs. Each TLB flush interrupts that thread.
//!
//! ```sh
//! cargo run --release -p ebb --example calls
//! ```

use ebb::PAGE;
use ebb::uapi::uffd::Uffd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

/// Pages of each pass.
const PAGES: usize = 32 << 10;
/// Pages that a call takes.
const RUNS: [usize; 6] = [1, 4, 16, 64, 128, 512];
/// Passes. The best one counts.
const PASSES: usize = 5;

/// Maps anonymous memory of small pages, and returns its address.
fn anonymous() -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED, "no memory");
        libc::madvise(at, PAGES * PAGE, libc::MADV_NOHUGEPAGE);
        at as usize
    }
}

fn drop_pages(at: usize, pages: usize) {
    // SAFETY: memory of this program's own, whose content is not needed.
    let dropped = unsafe { libc::madvise(at as *mut _, pages * PAGE, libc::MADV_DONTNEED) };
    assert_eq!(dropped, 0);
}

/// Calls `f` for each run of `pages` pages. Returns its time in microseconds a page.
fn time(pages: usize, mut f: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    (0..PAGES * PAGE).step_by(pages * PAGE).for_each(&mut f);
    start.elapsed().as_secs_f64() * 1e6 / PAGES as f64
}

/// One pass: the costs of writing to a frame, MOVE, WRITEPROTECT, COPY and dropping.
fn pass(uffd: &Uffd, pages: usize, [frames, memory]: [usize; 2]) -> [f64; 5] {
    let bytes = pages * PAGE;
    let content = vec![3u8; 512 * PAGE];
    // SAFETY: memory of this program's own.
    let write = |at: usize| unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), (frames + at) as *mut u8, bytes) };
    // The second write finds frames that are there and have been used before.
    time(pages, write);
    let written = time(pages, write);
    let moved = time(pages, |at| uffd.move_resident(memory + at, frames + at, bytes).expect("MOVE"));
    let protected = time(pages, |at| uffd.write_protect(memory + at, bytes, true).expect("WRITEPROTECT"));
    drop_pages(memory, PAGES);
    let copied = time(pages, |at| uffd.copy(memory + at, content.as_ptr() as usize, bytes).expect("COPY"));
    let dropped = time(pages, |at| drop_pages(memory + at, pages));
    [written, moved, protected, copied, dropped]
}

fn main() {
    let uffd = Uffd::open().expect("userfaultfd; it needs Linux 5.11 and what docs/contract.md says");
    if !uffd.has_move() {
        return println!("this kernel has no MOVE (Linux 6.8)");
    }
    let (places, stop) = ([anonymous(), anonymous()], AtomicBool::new(false));
    uffd.register(places[1], PAGES * PAGE).expect("registered");
    println!("| other threads | pages a call | write to a frame | MOVE | WRITEPROTECT | COPY | drop |");
    println!("|-|-:|-:|-:|-:|-:|-:|");
    for runs in [false, true] {
        std::thread::scope(|scope| {
            stop.store(false, Relaxed);
            if runs {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        std::hint::spin_loop()
                    }
                });
            }
            for pages in RUNS {
                let passes: Vec<_> = (0..PASSES).map(|_| pass(&uffd, pages, places)).collect();
                let best = |i: usize| passes.iter().map(|costs| costs[i]).fold(f64::MAX, f64::min);
                let costs: Vec<_> = (0..5).map(|i| format!("{:.2}", best(i))).collect();
                println!("| {} | {pages} | {} |", if runs { "one runs" } else { "none" }, costs.join(" | "));
            }
            stop.store(true, Relaxed);
        });
    }
}
