//! Measures what is done with a folio of 2 MiB, in microseconds, by whether another thread of the process runs: each TLB flush
//! interrupts that thread. The last column says whether what came out of it was one huge page.
//!
//! ```sh
//! cargo run --release -p ebb --example folios
//! ```

use ebb::PAGE;
use ebb::uapi::uffd::Uffd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

const FOLIO: usize = 2 << 20;
/// Folios of each pass.
const FOLIOS: usize = 32;
/// Passes. The best one counts.
const PASSES: usize = 5;

fn advise(at: usize, len: usize, advice: i32) -> bool {
    // SAFETY: memory of this program's own, whose content is not needed.
    unsafe { libc::madvise(at as *mut _, len, advice) == 0 }
}

/// Maps memory that begins at a multiple of a folio.
fn anonymous(advice: i32) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let len = (FOLIOS + 1) * FOLIO;
    // SAFETY: new memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED, "no memory");
    assert!(advise(at as usize, len, advice));
    (at as usize).next_multiple_of(FOLIO)
}

/// Folios that are mapped as one, of all of the process.
fn huge_folios() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("procfs");
    let line = text.lines().find(|line| line.starts_with("AnonHugePages:")).expect("a line on huge pages");
    line.split_whitespace().nth(1).and_then(|n| n.parse::<usize>().ok()).expect("a number") * 1024 / FOLIO
}

/// Calls `f` for each folio. Returns its time in microseconds, and how many huge pages there are then.
fn time(mut f: impl FnMut(usize)) -> (f64, usize) {
    let start = Instant::now();
    (0..FOLIOS * FOLIO).step_by(FOLIO).for_each(&mut f);
    (start.elapsed().as_secs_f64() * 1e6 / FOLIOS as f64, huge_folios())
}

fn write(at: usize, len: usize, byte: u8) {
    // SAFETY: memory of this program's own.
    unsafe { std::ptr::write_bytes(at as *mut u8, byte, len) };
}

fn pass(uffd: &Uffd) -> Vec<(&'static str, (f64, usize))> {
    let (nursery, memory, staging) =
        (anonymous(libc::MADV_HUGEPAGE), anonymous(libc::MADV_NOHUGEPAGE), anonymous(libc::MADV_NOHUGEPAGE));
    for at in [memory, staging] {
        uffd.register(at, FOLIOS * FOLIO).expect("registered");
    }
    let small = vec![3u8; PAGE];
    let mut all = Vec::new();
    let mut note = |name, f: &mut dyn FnMut(usize)| all.push((name, time(f)));
    note("first touch by the kernel", &mut |at| write(nursery + at, 1, 1));
    note("write all of it", &mut |at| write(nursery + at, FOLIO, 0));
    note("MOVE in from a nursery", &mut |at| uffd.move_resident(memory + at, nursery + at, FOLIO).expect("MOVE"));
    note("WRITEPROTECT", &mut |at| uffd.write_protect(memory + at, FOLIO, true).expect("protected"));
    note("lift the protection", &mut |at| uffd.write_protect(memory + at, FOLIO, false).expect("open"));
    note("MOVE out", &mut |at| uffd.move_pages(staging + at, memory + at, FOLIO).expect("MOVE"));
    note("MOVE in again", &mut |at| uffd.move_resident(memory + at, staging + at, FOLIO).expect("MOVE"));
    note("MOVE out again", &mut |at| uffd.move_pages(staging + at, memory + at, FOLIO).expect("MOVE"));
    note("COPY one page", &mut |at| uffd.copy(memory + at, staging + at, PAGE).expect("COPY"));
    note("drop it", &mut |at| assert!(advise(memory + at, PAGE, libc::MADV_DONTNEED)));
    note("MOVE in beside a page table", &mut |at| uffd.move_resident(memory + at, staging + at, FOLIO).expect("MOVE"));
    note("split by MOVE of the rest", &mut |at| {
        uffd.move_pages(staging + at, memory + at, FOLIO - PAGE).expect("MOVE");
        uffd.move_pages(staging + at + FOLIO - PAGE, memory + at + FOLIO - PAGE, PAGE).expect("MOVE");
    });
    note("drop all of it", &mut |at| assert!(advise(staging + at, FOLIO, libc::MADV_DONTNEED)));
    note("drop the empty range", &mut |at| assert!(advise(memory + at, FOLIO, libc::MADV_DONTNEED)));
    note("first touch by the kernel", &mut |at| write(nursery + at, 1, 1));
    note("MOVE in where small pages were", &mut |at| {
        uffd.move_resident(memory + at, nursery + at, FOLIO).expect("MOVE")
    });
    note("MOVE out to where small pages were", &mut |at| {
        uffd.move_pages(staging + at, memory + at, FOLIO).expect("MOVE")
    });
    note("MOVE in again", &mut |at| uffd.move_resident(memory + at, staging + at, FOLIO).expect("MOVE"));
    note("drop a page", &mut |at| assert!(advise(memory + at, PAGE, libc::MADV_DONTNEED)));
    note("split by MADV_COLD of a page", &mut |at| assert!(advise(memory + at + PAGE, PAGE, libc::MADV_COLD)));
    note("drop all of it", &mut |at| assert!(advise(memory + at, FOLIO, libc::MADV_DONTNEED)));
    note("first touch by the kernel", &mut |at| write(nursery + at, 1, 1));
    note("MOVE in", &mut |at| uffd.move_resident(memory + at, nursery + at, FOLIO).expect("MOVE"));
    note("split by MADV_COLD of a page", &mut |at| assert!(advise(memory + at, PAGE, libc::MADV_COLD)));
    note("COPY in 512 pages", &mut |at| {
        advise(memory + at, FOLIO, libc::MADV_DONTNEED);
        (0..FOLIO).step_by(PAGE).for_each(|i| uffd.copy(memory + at + i, small.as_ptr() as usize, PAGE).expect("COPY"))
    });
    note("collapse while NOHUGEPAGE", &mut |at| assert!(!advise(memory + at, FOLIO, libc::MADV_COLLAPSE)));
    note("collapse", &mut |at| {
        advise(memory + at, FOLIO, libc::MADV_HUGEPAGE);
        assert!(advise(memory + at, FOLIO, libc::MADV_COLLAPSE));
        advise(memory + at, FOLIO, libc::MADV_NOHUGEPAGE);
    });
    note("first touch by the kernel", &mut |at| write(nursery + at, 1, 1));
    note("write all of it", &mut |at| write(nursery + at, FOLIO, 0));
    note("drop all of it", &mut |at| assert!(advise(memory + at, FOLIO, libc::MADV_DONTNEED)));
    note("drop all of the nursery", &mut |at| assert!(advise(nursery + at, FOLIO, libc::MADV_DONTNEED)));
    all
}

fn main() {
    let uffd = Uffd::open().expect("userfaultfd; it needs Linux 5.11 and what docs/contract.md says");
    if !uffd.has_move() {
        return println!("this kernel has no MOVE (Linux 6.8)");
    }
    let stop = AtomicBool::new(false);
    let mut columns = Vec::new();
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
            let passes: Vec<_> = (0..PASSES).map(|_| pass(&uffd)).collect();
            stop.store(true, Relaxed);
            columns.push(passes);
        });
    }
    println!("| what | alone | beside a thread | huge folios |");
    println!("|-|-:|-:|-:|");
    for (i, (name, (_, huge))) in columns[0][0].iter().enumerate() {
        let best = |column: usize| columns[column].iter().map(|pass| pass[i].1.0).fold(f64::MAX, f64::min);
        println!("| {name} | {:.2} | {:.2} | {huge} |", best(0), best(1));
    }
}
