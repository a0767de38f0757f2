//! Protections, accesses that must fault, and code in memory under test.

use crate::content::PAGE;
use crate::model::Page;
use crate::report::{COUNTS, add, fail};
use crate::sys::{self, NONE, READ, RW, RX};
use crate::worker::Worker;
use std::io::Error;

/// Changes the protection of a run.
pub fn protect(worker: &mut Worker) {
    let max = worker.length();
    let prot = worker.rng.pick(&[NONE, READ, RW, RW, RW, RX]);
    if let Some(run) = worker.run_of(max, Page::is_mapped) {
        sys::protect(worker.addr(run), run.len, prot);
        worker.areas[run.area].update(run.start, run.len, |page| page.protected(prot));
    }
}

/// Touches pages that deny it: the fault must come, and the content must stay.
pub fn guard(worker: &mut Worker) {
    let Some(run) = worker.run_of(8, |page| page.is_mapped() && !page.is_writable()) else { return };
    let area = &worker.areas[run.area];
    for page in run.start..run.start + run.len {
        let at = area.addr(page) + worker.rng.below(PAGE);
        let readable = area.page(page).is_readable();
        if sys::guarded_store(at, 0xee) {
            fail(format_args!("a write to {at:#x}, protection {}, succeeded", area.page(page).prot()));
        }
        if sys::guarded_load(at).is_some() != readable {
            fail(format_args!("a read of {at:#x}, protection {}, was wrong", area.page(page).prot()));
        }
        add(&COUNTS.guarded_faults, 2 - usize::from(readable));
        area.check(page);
    }
    let first = area.page(run.start);
    if !first.is_readable() {
        refuse_in_call(area.addr(run.start));
    }
}

/// A system call with a buffer that denies reading says so.
fn refuse_in_call(addr: usize) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    sys::must("pipe2", || unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } as isize);
    // SAFETY: the kernel checks the buffer.
    let wrote = sys::attempt(|| unsafe { libc::write(ends[1], addr as *const libc::c_void, 64) });
    if wrote != Err(libc::EFAULT) {
        fail(format_args!("write() from {addr:#x}, which denies reading, gave {wrote:?}"));
    }
    for end in ends {
        // SAFETY: closes what was opened above.
        unsafe { libc::close(end) };
    }
}

const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

/// Guard regions (Linux 6.13): they drop the content and deny every access.
pub fn guard_pages(worker: &mut Worker) {
    let Some(run) = worker.run_of(16, Page::is_writable) else { return };
    let addr = worker.addr(run);
    if sys::advise(addr, run.len, MADV_GUARD_INSTALL) != 0 {
        return;
    }
    for page in 0..run.len {
        if sys::guarded_load(addr + page * PAGE).is_some() {
            fail(format_args!("a guard page at {:#x} could be read", addr + page * PAGE));
        }
    }
    add(&COUNTS.guarded_faults, run.len);
    let error = sys::advise(addr, run.len, MADV_GUARD_REMOVE);
    if error != 0 {
        fail(format_args!("MADV_GUARD_REMOVE: error {error}"));
    }
    worker.areas[run.area].update(run.start, run.len, Page::wiped);
    (run.start..run.start + run.len).for_each(|page| worker.areas[run.area].check(page));
}

/// Calls a function written into memory under test: an instruction fetch may be what brings it back.
pub fn code(worker: &mut Worker) {
    if let Some((addr, result)) = worker.code {
        // SAFETY: `addr` holds the function written below, executable and unchanged since.
        let function: extern "C" fn() -> u32 = unsafe { core::mem::transmute(addr) };
        let found = function();
        if found != result {
            fail(format_args!("code at {addr:#x} returned {found:#x}, not {result:#x}"));
        }
        if worker.rng.one_in(16) {
            sys::unmap(addr & !(PAGE - 1), 2);
            worker.code = None;
        }
        return;
    }
    let base = sys::map(2, RW, 0);
    let result = worker.rng.next() as u32;
    // mov eax, imm32; ret: placed across the page boundary.
    let addr = base + PAGE - 3;
    let [a, b, c, d] = result.to_le_bytes();
    // SAFETY: six bytes inside the two pages just mapped.
    unsafe { core::ptr::copy_nonoverlapping([0xb8, a, b, c, d, 0xc3].as_ptr(), addr as *mut u8, 6) };
    // SAFETY: nobody else knows this memory.
    if unsafe { libc::mprotect(base as *mut libc::c_void, 2 * PAGE, RX) } != 0 {
        fail(format_args!("mprotect to executable: {}", Error::last_os_error()));
    }
    worker.code = Some((addr, result));
}
