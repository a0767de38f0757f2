//! Patches libc: a jump into the agent replaces `mov eax, NUMBER` in front of a `syscall` instruction.
//!
//! The sites come from `ebb` (`EBB_SITES`, made by `ebb-cli`, `sites`), which has decoded the code around them. They hold for
//! the libc with the same build ID. This process's libc is looked for in the loader's own list, and each site must have exactly
//! the bytes that are expected. Otherwise nothing is patched. Nothing here allocates or calls the loader.

use crate::base::images;
use crate::dormant::trampoline::{SITES_MAX, TRAMPOLINE, slot};
use core::ffi::{CStr, c_int};
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;
use ebb::uapi;
use linux_raw_sys::general as g;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

const BUILD_ID_BYTES_MAX: usize = 32;
/// Bytes of `mov eax, imm32`, which the jump replaces.
const MOV_BYTES: u64 = 5;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;

/// Libraries that make their own system calls, of which Ebb must know from the start.
const EVADING: [&[u8]; 2] = [b"liburing.so", b"libaio.so"];

/// The table of sites, as `ebb` made it.
#[derive(Clone, Copy)]
struct Table {
    build_id: [u8; BUILD_ID_BYTES_MAX],
    build_id_bytes: usize,
    anchor: u64,
    sites: [(u32, u64); SITES_MAX],
    count: usize,
}

impl Table {
    fn parse(text: &[u8]) -> Option<Self> {
        let mut this = Self {
            build_id: [0; BUILD_ID_BYTES_MAX],
            build_id_bytes: 0,
            anchor: 0,
            sites: [(0, 0); SITES_MAX],
            count: 0,
        };
        let mut parts = text.split(|&c| c == b',');
        for pair in parts.next()?.chunks(2) {
            *this.build_id.get_mut(this.build_id_bytes)? = u8::try_from(hex(pair)?).ok()?;
            this.build_id_bytes += 1;
        }
        this.anchor = hex(parts.next()?)?;
        for part in parts {
            let at = part.iter().position(|&c| c == b'@')?;
            let site = (u32::try_from(hex(&part[..at])?).ok()?, hex(&part[at + 1..])?);
            *this.sites.get_mut(this.count)? = site;
            this.count += 1;
        }
        (this.count > 0).then_some(this)
    }
}

/// Parses a hexadecimal number of at most 16 digits.
fn hex(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    text.iter().try_fold(0u64, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | digit as u64)
    })
}

/// A program header of the 64-bit ELF.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Header {
    kind: u32,
    flags: u32,
    offset: u64,
    vaddr: u64,
    paddr: u64,
    filesz: u64,
    memsz: u64,
    align: u64,
}

/// Calls `f` with name, type and content of each note of an image, until `f` answers true. Returns whether it did.
///
/// # Safety
/// `headers` must be those of the image loaded at `base`.
pub unsafe fn any_note(base: u64, headers: &[Header], mut f: impl FnMut(&[u8], u32, &[u8]) -> bool) -> bool {
    for header in headers.iter().filter(|header| header.kind == PT_NOTE) {
        // SAFETY: the segment is mapped readable; the caller's contract.
        let mut notes =
            unsafe { core::slice::from_raw_parts((base + header.vaddr) as *const u8, header.memsz as usize) };
        while let Some((head, rest)) = notes.split_at_checked(12) {
            let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
            let (name, content) = (word(0) as usize, word(4) as usize);
            let content_at = name.next_multiple_of(4);
            let (Some(name), Some(text)) = (rest.get(..name), rest.get(content_at..content_at + content)) else {
                break;
            };
            if f(name, word(8), text) {
                return true;
            }
            notes = rest.get(content_at + content.next_multiple_of(4)..).unwrap_or_default();
        }
    }
    false
}

/// The program headers of the image loaded at `base`.
///
/// # Safety
/// An image must be loaded there, with its headers.
unsafe fn headers_of(base: u64) -> &'static [Header] {
    const HEADERS_AT: u64 = 32;
    const COUNT_AT: u64 = 56;
    // SAFETY: the ELF header says where they are, in the first loaded segment.
    unsafe {
        let first = base + ((base + HEADERS_AT) as *const u64).read();
        core::slice::from_raw_parts(first as *const Header, ((base + COUNT_AT) as *const u16).read().into())
    }
}

/// Finds where this process's libc is loaded. None when the loader does not list it there, or when a library is loaded
/// that evades the sites.
fn find(table: &Table) -> Option<u64> {
    let base = (__errno_location as *const () as u64).wrapping_sub(table.anchor);
    let mut at = images::first();
    let mut found = false;
    // SAFETY: the loader's list, which nobody changes while constructors run.
    while let Some(entry) = unsafe { at.as_ref() } {
        found |= entry.base == base;
        // SAFETY: a string of the loader's.
        let name = unsafe { CStr::from_ptr(entry.name) }.to_bytes();
        let file = name.rsplit(|&c| c == b'/').next().unwrap_or(name);
        if EVADING.iter().any(|library| file.starts_with(library)) {
            return None;
        }
        at = entry.next;
    }
    found.then_some(base)
}

/// Whether the loader has loaded an image whose dynamic section is from `start` to `end`.
pub fn is_dynamic_within(start: usize, end: usize) -> bool {
    let mut at = images::first();
    // SAFETY: the loader's list. Only this thread could change it, and does not just now.
    while let Some(entry) = unsafe { at.as_ref() } {
        if (start..end).contains(&(entry.dynamic as usize)) {
            return true;
        }
        at = entry.next;
    }
    false
}

/// Patches this process's libc by the table `text`. False when it cannot; then nothing is patched.
///
/// # Safety
/// The process must have one thread, and no signal handler installed.
// Not inlined: the layout of the library goes by the names of functions.
#[inline(never)]
pub unsafe fn patch(text: &[u8]) -> bool {
    let Some(table) = Table::parse(text) else { return false };
    let Some(base) = find(&table) else { return false };
    // SAFETY: an image that the loader names.
    let headers = unsafe { headers_of(base) };
    let build_id = &table.build_id[..table.build_id_bytes];
    const NT_GNU_BUILD_ID: u32 = 3;
    let is_it = |name: &[u8], kind, id: &[u8]| name == b"GNU\0" && kind == NT_GNU_BUILD_ID && id == build_id;
    // SAFETY: as above.
    if !unsafe { any_note(base, headers, is_it) } {
        return false;
    }
    let Some(text) = headers.iter().find(|header| header.kind == PT_LOAD && header.flags & PF_X != 0) else {
        return false;
    };
    let (start, end) = (base + text.vaddr, base + text.vaddr + text.filesz);
    let sites = &table.sites[..table.count];
    let mut places = [0; SITES_MAX];
    for (place, &(_, offset)) in places.iter_mut().zip(sites) {
        *place = base.wrapping_add(offset);
    }
    let places = &mut places[..sites.len()];
    if places.iter().any(|&at| at < start || at.saturating_add(SITE_BYTES as u64) > end) {
        return false;
    }
    let (windows, nr_windows) = windows(places);
    let windows = &windows[..nr_windows];
    let is_done = protect(windows, g::PROT_READ | g::PROT_WRITE | g::PROT_EXEC)
        // SAFETY: inside libc's code, writable now.
        && unsafe { are_as_expected(base, sites) };
    if is_done {
        for (i, &(nr, offset)) in sites.iter().enumerate() {
            let at = base + offset;
            let Some(distance) = distance(at, i) else { continue };
            let d = distance.to_le_bytes();
            TRAMPOLINE.sites[i].after.store(at + MOV_BYTES, Relaxed);
            TRAMPOLINE.sites[i].nr.store(nr as u64, Relaxed);
            // SAFETY: the bytes of one instruction, checked above, writable now; no other thread runs, and this code is
            // not in libc. The trampoline returns to the instruction behind it.
            unsafe { (at as *mut [u8; 5]).write([0xe9, d[0], d[1], d[2], d[3]]) };
        }
    }
    // A page stays writable only if the kernel refuses the protection that it had before.
    protect(windows, g::PROT_READ | g::PROT_EXEC);
    is_done
}

/// Bytes of `mov eax, imm32; syscall`.
const SITE_BYTES: usize = 7;

/// Whether all `sites` of the image at `base` have the very bytes that are expected, and a slot within reach.
///
/// # Safety
/// The sites must be inside the image, and writable; no other thread runs.
unsafe fn are_as_expected(base: u64, sites: &[(u32, u64)]) -> bool {
    sites.iter().enumerate().all(|(i, &(nr, offset))| {
        let at = base + offset;
        let n = nr.to_le_bytes();
        let expected = [0xb8, n[0], n[1], n[2], n[3], 0x0f, 0x05];
        // Before a page is read, write to it the byte that it has (a compare-and-exchange always writes). The page is
        // to be written anyway: a read would have the kernel map the file's page, and its neighbours, only to put a
        // copy there a moment later.
        // SAFETY: the caller's contract.
        let bytes = unsafe {
            let _ = AtomicU8::from_ptr(at as *mut u8).compare_exchange(expected[0], expected[0], Relaxed, Relaxed);
            (at as *const [u8; SITE_BYTES]).read()
        };
        bytes == expected && distance(at, i).is_some()
    })
}

/// Sites whose pages have fewer bytes than this between them are made writable together. Each window costs the kernel a
/// mapping that is split and joined again; each page in a window costs it a look.
const WINDOW_GAP_BYTES: u64 = 512 << 10;

/// Sorts `places` and covers their pages with few windows. Returns start and end of each window, and how many there are.
fn windows(places: &mut [u64]) -> ([(u64, u64); SITES_MAX], usize) {
    const PAGE: u64 = ebb::PAGE as u64;
    places.sort_unstable();
    let (mut windows, mut n) = ([(0, 0); SITES_MAX], 0);
    for &at in places.iter() {
        let (start, end) = (at & !(PAGE - 1), (at + MOV_BYTES).next_multiple_of(PAGE));
        if n > 0 && start < windows[n - 1].1 + WINDOW_GAP_BYTES {
            windows[n - 1].1 = end;
        } else {
            windows[n] = (start, end);
            n += 1;
        }
    }
    (windows, n)
}

/// Sets the protection of all `windows`. False when the kernel refuses one of them; the others have it all the same.
fn protect(windows: &[(u64, u64)], protection: u32) -> bool {
    let results =
        windows.iter().map(|&(start, end)| uapi::mprotect(start as usize, (end - start) as usize, protection));
    results.fold(true, |ok, result| ok & result.is_ok())
}

/// The operand of a jump from `at` to slot `i`; none when the slot is too far away.
fn distance(at: u64, i: usize) -> Option<i32> {
    i32::try_from(slot(i).wrapping_sub(at + MOV_BYTES) as i64).ok()
}

/// Whether the main program is written in Go, which makes its system calls by itself.
///
/// # Safety
/// `headers` must be the main program's (AT_PHDR), `count` of them.
pub unsafe fn is_go(headers: *const Header, count: usize) -> bool {
    const PT_PHDR: u32 = 6;
    // SAFETY: the caller's contract.
    let headers = unsafe { core::slice::from_raw_parts(headers, count) };
    let Some(own) = headers.iter().find(|header| header.kind == PT_PHDR) else { return false };
    let base = (headers.as_ptr() as u64).wrapping_sub(own.vaddr);
    // SAFETY: the caller's contract; the headers themselves say where they are.
    unsafe { any_note(base, headers, |name, _, _| name == b"Go\0\0") }
}

/// Bytes of the main program that are a process's own from the start on: zeroed memory (`.bss`), and what the loader relocates.
///
/// # Safety
/// As [`is_go`].
pub unsafe fn own_bytes(headers: *const Header, count: usize) -> (u64, u64) {
    const PT_GNU_RELRO: u32 = 0x6474_e552;
    // SAFETY: the caller's contract.
    let headers = unsafe { core::slice::from_raw_parts(headers, count) };
    let sum = |kind, of: fn(&Header) -> u64| {
        headers.iter().filter(|header| header.kind == kind).map(of).fold(0, u64::saturating_add)
    };
    (sum(PT_LOAD, |header| header.memsz.saturating_sub(header.filesz)), sum(PT_GNU_RELRO, |header| header.memsz))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_build_id_anchor_and_places() {
        let table = Table::parse(b"93ac,27ab0,c@fdc40,1b3@1098d2").expect("a table");
        assert_eq!((&table.build_id[..2], table.build_id_bytes, table.anchor), (&[0x93, 0xac][..], 2, 0x27ab0));
        assert_eq!(table.sites[..table.count], [(12, 0xfdc40), (435, 0x1098d2)]);
    }

    #[test]
    fn what_a_program_begins_with_is_zeroed_or_relocated() {
        let header =
            |kind, filesz, memsz| Header { kind, flags: 0, offset: 0, vaddr: 0, paddr: 0, filesz, memsz, align: 0 };
        let all = [
            header(PT_LOAD, 100, 100),
            header(PT_LOAD, 10, 5000),
            header(0x6474_e552, 700, 800),
            header(PT_NOTE, 0, 9),
        ];
        // SAFETY: headers of no image, of which only these words are read.
        assert_eq!(unsafe { own_bytes(all.as_ptr(), all.len()) }, (4990, 800));
    }

    #[test]
    fn a_table_without_places_or_with_other_text_is_none() {
        for text in [&b""[..], b"93ac", b"93ac,27", b"93ac,27,c", b"zz,27,c@1", b"93ac,27,c@"] {
            assert!(Table::parse(text).is_none());
        }
    }

    #[test]
    fn places_are_made_writable_by_the_page_and_those_close_together_at_once() {
        let mut places = [0x20_9ffe, 0x1010, 0x20_1234, 0x1ff0];
        let (windows, n) = windows(&mut places);
        assert_eq!(windows[..n], [(0x1000, 0x2000), (0x20_1000, 0x20_b000)]);
    }

    #[test]
    fn a_table_of_another_libc_patches_nothing() {
        // SAFETY: nothing is patched.
        assert!(!unsafe { patch(b"93ac,1,c@fdc40") });
    }
}
