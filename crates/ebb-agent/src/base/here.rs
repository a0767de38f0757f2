//! The engine's space, and where the agent itself lies.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use ebb::Space;
use ebb::uapi;

pub(crate) static SPACE: AtomicPtr<Space> = AtomicPtr::new(core::ptr::null_mut());
pub(crate) static TEXT_START: AtomicU64 = AtomicU64::new(0);
pub(crate) static TEXT_END: AtomicU64 = AtomicU64::new(0);
pub(crate) static WRITTEN_START: AtomicU64 = AtomicU64::new(0);
pub(crate) static WRITTEN_END: AtomicU64 = AtomicU64::new(0);

/// The process's space; none while the agent is inert.
#[inline]
pub fn space() -> Option<&'static Space> {
    // SAFETY: stored once from a reference that lives as long as the process.
    unsafe { SPACE.load(Ordering::Relaxed).as_ref() }
}

/// Address range of the agent's own code. System calls from there are not caught.
pub fn text_range() -> (u64, u64) {
    (TEXT_START.load(Ordering::Relaxed), TEXT_END.load(Ordering::Relaxed))
}

/// Address range of this library's writable data, which the program could take for memory of its own.
pub fn written_range() -> (u64, u64) {
    (WRITTEN_START.load(Ordering::Relaxed), WRITTEN_END.load(Ordering::Relaxed))
}

unsafe extern "C" {
    /// Start of the loaded library, from the linker.
    static __ehdr_start: [u8; 64];
}

/// Program headers of this library: the address of the first, and how many there are.
fn own_headers() -> (*const [u64; 7], usize) {
    const HEADERS_AT: usize = 32;
    const COUNT_AT: usize = 56;
    let base = &raw const __ehdr_start as u64;
    // SAFETY: the linker places the ELF header and its program headers in the first loaded segment.
    unsafe {
        let first = (base + (base as *const u64).byte_add(HEADERS_AT).read()) as *const [u64; 7];
        (first, (base as *const u16).byte_add(COUNT_AT).read() as usize)
    }
}

/// The loaded segments of this library: start and end of each.
pub fn own_segments() -> impl Iterator<Item = (u64, u64)> {
    const PT_LOAD: u32 = 1;
    let (first, count) = own_headers();
    // SAFETY: as many headers as the ELF header says.
    let headers = (0..count).map(move |i| unsafe { first.add(i).read() });
    headers.filter(|header| header[0] as u32 == PT_LOAD).map(|header| {
        let start = &raw const __ehdr_start as u64 + header[2];
        (start, start + header[5])
    })
}

/// Whether `ip` is in code of this library.
pub fn is_own_code(ip: u64) -> bool {
    own_segments().any(|(start, end)| (start..end).contains(&ip))
}

/// Address range of this library, with its data.
pub fn own_range() -> (u64, u64) {
    own_segments().fold((u64::MAX, 0), |all, (start, end)| (all.0.min(start), all.1.max(end)))
}

/// Finds this library's writable segment, and tells the engine where it is.
pub fn find_written() {
    const PT_LOAD: u32 = 1;
    const PF_W: u64 = 2;
    let (first, count) = own_headers();
    // SAFETY: as many headers as the ELF header says.
    let headers = (0..count).map(|i| unsafe { first.add(i).read() });
    for header in headers.filter(|header| header[0] as u32 == PT_LOAD && (header[0] >> 32) & PF_W != 0) {
        let start = &raw const __ehdr_start as u64 + header[2];
        WRITTEN_START.store(start & !4095, Ordering::Relaxed);
        WRITTEN_END.store((start + header[5]).next_multiple_of(4096), Ordering::Relaxed);
        let (start, end) = written_range();
        uapi::own::set_data(start as usize, end as usize);
    }
}
