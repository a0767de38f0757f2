//! The program break, both ways. Worker 0 alone moves it; the C library's heap is told to keep away (see `main`).
//! The area never shrinks to nothing: what lies at the break then is not the C library's heap, so that is never trimmed.

use crate::content::PAGE;
use crate::model::{Area, Page};
use crate::report::{detail, fail};
use crate::sys::RW;
use crate::worker::{Run, Worker};
use std::io::Error;

/// Owner of what lies between the break at the start and the break now.
pub struct Break {
    area: Area,
}

/// Most pages the break grows by.
const PAGES_MAX: usize = 512;
/// Area number of the break in stamps.
const AREA: u32 = 0x3fff;

fn sbrk(bytes: isize) -> usize {
    // SAFETY: moves the end of this structure's own range.
    let old = unsafe { libc::sbrk(bytes) } as usize;
    if old == usize::MAX {
        fail(format_args!("sbrk of {bytes}: {}", Error::last_os_error()));
    }
    old
}

unsafe extern "C" {
    static stderr: *mut libc::FILE;
    static __libc_single_threaded: core::ffi::c_char;
    fn malloc_info(options: core::ffi::c_int, stream: *mut libc::FILE) -> core::ffi::c_int;
}

/// Only the C library's heap at the break could have moved it: how large that is, and whether others use it.
fn say_heaps() {
    // SAFETY: both are the C library's own, and outlive the program.
    let (single, told) =
        unsafe { (core::ptr::read_volatile(&raw const __libc_single_threaded), malloc_info(0, stderr)) };
    detail(format_args!("the C library takes the program for one of a single thread: {single}; malloc_info: {told}"));
}

impl Break {
    pub fn new() -> Self {
        let now = sbrk(0);
        let base = now.next_multiple_of(PAGE);
        sbrk((base - now) as isize);
        let mut this = Self { area: Area { id: AREA, base, pages: Vec::with_capacity(PAGES_MAX) } };
        this.resize(1);
        this
    }

    fn end(&self) -> usize {
        self.area.base + self.area.pages.len() * PAGE
    }

    fn resize(&mut self, pages: usize) {
        let old = self.area.pages.len();
        if sbrk(0) != self.end() {
            say_heaps();
            fail(format_args!("the break is at {:#x}, not {:#x}", sbrk(0), self.end()));
        }
        sbrk((pages as isize - old as isize) * PAGE as isize);
        self.area.pages.resize(pages, Page::zero(RW));
    }

    pub fn check_all(&self) {
        self.area.check_all();
    }

    /// In a forked child nothing is different.
    pub fn area(&mut self) -> &mut Area {
        &mut self.area
    }

    pub fn release(&mut self) {
        self.resize(1);
    }
}

/// Grows, shrinks, writes or checks.
pub fn step(worker: &mut Worker) {
    let Some(mut program_break) = worker.program_break.take() else { return };
    let pages = program_break.area.pages.len();
    match worker.rng.below(4) {
        0 => program_break.resize(worker.rng.between(pages, PAGES_MAX)),
        1 => program_break.resize(worker.rng.between(1, pages)),
        2 => {
            let start = worker.rng.below(pages);
            let len = worker.rng.between(0, pages - start);
            for page in start..start + len {
                let stamp = worker.stamp(AREA, page);
                program_break.area.write(page, stamp);
            }
        }
        _ => program_break.check_all(),
    }
    worker.program_break = Some(program_break);
}

/// Writes to a part of the break in a forked child.
pub fn write_in_child(worker: &mut Worker) {
    let Some(mut program_break) = worker.program_break.take() else { return };
    let run = Run { area: 0, start: 0, len: program_break.area.pages.len() };
    for page in (run.start..run.len).step_by(3) {
        let stamp = worker.stamp(AREA, page);
        program_break.area.write(page, stamp);
    }
    worker.program_break = Some(program_break);
}
